"""Which broker wrote this store? Each trace that only some releases leave, and what follows from all of them."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field

from formats import properties as props
from formats.checkpoint import SINCE, Checkpoint
from formats.commitlog import MAGIC_V2, Record
from formats.errors import FormatError
from formats.sysflag import BORNHOST_V6, INNER_BATCH, NEED_UNWRAP, STOREHOST_V6
from recover.broker.versions import OLDEST_COMPARED, BrokerVersion
from recover.files.store import Store
from recover.inspect_store.limits import Limit, find_limits
from recover.memory.columns import ColumnStore
from recover.scan.file_scan import scan_file
from recover.scan.judge import LogReader

_SAMPLED = 500


class Evidence(Struct, frozen=True):
    """One trace: the first release that leaves it, and what it is."""

    since: BrokerVersion
    why: str

    def json(self) -> dict[str, str]:
        """The keys of the document."""
        return {"since": str(self.since), "why": self.why}


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
            "at_least": str(self.at_least), "evidence": [item.json() for item in self.evidence],
            "before": str(self.before) if self.before else None, "limits": [limit.json() for limit in self.limits],
        }


def find_generation(store: Store, checkpoint: Checkpoint | None) -> Generation:
    """All traces, the youngest first."""
    found = {item.why: item for item in (*_of_files(store), *_of_checkpoint(checkpoint), *_of_records(store))}
    evidence = sorted(found.values(), key=lambda item: item.since, reverse=True)
    least = evidence[0].since if evidence else OLDEST_COMPARED
    # what is there outweighs what is missing: files get lost, they do not come by themselves
    return Generation(least, evidence, [limit for limit in find_limits(store) if limit.before > least])


def _seen(since: str, why: str) -> Evidence:
    return Evidence(BrokerVersion.parse(since), why)


def _of_files(store: Store) -> Iterator[Evidence]:
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
            scan = scan_file(mapped_file, store.commitlog.file_size, ColumnStore())
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
