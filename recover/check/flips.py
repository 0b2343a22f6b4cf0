"""Bits of intact messages that something else gives away: rejected messages, and tags and keys that units remember.

What no checksum covers, unless brokers were told to write one, can stop more than its own message: clients throw at a
body that is not compressed as its sysFlag says, and drop what came after it in the same answer; services stop at a
message of theirs that does not say where it is to go, and when. The queue's unit, made when the message was stored, has
the hash of its tag: a consumer that asks for this tag is sent the message, and drops it for what the record says by
now. The units of the index have the hashes of its keys.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct, structs

from formats import properties as props
from formats import sysflag
from formats.compression import MissingCodecError, decompress
from formats.errors import FormatError
from formats.javahash import index_key_hash
from formats.record import OFFSET_SYS_FLAG, TOPIC_HALF, TOPIC_TIMER, Record, delay_level, iter_index_keys, tags_code
from formats.record.grammar import is_served, unserved
from formats.record.rows import BIT_CONTRADICTED_FLAG, BIT_UNSERVED, NO_MESSAGE
from recover.check.log import place_in_file
from recover.check.survey import Survey
from recover.derived.expected import QueueKey
from recover.evidence.edits import Edit, a_bit_away, between
from recover.evidence.policy import POLICIES
from recover.evidence.restore import LARGEST, flipped_bits
from recover.findings.code import Severity
from recover.findings.model import Finding, finding
from recover.log.judge import LogReader
from recover.log.scan import LogView
from recover.store.columns import Rows
from recover.store.config_files import topic_text
from recover.store.mapped_files import MappedFile
from recover.store.store import Store

if TYPE_CHECKING:
    from recover.derived.index_file_check import IndexReport

_THROWN = "throw, and drop what comes with it"
_AS_IT_IS = "are given what is compressed"
_LEVEL_STOPS = "4.9 delivers nothing of its delay level from there on, other releases drop it"
_TIMER_STOPS = "the timer takes up nothing from there on"
_TRIED_AGAIN = "the timer tries to deliver it again and again, and may stop with it"
_NOT_ENDED = "its transaction cannot be ended"


class Rejected(Struct):
    """Messages of one mapped file that are rejected for the same reason, as rows (`RECORD`) of the log.

    They are one after the other, or all of the file where there are too many. Of one alone there is the `record`, if it
    can be read, with its other bits turned back, and the edit, where one bit explains it.
    """

    code: str
    mapped_file: MappedFile
    rows: Rows
    severity: Severity | None = None
    record: Record | None = None
    edit: Edit | None = None

    @property
    def is_alone(self) -> bool:
        """Whether it is one message, of not too many."""
        return self.rows.size == 1 and self.severity is None


def rejected(look: Survey) -> list[Rejected]:
    """Those of the log, but for records of which a queue has shown that another field is damaged."""
    found: list[Rejected] = []
    known = [edit.start for edit in look.contradictions]
    others = _Others(look.log)
    mended: dict[int, Record] = {}
    with LogReader(look.log.queue) as reader:
        for bit, kind, right in _KINDS:
            of_kind = _of_kind(look.log, bit, kind, known) if look.log.tally.bits & bit else []
            for item in of_kind:
                if item.is_alone:
                    item.record = mended.get(int(item.rows[0]["phy_offset"])) or _rejected_record(reader, item.rows[0])
                if item.record is not None:
                    item.edit = right(item.record, others)
                if item.edit is not None:
                    mended[item.edit.start] = item.edit.record
            found += of_kind
    return found


def rejected_findings(look: Survey, found: list[Rejected]) -> Iterator[Finding]:
    """One for each of `found`, and one for each bit that explains it."""
    for item in found:
        first = item.rows[0]
        start = int(first["phy_offset"])
        topic, queue_id = look.log.queues[int(first["queue"])]
        number = int(first["queue_offset"])
        message: dict[str, Any] = {"topic": topic_text(topic), "queue": queue_id, "queue_offset": number}
        place, facts = _ABOUT[item.code](item, topic_text(topic))
        file, offset = place_in_file(look.store, item.mapped_file, start + place)
        yield finding(
            item.code, file, offset, severity=item.severity, start=start, first=start,
            # what recover leaves as it is
            remedy=None if item.edit else f"mqtool explain {item.code}",
            last=int(item.rows[-1]["phy_offset"]), count=item.rows.size, **facts, **message,
        )
        if item.edit is not None:
            file, offset = place_in_file(look.store, item.mapped_file, start + item.edit.position)
            said = {**_said_of(item.edit), "name": item.edit.field, "value": item.edit.after}
            yield finding("commitlog-flipped-field", file, offset, **said, **message)


def _said_of(edit: Edit) -> dict[str, Any]:
    """What findings say of a bit that was flipped."""
    return {
        "start": edit.start, "position": edit.position, "bit": edit.bit, "stored": edit.stored[0],
        "right": edit.content[0],
    }


def _about_flag(item: Rejected, topic: str) -> tuple[int, dict[str, Any]]:
    """Where in the first record it is, and what is to be said of it."""
    flag = int(item.rows[0]["sys_flag"])
    result = _THROWN if flag & sysflag.COMPRESSED else _AS_IT_IS
    return OFFSET_SYS_FLAG, {"sys_flag": flag, "says": _says(flag), "result": result}


def _about_properties(item: Rejected, topic: str) -> tuple[int, dict[str, Any]]:
    """The same."""
    names = ["a property"] if item.record is None else unserved(item.record)
    values = {} if item.record is None else item.record.property_map()
    place = 0 if item.edit is None else item.edit.position
    says = ", ".join(f"{name} ({values[name]!r})" if name in values else f"{name} (not there)" for name in names)
    return place, {"says": says, "result": _result(topic, names)}


def _result(topic: str, wrong: list[str]) -> str:
    if topic == TOPIC_TIMER:
        return _TIMER_STOPS if props.TIMER_OUT_MS in wrong else _TRIED_AGAIN
    return _NOT_ENDED if topic == TOPIC_HALF else _LEVEL_STOPS


def _says(flag: int) -> str:
    kind = TYPES.get(flag & sysflag.COMPRESSION_TYPE, "a type that there is not")
    if flag & sysflag.COMPRESSED:
        return f"compressed ({kind})"
    return f"{kind}, but not compressed" if flag & sysflag.COMPRESSION_TYPE else "not compressed"


def _of_kind(log: LogView, bit: int, kind: str, known: list[int]) -> list[Rejected]:
    code = POLICIES[kind].finding
    places = [(scan.mapped_file, _rows([split.records for split in scan.splits], bit, known)) for scan in log.files]
    if sum(rows.size for _, rows in places) > POLICIES[kind].limit:
        return [Rejected(code, mapped_file, rows, "warning") for mapped_file, rows in places if rows.size]
    return [Rejected(code, mapped_file, run) for mapped_file, rows in places for run in _runs(rows)]


def _rows(pieces: list[Rows], bit: int, known: list[int]) -> Rows:
    chosen = [
        rows[((rows["bits"] & (bit | NO_MESSAGE)) == bit) & ~np.isin(rows["phy_offset"], known)] for rows in pieces
    ]
    return np.concatenate(chosen) if chosen else np.empty(0)


def _runs(rows: Rows) -> list[Rows]:
    """The rows, cut wherever one does not begin where that before it ends."""
    if not rows.size:
        return []
    cuts = np.flatnonzero(rows["phy_offset"][1:] != rows["phy_offset"][:-1] + rows["size"][:-1]) + 1
    return np.split(rows, cuts)


def _rejected_record(reader: LogReader, row: Any) -> Record | None:
    try:
        return reader.record(int(row["phy_offset"]), int(row["size"])) if row["size"] <= LARGEST else None
    except (FormatError, OSError):
        return None


class _Others:
    """What the other messages of a log are like, looked at when somebody asks."""

    def __init__(self, log: LogView) -> None:
        self._log = log

    @cached_property
    def usual(self) -> Counter[int]:
        """How often sound records say that they are compressed, by what they say of it."""
        found: Counter[int] = Counter()
        for split in self._log.live():
            records = split.records
            sound = (records["bits"] & BIT_CONTRADICTED_FLAG) == 0
            flags = records["sys_flag"][sound & (records["sys_flag"] & sysflag.COMPRESSED != 0)] & COMPRESSION
            found.update(flags.tolist())
        return found

    @cached_property
    def queues(self) -> set[QueueKey]:
        """The queues that have messages."""
        return {QueueKey(topic_text(topic), queue_id) for topic, queue_id in self._log.queues}


def _flag_edit(record: Record, others: _Others) -> Edit | None:
    flag = right_flag(record, others.usual)
    if flag is None:
        return None
    right = structs.replace(record, sys_flag=flag)
    return between("flag", record, right, "sysFlag", (f"{record.sys_flag:#x}", f"{flag:#x}"))


def _service_edit(record: Record, others: _Others) -> Edit | None:
    right = served_again(record, others.queues)
    return None if right is None else _property_edit("service", record, right)


def _property_edit(kind: str, stored: Record, right: Record) -> Edit:
    """The edit of the property that differs, of two the one that it was."""
    before, after = stored.property_map(), right.property_map()
    name = next((name for name in after if before.get(name) != after[name]), "")
    return between(kind, stored, right, name, (stored.get_property(name) or "", right.get_property(name) or ""))


_KINDS: tuple[tuple[int, str, Callable[[Record, _Others], Edit | None]], ...] = (
    (BIT_CONTRADICTED_FLAG, "flag", _flag_edit), (BIT_UNSERVED, "service", _service_edit),
)
_ABOUT: dict[str, Callable[[Rejected, str], tuple[int, dict[str, Any]]]] = {
    POLICIES["flag"].finding: _about_flag,
    POLICIES["service"].finding: _about_properties,
}


_YEAR_MS = 366 * 24 * 3600 * 1000


def served_again(record: Record, queues: Collection[QueueKey]) -> Record | None:
    """The record a bit away that services can read, or None if there is no such bit or more than one.

    Of several the one that names one of these `queues`, and no time that is years away.
    """
    found = [
        one for one in a_bit_away(record)
        if is_served(one) and props.structure_problem(one.properties) is None and _keys(one) == _keys(record)
    ]
    if len(found) > 1:
        found = [one for one in found if _is_likely(one, queues)]
    return found[0] if len(found) == 1 else None


def _keys(record: Record) -> list[str]:
    return list(iter_index_keys(record, tags=True))


def _is_likely(record: Record, queues: Collection[QueueKey]) -> bool:
    values = record.property_map()
    time = int(values.get(props.TIMER_OUT_MS, record.store_timestamp))
    named = QueueKey(values[props.REAL_TOPIC], int(values[props.REAL_QID]))
    return named in queues and abs(time - record.store_timestamp) < _YEAR_MS


COMPRESSION = sysflag.COMPRESSED | sysflag.COMPRESSION_TYPE
TYPES = {
    sysflag.COMPRESSION_LEGACY_ZLIB: "zlib", sysflag.COMPRESSION_ZLIB: "zlib", sysflag.COMPRESSION_LZ4: "LZ4",
    sysflag.COMPRESSION_ZSTD: "Zstandard",
}
_BITS = tuple(1 << number for number in range(32) if COMPRESSION >> number & 1)
_LARGEST_BODY = 16 << 20


def right_flag(record: Record, usual: Counter[int]) -> int | None:
    """The sysFlag one bit away that the body agrees with; `usual` is how often others are compressed, by their bits.

    Of several that do, the one that other messages have most; where none has, that which clients of every version read,
    or None if the body may be a stream of the producer's own, or one of a type that is more than a bit away.
    """
    found = [flag for flag in (record.sys_flag ^ bit for bit in _BITS) if _agrees(flag, record.body)]
    compressed = [flag for flag in found if flag & sysflag.COMPRESSED]
    known = [flag for flag in compressed if usual[flag & COMPRESSION]]
    if known:
        return max(known, key=lambda flag: usual[flag & COMPRESSION])
    if len(compressed) < len(found) and any(_agrees(sysflag.COMPRESSED | kind, record.body) for kind in TYPES):
        return None
    return min(found, default=None)


def _agrees(sys_flag: int, body: bytes) -> bool:
    """Whether a producer's client may have stored the body with this sysFlag."""
    if not sys_flag & sysflag.COMPRESSED:
        return not sys_flag & sysflag.COMPRESSION_TYPE
    if sys_flag & sysflag.COMPRESSION_TYPE not in sysflag.streams(body):
        return False
    try:
        decompress(body, sys_flag, _LARGEST_BODY)
    except MissingCodecError:
        return True
    except FormatError as error:
        return error.reason == "body-too-large"
    return True


def flipped_bit_findings(store: Store, look: Survey) -> Iterator[Finding]:
    """One finding for each such message, at the byte that has the bit."""
    for edit in flipped_bits(look.log, look.losses):
        yield _bit_finding(store, look.log, edit, field=edit.field, odds=edit.odds)


def flipped_property_findings(store: Store, log: LogView, edits: Iterable[Edit]) -> Iterator[Finding]:
    """One finding for each record of which a tag or key is not what units remember, and was before a bit flipped."""
    for edit in edits:
        witness = POLICIES[edit.kind].witness
        yield _bit_finding(store, log, edit, name=edit.field, value=edit.after, witness=witness)


def _bit_finding(store: Store, log: LogView, edit: Edit, **facts: Any) -> Finding:
    mapped_file = log.queue.find(edit.start)
    assert mapped_file is not None
    (topic, queue), queue_offset = edit.place
    place = place_in_file(store, mapped_file, edit.start + edit.position)
    said = {**_said_of(edit), **facts, "topic": topic, "queue": queue, "queue_offset": queue_offset}
    return finding(POLICIES[edit.kind].finding, *place, **said)


_ALL_BITS = (1 << 64) - 1
_SIZE_BYTES = 4


def flipped_properties(
    look: Survey, index: IndexReport | None, mended: Mapping[int, Record]
) -> Iterator[Edit]:
    """Those that units show, one at most of a record; none by the queues, or the index, where these name too many.

    `mended`: records by their place of which other bits are turned back; these are judged without them.
    """
    seen = {edit.start for edit in look.contradictions}
    with LogReader(look.log.queue) as reader:
        for edit in chain(_by_queues(look, reader, mended), _by_index(look, index, reader, mended)):
            if edit.start not in seen:
                seen.add(edit.start)
                yield edit


def _by_queues(look: Survey, reader: LogReader, mended: Mapping[int, Record]) -> Iterator[Edit]:
    """Wrong units that name the very record of their place.

    One that is itself a bit away from what the record asks for is as likely wrong: then nothing is said.
    """
    wrong = [
        (key, unit, code) for key, verdict in (look.queues.verdicts if look.queues is not None else {}).items()
        for unit, code in zip(verdict.wrong, verdict.wrong_tags, strict=True)
    ]
    for key, (queue_offset, phy_offset, size), code in wrong if len(wrong) <= POLICIES["tag"].limit else ():
        record = mended.get(phy_offset) or _record(reader, phy_offset, size)
        if record is None or (record.topic_name, record.queue_id, record.queue_offset) != (*key, queue_offset):
            continue

        def agrees(changed: Record, code: int = code) -> bool:
            return tags_code(changed) == code

        off = (tags_code(record) ^ code) & _ALL_BITS
        if delay_level(record) is None and off.bit_count() > 1:
            yield from _led_back("tag", record, agrees)


def _by_index(
    look: Survey, index: IndexReport | None, reader: LogReader, mended: Mapping[int, Record]
) -> Iterator[Edit]:
    """Units of the index that name a record which has no such key, though they hang in the chain of that key.

    One that is itself a bit away from a key of the record is as likely wrong, as with queues.
    """
    claimed: dict[int, set[int]] = defaultdict(set)
    for verdict in index.verdicts if index is not None else ():
        for phy_offset, key_hash in verdict.other_keys:
            claimed[phy_offset].add(key_hash)
    for phy_offset, hashes in claimed.items() if len(claimed) <= POLICIES["key"].limit else ():
        record = mended.get(phy_offset) or _record(reader, phy_offset)
        if record is None or hashes <= (before := _hashes(record)):
            continue
        if any((mine ^ its).bit_count() == 1 for mine in hashes - before for its in before):
            continue

        def agrees(changed: Record, least: set[int] = hashes, most: set[int] = hashes | before) -> bool:
            # it may lose keys, but must not get any that no unit has
            return least <= _hashes(changed) <= most

        yield from _led_back("key", record, agrees)


def _record(reader: LogReader, phy_offset: int, size: int | None = None) -> Record | None:
    """The record without a property CRC that stands there, of the size that is given or that it has."""
    try:
        if size is None:
            size = int.from_bytes(reader.read(phy_offset, _SIZE_BYTES), "big")
        record = reader.record(phy_offset, size) if size <= LARGEST else None
    except (FormatError, OSError):
        return None
    return record if record is not None and record.property_crc is None else None


def _hashes(record: Record) -> set[int]:
    return {index_key_hash(text) for text in iter_index_keys(record, tags=True)}


def _led_back(kind: str, record: Record, agrees: Callable[[Record], bool]) -> Iterator[Edit]:
    """The one record a bit away in its properties that `agrees`, if there is just one."""
    found = [
        one for one in a_bit_away(record)
        if props.structure_problem(one.properties) is None and agrees(one)
    ]
    if len(found) == 1:
        yield _property_edit(kind, record, found[0])
