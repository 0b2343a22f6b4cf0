"""`mqtool groups`: consumer offsets against the queues, before and after a broker's start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Struct

from mqtool import exits
from mqtool.declared import option
from mqtool.next_steps import Step
from mqtool.options import BrokerChoice, EngineChoice, StoreChoice, command
from mqtool.output import Printer
from mqtool.predicting import groups_table, settings_of
from mqtool.scanning import scan_options, store_options
from mqtool.screens import findings_table
from mqtool.shown import Text
from mqtool.text import count
from recover.findings.model import FindingList

if TYPE_CHECKING:
    from recover.predict.groups import Groups

_WHICH = "Which groups (all without a filter)"
_SHOWN = 200


class Which(Struct, frozen=True, kw_only=True):
    """Which rows."""

    group: Annotated[str | None, option("--group", "Groups that fit this pattern.", _WHICH, metavar="GLOB")] = None
    topic: Annotated[str | None, option("--topic", "Topics that fit this pattern.", _WHICH, metavar="GLOB")] = None


@command(
    examples=[
        ("/data/store", "every group, and what a start of the broker that fits the store does to it"),
        ("/data/store --group CG_orders --broker 4.9.8", "one group, and the start of a 4.9.8"),
        ("/data/store --topic 'Order*' --json", "the groups of some topics, for a script"),
    ],
    bits=(exits.DERIVED, exits.MESSAGES, exits.UNSUPPORTED),
)
def run(out: Printer, store: StoreChoice, broker: BrokerChoice, engine: EngineChoice, which: Which) -> int:
    """Compare what consumer groups have committed with their queues, as they are and once a broker has started.

    0: every offset was read and lies in its queue. 2: an offset out of range, or offsets that cannot be read. 4: the
    start forgets the offsets, lowers queues, or does not come about.
    """
    from recover.check.survey import survey
    from recover.predict.groups import groups_of
    from recover.store.store import Store

    opened = Store.open(store.root, store_options(store, broker))
    settings, assumed = settings_of(opened, broker)
    with scan_options(out, opened, engine, broker) as options:
        look = survey(opened, options)
    found = groups_of(look, settings, group=which.group, topic=which.topic)
    prediction = found.prediction
    out.answer(
        broker=prediction.broker, starts=None if prediction.says_nothing else prediction.starts,
        groups=[row.json() for row in found.rows], notes=found.unread, complete=not found.unread,
        assumptions=[*assumed, *prediction.assumptions],
    )
    out.found(found.findings)
    _show(out, found)
    code = FindingList(found.findings).bits
    if found.unread and not code:
        code = exits.OPERATIONAL
    out.summary(_line(found), _next(out, found))
    return code


def _show(out: Printer, found: Groups) -> None:
    if found.rows:
        out.show(groups_table("", found.rows, _SHOWN), Text(""))
    if found.findings:
        out.show(findings_table(found.findings, out.given), Text(""))
    for note in found.unread:
        out.say(note)


def _line(found: Groups) -> str:
    groups = count(len({row.group for row in found.rows}), "group") if found.rows else "no group"
    skips = sum(row.skips or 0 for row in found.rows)
    again = sum(row.again or 0 for row in found.rows)
    lag = sum(row.lag or 0 for row in found.rows)
    who = f"a start of {found.prediction.broker}"
    text = f"{groups}, {count(lag, 'message')} not consumed yet"
    if not found.prediction.starts:
        return f"{text}; broker {found.prediction.broker} would not start: {found.prediction.reason}"
    unknown = sum(row.skips is None for row in found.rows)
    text += f"; after {who} {count(skips, 'message')} skipped, {again:,} consumed again"
    return text + (f"; of {count(unknown, 'offset')} that cannot be said" if unknown else "")


def _next(out: Printer, found: Groups) -> list[Step]:
    codes = {item.code for item in found.findings}
    steps = []
    if "consumer-offset-above-max" in codes:
        steps.append(Step(out.given.line("recover", "--clamp-offsets"),
                          "lower the offsets that are above the end of their queues"))
    if codes & {"start-lowers-queues", "start-refused", "start-cannot-say", "start-forgets-config"}:
        steps.append(Step(out.given.line("predict"), "all that the start would do"))
    return steps
