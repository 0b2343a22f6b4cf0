"""How an index file's bytes divide into slots and units, found out from its content alone.

Of all splits of a length only the true one hangs units below the slots that their hashes name.
Source: broker class IndexFile.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from formats.index import INDEX_HEADER, INDEX_SLOT, INDEX_UNIT, IndexGeometry, IndexUnit
from recover.files.reader import FileReader
from recover.memory.columns import Rows

_SAMPLE = 48
_SAMPLE_CUT = 300
_SEEN_CUT = 3
_GOOD = 0.75
_PLAUSIBLE_OFFSET = 1 << 54
_WINDOW_ROWS = 1 << 19
_MOST_CANDIDATES = 2_000
_MOST_NAMED = 64
_ROW_WORDS = INDEX_UNIT.size // 4


def fits(reader: FileReader, geometry: IndexGeometry, *, cut: bool = False) -> bool:
    """True when the eldest units hang below the slots of their hashes, a damaged one now and then allowed.

    Asks no header field. A unit that is not the head of its slot proves something only through its
    neighbours in the chain, whose hashes must name the same slot. With `cut` the file may end too
    early, and it takes more to convince.
    """
    rows = _SAMPLE_CUT if cut else _SAMPLE
    raw = reader.read(geometry.unit_offset(0), min(geometry.entries, rows + 1) * INDEX_UNIT.size)
    if any(raw[: INDEX_UNIT.size]):
        return False
    units = list(INDEX_UNIT.decode_all(raw))
    numbers = [number for number in range(1, len(units)) if any(units[number])]
    good = bad = 0
    for number in numbers:
        verdict = _hangs(reader, geometry, units, number)
        good += verdict is True
        bad += verdict is False or (verdict is None and not cut)
        if bad > len(numbers) * (1 - _GOOD):
            return False
    return good + bad >= (_SEEN_CUT if cut else 1) and good >= (good + bad) * _GOOD


def _hangs(reader: FileReader, geometry: IndexGeometry, units: list[IndexUnit], number: int) -> bool | None:
    """Whether a unit stands in the chain of its slot; None where the file ends before the answer."""
    unit = units[number]
    if unit.key_hash < 0 or not 0 <= unit.previous < number or not 0 <= unit.phy_offset < _PLAUSIBLE_OFFSET:
        return False
    slot = geometry.slot_of(unit.key_hash)
    if unit.previous > 0 and geometry.slot_of(units[unit.previous].key_hash) != slot:
        return False
    head = INDEX_SLOT.decode(reader.read(geometry.slot_offset(slot), INDEX_SLOT.size)).number
    if head < number:
        return False
    top = reader.read(geometry.unit_offset(head), INDEX_UNIT.size)
    if len(top) < INDEX_UNIT.size:
        return None
    return any(top) and INDEX_UNIT.decode(top).key_hash % geometry.slots == slot


def search(path: Path, length: int) -> IndexGeometry | None:
    """The first split of a file's length (bytes) that fits its content; if none does, the file may have been cut.

    None when nothing fits, or the file cannot be read.
    """
    words = (length - INDEX_HEADER.size) // 4
    try:
        with FileReader(path) as reader:
            for candidates in (_named_by_header, _candidates):
                for candidate in candidates(reader, length, words % _ROW_WORDS):
                    if candidate.size == length and fits(reader, candidate):
                        return candidate
            for candidates in (_named_by_header, _candidates):
                for shift in range(_ROW_WORDS):
                    for candidate in candidates(reader, length, (words - shift) % _ROW_WORDS):
                        if fits(reader, candidate, cut=True):
                            return _uncut(candidate, length)
    except OSError:
        return None
    return None


def _uncut(candidate: IndexGeometry, length: int) -> IndexGeometry:
    """What a cut file was before: nothing tells how many units it had room for, so four a slot as by default."""
    quarter = IndexGeometry(candidate.slots, 4 * candidate.slots)
    return quarter if quarter.size > length else IndexGeometry(candidate.slots, candidate.entries + 1)


def _may_be_first(rows: Rows) -> Rows:
    """Rows that could be unit 1: it ends its chain, and the two after it name nothing younger than themselves."""
    plausible = (rows[:, 0] >= 0) & (rows[:, 1] >= 0) & (rows[:, 1] < _PLAUSIBLE_OFFSET >> 32)
    first = plausible & (rows[:, 4] == 0)
    for ahead in (1, 2):
        good = plausible[ahead:] & (rows[ahead:, 4] >= 0) & (rows[ahead:, 4] <= ahead)
        first[:-ahead] &= good
    return np.asarray(first)


def _rows(reader: FileReader, length: int, phase: int) -> Iterator[tuple[int, bytes]]:
    """(byte position, bytes) of windows of whole rows; the first begins `phase` words after the header."""
    first = INDEX_HEADER.size + phase * 4
    for start in range(first, length, _WINDOW_ROWS * INDEX_UNIT.size):
        raw = reader.read(start, min(_WINDOW_ROWS * INDEX_UNIT.size, length - start))
        whole = len(raw) // INDEX_UNIT.size * INDEX_UNIT.size
        if whole:
            yield start, raw[:whole]


def _split_at(unit_zero: int, length: int) -> IndexGeometry | None:
    slots, rest = divmod(unit_zero - INDEX_HEADER.size, INDEX_SLOT.size)
    entries = (length - unit_zero) // INDEX_UNIT.size
    return IndexGeometry(slots, entries) if slots > 0 and rest == 0 and entries > 1 else None


def _named_by_header(reader: FileReader, length: int, phase: int) -> Iterator[IndexGeometry]:
    """Splits under which unit 1 or the newest unit has the offset that the header names."""
    head = reader.read(0, INDEX_HEADER.size)
    if len(head) < INDEX_HEADER.size:
        return
    header = INDEX_HEADER.decode(head)
    wanted = [(header.end_phy_offset, header.index_count - 1), (header.begin_phy_offset, 1)]
    tried = 0
    for start, raw in _rows(reader, length, phase):
        count = len(raw) // INDEX_UNIT.size
        offsets: Rows = np.ndarray(
            (count,), dtype=">i8", buffer=raw, offset=INDEX_UNIT.offset("phy_offset"), strides=(INDEX_UNIT.size,)
        )
        for phy_offset, number in wanted:
            if phy_offset <= 0 or number < 1:
                continue
            for row in np.flatnonzero(offsets == phy_offset)[:_MOST_NAMED]:
                split = _split_at(start + (int(row) - number) * INDEX_UNIT.size, length)
                if split is not None:
                    yield split
                    tried += 1
        if tried > _MOST_CANDIDATES:
            return


def _candidates(reader: FileReader, length: int, phase: int) -> Iterator[IndexGeometry]:
    """Splits under which unit 0 is blank and unit 1 ends a chain.

    The units end with the file, so their rows lie at known places whatever the split: `phase` words
    after the header, modulo a row. Only where the first one is has to be found.
    """
    tried = 0
    before_is_blank = False
    for start, raw in _rows(reader, length, phase):
        window: Rows = np.frombuffer(raw, dtype=">i4").reshape(-1, _ROW_WORDS)
        blank: Rows = np.logical_not(window.any(axis=1))
        follows = np.r_[before_is_blank, blank[:-1]]
        before_is_blank = bool(blank[-1])
        for row in np.flatnonzero(follows & ~blank & _may_be_first(window)):
            split = _split_at(start + (int(row) - 1) * INDEX_UNIT.size, length)
            if split is not None:
                yield split
                tried += 1
        if tried > _MOST_CANDIDATES:
            return
