"""List the index files of a store and infer their geometry: how many slots and units a file has.

No file states its geometry. Many splits of a length are possible, but only under the true one do units chain from
the slots that their hashes select. Sources: broker classes IndexService, IndexFile.
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
from recover.store.columns import Rows, scratch_zeros
from recover.store.mapped_files import OddName
from recover.store.reader import FileReader, ReadFailure
from recover.store.source import existing_entries, open_file, read_small
from recover.store.store import Store

# --- Infer the split of an index file into slots and units from its content alone. ----------------------------------

_SAMPLE = 48
_SAMPLE_CUT = 300
_SEEN_CUT = 3
_LEAST_SHARE = 0.75
_PLAUSIBLE_OFFSET = 1 << 54
_WINDOW_ROWS = 1 << 19
_MOST_CANDIDATES = 2_000
_MOST_NAMED = 64
_VOTERS = 7
_CHUNK = 8 << 20
_WORD = 4
_HEADER_WORDS, _ROW_WORDS = INDEX_HEADER.size // _WORD, INDEX_UNIT.size // _WORD


def fits(reader: FileReader, geometry: IndexGeometry, *, cut: bool = False) -> bool:
    """Whether the oldest units chain from the slots of their hashes; a quarter of them may be damaged.

    Uses no header field. A unit that is not the head of its slot is checked only through its neighbours in the chain:
    their hashes must select the same slot. `cut`: the file may end early, so more evidence is required.
    """
    rows = _SAMPLE_CUT if cut else _SAMPLE
    raw = reader.read(geometry.unit_offset(0), min(geometry.entries, rows + 1) * INDEX_UNIT.size)
    if any(raw[: INDEX_UNIT.size]):
        return False
    units = list(INDEX_UNIT.decode_all(raw))
    numbers = [number for number in range(1, len(units)) if any(units[number])]
    good = bad = 0
    for number in numbers:
        verdict = _is_chained(reader, geometry, units, number)
        good += verdict is True
        bad += verdict is False or (verdict is None and not cut)
        if bad > len(numbers) * (1 - _LEAST_SHARE):
            return False
    return good + bad >= (_SEEN_CUT if cut else 1) and good >= (good + bad) * _LEAST_SHARE


def _is_chained(reader: FileReader, geometry: IndexGeometry, units: list[IndexUnit], number: int) -> bool | None:
    """Whether a unit is in the chain of its slot; None if the file ends before this can be decided."""
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
    """Return the first split of a file's length (bytes) that fits its content; failing that, try it as a truncated
    file.

    None if nothing fits or the file cannot be read.
    """
    words = (length - INDEX_HEADER.size) // 4
    try:
        with open_file(path) as reader:
            for named in (True, False):
                for candidate in _candidates(reader, length, words % _ROW_WORDS, named=named):
                    if candidate.size == length and fits(reader, candidate):
                        return candidate
            for named, shift in product((True, False), range(_ROW_WORDS)):
                for candidate in _candidates(reader, length, (words - shift) % _ROW_WORDS, named=named):
                    if fits(reader, candidate, cut=True):
                        # the room for units of a truncated file is unknown; assume 4 units a slot, the broker's default
                        # ratio
                        quarter = IndexGeometry(candidate.slots, 4 * candidate.slots)
                        return quarter if quarter.size > length else structs.replace(
                            candidate, entries=candidate.entries + 1)
    except OSError:
        return None
    return None


def _may_be_first(rows: Rows) -> Rows:
    """Rows that could be unit 1: it ends its chain, and the next two units link to no unit after themselves (bool
    array)."""
    plausible = (rows[:, 0] >= 0) & (rows[:, 1] >= 0) & (rows[:, 1] < _PLAUSIBLE_OFFSET >> 32)
    first = plausible & (rows[:, 4] == 0)
    for ahead in (1, 2):
        good = plausible[ahead:] & (rows[ahead:, 4] >= 0) & (rows[ahead:, 4] <= ahead)
        first[:-ahead] &= good
    return np.asarray(first)


def _candidates(reader: FileReader, length: int, phase: int, *, named: bool) -> Iterator[IndexGeometry]:
    """Yield splits under which unit 1 or the newest unit has the offset in the header; without `named`, splits under
    which unit 0 is blank and unit 1 ends a chain.

    Units fill the file to its end, so row boundaries are known whatever the split: `phase` words after the header,
    modulo a row. Only the first row has to be found.
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
        """Key hash, high and low half of the phy offset, time difference, previous; the row index is the unit
        number."""
        rows: Rows = self.words[_HEADER_WORDS + self.geometry.slots :].reshape(self.geometry.entries, _ROW_WORDS)
        return rows


def load_words(path: Path, geometry: IndexGeometry) -> IndexWords:
    """Read a file as `read_words` does. `OSError` when it cannot be opened."""
    with open_file(path) as reader:
        return read_words(reader, geometry)


def read_words(reader: FileReader, geometry: IndexGeometry) -> IndexWords:
    """Read an open file; missing bytes and unreadable ranges (listed in `failures`) become zeros.

    Bytes past the geometry's size are ignored, as a broker does.
    """
    image = IndexWords(geometry, IndexHeader(0, 0, 0, 0, 0, 0), scratch_zeros(geometry.size // _WORD, np.int32))
    raw = image.words.data.cast("B")
    end = min(reader.length, geometry.size)
    for start, stop in reader.data_ranges(0, end):
        for at in range(start, stop, _CHUNK):
            reader.announce(at, end)
            try:
                reader.read_into(raw[at : min(at + _CHUNK, stop)], at)
            except ReadFailure as failure:
                image.failures.append(failure)
        if start == 0:
            image.header = INDEX_HEADER.decode(raw)
        # holes start and end on multiples of 4 bytes, so no word is swapped twice
        if sys.byteorder == "little":
            image.words[start // _WORD : -(-stop // _WORD)].byteswap(inplace=True)
    return image


class IndexFileName(Struct, frozen=True):
    """A file that a broker loads as an index file; `is_time` is false if its name is a number but not a timestamp."""

    path: Path
    length: int
    is_time: bool

    @property
    def name(self) -> str:
        return self.path.name

    def header(self, unread: list[OSError] | None = None) -> IndexHeader | None:
        """Return the file's header; None if the file is too short or cannot be read (the error is added to
        `unread`)."""
        try:
            return INDEX_HEADER.decode(read_small(self.path, INDEX_HEADER.size))
        except OSError as error:
            if unread is not None:
                unread.append(error)
        except FormatError:
            pass
        return None


class IndexListing(Struct, frozen=True):
    """Content of the index folder: `files` in the broker's load order, and `odd` entries that it skips."""

    directory: Path
    files: tuple[IndexFileName, ...]
    odd: tuple[OddName, ...]


def list_index_files(directory: Path) -> IndexListing:
    """List the folder without opening a file; a missing folder counts as empty. `OSError` if listing fails."""
    files: list[IndexFileName] = []
    odd: list[OddName] = []
    for entry in existing_entries(directory):
        path, name = directory / entry.name, entry.name
        # Long.parseLong accepts decimal digits of every script, up to 2^63 - 1
        if entry.is_file and name.isdecimal() and int(name) < 1 << 63:
            files.append(IndexFileName(path, entry.length, is_index_name(str(int(name)))))
        else:
            odd.append(OddName(path, entry.kind, entry.length))
    return IndexListing(directory, tuple(files), tuple(odd))


def index_geometry(store: Store, listing: IndexListing | None = None) -> IndexGeometry | None:
    """Return the geometry of the store's index files; None if there are files but it cannot be inferred.

    Order of preference: the user's options (`UsageRefusal` if the files disprove them); the geometry that most files
    prove; the configured or default one if there is no file, or if no file has units and the length matches.
    """
    listing = listing or list_index_files(store.index_dir)
    lengths = usual_lengths(listing.files)
    slots, entries = store.options.index_slots, store.options.index_entries
    if slots is not None or entries is not None:
        return _given_geometry(slots, entries, listing, _of_length(listing, lengths[0] if lengths else 0))
    if not lengths:
        return _configured(store)
    found = [g for length in lengths if (g := _majority(_of_length(listing, length), _common(length))) is not None]
    if found:
        # a header count equal to the capacity marks a full file, as all but the last are
        counts = {_index_count(file) for file in listing.files}
        return max(found, key=lambda g: (g.entries in counts, 4 * g.slots == g.entries))
    # no units to test: accept a common geometry of this length
    return next((g for length in lengths for g in _common(length)), None)


def proven_geometry(path: Path, length: int) -> IndexGeometry | None:
    """Return the geometry that the units of one complete file prove; None if none fits."""
    found = _majority([IndexFileName(path, length, True)], _common(length))
    return found if found is not None and found.size == length else None


def file_geometry(path: Path, length: int) -> IndexGeometry | None:
    """Return the proven geometry of one file, or (for one without units) the brokers' geometry of that length, if
    any."""
    return proven_geometry(path, length) or next(iter(_common(length)), None)


def _of_length(listing: IndexListing, length: int) -> list[IndexFileName]:
    """Files of that length, those with most units first: they give the strongest evidence."""
    return sorted((f for f in listing.files if f.length == length), key=_index_count, reverse=True)


def _index_count(file: IndexFileName) -> int:
    """Return index_count from the header; 0 if it cannot be read."""
    header = file.header()
    return 0 if header is None else header.index_count


def _configured(store: Store) -> IndexGeometry:
    """Return the geometry of the user's broker settings, else the brokers' default; used when there is no file."""
    settings = store.options.settings
    try:
        slots = int(settings.get("maxHashSlotNum", DEFAULT_GEOMETRY.slots))
        entries = int(settings.get("maxIndexNum", DEFAULT_GEOMETRY.entries))
    except ValueError:
        return DEFAULT_GEOMETRY
    return IndexGeometry(slots, entries) if slots > 0 and entries > 1 else DEFAULT_GEOMETRY


def usual_lengths(files: Iterable[IndexFileName]) -> list[int]:
    """Return the most frequent file length (bytes), longest first if several tie; empty without files."""
    lengths = Counter(f.length for f in files if f.length > INDEX_HEADER.size)
    most = max(lengths.values(), default=0)
    return sorted((length for length, count in lengths.items() if count == most), reverse=True)


def _common(length: int) -> list[IndexGeometry]:
    quarter = (length - INDEX_HEADER.size) // (INDEX_SLOT.size + 4 * INDEX_UNIT.size)
    guesses = (DEFAULT_GEOMETRY, IndexGeometry(quarter, 4 * quarter))
    return [g for g in guesses if g.size == length and g.slots > 0]


def _given_geometry(
    slots: int | None, entries: int | None, listing: IndexListing, voters: list[IndexFileName]
) -> IndexGeometry:
    geometry = _complete(slots, entries, voters[0].length if voters else None)
    why = _why_impossible(geometry, listing, voters)
    if geometry is None or why is not None:
        said = " ".join(f"--{name} {value}" for name, value in (("index-slots", slots), ("index-entries", entries))
                        if value is not None)
        raise UsageRefusal(f"{said} is impossible: {why}", "Leave the option out; the sizes are then inferred.")
    return geometry


def _why_impossible(
    geometry: IndexGeometry | None, listing: IndexListing, voters: list[IndexFileName]
) -> str | None:
    """Why no index file here can have this geometry, None if they can."""
    if geometry is None or geometry.slots < 1 or geometry.entries < 2:
        return ("an index file has at least 1 slot and 2 entries, and these files are "
                f"{voters[0].length if voters else 0} bytes long")
    lengths = sorted({f.length for f in listing.files})
    if lengths and geometry.size not in lengths:
        return (f"such an index file has {geometry.size} bytes, but the index files of the store have "
                f"{', '.join(map(str, lengths))}")
    fitting = [f for f in voters if f.length == geometry.size][:_VOTERS]
    true = geometry if any(_proves(f, geometry) for f in fitting) else _majority(fitting, _common(geometry.size))
    if true is not None and true != geometry and any(_proves(f, true) for f in fitting):
        return (f"the keys of {fitting[0].name} hang in the chains of {true.slots} slots, with room for "
                f"{true.entries} entries")
    return None


def _complete(slots: int | None, entries: int | None, length: int | None) -> IndexGeometry | None:
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


def _majority(voters: list[IndexFileName], likely: list[IndexGeometry]) -> IndexGeometry | None:
    """Return the geometry that most of the fullest files prove; files without evidence do not vote."""
    for guess in likely:
        if any(_proves(f, guess) for f in voters[:_VOTERS]):
            return guess
    votes = Counter(g for f in voters[:_VOTERS] if (g := search(f.path, f.length)) is not None)
    return votes.most_common(1)[0][0] if votes else None


def _proves(file: IndexFileName, geometry: IndexGeometry) -> bool:
    """Whether the file has units and nearly all of a sample fit `geometry`."""
    try:
        with open_file(file.path) as reader:
            return fits(reader, geometry)
    except OSError:
        return False


ANY_TIME = (1 << 63) - 1
"""Stands for the time of a message where the index file's head, which has it, is gone."""


def index_ends(store: Store) -> list[tuple[int, int]]:
    """Start in the log and store timestamp (ms) of the last message of each index file, from its header; where that
    counts no entries, from the last one, with `ANY_TIME`."""
    found = []
    for file in list_index_files(store.index_dir).files:
        header = file.header()
        if header is not None and is_index_name(file.name):
            found += ends_of([(file.name, header)]) or _last_entry(file)
    return found


def ends_of(headers: Iterable[tuple[str, IndexHeader]]) -> list[tuple[int, int]]:
    """Return the same of headers that were read, see `index_headers`."""
    return [(header.end_phy_offset, header.end_timestamp) for _, header in headers if header.index_count > 1]


def _last_entry(file: IndexFileName) -> list[tuple[int, int]]:
    """Return what the last entry of a file says whose header counts none. Entries fill the file to its end, so that
    their places are known whatever the number of slots."""
    try:
        with open_file(file.path) as reader:
            for start, stop in reversed([*reader.data_ranges(INDEX_HEADER.size, file.length)]):
                for at in range(stop, start, -_CHUNK):
                    begin = max(start, at - _CHUNK)
                    used = len(reader.read(begin, at - begin).rstrip(b"\0"))
                    if used:
                        last = begin + used - 1
                        place = file.length + (last - file.length) // INDEX_UNIT.size * INDEX_UNIT.size
                        entry = INDEX_UNIT.decode(reader.read(place, INDEX_UNIT.size))
                        return [(entry.phy_offset, ANY_TIME)] if 0 <= entry.phy_offset < _PLAUSIBLE_OFFSET else []
    except (OSError, FormatError):
        pass
    return []


def index_headers(store: Store, unread: list[OSError]) -> Iterator[tuple[str, IndexHeader]]:
    """Name and header of each index file; errors of reading are added to `unread`."""
    for file in list_index_files(store.index_dir).files:
        header = file.header(unread)
        if header is not None and is_index_name(file.name):
            yield file.name, header
