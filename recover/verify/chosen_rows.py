"""Which rows of the log a look at a store will ask for."""

from __future__ import annotations

from recover.files.store import Store
from recover.scan.chosen import Chosen


def rows_asked_for(store: Store, made: Chosen | None) -> Chosen | None:
    """Whose rows are looked at where files are made of the queues `made` (None: of all); None for all queues.

    Other queues, an index and a checkpoint are held against the rows of the whole log, where a store has them.
    """
    if made is None or store.checkpoint_path.exists() or store.consumequeue_ext_dir.exists():
        return None
    from recover.index.files import list_index_files

    try:
        if list_index_files(store.index_dir).files:
            return None
        return made if all(made.takes(folder.topic, folder.queue_id) for folder in store.queue_folders) else None
    except OSError:
        return None  # for who looks at them to report
