"""Parts whose data mqtool does not read. A part is told from its empty skeleton by looking, never by its name alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from formats.config import BY_NAME
from formats.names import OFFSET_DIGITS
from recover.files.config_files import read_config
from recover.files.reader import read_small
from recover.files.store import Store
from recover.findings import Finding, finding

if TYPE_CHECKING:
    from recover.verify.survey import Survey

_HEAD = 4096
_LISTED = 100_000
_DLEDGER_PREFIX = "dledger-"
_DLEDGER_PATH = "storePathDLedgerCommitLog"
_TIERED_PATH = "tieredStoreFilePath"
_TIERED_TABLE = "tieredStoreMetadata.json"


class OtherPart(Struct, frozen=True):
    """One such part. `needed_for`: the question (a part of verify) that its data belongs to, None if to no question
    that mqtool answers. `holds` describes the data found, "" for an empty skeleton."""

    path: Path
    what: str
    needed_for: str | None
    holds: Callable[[Path], str]


def check_other_parts(store: Store, look: Survey | None, wanted: frozenset[str] | None) -> Iterator[Finding]:
    """Each part that is there: `part-not-supported` when it holds data that a wanted question needs, else an info.

    `wanted` None: every question, and then the skeletons are listed, too. `look` None: the log was not read.
    """
    for part in _candidates(store, store.options.settings if look is None else look.options.settings):
        if not part.path.exists() or (wanted is not None and part.needed_for not in wanted):
            continue
        name = store.relative(part.path)
        try:
            held = part.holds(part.path)
        except OSError as error:
            yield finding("part-unreadable", name, None, part=name, error=error.strerror)
            continue
        if held and part.needed_for is not None:
            yield finding("part-not-supported", name, None, part=name, what=part.what, detail=held,
                          needed_for=part.needed_for)
        elif wanted is None:
            yield finding("part-recognised", name, None, part=name, what=part.what, detail=held or "no data in it")


def _candidates(store: Store, settings: dict[str, str]) -> Iterator[OtherPart]:
    root, config = store.root, store.config_dir
    if (store.consumequeue_dir / "CURRENT").exists():
        yield OtherPart(store.consumequeue_dir, "consume queues in RocksDB", "consumequeue", rocksdb_data)
    yield OtherPart(root / "consumequeue_rocksdb", "consume queues in RocksDB", "consumequeue", rocksdb_data)
    for name in ("topics", "subscriptionGroups", "consumerOffsets", "rdb"):
        if (config / name / "CURRENT").exists():
            yield OtherPart(config / name, "broker configuration in RocksDB", "config", rocksdb_data)
    yield OtherPart(root / "rocksdbstore", "RocksDB of index, timer and transactions", "index", rocksdb_data)
    yield OtherPart(root / "kvStore", "RocksDB of pop consumers", None, rocksdb_data)
    yield OtherPart(store.batchconsumequeue_dir, "batch consume queues", "consumequeue", mapped_data)
    yield OtherPart(root / "compaction" / "compactionLog", "logs of compacted topics", "commitlog", mapped_data)
    if not (root / "compaction" / "compactionLog").exists():
        yield OtherPart(root / "compaction", "compacted topics", None, lambda path: "")
    yield OtherPart(root / "transaction" / "statetable", "transaction states of 3.x", "commitlog", mapped_data)
    yield OtherPart(root / "timerlog", "timer messages, judged against the log", None, mapped_data)
    for path in _tiered(store, settings):
        yield OtherPart(path, "segments in tiered storage", "commitlog", any_file)
    yield OtherPart(config / _TIERED_TABLE, "list of segments in tiered storage", "commitlog", _tiered_table)
    for path in _dledger(store, settings):
        yield OtherPart(path, "log of a DLedger group", "commitlog", mapped_data)


def _tiered(store: Store, settings: dict[str, str]) -> Iterator[Path]:
    yield from (store.root / name for name in ("tieredstore", "tieredStore"))
    if _TIERED_PATH in settings:
        yield Path(settings[_TIERED_PATH])


def _dledger(store: Store, settings: dict[str, str]) -> Iterator[Path]:
    for name in sorted(os.listdir(store.root)):
        if name.startswith(_DLEDGER_PREFIX) and (store.root / name).is_dir():
            yield store.root / name
    given = settings.get(_DLEDGER_PATH)
    if given and not Path(given).is_relative_to(store.root):
        yield Path(given)


def rocksdb_data(path: Path) -> str:
    """What entries a RocksDB folder holds: tables, or a log that is not empty. "" for none."""
    tables = bytes_logged = 0
    for name in os.listdir(path):
        length = (path / name).stat().st_size
        if name.endswith(".sst") and length:
            tables += 1
        elif name.endswith(".log") and name[:-4].isdecimal():
            bytes_logged += length
    if tables or bytes_logged:
        return f"{tables} tables, {bytes_logged} bytes in its write-ahead log"
    return ""


def mapped_data(path: Path) -> str:
    """Which mapped files below a folder begin with anything but zeros. "" for none."""
    used = sum(1 for file in islice(_mapped_files(path), _LISTED) if any(read_small(file, _HEAD)))
    return f"{used} {'file' if used == 1 else 'files'} with data" if used else ""


def any_file(path: Path) -> str:
    """How many files below a folder are not empty. "" for none."""
    used = sum(1 for file in islice(_files(path), _LISTED) if file.stat().st_size)
    return f"{used} {'file' if used == 1 else 'files'}" if used else ""


def _tiered_table(path: Path) -> str:
    members = len(read_config(path, BY_NAME[_TIERED_TABLE]).table)
    return f"{members} members" if members else ""


def _mapped_files(path: Path) -> Iterator[Path]:
    for file in _files(path):
        if len(file.name) == OFFSET_DIGITS and file.name.isdecimal():
            yield file


def _files(path: Path) -> Iterator[Path]:
    """All files below; `OSError` for a folder that cannot be listed."""
    def refuse(error: OSError) -> None:
        raise error

    for folder, _, names in os.walk(path, onerror=refuse):
        for name in names:
            yield Path(folder) / name
