"""Damage recipes by name and seed. They write through `recover.change.disk`; each reports what it did.

A recipe changes the store of a `Site`, which finds records and files in it. Same store and seed give the same bytes.

>>> DRILLS["bit-in-body"].summary
'One bit flipped in the body of a record.'
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from msgspec import Struct, structs

from formats import sysflag
from formats.basics import offset_in_name, offset_to_name
from formats.checkpoint import FILE_SIZE as CHECKPOINT_SIZE
from formats.record import HEADS, Record, decode
from formats.record.rows import NO_MESSAGE
from recover.change import disk
from recover.findings.code import Refusal
from recover.findings.model import Phrase
from recover.log.file_scan import FileScan, ProgressCallback
from recover.log.scan import Engine, LogView
from recover.store.columns import Rows
from recover.store.source import open_file, read_small
from recover.store.store import Store

PAGE = 4096
_MOST_CONFIG = 256 << 20
_LEAST_CONFIG = 60
"""Bytes up to which a config file holds no more than an empty table."""

T = TypeVar("T")
Facts = dict[str, Any]


class NotApplicable(ValueError):  # noqa: N818 - nothing went wrong
    """The store has nothing that this recipe could damage."""


class Change(Struct, frozen=True):
    """One change: `file` relative to the store, `offset` in that file (None: the whole file), and what was done."""

    file: str
    offset: int | None
    what: str


class Hit(NamedTuple):
    """A record, the file that holds it, and its position in that file."""

    record: Record
    path: Path
    position: int


class UsedFile(NamedTuple):
    """A log file that holds a record; `last` is the position of its last record."""

    path: Path
    file_from_offset: int
    last: int


class Site(Protocol):
    """A store to be damaged, and where things are in it. `NotApplicable` for what it does not have."""

    @property
    def root(self) -> Path:
        """The store."""

    def victim(self, rng: random.Random) -> Hit:
        """A record with a body and properties that has another record after it."""

    def last_record(self) -> Hit:
        """The record at the end of the log."""

    def used_files(self) -> list[UsedFile]:
        """The log files that hold a record, in order."""


Result = tuple[list[Change], Facts]
Recipe = Callable[[Site, random.Random], Result]


class Drill(NamedTuple):
    """A recipe: its name, its summary line, its function."""

    name: str
    summary: str
    run: Recipe


DRILLS: dict[str, Drill] = {}


def _drill(name: str) -> Callable[[Recipe], Recipe]:
    def register(function: Recipe) -> Recipe:
        DRILLS[name] = Drill(name, (function.__doc__ or "").strip().split("\n")[0], function)
        return function

    return register


# --- primitives ----------------------------------------------------------------------------------


def pick(rng: random.Random, choices: Sequence[T], what: str) -> T:
    """Return one of the choices; `NotApplicable` if there is none."""
    if not choices:
        raise NotApplicable(f"the store has no {what}")
    return choices[rng.randrange(len(choices))]


def overwrite(root: Path, path: Path, offset: int, content: bytes, what: str) -> Change:
    disk.write_range(path, offset, [content])
    return Change(path.relative_to(root).as_posix(), offset, what)


def zero(root: Path, path: Path, offset: int, length: int) -> Change:
    return overwrite(root, path, offset, bytes(length), f"{length} bytes zeroed")


def flip_bit(root: Path, path: Path, offset: int, bit: int) -> Change:
    """Flip one bit (0 is the lowest) of one byte."""
    with open_file(path) as reader:
        byte = bytes(reader.read(offset, 1))[0]
    return overwrite(root, path, offset, bytes([byte ^ 1 << bit]), f"bit {bit} flipped")


def cut(root: Path, path: Path, length: int) -> Change:
    before = path.stat().st_size
    disk.truncate(path, length)
    return Change(path.relative_to(root).as_posix(), min(before, length), f"length {before} made {length}")


def remove(root: Path, path: Path) -> Change:
    if path.is_dir():
        disk.remove_tree(path)
    else:
        disk.unlink(path)
    return Change(path.relative_to(root).as_posix(), None, "removed")


def create(root: Path, path: Path, content: bytes) -> Change:
    what = "created"
    if path.exists():
        what = "replaced"
        disk.truncate(path, 0)
        disk.write_range(path, 0, [content])
    else:
        for folder in reversed([parent for parent in path.parents if not parent.exists()]):
            disk.mkdir(folder)
        disk.create_file(path, [content], disk.MODE)
    return Change(path.relative_to(root).as_posix(), None, f"{what}, {len(content)} bytes")


# --- the log -------------------------------------------------------------------------------------


def record_facts(record: Record) -> Facts:
    """The facts that identify a message."""
    return {
        "phy_offset": record.phy_offset, "size": record.total_size, "topic": record.topic_name,
        "queue_id": record.queue_id, "queue_offset": record.queue_offset,
    }


def body_at(record: Record) -> int:
    """The position of the body in the record."""
    return HEADS[record.sys_flag & sysflag.HOSTS_V6].size


@_drill("bit-in-body")
def bit_in_body(site: Site, rng: random.Random) -> Result:
    """One bit flipped in the body of a record."""
    hit = site.victim(rng)
    place = hit.position + body_at(hit.record) + rng.randrange(len(hit.record.body))
    return [flip_bit(site.root, hit.path, place, rng.randrange(8))], record_facts(hit.record)


@_drill("page-zeroed")
def page_zeroed(site: Site, rng: random.Random) -> Result:
    """A page of the log is zeros: it never reached the disk."""
    files = site.used_files()
    pages = [len(range(0, file.last - PAGE, PAGE)) for file in files]
    number = pick(rng, range(sum(pages)), "whole page of records")
    for file, held in zip(files, pages, strict=True):
        if number < held:
            change = zero(site.root, file.path, number * PAGE, PAGE)
            return [change], {"phy_offset": file.file_from_offset + number * PAGE, "size": PAGE}
        number -= held
    raise AssertionError("a page beyond all files")


def tear(site: Site, kept: int) -> Result:
    """Zero the last record after its first `kept` bytes."""
    hit = site.last_record()
    change = zero(site.root, hit.path, hit.position + kept, hit.record.total_size - kept)
    return [change], {**record_facts(hit.record), "kept": kept}


@_drill("torn-tail")
def torn_tail(site: Site, rng: random.Random) -> Result:
    """Only the first half of the last record reached the disk."""
    return tear(site, site.last_record().record.total_size // 2)


@_drill("log-middle-missing")
def log_middle_missing(site: Site, rng: random.Random) -> Result:
    """A log file between two others is missing."""
    file = pick(rng, site.used_files()[1:-1], "log file between two others")
    facts = {"file_from_offset": file.file_from_offset, "size": file.path.stat().st_size}
    return [remove(site.root, file.path)], facts


def _log_files(root: Path) -> list[tuple[int, Path]]:
    folder = root / "commitlog"
    named = [(offset_in_name(path.name), path) for path in sorted(folder.iterdir())] if folder.is_dir() else []
    found = [(offset, path) for offset, path in named if offset is not None and path.is_file()]
    if not found:
        raise NotApplicable("the log has no file")
    return found


@_drill("log-all-missing")
def log_all_missing(site: Site, rng: random.Random) -> Result:
    """The log folder is empty, the queues exist, as if the disk of the log were not mounted."""
    return [remove(site.root, path) for _, path in _log_files(site.root)], {}


@_drill("log-last-empty")
def log_last_empty(site: Site, rng: random.Random) -> Result:
    """The last log file has length 0, as after a full disk or a crash during its creation."""
    offset, last = _log_files(site.root)[-1]
    size = last.stat().st_size
    change = create(site.root, last.with_name(offset_to_name(offset + size)), b"")
    return [change], {"file_from_offset": offset + size, "size": size}


# --- derived files -------------------------------------------------------------------------------


@_drill("all-queues-missing")
def all_queues_missing(site: Site, rng: random.Random) -> Result:
    """The folder of the consume queues is missing."""
    folder = site.root / "consumequeue"
    if not folder.is_dir() or not any(folder.glob("*/*/*")):
        raise NotApplicable("the store has no queue")
    return [remove(site.root, folder)], {}


@_drill("index-all-missing")
def index_all_missing(site: Site, rng: random.Random) -> Result:
    """All index files are missing."""
    folder = site.root / "index"
    files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    if not files:
        raise NotApplicable("the store has no index file")
    return [remove(site.root, path) for path in files], {}


@_drill("checkpoint-zero")
def checkpoint_zero(site: Site, rng: random.Random) -> Result:
    """The checkpoint is all zeros."""
    path = site.root / "checkpoint"
    if not path.is_file():
        raise NotApplicable("the store has no checkpoint")
    return [create(site.root, path, bytes(CHECKPOINT_SIZE))], {}


# --- config files --------------------------------------------------------------------------------


def json_files(root: Path) -> list[Path]:
    """The main JSON files of the store that hold more than an empty table."""
    folder = root / "config"
    files = sorted(folder.glob("*.json")) if folder.is_dir() else []
    return [path for path in files if path.stat().st_size > _LEAST_CONFIG]


@_drill("config-zeros-bak-sound")
def config_zeros_bak_sound(site: Site, rng: random.Random) -> Result:
    """A config file is zeros of its old length; its .bak is valid."""
    path = pick(rng, json_files(site.root), "config file ")
    content = read_small(path, _MOST_CONFIG)
    changes = [create(site.root, path, bytes(len(content)))]
    changes.append(create(site.root, path.with_name(path.name + ".bak"), content))
    return changes, {"file": path.name, "bak": "sound"}


# --- several at once -----------------------------------------------------------------------------


@_drill("crash-bit-without-checkpoint")
def bit_without_checkpoint(site: Site, rng: random.Random) -> Result:
    """One bit flipped in a body, then a crash without a usable checkpoint: brokers cut the log at that bit."""
    changes, _ = checkpoint_zero(site, rng)
    more, facts = bit_in_body(site, rng)
    changes += more
    if not (site.root / "abort").exists():
        changes.append(create(site.root, site.root / "abort", b"4711"))
    return changes, {"checkpoint-zero": {}, "bit-in-body": facts}


# --- A copy of a store of any size, damaged by a recipe at places that a scan finds.


_TRIES = 1000


class Rehearsal(Struct, frozen=True):
    """What a recipe did to a copy."""

    recipe: str
    seed: int
    changes: tuple[Change, ...]
    facts: Facts

    def json(self) -> dict[str, Any]:
        return {"recipe": self.recipe, "seed": self.seed, "changes": [structs.asdict(item) for item in self.changes],
                "facts": self.facts}


class ScannedSite:
    """A copy as scanned: rows locate its intact records; a record is read when it is needed."""

    def __init__(self, root: Path, log: LogView) -> None:
        self.root = root
        self._log = log
        self._splits = [(scan, split.records) for scan in log.files for split in scan.splits if split.records.size]
        self._ends = list(accumulate(int(rows.size) for _, rows in self._splits))

    def victim(self, rng: random.Random) -> Hit:
        """See `Site`. Draws among all records but the last until one fits."""
        total = self._ends[-1] if self._ends else 0
        for _ in range(_TRIES if total > 1 else 0):
            number = rng.randrange(total - 1)
            at = int(np.searchsorted(self._ends, number, side="right"))
            scan, rows = self._splits[at]
            row = rows[number - (self._ends[at - 1] if at else 0)]
            if row["bits"] & NO_MESSAGE:
                continue
            hit = _hit(scan, row)
            if hit.record.body and hit.record.properties:
                return hit
        raise NotApplicable("the log has no record with a body, properties and another record after it")

    def last_record(self) -> Hit:
        for scan, rows in reversed(self._splits):
            live = np.flatnonzero((rows["bits"] & NO_MESSAGE) == 0)
            if live.size:
                return _hit(scan, rows[live[-1]])
        raise NotApplicable("the store has no record")

    def used_files(self) -> list[UsedFile]:
        last = {scan.mapped_file: int(rows["phy_offset"][-1]) for scan, rows in self._splits}
        return [UsedFile(file.path, file.file_from_offset, offset - file.file_from_offset)
                for file, offset in last.items()]


def _hit(scan: FileScan, row: Rows) -> Hit:
    position = int(row["phy_offset"]) - scan.mapped_file.file_from_offset
    with open_file(scan.mapped_file.path) as reader:
        return Hit(decode(reader.read(position, int(row["size"])), check_crc=False), scan.mapped_file.path, position)


def rehearse(
    copy: Path, name: str, seed: int, engine: Engine, progress: ProgressCallback | None = None
) -> Rehearsal:
    """Damage a copy made for the rehearsal. `Refusal` (8), nothing changed, if it lacks what the recipe damages."""
    store = Store.open(copy)
    log = engine.scan_log(store.commitlog, progress=progress, with_keys=False)
    try:
        # the same places for the same seed, on every machine
        changes, facts = DRILLS[name].run(ScannedSite(copy, log), random.Random(f"{name}/{seed}"))
    except NotApplicable as reason:
        raise Refusal(Phrase("{name}: {reason}", name=name, reason=reason),
                      "Choose another drill, or another store: `mqtool drill --list`.") from reason
    return Rehearsal(name, seed, tuple(changes), facts)
