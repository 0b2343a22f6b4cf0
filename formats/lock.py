"""lock: the file whose first byte a running broker keeps locked (DefaultMessageStore.start).

The lock is a POSIX record lock on that byte; the content only shows that a broker once had it.
"""

from __future__ import annotations

FILE_NAME = "lock"
