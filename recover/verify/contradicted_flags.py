"""Records whose body is not what their sysFlag says of it.

The flag is stored as the producer set it, no checksum covers it unless brokers were told to write one, and brokers do
not look at how a body is compressed. Clients do: they throw, and drop what came behind the message in the same answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct, structs

from formats import sysflag
from formats.commitlog import OFFSET_SYS_FLAG, Record
from formats.compression import MissingCodecError, decompress
from formats.errors import FormatError
from formats.record_columns import BIT_CONTRADICTED_FLAG, NO_MESSAGE
from recover.evidence.restore import LARGEST
from recover.evidence.wrong_bit import WrongBit
from recover.files.mapped_files import MappedFile
from recover.files.store import Store
from recover.files.topics import topic_text
from recover.finding_code import Severity
from recover.findings import Finding, finding
from recover.memory.columns import Rows
from recover.scan.log import LogView
from recover.scan.log_reader import LogReader
from recover.verify.commitlog import place_in_file
from recover.verify.survey import Survey

_MOST = 100
"""So many messages are looked at one by one, at most."""
_LARGEST_BODY = 16 << 20
_COMPRESSION = sysflag.COMPRESSED | sysflag.COMPRESSION_TYPE
_BITS = tuple(1 << number for number in range(32) if _COMPRESSION >> number & 1)
_LAST_BYTE = OFFSET_SYS_FLAG + 3
_TYPES = {
    sysflag.COMPRESSION_LEGACY_ZLIB: "zlib", sysflag.COMPRESSION_ZLIB: "zlib", sysflag.COMPRESSION_LZ4: "LZ4",
    sysflag.COMPRESSION_ZSTD: "Zstandard",
}

_THROWN = "throw, and drop what comes with it"
_AS_IT_IS = "are given what is compressed"


class ContradictedFlags(Struct):
    """Messages of one mapped file whose body contradicts their sysFlag, as rows (`RECORD`) of the log.

    They are one behind the other, or all of the file where the log has more than are looked at one by one. `wrong` is
    the bit that explains it, where that is one message and one bit does.
    """

    mapped_file: MappedFile
    rows: Rows
    wrong: WrongBit | None = None


def contradicted_flags(look: Survey) -> list[ContradictedFlags]:
    """Those of the log, but for records of which a queue has shown that another field is damaged."""
    if not look.log.tally.bits & BIT_CONTRADICTED_FLAG:
        return []
    known = [item.phy_offset for item in look.contradictions]
    places = [(scan.mapped_file, _rows([split.records for split in scan.splits], known)) for scan in look.log.files]
    if sum(rows.size for _, rows in places) > _MOST:
        return [ContradictedFlags(mapped_file, rows) for mapped_file, rows in places if rows.size]
    found = [ContradictedFlags(mapped_file, run) for mapped_file, rows in places for run in _runs(rows)]
    usual = _usual(look.log)
    with LogReader(look.log.queue) as reader:
        for item in found:
            if item.rows.size == 1:
                item.wrong = _wrong_bit(item, reader, usual)
    return found


def contradicted_flag_findings(look: Survey, found: list[ContradictedFlags]) -> Iterator[Finding]:
    """One for each of `found`, and one for each bit that explains it."""
    # a flipped bit is not found in so many
    severity: Severity | None = "warning" if sum(item.rows.size for item in found) > _MOST else None
    for item in found:
        first, last = item.rows[0], item.rows[-1]
        start, flag = int(first["phy_offset"]), int(first["sys_flag"])
        topic, queue_id = look.log.queues[int(first["queue"])]
        number = int(first["queue_offset"])
        message: dict[str, Any] = {"topic": topic_text(topic), "queue": queue_id, "queue_offset": number}
        place = place_in_file(look.store, item.mapped_file, start + OFFSET_SYS_FLAG)
        yield finding(
            "commitlog-contradicted-flag", *place, severity=severity, start=start, first=start,
            last=int(last["phy_offset"]), count=item.rows.size, sys_flag=flag, says=_says(flag),
            result=_THROWN if flag & sysflag.COMPRESSED else _AS_IT_IS, **message,
        )
        if item.wrong is not None:
            yield _told_of(look.store, item.wrong, message)


def _told_of(store: Store, wrong: WrongBit, message: dict[str, Any]) -> Finding:
    start = wrong.stored.phy_offset
    stored, right = wrong.content
    return finding(
        "commitlog-flipped-flag", *place_in_file(store, wrong.mapped_file, start + wrong.position), start=start,
        position=wrong.position, bit=wrong.bit, stored=stored, right=right, says=_says(wrong.right.sys_flag), **message,
    )


def _says(sys_flag: int) -> str:
    kind = _TYPES.get(sys_flag & sysflag.COMPRESSION_TYPE, "a type that there is not")
    if sys_flag & sysflag.COMPRESSED:
        return f"compressed ({kind})"
    return f"{kind}, but not compressed" if sys_flag & sysflag.COMPRESSION_TYPE else "not compressed"


def _rows(pieces: list[Rows], known: list[int]) -> Rows:
    chosen = [
        rows[((rows["bits"] & (BIT_CONTRADICTED_FLAG | NO_MESSAGE)) == BIT_CONTRADICTED_FLAG)
             & ~np.isin(rows["phy_offset"], known)]
        for rows in pieces
    ]
    return np.concatenate(chosen) if chosen else np.empty(0)


def _runs(rows: Rows) -> list[Rows]:
    """The rows, cut wherever one does not begin where that in front of it ends."""
    if not rows.size:
        return []
    cuts = np.flatnonzero(rows["phy_offset"][1:] != rows["phy_offset"][:-1] + rows["size"][:-1]) + 1
    return np.split(rows, cuts)


def _usual(log: LogView) -> Counter[int]:
    """How often sound records say that they are compressed, by what they say of it."""
    found: Counter[int] = Counter()
    for split in log.live():
        records = split.records
        sound = (records["bits"] & BIT_CONTRADICTED_FLAG) == 0
        flags = records["sys_flag"][sound & (records["sys_flag"] & sysflag.COMPRESSED != 0)] & _COMPRESSION
        found.update(flags.tolist())
    return found


def _wrong_bit(item: ContradictedFlags, reader: LogReader, usual: Counter[int]) -> WrongBit | None:
    (row,) = item.rows
    size = int(row["size"])
    try:
        record = reader.record(int(row["phy_offset"]), size) if size <= LARGEST else None
    except (FormatError, OSError):
        return None
    flag = None if record is None else right_flag(record, usual)
    if record is None or flag is None:
        return None
    number = (flag ^ record.sys_flag).bit_length() - 1
    right = structs.replace(record, sys_flag=flag)
    return WrongBit(item.mapped_file, "its body", record, right, _LAST_BYTE - number // 8, number % 8)


def right_flag(record: Record, usual: Counter[int]) -> int | None:
    """The sysFlag one bit away that the body agrees with; `usual` is how often others are compressed, by their bits.

    Of several that do, the one that other messages have most; where none has, that which clients of every version read,
    or None if the body may be a stream of the producer's own, or one of a type that is more than a bit away.
    """
    found = [flag for flag in (record.sys_flag ^ bit for bit in _BITS) if _agrees(flag, record.body)]
    compressed = [flag for flag in found if flag & sysflag.COMPRESSED]
    known = [flag for flag in compressed if usual[flag & _COMPRESSION]]
    if known:
        return max(known, key=lambda flag: usual[flag & _COMPRESSION])
    if len(compressed) < len(found) and any(_agrees(sysflag.COMPRESSED | kind, record.body) for kind in _TYPES):
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
