"""The index files of a store: which there are, and how their bytes divide into slots and units.

No file states its geometry. A length fits many splits, but only the true one hangs units below
the slots that their hashes name. Sources: broker classes IndexService, IndexFile.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

import numpy as np
from msgspec import Struct, field, structs

from formats.basics import FormatError, is_index_name
from formats.index import DEFAULT_GEOMETRY, INDEX_HEADER, INDEX_SLOT, INDEX_UNIT, IndexGeometry, IndexHeader, IndexUnit
from recover.findings.code import UsageRefusal
from recover.store.columns import Rows, roomy
from recover.store.mapped_files import OddName
from recover.store.reader import FileReader, ReadFailure, read_small, spend
from recover.store.source import entries_if_there
from recover.store.store import Store

# --- How an index file's bytes divide into slots and units, found out from its content alone. -----------------------

_SAMPLE = 48
_SAMPLE_CUT = 300
_SEEN_CUT = 3
_GOOD = 0.75
_PLAUSIBLE_OFFSET = 1 << 54
_WINDOW_ROWS = 1 << 19
_MOST_CANDIDATES = 2_000
_MOST_NAMED = 64
_VOTERS = 7
_CHUNK = 8 << 20
_WORD = 4
_HEADER_WORDS, _ROW_WORDS = INDEX_HEADER.size // _WORD, INDEX_UNIT.size // _WORD


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
            for named in (True, False):
                for candidate in _candidates(reader, length, words % _ROW_WORDS, named=named):
                    if candidate.size == length and fits(reader, candidate):
                        return candidate
            for named, shift in product((True, False), range(_ROW_WORDS)):
                for candidate in _candidates(reader, length, (words - shift) % _ROW_WORDS, named=named):
                    if fits(reader, candidate, cut=True):
                        # nothing tells how many units it had room for, so four a slot as by default
                        quarter = IndexGeometry(candidate.slots, 4 * candidate.slots)
                        return quarter if quarter.size > length else structs.replace(
                            candidate, entries=candidate.entries + 1)
    except OSError:
        return None
    return None


def _may_be_first(rows: Rows) -> Rows:
    """Rows that could be unit 1: it ends its chain, and the two after it name nothing younger than themselves."""
    plausible = (rows[:, 0] >= 0) & (rows[:, 1] >= 0) & (rows[:, 1] < _PLAUSIBLE_OFFSET >> 32)
    first = plausible & (rows[:, 4] == 0)
    for ahead in (1, 2):
        good = plausible[ahead:] & (rows[ahead:, 4] >= 0) & (rows[ahead:, 4] <= ahead)
        first[:-ahead] &= good
    return np.asarray(first)


def _candidates(reader: FileReader, length: int, phase: int, *, named: bool) -> Iterator[IndexGeometry]:
    """Splits under which unit 1 or the newest unit has the offset that the header names, or else under which unit 0 is
    blank and unit 1 ends a chain.

    The units end with the file, so their rows lie at known places whatever the split: `phase` words after the header,
    modulo a row. Only where the first one is has to be found.
    """
    head = reader.read(0, INDEX_HEADER.size)
    if len(head) < INDEX_HEADER.size:
        return
    header = INDEX_HEADER.decode(head)
    ends = [(header.end_phy_offset, header.index_count - 1), (header.begin_phy_offset, 1)]
    tried, before_is_blank = 0, False
    for start in range(INDEX_HEADER.size + phase * _WORD, length, _WINDOW_ROWS * INDEX_UNIT.size):
        raw = reader.read(start, min(_WINDOW_ROWS * INDEX_UNIT.size, length - start))
        window: Rows = np.frombuffer(raw, dtype=">i4", count=len(raw) // INDEX_UNIT.size * _ROW_WORDS)
        window = window.reshape(-1, _ROW_WORDS)
        firsts: list[int] = []
        if named:
            for offset, number in ends:
                if offset > 0 and number >= 1:
                    same = (window[:, 1] == offset >> 32) & (window[:, 2].view(">u4") == offset & 0xFFFFFFFF)
                    firsts += [row - number for row in np.flatnonzero(same)[:_MOST_NAMED].tolist()]
        elif len(window):
            blank: Rows = np.logical_not(window.any(axis=1))
            follows = np.r_[before_is_blank, blank[:-1]]
            before_is_blank = bool(blank[-1])
            firsts = (np.flatnonzero(follows & ~blank & _may_be_first(window)) - 1).tolist()
        for first in firsts:
            unit_zero = start + first * INDEX_UNIT.size
            slots, rest = divmod(unit_zero - INDEX_HEADER.size, INDEX_SLOT.size)
            entries = (length - unit_zero) // INDEX_UNIT.size
            if slots > 0 and rest == 0 and entries > 1:
                yield IndexGeometry(slots, entries)
                tried += 1
        if tried > _MOST_CANDIDATES:
            return


# --- The words of a file, and the files of a store. -------------------------------------------------------------------


class IndexWords(Struct):
    """Header, slots (int32, one a slot) and units (int32, shape (entries, 5)); views of one buffer of words."""

    geometry: IndexGeometry
    header: IndexHeader
    words: Rows
    failures: list[ReadFailure] = field(default_factory=list)

    @property
    def slots(self) -> Rows:
        return self.words[_HEADER_WORDS : _HEADER_WORDS + self.geometry.slots]

    @property
    def units(self) -> Rows:
        """Key hash, high and low half of the phy offset, time difference, previous; row = number."""
        rows: Rows = self.words[_HEADER_WORDS + self.geometry.slots :].reshape(self.geometry.entries, _ROW_WORDS)
        return rows


def load_words(path: Path, geometry: IndexGeometry) -> IndexWords:
    """Read a file as `read_words` does. `OSError` when it cannot be opened."""
    with FileReader(path) as reader:
        return read_words(reader, geometry)


def read_words(reader: FileReader, geometry: IndexGeometry) -> IndexWords:
    """Read an open file; what it lacks of the geometry's size, and what cannot be read, counts as zeros.

    Bytes after the geometry's size are left out, as a broker does.
    """
    image = IndexWords(geometry, IndexHeader(0, 0, 0, 0, 0, 0), roomy(geometry.size // _WORD, np.int32))
    raw = image.words.data.cast("B")
    reader.come_to(0, min(reader.length, geometry.size))
    for start, stop in reader.data_ranges(0, min(reader.length, geometry.size)):
        for at in range(start, stop, _CHUNK):
            spend(min(_CHUNK, stop - at))
            try:
                reader.read_into(raw[at : min(at + _CHUNK, stop)], at)
            except ReadFailure as failure:
                image.failures.append(failure)
        if start == 0:
            image.header = INDEX_HEADER.decode(raw)
        # holes are a multiple of 4 bytes wherever they are, so no word is turned twice
        if sys.byteorder == "little":
            image.words[start // _WORD : -(-stop // _WORD)].byteswap(inplace=True)
    return image


class IndexFileName(Struct, frozen=True):
    """One file that a broker loads as an index file; `is_time` is false when its name is a number but no time."""

    path: Path
    length: int
    is_time: bool

    @property
    def name(self) -> str:
        return self.path.name

    def header(self, unread: list[OSError] | None = None) -> IndexHeader | None:
        """What the file says of itself; None where the file is shorter, or cannot be read, which goes to `unread`."""
        try:
            return INDEX_HEADER.decode(read_small(self.path, INDEX_HEADER.size))
        except OSError as error:
            if unread is not None:
                unread.append(error)
        except FormatError:
            pass
        return None


class IndexListing(Struct, frozen=True):
    """What lies in the index folder: files in the order that a broker loads them, and what it skips."""

    directory: Path
    files: tuple[IndexFileName, ...]
    odd: tuple[OddName, ...]


def list_index_files(directory: Path) -> IndexListing:
    """List the folder without opening a file; a folder that is missing counts as empty. `OSError` from listing."""
    files: list[IndexFileName] = []
    odd: list[OddName] = []
    for entry in entries_if_there(directory):
        path, name = directory / entry.name, entry.name
        # Long.parseLong takes the digits of every script; a name beyond 19 digits is no number to it
        if entry.is_file and name.isdecimal() and int(name) < 1 << 63:
            files.append(IndexFileName(path, entry.length, is_index_name(str(int(name)))))
        else:
            odd.append(OddName(path, entry.kind, entry.length))
    return IndexListing(directory, tuple(files), tuple(odd))


def index_geometry(store: Store, listing: IndexListing | None = None) -> IndexGeometry | None:
    """The geometry of the store's index files; None when files are there and nothing tells.

    Takes what the user says, `UsageRefusal` when the files prove it wrong; else what most files
    prove; else the brokers' default where there is no file, or none with a unit but of its length.
    """
    listing = listing or list_index_files(store.index_dir)
    lengths = usual_lengths(listing.files)
    slots, entries = store.options.index_slots, store.options.index_entries
    if slots is not None or entries is not None:
        return _overridden(slots, entries, listing, _of_length(listing, lengths[0] if lengths else 0))
    if not lengths:
        return _configured(store)
    found = [g for length in lengths if (g := _voted(_of_length(listing, length), _likely(length))) is not None]
    if found:
        # a file that counts as many units as there is room for is full, as the one before another is
        counts = {_counted(file) for file in listing.files}
        return max(found, key=lambda g: (g.entries in counts, 4 * g.slots == g.entries))
    # no unit to try: at least the length is that of a likely shape
    return next((g for length in lengths for g in _likely(length)), None)


def proven_geometry(path: Path, length: int) -> IndexGeometry | None:
    """The geometry under which the units of one whole file hang in their chains; None where none does."""
    found = _voted([IndexFileName(path, length, True)], _likely(length))
    return found if found is not None and found.size == length else None


def file_geometry(path: Path, length: int) -> IndexGeometry | None:
    """The proven geometry of one file, or else, as for one without a unit, that of brokers for its length, if any."""
    return proven_geometry(path, length) or next(iter(_likely(length)), None)


def _of_length(listing: IndexListing, length: int) -> list[IndexFileName]:
    """Files of that length, those with the most units first: they tell more, and sooner."""
    return sorted((f for f in listing.files if f.length == length), key=_counted, reverse=True)


def _counted(file: IndexFileName) -> int:
    """index_count as the header has it; 0 when it cannot be read."""
    header = file.header()
    return 0 if header is None else header.index_count


def _configured(store: Store) -> IndexGeometry:
    """Without a file to tell: the settings that the user gives, else the brokers' default."""
    settings = store.options.settings
    try:
        slots = int(settings.get("maxHashSlotNum", DEFAULT_GEOMETRY.slots))
        entries = int(settings.get("maxIndexNum", DEFAULT_GEOMETRY.entries))
    except ValueError:
        return DEFAULT_GEOMETRY
    return IndexGeometry(slots, entries) if slots > 0 and entries > 1 else DEFAULT_GEOMETRY


def usual_lengths(files: Iterable[IndexFileName]) -> list[int]:
    """The length (bytes) that most files have; all that are as frequent, the longest first; empty without files."""
    lengths = Counter(f.length for f in files if f.length > INDEX_HEADER.size)
    most = max(lengths.values(), default=0)
    return sorted((length for length, count in lengths.items() if count == most), reverse=True)


def _likely(length: int) -> list[IndexGeometry]:
    quarter = (length - INDEX_HEADER.size) // (INDEX_SLOT.size + 4 * INDEX_UNIT.size)
    guesses = (DEFAULT_GEOMETRY, IndexGeometry(quarter, 4 * quarter))
    return [g for g in guesses if g.size == length and g.slots > 0]


def _overridden(
    slots: int | None, entries: int | None, listing: IndexListing, voters: list[IndexFileName]
) -> IndexGeometry:
    lengths = {f.length for f in listing.files}
    said = " ".join(f"--{name} {value}" for name, value in (("index-slots", slots), ("index-entries", entries))
                    if value is not None)

    def refusal(why: str) -> UsageRefusal:
        return UsageRefusal(f"{said} is impossible: {why}", "Leave the option out; the sizes are then inferred.")

    geometry = _completed(slots, entries, voters[0].length if voters else None)
    if geometry is None or geometry.slots < 1 or geometry.entries < 2:
        raise refusal("an index file has at least 1 slot and 2 entries, and these files are "
                      f"{voters[0].length if voters else 0} bytes long")
    if lengths and geometry.size not in lengths:
        raise refusal(f"such an index file has {geometry.size} bytes, but those of the store have "
                      f"{', '.join(map(str, sorted(lengths)))}")
    fitting = [f for f in voters if f.length == geometry.size][:_VOTERS]
    if fitting and not any(_scored(f, geometry) for f in fitting):
        true = _voted(fitting, _likely(geometry.size))
        if true is not None and true != geometry and any(_scored(f, true) for f in fitting):
            raise refusal(f"the keys of {fitting[0].name} hang in the chains of {true.slots} slots, with room for "
                          f"{true.entries} entries")
    return geometry


def _completed(slots: int | None, entries: int | None, length: int | None) -> IndexGeometry | None:
    if slots is not None and entries is not None:
        return IndexGeometry(slots, entries)
    if length is None:
        return IndexGeometry(slots or DEFAULT_GEOMETRY.slots, entries or DEFAULT_GEOMETRY.entries)
    room = length - INDEX_HEADER.size
    if slots is not None:
        rest = room - slots * INDEX_SLOT.size
        return IndexGeometry(slots, rest // INDEX_UNIT.size) if rest % INDEX_UNIT.size == 0 else None
    rest = room - (entries or 0) * INDEX_UNIT.size
    return IndexGeometry(rest // INDEX_SLOT.size, entries or 0) if rest % INDEX_SLOT.size == 0 else None


def _voted(voters: list[IndexFileName], likely: list[IndexGeometry]) -> IndexGeometry | None:
    """What most of the fullest files prove; files that prove nothing do not vote."""
    for guess in likely:
        if any(_scored(f, guess) for f in voters[:_VOTERS]):
            return guess
    votes = Counter(g for f in voters[:_VOTERS] if (g := search(f.path, f.length)) is not None)
    return votes.most_common(1)[0][0] if votes else None


def _scored(file: IndexFileName, geometry: IndexGeometry) -> bool:
    """True when the file has units and nearly all of a sample stand where `geometry` says."""
    try:
        with FileReader(file.path) as reader:
            return fits(reader, geometry)
    except OSError:
        return False
