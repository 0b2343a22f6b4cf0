"""Flipped bits of intact messages that other evidence reveals: rejected messages, and tags and keys in units.

Fields without a checksum (brokers write the property CRC only when configured to) can affect more than their own
message: clients fail on a body that is not compressed as its sysFlag says, and drop the rest of the response; services
stop at one of their messages without a valid destination or time. A queue unit holds the hash of the tag from when the
message was stored: a consumer of that tag is sent the message, and drops it for the tag that the record has now. Units
of the index hold the hashes of its keys.

Each bit is searched in the record as edited before, so that several bits of one record take one run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import Struct, structs

from formats import properties as props, sysflag
from formats.basics import FormatError, index_key_hash
from formats.record import Record, delay_level, iter_index_keys, tags_code
from formats.record.grammar import is_served
from formats.record.message import MissingCodecError, decompress, with_property_crc
from formats.record.rows import BIT_CONTRADICTED_FLAG, BIT_PROP_CRC, BIT_UNSERVED, NO_MESSAGE
from recover.derived.expected import QueueKey
from recover.findings.code import Severity
from recover.log.judge import LogReader
from recover.log.scan import LogView
from recover.reading.edits import Edit, between, property_bit
from recover.reading.policy import POLICIES
from recover.reading.reading import Reading
from recover.store.columns import Rows, Split, ask
from recover.store.config_files import topic_text

if TYPE_CHECKING:
    from recover.derived.index_check import IndexReport

class Rejected(Struct):
    """Messages of one mapped file that are rejected for the same reason, as rows (`RECORD`) of the log.

    They are adjacent, or all of the file if there are too many. A single message has its `record`, if readable, with
    earlier edits applied, and its `edit` if one bit explains it.
    """

    kind: str
    rows: Rows
    severity: Severity | None = None
    record: Record | None = None
    edit: Edit | None = None

    @property
    def starts(self) -> list[int]:
        """Physical offsets of the messages; empty if they are too many to be damage."""
        return [] if self.severity else self.rows["phy_offset"].tolist()


def rejected(analysis: Reading) -> list[Rejected]:
    log, found = analysis.log, []
    records = dict(log.written)
    alike = _compressed_alike(log) if log.tally.bits & BIT_CONTRADICTED_FLAG else Counter()
    queues = {QueueKey(topic_text(topic), queue_id) for topic, queue_id in log.queues}
    with LogReader(log.queue) as reader:
        for kind, bit in (("flag", BIT_CONTRADICTED_FLAG), ("service", BIT_UNSERVED)):
            for item in _of_kind(log, bit, kind) if log.tally.bits & bit else ():
                if len(item.starts) == 1:
                    start, size = int(item.rows[0]["phy_offset"]), int(item.rows[0]["size"])
                    item.record = records.get(start) or reader.find(start, size)
                if item.record is not None:
                    of_flag = kind == "flag"
                    item.edit = _flag_edit(item.record, alike) if of_flag else served_again(item.record, queues)
                if item.edit is not None:
                    records[item.edit.start] = item.edit.record
                found.append(item)
    return found


def _of_kind(log: LogView, bit: int, kind: str) -> list[Rejected]:
    places = [_rows([split.records for split in scan.splits], bit) for scan in log.files]
    if sum(rows.size for rows in places) > POLICIES[kind].limit:
        return [Rejected(kind, rows, "warning") for rows in places if rows.size]
    return [Rejected(kind, run) for rows in places for run in _runs(rows)]


def _rows(pieces: list[Rows], bit: int) -> Rows:
    chosen = [rows[(rows["bits"] & (bit | NO_MESSAGE)) == bit] for rows in pieces]
    return np.concatenate(chosen) if chosen else np.empty(0)


def _runs(rows: Rows) -> list[Rows]:
    """The rows, split wherever a record does not begin at the end of the one before."""
    if not rows.size:
        return []
    cuts = np.flatnonzero(rows["phy_offset"][1:] != rows["phy_offset"][:-1] + rows["size"][:-1]) + 1
    return np.split(rows, cuts)


def _flag_edit(record: Record, alike: Counter[int]) -> Edit | None:
    flag = right_flag(record, alike)
    if flag is None:
        return None
    right = structs.replace(record, sys_flag=flag)
    return between("flag", record, right, "sysFlag", (f"{record.sys_flag:#x}", f"{flag:#x}"))


def _compressed_alike(log: LogView) -> Counter[int]:
    """Count the compression bits of sound records that are marked compressed."""
    found: Counter[int] = Counter()
    for split in log.live():
        flags = split.records["sys_flag"][(split.records["bits"] & BIT_CONTRADICTED_FLAG) == 0]
        found.update((flags[flags & sysflag.COMPRESSED != 0] & COMPRESSION).tolist())
    return found


_YEAR_MS = 366 * 24 * 3600 * 1000


def served_again(record: Record, queues: Collection[QueueKey]) -> Edit | None:
    """Return the bit after whose flip services can read a record and its keys stay; None if there is none or more than
    one.

    Of several, the one that names one of these `queues` and a time less than a year away.
    """
    keys = [*iter_index_keys(record)]

    def is_likely(one: Record) -> bool:
        values = one.property_map()
        time = int(values.get(props.TIMER_OUT_MS, one.store_timestamp))
        named = QueueKey(values[props.REAL_TOPIC], int(values[props.REAL_QID]))
        return named in queues and abs(time - one.store_timestamp) < _YEAR_MS

    return property_bit(
        "service", record, lambda one: is_served(one) and [*iter_index_keys(one)] == keys, likely=is_likely
    )


COMPRESSION = sysflag.COMPRESSED | sysflag.COMPRESSION_TYPE
TYPES = {
    sysflag.COMPRESSION_LEGACY_ZLIB: "zlib", sysflag.COMPRESSION_ZLIB: "zlib", sysflag.COMPRESSION_LZ4: "LZ4",
    sysflag.COMPRESSION_ZSTD: "Zstandard",
}
_BITS = tuple(1 << number for number in range(32) if COMPRESSION >> number & 1)
_LARGEST_BODY = 16 << 20


def right_flag(record: Record, usual: Counter[int]) -> int | None:
    """Return the sysFlag one bit away that the body agrees with; `usual` counts the compression bits of other messages.

    Of several, the most common one in other messages; if none of them occurs, the one that clients of every version
    read. None if the body may be a stream of the producer's own, or one of a type that is more than one bit away.
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


def unnamed_checksums(log: LogView, mended: Iterable[Edit]) -> list[Edit]:
    """Return the edits that restore the name of a property CRC, in single records between others that have one.

    `mended`: other edits of the records; these are judged with them applied.
    """
    if not log.tally.bits & BIT_PROP_CRC:
        return []
    rows = np.concatenate([*ask([(split, _without_checksum) for split in log.splits()])])
    records = log.written | {edit.start: edit.record for edit in mended}
    found: list[Edit | None] = []
    with LogReader(log.queue) as reader:
        for start, size in rows.tolist() if len(rows) <= POLICIES["checksum"].limit else ():
            record = records.get(start) or reader.find(start, size)
            found.append(None if record is None else property_bit("checksum", record, _is_checked))
    return [structs.replace(edit, field="name of the property CRC", after=props.CRC32) for edit in found if edit]


def _without_checksum(split: Split) -> Rows:
    """Return (phy offset, size) of the single messages of a split without a property CRC (int64, two columns)."""
    bits = split.records["bits"]
    lacks = np.pad((bits & (BIT_PROP_CRC | NO_MESSAGE)) == 0, 1)
    rows = split.records[lacks[1:-1] & ~lacks[:-2] & ~lacks[2:]]
    return np.stack([rows["phy_offset"].astype(np.int64), rows["size"].astype(np.int64)], axis=1)


def _is_checked(record: Record) -> bool:
    return record.property_crc is not None and with_property_crc(record) == record


_ALL_BITS = (1 << 64) - 1


def flipped_properties(
    analysis: Reading, index: IndexReport | None, mended: Iterable[Edit]
) -> tuple[list[Edit], list[Record]]:
    """Return the edits that units reveal, and the records whose properties two of queue unit, index and their own text
    contradict without edits that explain it; none from the queues, or the index, if these contradict too many records.

    A value one bit off the record's is as likely wrong itself, unless the queue unit and the index both contradict the
    record, and one bit of it explains each.

    `mended`: other edits of the records; these are judged with them applied.
    """
    records = analysis.log.written | {edit.start: edit.record for edit in mended}
    found: list[_Contradicted] = []
    with LogReader(analysis.log.queue) as reader:
        for kind, start, size, told in _told(analysis, index):
            record = records.get(start) or reader.find(start, size)
            # a property CRC proves the properties unchanged
            if record is None or record.property_crc is not None:
                continue
            off = _bits_off_tag(record, *told) if kind == "tag" else _bits_off_keys(record, {*told})
            if off:
                edit = _by_tag(record, *told) if kind == "tag" else _by_keys(record, {*told})
                found.append(_Contradicted(kind, record, off, edit))
                records[start] = record if edit is None else edit.record
    return [*_borne_out(found)], [*_unexplained(found)]


class _Contradicted(NamedTuple):
    """A record that its unit ("tag") or the index ("key") contradicts by so many bits, and the edit that explains
    it."""

    kind: str
    record: Record
    off: int
    edit: Edit | None


def _borne_out(found: list[_Contradicted]) -> Iterator[Edit]:
    """Yield the edits: where one bit of the unit explains as much, only if the other kind needs an edit, too."""
    kinds = {(item.edit.start, item.kind) for item in found if item.edit is not None}
    for item in found:
        if item.edit is not None and (item.off > 1 or {(item.edit.start, "tag"), (item.edit.start, "key")} <= kinds):
            yield item.edit


def _unexplained(found: list[_Contradicted]) -> Iterator[Record]:
    """Yield the records that two of unit, index and text contradict, the former by several bits, if one has no edit."""
    by_record: dict[int, dict[str, _Contradicted]] = defaultdict(dict)
    for item in found:
        if item.off > 1:
            by_record[item.record.phy_offset][item.kind] = item
    for items in by_record.values():
        record = next(iter(items.values())).record
        explained = None not in [item.edit for item in items.values()]
        if not explained and len(items) + (not _is_text(record.properties)) > 1:
            yield record


def _is_text(properties: bytes) -> bool:
    """Whether the properties are UTF-8, as every client and broker writes them."""
    try:
        properties.decode()
    except UnicodeDecodeError:
        return False
    return True


def _told(analysis: Reading, index: IndexReport | None) -> Iterator[tuple[str, int, int | None, tuple[Any, ...]]]:
    """Yield (kind, phy offset, size if known, values) of each contradicted record: from wrong queue units, and from
    index units in the chain of a key that their record does not have."""
    verdicts = analysis.queues.verdicts if analysis.queues is not None else {}
    tags = [
        ("tag", phy_offset, size, (key, queue_offset, code)) for key, verdict in verdicts.items()
        for (queue_offset, phy_offset, size), code in zip(verdict.wrong, verdict.wrong_tags, strict=True)
    ]
    hashes: dict[int, set[int]] = defaultdict(set)
    for verdict in index.verdicts if index is not None else ():
        for phy_offset, key_hash in verdict.other_keys:
            hashes[phy_offset].add(key_hash)
    yield from tags if len(tags) <= POLICIES["tag"].limit else ()
    for phy_offset, own in hashes.items() if len(hashes) <= POLICIES["key"].limit else ():
        yield "key", phy_offset, None, (*own,)


def _bits_off_tag(record: Record, key: QueueKey, queue_offset: int, code: int) -> int:
    """The number of bits by which a unit at the record's own place holds another tag. If it is one, the unit is as
    likely wrong."""
    own = (record.topic_name, record.queue_id, record.queue_offset) == (*key, queue_offset)
    return ((tags_code(record) ^ code) & _ALL_BITS).bit_count() if own and delay_level(record) is None else 0


def _by_tag(record: Record, key: QueueKey, queue_offset: int, code: int) -> Edit | None:
    return property_bit("tag", record, lambda one: tags_code(one) == code)


def _bits_off_keys(record: Record, told: set[int]) -> int:
    """The least number of bits by which the index holds other keys. If a hash is one bit off one of the record's own,
    it is as likely wrong."""
    before = key_hashes(record)
    return min(((mine ^ its).bit_count() for mine in told - before for its in before), default=len(told - before) * 2)


def _by_keys(record: Record, told: set[int]) -> Edit | None:
    """The record may lose keys but must gain none without a unit."""
    before = key_hashes(record)
    return property_bit("key", record, lambda one: told <= key_hashes(one) <= told | before)


def key_hashes(record: Record) -> set[int]:
    """The index hashes of a record's keys, tags included."""
    return {index_key_hash(text) for text in iter_index_keys(record)}
