"""Where a store keeps what was done to it, and whether anything was."""

from __future__ import annotations

import os
from pathlib import Path

JOURNAL_DIR = ".mqtool"


def has_journal(root: Path) -> bool:
    """False only where nothing has that name; one that cannot be looked at is for `recover.plan.journal` to judge."""
    try:
        os.lstat(root / JOURNAL_DIR)
    except FileNotFoundError:
        return False
    except OSError:
        pass
    return True
