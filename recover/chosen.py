"""The queues whose rows a scan has to keep; what is asked of all others can be counted."""

from __future__ import annotations

from msgspec import Struct

from recover.store import Store
from recover.topics import topic_text


class Chosen(Struct, frozen=True):
    """The queues of a topic, the one of a number if `queue_id` says so; none without a topic."""

    topic: str | None = None
    queue_id: int | None = None

    def takes(self, topic: str, queue_id: int) -> bool:
        """Whether a queue is among them."""
        return topic == self.topic and self.queue_id in (None, queue_id)

    def takes_raw(self, topic: bytes, queue_id: int) -> bool:
        """The same of a queue as the log names it."""
        return self.topic is not None and self.takes(topic_text(topic), queue_id)


NOTHING = Chosen()


def rows_asked_for(store: Store, made: Chosen | None) -> Chosen | None:
    """Whose rows are looked at where files are made of the queues `made` (None: of all); None for all queues.

    Other queues, an index and a checkpoint are held against the rows of the whole log, where a store has them.
    """
    if made is None or store.checkpoint_path.exists() or store.consumequeue_ext_dir.exists():
        return None
    from recover.index_files import list_index_files

    try:
        if list_index_files(store.index_dir).files:
            return None
        return made if all(made.takes(folder.topic, folder.queue_id) for folder in store.queue_folders) else None
    except OSError:
        return None  # for who looks at them to report
