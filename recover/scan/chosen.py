"""The queues whose rows a scan has to keep; what is asked of all others can be counted."""

from __future__ import annotations

from msgspec import Struct

from recover.files.topics import topic_text


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
