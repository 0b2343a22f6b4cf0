"""`mqtool pending`: what a store keeps for later, message by message."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from msgspec import Struct

from mqtool import exits
from mqtool.next_steps import Step
from mqtool.options import ClockChoice, EngineChoice, StoreChoice, command, new_outside_store, option
from mqtool.printer import Printer, Text, table
from mqtool.screens.verdict import delivers_table
from mqtool.text import count, human_time
from mqtool.words import N_, _, listed, retold
from recover.export.select import parse_time
from recover.export.write import output_file
from recover.findings.code import UsageRefusal
from recover.findings.model import Phrase, builtins_of, finding
from recover.look.store import settings_of
from recover.predict.delivers import Event
from recover.predict.groups import GroupRow, groups_of
from recover.predict.waiting import waiting
from recover.reading.doubts import read
from recover.reading.facts import Facts

_LISTED, _SHOWN, _GROUPS = 10_000, 40, 40
_PANEL = "Which messages (default: all)"
_WAITS = {"delay": N_("{n} delay"), "timer": N_("{n} timer"), "half": N_("{n} half"), "revive": N_("{n} revive")}
_KINDS = (".ndjson", ".jsonl", ".csv")
_OUTCOMES = {"again": N_("a second time"), "now": N_("at once"), "pending": N_("later"), "skipped": N_("never")}
_COLUMNS = ("kind", "outcome", "topic", "queue", "level", "due", "unique_key", "group", "checks", "born_time",
            "store_time", "place", "place_offset", "phy_offset")


class WaitingChoice(Struct, frozen=True, kw_only=True):
    """Filters, and a file for all messages."""

    topic: Annotated[str | None, option(
        "--topic", "Messages and groups of topics that match this pattern.", _PANEL, metavar="GLOB")] = None
    until: Annotated[str | None, option(
        "--until", "Due before this time: ISO 8601 with its zone, ms, or -2h.", _PANEL, metavar="TIME")] = None
    out: Annotated[Path | None, option(
        "--out", "List every message in a new .ndjson or .csv file.", "Output", metavar="FILE")] = None

    def check(self, root: Path, parts: list[Path]) -> int | None:
        """Refuse a file that cannot be written (16, or 8 if it exists) and an invalid time; return the time (ms)."""
        if self.out is not None and self.out.suffix not in _KINDS:
            raise UsageRefusal(Phrase("{option} {file}: its name has no known extension", option="--out",
                                      file=self.out),
                               "Name a file that ends in .ndjson or .csv.")
        if self.out is not None:
            new_outside_store(self.out, root, parts)
        return None if self.until is None else parse_time(self.until, "--until")

    def keeps(self, event: Event, until: int | None) -> bool:
        return fnmatchcase(event.topic, self.topic or "*") and (
            until is None or (event.due is not None and event.due < until))


@command(
    examples=[
        ("/data/store", "what waits, by kind, and the lag of each group"),
        ("/data/store --topic 'Order*' --until 2026-11-21T02:00Z", "of some topics, what is due by then"),
        ("/data/store --out waiting.csv", "every message with its due time and unique key"),
        ("/data/store --at 2026-11-21T02:00Z --json", "as of the crash, for a script"),
    ],
    bits=(exits.UNSUPPORTED,),
)
def pending(
    out: Printer, store: StoreChoice, engine: EngineChoice, clock: ClockChoice, which: WaitingChoice,
) -> int:
    """List what a store keeps for later: delayed messages, timers, half messages, popped ones, and the lag of groups.

    64: a part that may hold more could not be read, such as timers in RocksDB or the kvStore of POP.
    """
    until, now = which.check(store.root, store.parts), clock.ms
    opened = store.settled(engine)
    settings, assumed = settings_of(opened, *store.broker.said)
    with engine.scan(out, opened) as scan:
        analysis = read(Facts.of(opened, scan))
    found = waiting(analysis, settings, now)
    events = [event for event in found.events if which.keeps(event, until)]
    groups = groups_of(analysis, settings, topic=which.topic or "*")
    unread, start = [*found.not_checked, *groups.unread], groups.prediction
    rows = builtins_of(found.rows(events))
    out.found([finding("part-not-supported", name, part=name, what=what.strip(), detail="has data",
                       not_checked="messages that wait") for name, _colon, what in map(_parted, found.not_checked)])
    out.answer(
        at=now, broker=str(settings.version), messages=[_document(event) for event in events[:_LISTED]],
        messages_truncated=len(events) > _LISTED, waits=rows, groups=builtins_of(groups.rows), notes=unread,
        complete=not unread, assumptions=assumed,
        starts=None if start.is_unknown else start.starts, reason=None if start.starts else start.reason,
    )
    if which.out is not None:
        _write(which.out, events)
        out.answer(output=str(which.out))
    _show(out, rows, events, groups.rows)
    out.say(*map(retold, unread))
    if not start.starts:
        out.say(_("broker {broker} would not start: {reason}. The tables are for when it does").format(
            broker=start.broker, reason=retold(start.reason or "")))
    steps = [Step(out.given.line("predict"), "shows what a start would deliver at once, and a second time")]
    out.summary(_summary(len(events), rows, sum(row.lag or 0 for row in groups.rows), len(unread)),
                steps if events else [])
    return exits.UNSUPPORTED if found.not_checked else exits.CLEAN


def _show(out: Printer, rows: list[dict[str, Any]], events: list[Event], groups: Iterable[GroupRow]) -> None:
    """What waits by kind, then by message, then the lag of each group; what there is none of is left out."""
    if rows:
        out.show(delivers_table(rows, N_("what waits")))
    if events:
        columns = ["kind", "topic", ">queue", ">level", "due", "delivered", "unique key"]
        out.show(table("messages that wait, by due time", columns, _cells(events), most=_SHOWN,
                       rest="--out FILE lists all"))
    behind = sorted((row for row in groups if row.lag), key=lambda row: -(row.lag or 0))
    if behind:
        out.show(table("lag", ["Group", "Topic", ">QID", ">Broker Offset", ">Consumer Offset", ">Diff"], (
            [row.group, row.topic, row.queue, row.max, row.committed, row.lag] for row in behind), most=_GROUPS))


def _summary(waiting: int, rows: Iterable[dict[str, Any]], lag: int, unread: int) -> str:
    waits = N_("{messages} waits ({kinds})") if waiting == 1 else \
        N_("{messages} wait ({kinds})") if waiting else N_("{messages} wait")
    line = _(waits).format(messages=count(waiting, "message"), kinds=_by_kind(rows)) + _(
        "; groups have {messages} not consumed yet").format(messages=count(lag, "message"))
    return line + (_("; not checked: {parts}").format(parts=unread) if unread else "")


def _parted(text: str) -> tuple[str, str, str]:
    return text.partition(":")


def _by_kind(rows: Iterable[dict[str, Any]]) -> str:
    sums: dict[str, int] = {}
    for row in rows:
        sums[row["kind"]] = sums.get(row["kind"], 0) + sum(row[name] for name in ("again", "now", "pending", "skipped"))
    return listed(_(_WAITS[kind]).format(n=f"{number:,}") for kind, number in sums.items())


def _cells(events: list[Event]) -> Iterator[list[object]]:
    for event in sorted(events, key=lambda each: (each.due is None, each.due or 0)):
        due = "" if event.due is None else human_time(event.due)
        yield [event.kind, event.topic, event.queue, event.level or "",
               due, Text(_(_OUTCOMES[event.outcome]), style="" if event.outcome == "pending" else "bold yellow"),
               event.key]


def _document(event: Event) -> dict[str, Any]:
    return dict(zip(_COLUMNS, (
        event.kind, event.outcome, event.topic, event.queue, event.level, event.due, event.key or None,
        event.group or None, event.checks, event.born, event.stored, event.place, event.number, event.phy_offset,
    ), strict=True))


def _write(target: Path, events: Iterable[Event]) -> None:
    with output_file(target, resume=False) as (stream, _):
        if target.suffix == ".csv":
            text = io.StringIO()
            writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(map(_document, events))
            stream.write(text.getvalue().encode("utf-8", "backslashreplace"))
            return
        for event in events:
            stream.write(json.dumps(_document(event), ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
