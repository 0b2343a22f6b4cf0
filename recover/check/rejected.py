"""Messages that are intact as far as checksums reach, and that no client, or no service of a broker, can read.

What no checksum covers, unless brokers were told to write one, can stop more than its own message: clients throw at a
body that is not compressed as its sysFlag says, and drop what came after it in the same answer; services stop at a
message of theirs that does not say where it is to go, and when.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct, structs

from formats import properties as props
from formats import sysflag
from formats.errors import FormatError
from formats.record import OFFSET_SYS_FLAG, TOPIC_HALF, TOPIC_TIMER, Record
from formats.record.grammar import unserved
from formats.record.rows import BIT_CONTRADICTED_FLAG, BIT_UNSERVED, NO_MESSAGE
from recover.check.log import place_in_file
from recover.check.survey import Survey
from recover.derived.expected import QueueKey
from recover.evidence.flipped_bits import COMPRESSION, TYPES, WrongBit, right_flag, served_again
from recover.evidence.restore import LARGEST
from recover.findings.code import Severity
from recover.findings.model import Finding, finding
from recover.log.judge import LogReader
from recover.log.scan import LogView
from recover.store.columns import Rows
from recover.store.config_files import topic_text
from recover.store.mapped_files import MappedFile

MOST = 100
"""So many messages of a kind are looked at one by one, at most; more are no damage."""
_THROWN = "throw, and drop what comes with it"
_AS_IT_IS = "are given what is compressed"
_LEVEL_STOPS = "4.9 delivers nothing of its delay level from there on, other releases drop it"
_TIMER_STOPS = "the timer takes up nothing from there on"
_TRIED_AGAIN = "the timer tries to deliver it again and again, and may stop with it"
_NOT_ENDED = "its transaction cannot be ended"


class Rejected(Struct):
    """Messages of one mapped file that are rejected for the same reason, as rows (`RECORD`) of the log.

    They are one after the other, or all of the file where there are more than MOST. Of one alone there is the
    `record`, if it can be read, and the `wrong` bit, where one explains it; or it `waits` until another bit of the
    record has been turned back.
    """

    code: str
    mapped_file: MappedFile
    rows: Rows
    severity: Severity | None = None
    record: Record | None = None
    wrong: WrongBit | None = None
    waits: bool = False

    @property
    def is_alone(self) -> bool:
        """Whether it is one message, of not too many."""
        return self.rows.size == 1 and self.severity is None

    def starts_at(self, phy_offset: int) -> bool:
        """Whether its first message begins there."""
        return int(self.rows[0]["phy_offset"]) == phy_offset


def rejected(look: Survey) -> list[Rejected]:
    """Those of the log, but for records of which a queue has shown that another field is damaged."""
    found: list[Rejected] = []
    known = [item.phy_offset for item in look.contradictions]
    others = _Others(look.log)
    with LogReader(look.log.queue) as reader:
        for bit, code, mend in _KINDS:
            of_kind = _of_kind(look.log, bit, code, known) if look.log.tally.bits & bit else []
            for item in of_kind:
                if item.is_alone:
                    item.record = _record(reader, item.rows[0])
                if item.record is None:
                    continue
                # a record that was rejected for another reason is mended bit by bit, a recover each
                item.waits = any(one.wrong and one.starts_at(item.record.phy_offset) for one in found)
                if not item.waits:
                    item.wrong = mend(item.mapped_file, item.record, others)
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
            remedy=None if item.wrong or item.waits else f"mqtool explain {item.code}",
            last=int(item.rows[-1]["phy_offset"]), count=item.rows.size, **facts, **message,
        )
        if item.wrong is not None:
            wrong = item.wrong
            stored, right = wrong.content
            file, offset = place_in_file(look.store, item.mapped_file, start + wrong.position)
            yield finding(
                "commitlog-flipped-field", file, offset, start=start, position=wrong.position, bit=wrong.bit,
                stored=stored, right=right, name=wrong.name, value=wrong.value, **message,
            )


def _about_flag(item: Rejected, topic: str) -> tuple[int, dict[str, Any]]:
    """Where in the first record it is, and what is to be said of it."""
    flag = int(item.rows[0]["sys_flag"])
    result = _THROWN if flag & sysflag.COMPRESSED else _AS_IT_IS
    return OFFSET_SYS_FLAG, {"sys_flag": flag, "says": _says(flag), "result": result}


def _about_properties(item: Rejected, topic: str) -> tuple[int, dict[str, Any]]:
    """The same."""
    names = ["a property"] if item.record is None else unserved(item.record)
    values = {} if item.record is None else item.record.property_map()
    place = 0 if item.wrong is None else item.wrong.position
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


def _of_kind(log: LogView, bit: int, code: str, known: list[int]) -> list[Rejected]:
    places = [(scan.mapped_file, _rows([split.records for split in scan.splits], bit, known)) for scan in log.files]
    if sum(rows.size for _, rows in places) > MOST:
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


def _record(reader: LogReader, row: Any) -> Record | None:
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


def _flag_bit(mapped_file: MappedFile, record: Record, others: _Others) -> WrongBit | None:
    flag = right_flag(record, others.usual)
    if flag is None:
        return None
    number = (flag ^ record.sys_flag).bit_length() - 1
    right = structs.replace(record, sys_flag=flag)
    return WrongBit(mapped_file, "its body", record, right, OFFSET_SYS_FLAG + 3 - number // 8, number % 8, True)


def _property_bit(mapped_file: MappedFile, record: Record, others: _Others) -> WrongBit | None:
    found = served_again(record, others.queues)
    return None if found is None else WrongBit(mapped_file, "its topic", record, *found, True)


_KINDS: tuple[tuple[int, str, Callable[[MappedFile, Record, _Others], WrongBit | None]], ...] = (
    (BIT_CONTRADICTED_FLAG, "commitlog-contradicted-flag", _flag_bit),
    (BIT_UNSERVED, "commitlog-unserved-message", _property_bit),
)
_ABOUT: dict[str, Callable[[Rejected, str], tuple[int, dict[str, Any]]]] = {
    "commitlog-contradicted-flag": _about_flag,
    "commitlog-unserved-message": _about_properties,
}
