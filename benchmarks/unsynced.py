"""mqtool without fsync, to tell what that costs: `python -m benchmarks.unsynced rebuild STORE ...`.

Nor does the disk get large files while they are written, which is there to have little left for the sync at their end.
"""

from __future__ import annotations

import os

from mqtool.__main__ import run
from recover.disk import content

if __name__ == "__main__":
    os.fsync = os.fdatasync = lambda fd: None
    content._begin_writeback = lambda fd, start, size: None
    run()
