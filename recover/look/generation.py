"""Which broker wrote this store? Each trace that only some releases leave, and what follows from all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct, field

from formats import properties as props
from formats.checkpoint import SINCE, Checkpoint
from formats.errors import FormatError
from formats.index import INDEX_HEADER
from formats.record import MAGIC_V2, Record
from formats.sysflag import BORNHOST_V6, INNER_BATCH, NEED_UNWRAP, STOREHOST_V6
from recover.broker.versions import OLDEST_COMPARED, BrokerVersion
from recover.derived.index_files import index_geometry, list_index_files
from recover.log.file_scan import scan_file
from recover.log.judge import LogReader
from recover.store.reader import read_small
from recover.store.store import Store

# --- What a store lacks, or counts in an old way: traces that the releases from some point on would have left.


_STARTED = ("lock", "checkpoint")


class Limit(NamedTuple):
    """One reason why the broker that ran last is older than `before`."""

    before: BrokerVersion
    why: str


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


_SAMPLED = 500


class Evidence(NamedTuple):
    """One trace: the first release that leaves it, and what it is."""

    since: BrokerVersion
    why: str


class Generation(Struct, frozen=True):
    """The newest release that the traces prove, and the traces. Later ones may have started on the store, too, but none
    from `before` on; None where nothing tells."""

    at_least: BrokerVersion
    evidence: list[Evidence]
    limits: list[Limit] = field(default_factory=list)

    @property
    def before(self) -> BrokerVersion | None:
        return self.limits[0].before if self.limits else None

    def json(self) -> dict[str, object]:
        """The keys of the document."""
        return {
            "at_least": str(self.at_least), "before": str(self.before) if self.before else None,
            "evidence": [{"since": str(item.since), "why": item.why} for item in self.evidence],
            "limits": [{"before": str(limit.before), "why": limit.why} for limit in self.limits],
        }


def find_generation(store: Store, checkpoint: Checkpoint | None) -> Generation:
    """All traces, the youngest first."""
    found = {item.why: item for item in (*_evidence_of_files(store), *_of_checkpoint(checkpoint), *_of_records(store))}
    evidence = sorted(found.values(), key=lambda item: item.since, reverse=True)
    least = evidence[0].since if evidence else OLDEST_COMPARED
    # what is there outweighs what is missing: files get lost, they do not come by themselves
    return Generation(least, evidence, [limit for limit in find_limits(store) if limit.before > least])


def _seen(since: str, why: str) -> Evidence:
    return Evidence(BrokerVersion.parse(since), why)


def _evidence_of_files(store: Store) -> Iterator[Evidence]:
    for name, since in (("rocksdbstore", "5.4.0"), ("abort.bak", "5.0.0"), ("timerwheel", "5.0.0"),
                        ("compaction", "5.0.0"), ("kvStore", "5.3.0"), ("consumequeue_rocksdb", "5.5.0"),
                        ("epochFileCheckpoint", "5.0.0")):
        if (store.root / name).exists():
            yield _seen(since, f"{name} is there")
    if (store.consumequeue_dir / "CURRENT").exists():
        yield _seen("5.2.0", "consumequeue/ holds a RocksDB")
    try:
        if store.abort_path.stat().st_size:
            yield _seen("5.0.0", "abort holds a process id")
    except OSError:
        pass
    if any(folder.topic.startswith("%LMQ%") for folder in store.queue_folders):
        yield _seen("4.9.3", "there are LMQ queues")


def _of_checkpoint(checkpoint: Checkpoint | None) -> Iterator[Evidence]:
    if checkpoint is None:
        return
    for name, since in SINCE.items():
        if since and getattr(checkpoint, name):
            yield _seen(since, f"the checkpoint has a {name.replace('_', ' ')}")


def _of_records(store: Store) -> Iterator[Evidence]:
    """A sample from both ends of the log: the broker that wrote last, and the one that wrote what is oldest."""
    files = store.commitlog.files
    with LogReader(store.commitlog) as reader:
        for mapped_file in {files[0], files[-1]} if files else ():
            scan = scan_file(mapped_file, store.commitlog.file_size)
            for split in scan.splits:
                for row in split.records[:_SAMPLED]:
                    yield from _at(reader, int(row["phy_offset"]), int(row["size"]))


def _at(reader: LogReader, phy_offset: int, size: int) -> Iterator[Evidence]:
    try:
        record = reader.record(phy_offset, size)
    except FormatError:  # it went after it was scanned, as in a log that its broker cleans up
        return
    yield from _of_record(record)


def _of_record(record: Record) -> Iterator[Evidence]:
    if record.magic == MAGIC_V2:
        yield _seen("5.1.0", "records with the V2 magic")
    # the bits of a compression type are the producer's: brokers of all releases store what the client sent
    if record.sys_flag & (NEED_UNWRAP | INNER_BATCH):
        yield _seen("5.0.0", "records with 5.x flags")
    if record.sys_flag & (BORNHOST_V6 | STOREHOST_V6):
        yield _seen("4.6.0", "records with IPv6 hosts")
    if record.property_crc is not None:
        yield _seen("5.2.0", "records with a property CRC")
    elif record.properties and not record.properties.endswith(props.PROPERTY_BYTE):
        yield _seen("4.9.1", "properties without the trailing separator, as 4.9.1 to 5.1 write them")
