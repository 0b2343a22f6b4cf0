"""What the commands over earlier runs (journal, undo, resume) share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recover.store.store import StoreOptions


def run_root(store: str, options: StoreOptions | None = None) -> Path:
    """The root of a store that may be too damaged to look like one, as long as it has a journal; else `NotAStore`."""
    from recover.store.store import JOURNAL_DIR, Store

    root = Path(store)
    if not (root / JOURNAL_DIR).is_dir():
        Store.open(root, options)
    return root
