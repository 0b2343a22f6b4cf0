"""mqtool without fsync, to tell what that costs: `python -m benchmarks.unsynced rebuild STORE ...`."""

from __future__ import annotations

import os

from mqtool.__main__ import run

if __name__ == "__main__":
    os.fsync = os.fdatasync = lambda fd: None
    run()
