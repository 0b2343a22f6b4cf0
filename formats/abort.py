"""abort: there while a broker runs, and after it did not stop as it should.

4.x leaves it empty, 5.x writes its process id. `abort.bak` (5.x) is the `abort` that the last start
found: empty after a clean stop, the id of the crashed process otherwise.
"""

from __future__ import annotations

from formats.errors import FormatError
from formats.layout import Buffer

BACKUP_NAME = "abort.bak"
_LONGEST_PID = 10


def decode(buffer: Buffer) -> int | None:
    """The process id in the file, None for an empty one; `FormatError("bad-abort")` for anything else."""
    text = bytes(buffer[:_LONGEST_PID + 1]).strip()
    if not text:
        return None
    if len(text) > _LONGEST_PID or not text.isdigit():
        raise FormatError("bad-abort", 0, "the file holds something else than a process id", length=len(buffer))
    return int(text)
