"""What a store lacks, or counts in an old way: traces that the releases from some point on would have left."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from formats.index import INDEX_HEADER
from recover.broker.versions import BrokerVersion
from recover.files.reader import read_small
from recover.files.store import Store
from recover.index.files import index_geometry, list_index_files

_STARTED = ("lock", "checkpoint")


class Limit(Struct, frozen=True):
    """One reason why the broker that ran last is older than `before`."""

    before: BrokerVersion
    why: str

    def json(self) -> dict[str, str]:
        """The keys of the document."""
        return {"before": str(self.before), "why": self.why}


def find_limits(store: Store) -> list[Limit]:
    """All limits, the lowest first. A folder in which nobody has started a broker (no lock, no checkpoint) has none."""
    if not any((store.root / name).exists() for name in _STARTED):
        return []
    return sorted((*_of_files(store), *_of_index(store)), key=lambda limit: limit.before)


def _of_files(store: Store) -> Iterator[Limit]:
    if not (store.root / "rocksdbstore").exists():
        yield Limit(BrokerVersion(5, 4), "no rocksdbstore, which every start makes from 5.4.0 on")
    # a backup is made when abort is written, at every start
    if not (store.root / "abort.bak").exists() and not (store.root / "timerwheel").exists():
        yield Limit(BrokerVersion(5, 0), "neither abort.bak nor timerwheel, which 5.x starts make")


def _of_index(store: Store) -> Iterator[Limit]:
    """Up to 4.7.0 every entry counted as a slot in use, so a crowded file of that time counts too many."""
    listing = list_index_files(store.index_dir)
    geometry = index_geometry(store, listing)
    if not listing.files or geometry is None:
        return
    content = read_small(listing.files[-1].path, INDEX_HEADER.size)
    if len(content) < INDEX_HEADER.size:
        return
    header = INDEX_HEADER.decode(content)
    if header.hash_slot_count == header.index_count - 1 and header.hash_slot_count ** 2 > 16 * geometry.slots:
        yield Limit(BrokerVersion(4, 7, 1), "the newest index file counts each of its entries as a slot in use")
