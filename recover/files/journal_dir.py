"""Where a store keeps what was done to it, and whether anything was."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from recover.errors import Refusal

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


def check_journal_folder(root: Path) -> None:
    """`Refusal` where the journal's folder, or that of its runs, is a link or no folder: it would lead elsewhere."""
    for name in (JOURNAL_DIR, f"{JOURNAL_DIR}/runs"):
        try:
            mode = os.lstat(root / name).st_mode
        except OSError:
            return
        if not stat.S_ISDIR(mode):
            raise Refusal(f"{name} is {'a link' if stat.S_ISLNK(mode) else 'no folder'}; mqtool did not make it",
                          f"move {JOURNAL_DIR} out of the store, then run the command again", file=name)
