"""Pairs of stores for `recover --from`: two copies of one store, damaged differently; or one that is another log."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support import plain_reader as plain
from tests.support.stores import copy_store, unpacked, write_at

SAME, DIVERGED, FOREIGN = "same", "diverged", "foreign"


class Pair(NamedTuple):
    """A damaged store, the other one, what this is to it, and the records that both logs had before any damage, by
    their place. `kept`: places of records that `ours` still has; `theirs`: those that the other one has. `due`: of
    these, what ours can get: not where ours has a whole record, though one with a changed field that no checksum
    covers, and no files before a hole that neither fills."""

    ours: Path
    other: Path
    relation: str
    records: Mapping[int, bytes]
    kept: set[int]
    theirs: set[int]
    due: set[int]


def in_place(root: Path, records: Mapping[int, bytes]) -> set[int]:
    """The places of these records that the log holds, by the bytes alone."""
    log = plain.log_files(root)
    found = set()
    for at, content in records.items():
        base = max((each for each in log if each <= at), default=0)
        if log.get(base, b"")[at - base : at - base + len(content)] == content:
            found.add(at)
    return found


def log_file(root: Path, base: int) -> Path:
    return next(path for folder in plain.log_folders(root) for path in folder.iterdir()
                if path.name == f"{base:020d}")


def pair(
    name: str, seed: int, relation: str, folder: Path, stranger: str = "clean-4.5.1",
    stores: tuple[Path, Path] | None = None,
) -> Pair:
    """Two stores below `folder`, each with one to three damages of its own; of two `stores` that a master and its slave
    have, if given."""
    rng = random.Random(f"{name} {seed} {relation}")
    first, second = stores or (unpacked(name), unpacked(name))
    ours, other = copy_store(first, folder / "ours"), folder / "other"
    copy_store(unpacked(stranger) if relation == FOREIGN else second, other)
    records = {record.phy_offset: record.content for record in plain.records(ours)}
    if relation == DIVERGED:
        part_at(other, sorted(records)[rng.randrange(len(records))])
    for root in (ours, other):
        for _ in range(rng.randint(root == ours, 3)):
            rng.choice((noise, noise, zeros, lose_file, lose_first, lose_end))(root, rng)
    theirs = in_place(other, records)
    due = theirs - whole_in(ours, records)
    return Pair(ours, other, relation, records, in_place(ours, records), theirs,
                {at for at in due if at >= _begin(ours, other)})


def whole_in(root: Path, records: Mapping[int, bytes]) -> set[int]:
    """At which of these places the log holds a record with the right checksums, whatever else it says."""
    log = plain.log_files(root)
    bases = {at: max((base for base in log if base <= at), default=0) for at in records}
    return {at for at, base in bases.items() if plain.record_at(log.get(base, b""), at - base, base) is not None}


def _begin(ours: Path, other: Path) -> int:
    """Where the log of `ours` begins with the files before it that the other one has without a hole."""
    files, others = (plain.log_files(root) for root in (ours, other))
    begin, size = min(files), max(map(len, files.values()))
    while begin - size in others:
        begin -= size
    return begin


def part_at(root: Path, start: int) -> None:
    """Give every message from `start` on another body of the same length: the hardest log to tell from this one."""
    for record in plain.records(root):
        if record.phy_offset >= start:
            write_at(*_where(root, record.phy_offset), other_body(record))


def other_body(record: plain.Record) -> bytes:
    """The record with another body of the same length, and its checksums."""
    begin, stop = record.fields()["body"]
    content = bytearray(record.content)
    content[begin:stop] = bytes(255 - byte for byte in record.body)
    content[8:12] = plain.crc31(bytes(content[begin:stop])).to_bytes(4, "big")
    if record.has_property_crc:
        content[-11:-1] = f"{plain.crc31(bytes(content[:-20])):010d}"[::-1].encode()
    return bytes(content)


def _where(root: Path, offset: int) -> tuple[Path, int]:
    base = max(each for each in plain.log_files(root) if each <= offset)
    return log_file(root, base), offset - base


def _range(root: Path, rng: random.Random) -> tuple[int, int]:
    records = [*plain.records(root)]
    first = rng.randrange(len(records))
    base = max(each for each in plain.log_files(root) if each <= records[first].phy_offset)
    stop = records[min(first + rng.randint(0, 12), len(records) - 1)]
    start = records[first].phy_offset + rng.randint(0, 60)
    return start, min(max(stop.phy_offset + rng.randint(1, 80), start + 1), base + len(plain.log_files(root)[base]))


def noise(root: Path, rng: random.Random) -> None:
    start, stop = _range(root, rng)
    write_at(*_where(root, start), rng.randbytes(stop - start))


def zeros(root: Path, rng: random.Random) -> None:
    start, stop = _range(root, rng)
    write_at(*_where(root, start), bytes(stop - start))


def lose_file(root: Path, rng: random.Random) -> None:
    """Remove a log file between two others."""
    files = sorted(plain.log_files(root))
    if len(files) > 2:
        log_file(root, files[rng.randrange(1, len(files) - 1)]).unlink()


def lose_first(root: Path, rng: random.Random) -> None:
    """Remove the first log file."""
    files = sorted(plain.log_files(root))
    if len(files) > 2:
        log_file(root, files[0]).unlink()


def lose_end(root: Path, rng: random.Random) -> None:
    """Zero the log's end, and remove the files after it."""
    records = [*plain.records(root)]
    start = records[-rng.randint(1, max(1, len(records) // 10))].phy_offset
    for base, content in plain.log_files(root).items():
        if base > start:
            log_file(root, base).unlink()
        elif base + len(content) > start:
            write_at(log_file(root, base), start - base, bytes(base + len(content) - start))


def without_queues(root: Path) -> None:
    for name in ("consumequeue", "index"):
        shutil.rmtree(root / name, ignore_errors=True)
