"""Transactions of RocketMQ 3.x: state table and redo log, judged against the log and made again from it.

1. The log has it all: prepared messages (transaction type 4), whose queue offset is their place in the table, and the
   messages of type 8 and 12 that end them, which say the offset of the prepared one in the log.
2. The redo log names each of these in the order of the log (TransactionStateService of 3.x): a prepared one with the
   tags code -1, the end of one with the offset of the prepared one. It outlives the record of an end that is damaged.
3. The table is right if each unit names a prepared message and says how it ended, and no message without an end lacks
   one. A unit at another place is no fault: after a kill brokers number the open ones anew.
4. Made again, each message gets its own place, which the end of a transaction must name. Of two that claim one, the one
   without an end counts; the other, if it is open, too, follows at the end, as after a kill. Places without a message
   get a unit that is rolled back, since recovery ends the table at a place that is none. What the log no longer
   holds, because it has expired, stays as it is.

Only sources were read: 3.2.6, the oldest release on Maven Central, has neither file. How a transaction ended whose end
is damaged is not known: the table's own word counts, else the broker asks the producer again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field

from formats import properties as props
from formats.basics import hash32, offset_to_name
from formats.consumequeue import CQ_UNIT
from formats.legacy_transaction import STATE_COMMIT, STATE_PREPARED, STATE_ROLLBACK, STATE_UNIT, STATES, StateUnit
from formats.record import TOPIC_HALF
from formats.record.rows import NO_MESSAGE, STAND_IN
from formats.sysflag import TRANSACTION
from recover.change.content import BytesContent
from recover.change.model import Install, Retire, Step
from recover.findings.model import Finding, finding
from recover.log.judge import LogReader
from recover.log.scan import LogView
from recover.store.columns import Rows, within
from recover.store.mapped_files import MappedFileQueue
from recover.store.source import open_file
from recover.store.store import Store

FOLDER = "transaction"
TABLE, REDO_LOG = f"{FOLDER}/statetable", f"{FOLDER}/redolog"
WRONG = "transaction-table-wrong"
_UNITS_OF_A_FILE = 2_000_000
"""tranStateTableMapedFileSize and tranRedoLogMapedFileSize, the defaults, in units."""
_PREPARED_TAG = -1
_NOBODY = StateUnit(0, 1, 0, 0, STATE_ROLLBACK)
"""Holds a place without a message: no record is one byte long."""


class _Message(NamedTuple):
    """A prepared message: its own place in the table, and the unit that it needs as long as nothing ends it."""

    place: int
    unit: StateUnit


class _Told(Struct):
    """What log and redo log say: prepared messages by phy offset; how they ended, None if only that they did; and the
    units of the redo log in its order, as (phy offset, size, tags code)."""

    prepared: dict[int, _Message] = field(default_factory=dict)
    ends: dict[int, int | None] = field(default_factory=dict)
    redo: list[tuple[int, int, int]] = field(default_factory=list)
    lost: bool = False
    """Whether the log has places whose messages are gone: an end may have been there."""

    def state(self, phy_offset: int, known: int | None) -> int:
        """The state of a prepared message; `known`: what a table says of it."""
        if phy_offset not in self.ends:
            return STATE_PREPARED
        state = self.ends[phy_offset]
        return (known or STATE_PREPARED) if state is None else state


class _Part(Struct):
    """The units of one of the two queues, from unit `first` on (dtype of its layout), up to the last that is not zero.
    """

    path: Path
    queue: MappedFileQueue
    units: Rows
    first: int
    size: int


def has_transactions(store: Store) -> bool:
    """Whether the store has files of one of the two."""
    return any(_queue(store, name, size).files for name, size in _SIZES.items())


def check_transactions(store: Store, log: LogView) -> Iterator[Finding]:
    """Findings about state table and redo log."""
    if not has_transactions(store):
        return
    try:
        table, redo = (_part(store, name) for name in _SIZES)
        told = _told(log, redo)
        for name, wrong in ((TABLE, [*_wrong_states(log, told, table)]),
                            (REDO_LOG, [*_wrong_redo(log, told, redo)])):
            for problem, places in wrong:
                if places:
                    yield finding(WRONG, name, None, part=name, count=len(places), first=places[0], problem=problem)
    except OSError as error:
        name = store.relative(Path(error.filename)) if error.filename else FOLDER
        yield finding("part-unreadable", name, None, part=name, error=error.strerror)


def transaction_steps(store: Store, log: LogView) -> list[Step]:
    """The steps that make both again, for a store that has one of them."""
    table, redo = (_part(store, name) for name in _SIZES)
    told = _told(log, redo)
    return [*_steps(store, TABLE, table, *_made_table(log, told, table)),
            *_steps(store, REDO_LOG, redo, redo.first, _made_redo(log, told, redo))]


# --- What there is.


_SIZES = {TABLE: STATE_UNIT.size, REDO_LOG: CQ_UNIT.size}


def _queue(store: Store, name: str, size: int) -> MappedFileQueue:
    return MappedFileQueue.load((store.root / name,), 0, size)


def _part(store: Store, name: str) -> _Part:
    size = _SIZES[name]
    dtype = STATE_UNIT.dtype if name == TABLE else CQ_UNIT.dtype
    queue = _queue(store, name, size)
    if not queue.file_size:
        queue.file_size = _UNITS_OF_A_FILE * size
    base = queue.min_offset
    content = bytearray()
    for file in queue.files:
        content.extend(bytes(file.file_from_offset - base - len(content)))
        with open_file(file.path) as reader:
            stop = max((last for _, last in reader.data_ranges(0, reader.length)), default=0)
            content += reader.read(0, min(stop, queue.file_size)).rstrip(b"\0")
    content.extend(bytes(-len(content) % size))
    return _Part(store.root / name, queue, np.frombuffer(bytes(content), dtype), base // size, size)


def _told(log: LogView, redo: _Part) -> _Told:
    told = _Told()
    named = set(redo.units["phy_offset"].tolist())
    # brokers from 4.3 on end their half messages likewise, which have a topic of their own
    only_old = not any(topic == TOPIC_HALF.encode() for topic, _ in log.queues)
    with LogReader(log.queue) as reader:
        for split in log.live():
            rows = split.records
            kinds = rows["sys_flag"] & TRANSACTION
            for row in rows[(kinds != 0) & ((rows["bits"] & NO_MESSAGE) == 0)]:
                phy_offset, size, kind = int(row["phy_offset"]), int(row["size"]), int(row["sys_flag"]) & TRANSACTION
                record = reader.find(phy_offset, size)
                if record is None:
                    continue
                if kind == STATE_PREPARED:
                    group = record.property_map().get(props.PGROUP, "")
                    told.prepared[phy_offset] = _Message(record.queue_offset, StateUnit(
                        phy_offset, size, record.store_timestamp // 1000, hash32(group), STATE_PREPARED))
                    told.redo.append((phy_offset, size, _PREPARED_TAG))
                    continue
                of = record.prepared_transaction_offset
                if of in told.prepared:
                    told.ends[of] = kind
                if of in told.prepared or (0 <= of < log.min_offset and (only_old or phy_offset in named)):
                    told.redo.append((phy_offset, size, of))
    told.lost = bool(log.damaged) or any(
        ((split.records["bits"] & STAND_IN) != 0).any() for split in log.splits(STAND_IN))
    for offset in redo.units["tags_code"][redo.units["size"] > 0].tolist():
        if offset in told.prepared:
            told.ends.setdefault(offset, None)
    return told


# --- What is wrong.


def _wrong_states(log: LogView, told: _Told, table: _Part) -> Iterator[tuple[str, list[int]]]:
    """(problem, places in the table)."""
    units, first = table.units, table.first
    valid = (units["phy_offset"] >= 0) & (units["size"] > 0) & np.isin(units["state"], STATES)
    named: set[int] = set()
    foreign: list[int] = []
    states: list[int] = []
    damaged = _gone(log, units["phy_offset"])
    for number in np.flatnonzero(valid & ~damaged & (units["size"] != _NOBODY.size)
                                 & (units["phy_offset"] >= log.min_offset)).tolist():
        unit = StateUnit(*units[number].tolist())
        message = told.prepared.get(unit.phy_offset)
        if message is None or unit._replace(state=STATE_PREPARED) != message.unit:
            foreign.append(first + number)
            continue
        named.add(unit.phy_offset)
        end = told.ends.get(unit.phy_offset, STATE_PREPARED)
        # the end may be among what is damaged
        if unit.state != end and end is not None and not (end == STATE_PREPARED and told.lost):
            states.append(first + number)
    yield "entries that are none, where recovery ends the table", (first + np.flatnonzero(~valid)).tolist()
    yield "entries that name no prepared message", foreign
    yield "entries with another state than the log says", states
    yield "prepared messages without an end that have no entry: the broker never asks their producers", [
        message.place for offset, message in sorted(told.prepared.items())
        if offset not in named and offset not in told.ends]


def _wrong_redo(log: LogView, told: _Told, redo: _Part) -> Iterator[tuple[str, list[int]]]:
    made, there = _made_redo(log, told, redo), redo.units
    same = min(made.size, there.size)
    differ = np.flatnonzero(made[:same] != there[:same])
    if differ.size or made.size != there.size:
        at = int(differ[0]) if differ.size else same
        yield (f"entries from there on that differ from the log: {there.size - at} are there, {made.size - at} belong "
               "there"), [*range(redo.first + at, redo.first + max(made.size, there.size))]


# --- Made again.


def _made_table(log: LogView, told: _Told, table: _Part) -> tuple[int, Rows]:
    """The first place, and the units from there on."""
    known: dict[int, int] = {}
    placed: dict[int, StateUnit] = {}
    for number, row in enumerate(table.units.tolist()):
        unit = StateUnit(*row)
        if unit.state not in STATES or unit.size <= 0 or unit.phy_offset < 0:
            continue
        if unit.phy_offset < log.min_offset and unit.size != _NOBODY.size:
            placed[table.first + number] = unit
        elif unit.state in (STATE_COMMIT, STATE_ROLLBACK):
            known[unit.phy_offset] = unit.state
    late: list[StateUnit] = []
    units = {offset: message.unit._replace(state=told.state(offset, known.get(offset)))
             for offset, message in told.prepared.items()}
    per_file = table.queue.file_size // table.size
    usual = int(np.median([message.place for message in told.prepared.values()])) if units else 0
    # those without an end last, so that they keep their places
    for offset in sorted(units, key=lambda each: (units[each].state == STATE_PREPARED, each)):
        place = told.prepared[offset].place
        if abs(place - usual) > 2 * per_file + len(units):
            # no checksum covers the queue offset of a record
            late.append(units[offset])
            continue
        before = placed.get(place)
        if before is not None and before.state == STATE_PREPARED and before.phy_offset >= log.min_offset:
            late.append(before)
        placed[place] = units[offset]
    end = max(placed, default=table.first - 1) + 1
    placed.update(enumerate(late, end))
    first = min(placed, default=table.first)
    first = min(first, table.first) // per_file * per_file if table.queue.files else first // per_file * per_file
    made = np.full(max(placed, default=first - 1) + 1 - first, np.array(_NOBODY, STATE_UNIT.dtype),
                   STATE_UNIT.dtype)
    for place, unit in placed.items():
        made[place - first] = tuple(unit)
    return first, made


def _made_redo(log: LogView, told: _Told, redo: _Part) -> Rows:
    """The units that name expired messages, and one for each message of the log that belongs there."""
    old = redo.units[(redo.units["size"] > 0) & (redo.units["phy_offset"] < log.min_offset)]
    damaged = _gone(log, redo.units["phy_offset"]) & (redo.units["size"] > 0)
    told_of = np.array(told.redo, CQ_UNIT.dtype) if told.redo else np.empty(0, CQ_UNIT.dtype)
    both = np.concatenate([told_of, redo.units[damaged]])
    made = np.concatenate([old, both[np.argsort(both["phy_offset"], kind="stable")]])
    return made.astype(CQ_UNIT.dtype)  # joined, they have the byte order of the machine


def _gone(log: LogView, offsets: Rows) -> Rows:
    """Which offsets lie in damage, or in what stands there instead after a repair (bool array)."""
    offsets = offsets.astype(np.int64)
    found = log.in_damage(offsets)
    for split in log.splits(STAND_IN):
        rows = split.records[(split.records["bits"] & STAND_IN) != 0]
        found |= within(offsets, rows["phy_offset"], rows["phy_offset"] + rows["size"])
    return found


def _steps(store: Store, name: str, part: _Part, first: int, made: Rows) -> Iterator[Step]:
    """One file for each that differs; what is there and not needed goes."""
    per_file, size = part.queue.file_size // part.size, part.queue.file_size
    wanted: dict[str, bytes] = {}
    for begin in range(0, made.size, per_file):
        wanted[f"{name}/{offset_to_name((first + begin) * part.size)}"] = made[begin : begin + per_file].tobytes()
    there = {store.relative(file.path): file for file in part.queue.files}
    yield from map(Retire, sorted(there.keys() - wanted.keys()))
    for path, content in wanted.items():
        if (file := there.get(path)) is not None and file.length == size:
            base = (file.file_from_offset - part.first * part.size) // part.size
            if part.units[base : base + per_file].tobytes().rstrip(b"\0") == content.rstrip(b"\0"):
                continue
        yield Install(path, BytesContent(content, size - len(content)))
