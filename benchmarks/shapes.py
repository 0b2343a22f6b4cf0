"""The stores that are measured: how large, which messages, how many queues."""

from __future__ import annotations

from dataclasses import dataclass, replace

MEBI = 1 << 20
GIBI = 1 << 30
FULL_SIZE = 2_000 * MEBI


@dataclass(frozen=True, slots=True)
class Shape:
    """One store: `log_bytes` of log, bodies of `body` bytes, topics x queues filled in turn, `keys` words in KEYS."""

    name: str
    body: int
    log_bytes: int = FULL_SIZE
    topics: int = 20
    queues: int = 8
    keys: int = 2
    queue_file_bytes: int = 6_000_000

    @property
    def disk_bytes(self) -> int:
        """What the store and the derived files that the parties write beside it take, generously."""
        return self.log_bytes * 2 + 4_000 * MEBI

    def sized(self, log_bytes: int) -> Shape:
        """The same messages, more or fewer of them."""
        return replace(self, name=f"{log_bytes / GIBI:g} GiB", log_bytes=log_bytes)


def plain(body: int) -> Shape:
    """The usual store with bodies of `body` bytes."""
    return Shape(f"{body} B", body)


# Brokers take minutes to make ten thousand queue files of the usual size.
MANY_QUEUES = Shape("10,000 queues", 500, 200 * MEBI, topics=100, queues=100, queue_file_bytes=20_000)
