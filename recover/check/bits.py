"""Findings about intact messages in which other evidence shows flipped bits: what happens to them, and where."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from formats import properties as props, sysflag
from formats.record import OFFSET_SYS_FLAG, SERVICE_TOPICS, Record
from formats.record.grammar import unserved
from recover.check.log import place_in_file
from recover.findings.code import N_, Severity
from recover.findings.model import Finding, Phrase, finding
from recover.log.scan import LogView
from recover.reading.bits import TYPES, Rejected
from recover.reading.edits import Edit
from recover.reading.policy import POLICIES
from recover.reading.reading import Reading
from recover.reading.restore import flipped_bits
from recover.store.config_files import topic_text
from recover.store.store import Store

_THROWN = "fail to decompress it and drop the rest of the response"
_AS_IT_IS = "receive compressed data"
_LEVEL_STOPS = "4.9 delivers nothing of its delay level from there on, other releases drop it"
_TIMER_STOPS = "the timer reads nothing after it"
_TRIED_AGAIN = "the timer retries its delivery without end, and may hang on it"
_NOT_ENDED = "its transaction cannot be ended"


def rejected_findings(analysis: Reading, found: list[Rejected]) -> Iterator[Finding]:
    """Yield a finding for each of `found`, and for each bit that explains one."""
    for item in found:
        first, code = item.rows[0], POLICIES[item.kind].finding
        start = int(first["phy_offset"])
        topic, queue_id = analysis.log.queues[int(first["queue"])]
        place, facts = _about_flag(item) if item.kind == "flag" else _about_properties(item, topic_text(topic))
        yield finding(
            code, *place_in_file(analysis.store, analysis.log, start + place), severity=item.severity, start=start,
            first=start,
            # what recover leaves as it is
            remedy=None if item.edit else f"mqtool explain {code}", last=int(item.rows[-1]["phy_offset"]),
            count=item.rows.size, topic=topic_text(topic), queue=queue_id, queue_offset=int(first["queue_offset"]),
            **facts,
        )
        if item.edit is not None:
            yield _bit_finding(analysis.store, analysis.log, item.edit, "commitlog-flipped-field", name=item.edit.field,
                               value=item.edit.after)


def _about_flag(item: Rejected) -> tuple[int, dict[str, Any]]:
    """Return the position in the first record, and the facts of the finding."""
    flag = int(item.rows[0]["sys_flag"])
    result = _THROWN if flag & sysflag.COMPRESSED else _AS_IT_IS
    return OFFSET_SYS_FLAG, {"sys_flag": flag, "says": _says(flag), "result": result}


def _about_properties(item: Rejected, topic: str) -> tuple[int, dict[str, Any]]:
    """Return the position in the first record, and the facts of the finding."""
    names = ["a property"] if item.record is None else unserved(item.record)
    values = {} if item.record is None else item.record.property_map()
    place = 0 if item.edit is None else item.edit.position
    says = ", ".join(f"{name} ({values[name]!r})" if name in values else f"{name} (missing)" for name in names)
    return place, {"says": says, "result": _result(topic, names)}


def _result(topic: str, wrong: list[str]) -> str:
    kind = SERVICE_TOPICS[topic]
    if kind == "timer":
        return _TIMER_STOPS if props.TIMER_OUT_MS in wrong else _TRIED_AGAIN
    return _NOT_ENDED if kind == "half" else _LEVEL_STOPS


def _says(flag: int) -> str:
    kind = TYPES.get(flag & sysflag.COMPRESSION_TYPE, N_("an unknown type"))
    if flag & sysflag.COMPRESSED:
        return Phrase("compressed ({kind})", kind=kind)
    return Phrase("{kind}, but not compressed", kind=kind) if flag & sysflag.COMPRESSION_TYPE else \
        N_("not compressed")


def flipped_bit_findings(store: Store, analysis: Reading) -> Iterator[Finding]:
    """Yield a finding for each damaged message that one bit explains, at the byte of that bit."""
    for edit in flipped_bits(analysis.log, analysis.losses):
        yield _bit_finding(store, analysis.log, edit, field=edit.field, odds=edit.odds)


def flipped_property_findings(store: Store, log: LogView, edits: Iterable[Edit]) -> Iterator[Finding]:
    """Yield a finding for each record whose tag or key differs by one bit from what units hold, or whose property CRC
    has a name that differs by one: nothing else reports that."""
    for edit in edits:
        witness = POLICIES[edit.kind].witness
        severity: Severity | None = "warning" if edit.kind == "checksum" else None
        yield _bit_finding(store, log, edit, severity=severity, name=edit.field, value=edit.after, witness=witness)


def _bit_finding(store: Store, log: LogView, edit: Edit, code: str = "", **facts: Any) -> Finding:
    (topic, queue), queue_offset = edit.place
    return finding(
        code or POLICIES[edit.kind].finding, *place_in_file(store, log, edit.start + edit.position),
        start=edit.start, position=edit.position, bit=edit.bit, stored=edit.stored[0], right=edit.content[0],
        topic=topic, queue=queue, queue_offset=queue_offset, **facts,
    )


def altered_findings(store: Store, log: LogView, records: Iterable[Record]) -> Iterator[Finding]:
    """Yield a finding for each record that both its queue unit and the index contradict, at its properties."""
    for record in records:
        start, place = record.phy_offset, record.total_size - len(record.properties)
        yield finding("commitlog-contradicted-properties", *place_in_file(store, log, start + place), start=start,
                      topic=record.topic_name, queue=record.queue_id, queue_offset=record.queue_offset)
