"""Stores whose log or queues are kept where mqtool does not read them, made of a store with files."""

from __future__ import annotations

import shutil
from pathlib import Path

from fixtures.damage import walk
from formats.consumequeue import BATCH_CQ_UNIT, CQ_UNIT, BatchCqUnit
from formats.dledger import DLEDGER_ENTRY_HEAD, DLedgerEntryHead
from tests.support.stores import unpacked, write_at

FIRST = "0" * 20


def put(path: Path, content: bytes) -> None:
    """Write a file, its folders with it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def entry(position: int, number: int, record: bytes) -> bytes:
    """An entry of a DLedger log."""
    size = DLEDGER_ENTRY_HEAD.size
    return DLEDGER_ENTRY_HEAD.encode(DLedgerEntryHead(1, size + len(record), number, 1, position, 0, 0, 0, len(record)
                                                      )) + record


def to_dledger(root: Path, keep: int = 0) -> Path:
    """All of the log but the first `keep` files as entries of a DLedger, the units pointed at the records there."""
    files = walk.log_files(root)
    start = files[keep].file_from_offset if keep else 0
    position, number, content = start, 0, bytearray()
    moved: dict[int, int] = {}
    for file in files[keep:]:
        log = file.read()
        for hit in walk.records_of(file):
            moved[hit.record.phy_offset] = position + DLEDGER_ENTRY_HEAD.size
            made = entry(position, number, log[hit.position : hit.end])
            content += made
            position, number = position + len(made), number + 1
        file.path.unlink()
    for queue in walk.queues(root):
        for hit in walk.units(queue):
            if hit.unit.phy_offset in moved:
                write_at(hit.file.path, hit.position,
                         CQ_UNIT.encode(hit.unit._replace(phy_offset=moved[hit.unit.phy_offset])))
    put(root / "dledger-n0" / "data" / str(start).zfill(20), bytes(content))
    return root


def add_rocksdb(folder: Path, *, empty: bool = True) -> None:
    """A real database: that of the queues of a broker that was killed (`empty`), or stopped."""
    store = unpacked(f"kinds/{'killed' if empty else 'clean'}-rocksdb-5.5.0")
    folder.mkdir(parents=True, exist_ok=True)
    for file in (store / "consumequeue").iterdir():
        shutil.copy2(file, folder)


def to_rocksdb(root: Path, *, empty: bool = False, separate: bool = False) -> Path:
    """Queues in RocksDB instead of files; `empty` as after a kill."""
    shutil.rmtree(root / "consumequeue")
    folder = root / ("consumequeue_rocksdb" if separate else "consumequeue")
    (root / "consumequeue").mkdir()
    add_rocksdb(folder, empty=empty)
    return root


def add_batch_queue(root: Path, topic: str = "Batch") -> None:
    """A batch queue of one unit."""
    put(root / "batchconsumequeue" / topic / "0" / FIRST, BATCH_CQ_UNIT.encode(BatchCqUnit(7, 9, 0, 1, 0, 3, -1, 0)))
