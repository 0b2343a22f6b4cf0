"""`mqtool predict` and `mqtool groups`: the effect of a broker's start on a store, and on its consumer groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct

from mqtool import exits
from mqtool.next_steps import Step, next_steps
from mqtool.options import ClockChoice, EngineChoice, StoreChoice, command, new_outside_store, option
from mqtool.printer import Printer, Text, facts, table
from mqtool.screens.verdict import delivers_table, groups_table, progress_rows, start_line
from mqtool.text import count, human_seconds, human_size
from mqtool.words import N_, _, retold
from recover.check.report import verify
from recover.findings.code import UsageRefusal
from recover.findings.model import FindingList, Phrase, builtins_of
from recover.look.crash import progress_in
from recover.look.query import unread_notes
from recover.look.store import NO_LOG, settings_of
from recover.predict.groups import GroupRow, Groups, groups_of, has_offsets
from recover.predict.may_start import may_start
from recover.predict.start_cost import start_cost
from recover.reading.doubts import read
from recover.reading.facts import Facts
from recover.reading.reading import Reading

if TYPE_CHECKING:
    from recover.export.select import Selected

_BITS = (exits.DERIVED, exits.MESSAGES, exits.UNSUPPORTED)
_SHOWN, _GROUPS = 15, 200
_TIME = "How long the start takes"
_KINDS = {".ndjson": "ndjson", ".jsonl": "ndjson", ".csv": "csv"}


class LossChoice(Struct, frozen=True, kw_only=True):
    """The file for the loss list: a line for each message, for producers that must send again."""

    loss_out: Annotated[Path | None, option(
        "--loss-out", "List each lost or damaged message with all its legible fields in a new .ndjson or .csv file.",
        "Output", metavar="FILE")] = None

    def check(self, root: Path, parts: list[Path]) -> None:
        """Refuse a file that cannot be written (16, or 8 if it exists), before anything is scanned."""
        if self.loss_out is None:
            return
        if self.loss_out.suffix not in _KINDS:
            raise UsageRefusal(Phrase("{option} {file}: its name has no known extension", option="--loss-out",
                                      file=self.loss_out),
                               "Name a file that ends in .ndjson or .csv.")
        new_outside_store(self.loss_out, root, parts)

    def write(self, out: Printer, analysis: Reading, cut_at: int | None) -> None:
        """Write the legible parts of damaged messages and, from `cut_at` on, the intact ones that a cut would drop."""
        if self.loss_out is None:
            return
        from recover.export.write import output_file, writer_for

        notes = [*unread_notes(analysis.store)]
        damaged = cut = 0
        with output_file(self.loss_out, resume=False) as (stream, left):
            writer = writer_for(_KINDS[self.loss_out.suffix], stream, left)
            for item in _losses(analysis, cut_at, notes):
                damaged += item.message.state == "damaged"
                cut += item.message.state != "damaged"
                writer.write(item)
            writer.close()
        out.answer(loss_list={"output": str(self.loss_out), "damaged": damaged, "cut": cut, "complete": not notes,
                              "notes": notes})
        out.say(*(_("not in the loss list: {note}").format(note=note) for note in notes))
        out.say(_("{damaged} and {intact} that a cut would drop are listed in {file}").format(
            damaged=count(damaged, "damaged message"), intact=count(cut, "intact one"), file=self.loss_out))


def _losses(analysis: Reading, cut_at: int | None, notes: list[str]) -> Iterator[Selected]:
    from recover.export.damaged import damaged_messages
    from recover.export.select import Wanted, selected
    from recover.export.sources import Scanned, source_of

    yield from damaged_messages(analysis)
    if cut_at is not None:
        store = analysis.store
        scanned = Scanned(source_of(store), analysis.log, (), analysis.by_names)
        yield from selected(scanned, Wanted(cut_at=cut_at, include=frozenset({"system"})), notes.append)


class TimeChoice(Struct, frozen=True, kw_only=True):
    """What decides how long the start takes, and whether it may."""

    disk_rate: Annotated[float | None, option(
        "--disk-rate", "MB a second that the disk delivers, for the estimate (default: all is in the page cache).",
        _TIME, metavar="N", min=0.001)] = None
    probe_limit: Annotated[float | None, option(
        "--probe-limit", "Seconds after which a probe kills a broker that does not answer yet: warn if the start takes "
        "longer.", _TIME, metavar="SECONDS", min=0)] = None


@command(
    examples=[
        ("/data/store --broker 5.3.3", "the start of 5.3.3 with default settings"),
        ("/data/store --broker 4.9.8 --broker-conf broker.conf", "with the broker's own settings"),
        ("/data/store --broker 5.3.3 --loss-out lost.csv", "each lost message with all its legible fields"),
        ("/data/store --broker 5.3.3 --set forceVerifyPropCRC=true", "before a setting is switched on"),
        ("/data/store --broker 5.3.3 --disk-rate 150 --probe-limit 90", "whether a probe of Kubernetes kills it first"),
    ],
    bits=_BITS,
)
def predict(
    out: Printer, store: StoreChoice, engine: EngineChoice, clock: ClockChoice, loss: LossChoice, time: TimeChoice,
) -> int:
    """Report what the start of a broker would do to this store and what it would cost, without touching it.

    0: it costs nothing. 2: only what comes back from the log. 4: do not start. Messages or offsets would be lost, queue
    offsets reused, part of the log is missing, or the broker would not start.
    """
    loss.check(store.root, store.parts)
    now = clock.ms
    opened = store.settled(engine)
    settings, assumed = settings_of(opened, *store.broker.said)
    with engine.scan(out, opened) as scan:
        checked = verify(opened, scan, ("commitlog", "consumequeue"))
    answer = may_start(checked, settings, now)
    prediction = answer.prediction
    cuts = prediction.starts and not prediction.is_unknown
    loss.write(out, checked.analysis, prediction.cut_at if cuts else None)
    document = {"at": now, **prediction.json(),
                **progress_in(opened, checked.analysis.by_names, settings).json()}
    document["groups"] = builtins_of(groups_of(checked.analysis, settings).rows) if has_offsets(opened) else []
    document["assumptions"] = [*assumed, *answer.assumptions]
    document["reason"] = answer.reason
    cost = start_cost(opened, checked.analysis.by_names, settings, prediction, time.disk_rate)
    document["start_seconds"] = None if cost is None else cost.seconds
    document["start_reads"] = None if cost is None else cost.json()
    outlasts = [] if cost is None else [*cost.findings(prediction, time.probe_limit)]
    code = answer.exit_code | (0 if answer.exit_code & exits.MESSAGES else FindingList(outlasts).bits)
    out.answer(**document)
    out.found([*answer.findings, *outlasts])
    shown = {**document, "reason": answer.reason and out.given.fill(retold(answer.reason))}
    _show(out, shown, code)
    scene = out.scene("predicted", code, findings=[*answer.leads(), *outlasts], damaged=answer.damaged,
                      unread=checked.unread, assumed=answer.assumed)
    out.summary(start_line(shown, code), next_steps(scene))
    return code


def _show(out: Printer, document: dict[str, Any], code: int) -> None:
    assumed = [(N_("assumed"), retold(text)) for text in document["assumptions"]]
    if document["starts"] is None:
        out.show(facts("", [("broker", document["broker"]), ("starts", Text(_("cannot say"), style="bold yellow")),
                            *((N_("not emulated"), part) for part in document["unsupported"]), *assumed]))
        return
    out.show(facts("", [*_rows(document, code), *assumed]))
    if lowered := document["lowered_queues"]:
        lowered = sorted(lowered, key=lambda row: row[2] - row[1])
        out.show(table("queues with a lower max offset", ["queue", ">now", ">then"], lowered, most=_SHOWN))
    for key, title in (("lost", N_("messages deleted, by queue")),
                       ("unreachable", N_("messages not delivered (no queue entry), by queue"))):
        if queues := document.get(key):
            ranked = sorted(queues.items(), key=lambda item: -item[1])
            out.show(table(title, ["queue", ">messages"], ranked, most=_SHOWN))
    if document["delivers"]:
        out.show(delivers_table(document["delivers"]))
    moved = [row for row in document["groups"] if row["skips"] or row["again"]]
    if moved:
        out.show(groups_table(N_("groups that skip messages or receive them again"), moved, _SHOWN))


def _rows(document: dict[str, Any], code: int) -> list[tuple[str, object]]:
    """What becomes of log and messages, by name."""
    starts = Text(_("yes"), style="green") if document["starts"] else Text(_("NO"), style="bold red")
    rows: list[tuple[str, object]] = [(N_("broker"), document["broker"]), (N_("starts"), starts)]
    if document["starts"] and code & exits.MESSAGES:
        rows[-1] = "starts", Text(_("yes, but do not start it"), style="bold red")
    if document["reason"]:
        rows.append((N_("because"), document["reason"]))
    log, known = _("{first} to {last}").format(first=f"{document['min_phy']:,}", last=f"{document['max_phy']:,}"), True
    if document["starts"] and document["min_phy"] < 0:
        log, known = _("no log file"), not document["reason"]
    rows += [
        (N_("recovery"), _("{mode}, from {file}").format(
            mode=_(document["mode"] or ""), file=document["start_file"] or _("no file"))),
        (N_("log after load"), log),
        (N_("intact messages deleted"), _count(document["lost_messages"], "bold red", known=known)),
        (N_("messages not delivered (no queue entry)"),
         _count(document["unreachable_messages"], "bold yellow", known=known)),
        (N_("queue offsets of messages in the log reused"),
         _count(document["duplicated_offsets"], "bold yellow", known=known)),
        *progress_rows(document),
    ]
    if known and (lowered := sum(before - after for _, before, after in document["lowered_queues"])):
        rows.append((N_("queue offsets of lost messages reused"), _count(lowered, "bold yellow")))
    if reads := document["start_reads"]:
        rows.append((N_("time of the start"), _time(document["start_seconds"], reads)))
    if light := document["missing_lmq_units"]:
        rows.append((N_("queue entries of LMQ queues left out"), _count(light, "bold yellow")))
    for verb, names in ((N_("deletes"), document["deleted_files"]),
                        (N_("brings back topic"), document["revived_topics"])):
        rows += [(verb, name) for name in names[:_SHOWN]]
        if len(names) > _SHOWN:
            rows.append((verb, _("… {n:,} more: {where}").format(n=len(names) - _SHOWN, where=_("--json shows all"))))
    return rows


def _time(seconds: float, reads: dict[str, Any]) -> str:
    said = _("about {seconds}: it reads {size} of log ({records}) and dispatches {n}").format(
        seconds=human_seconds(seconds), size=human_size(reads["recovery_bytes"]),
        records=count(reads["recovery_records"], "message"), n=f"{reads['dispatched_records']:,}")
    rates = N_("{said}; rates of {release} on one core, {disk} of it for the disk") if reads["disk_seconds"] else N_(
        "{said}; rates of {release} on one core, all files in the page cache")
    return _(rates).format(said=said, release=reads["measured"], disk=human_seconds(reads["disk_seconds"]))


def _count(number: int, style: str, *, known: bool = True) -> Text:
    return Text(f"{number:,}" if known else "?", style=style if number else "")


# --- groups --------------------------------------------------------------------------------------


class RowFilters(Struct, frozen=True, kw_only=True):
    """Filters of rows."""

    group: Annotated[str | None, option(
        "--group", "Groups that match this pattern.", "Which groups (default: all)", metavar="GLOB")] = None
    topic: Annotated[str | None, option(
        "--topic", "Topics that match this pattern.", "Which groups (default: all)", metavar="GLOB")] = None


@command(
    examples=[
        ("/data/store", "every group, and the effect of a start of the broker inferred from the store"),
        ("/data/store --group CG_orders --broker 4.9.8", "one group, and the start of 4.9.8"),
        ("/data/store --topic 'Order*' --json", "the groups of some topics, for a script"),
    ],
    bits=_BITS,
)
def groups(out: Printer, store: StoreChoice, engine: EngineChoice, clock: ClockChoice, which: RowFilters) -> int:
    """Compare the committed offsets of consumer groups with their queues, now and after a broker's start.

    0: every offset was read and lies in its queue. 2: an offset out of range, offsets that cannot be read, or a queue
    that ends before its messages. 4: the start forgets the offsets, lowers queues, or fails.
    """
    now = clock.ms
    opened = store.settled(engine)
    settings, assumed = settings_of(opened, *store.broker.said)
    with engine.scan(out, opened) as scan:
        analysis = read(Facts.of(opened, scan))
    found = groups_of(analysis, settings, group=which.group or "*", topic=which.topic or "*", delivers_at=now)
    prediction, rows = found.prediction, builtins_of(found.rows)
    delivers = prediction.json()["delivers"]
    out.answer(
        at=now, delivers=delivers,
        broker=prediction.broker, starts=None if prediction.is_unknown else prediction.starts,
        groups=rows, notes=found.unread, complete=not found.unread,
        assumptions=[*assumed, *prediction.assumptions],
    )
    out.found(found.findings)
    if rows:
        out.show(groups_table("", rows, _GROUPS))
    if delivers:
        out.show(delivers_table(delivers))
    out.say(*map(retold, found.unread))
    code = FindingList(found.findings).bits
    codes, line = {item.code for item in found.findings}, out.given.line
    steps = out.scene("checked", code).by_hand(NO_LOG) if NO_LOG in codes else []
    steps += [Step(command, why) for of, command, why in (
        ({"consumequeue-missing-units", "consumequeue-missing-file"}, line("recover", "--dry-run"),
         N_("shows how to complete the queues; writes nothing")),
        ({"consumer-offset-above-max"}, line("recover", "--clamp-offsets", "--dry-run"),
         N_("lowers the offsets to the end of their queues")),
        ({"start-lowers-queues", "start-refused", "start-cannot-say", "start-forgets-config"}, line("predict"),
         N_("shows everything that the start would do")),
    ) if of & codes]
    out.summary(_groups_line(found), steps)
    return exits.OPERATIONAL if found.unread and not code else code


def _groups_line(found: Groups) -> str:
    # of two offset files the one that a broker reads by default comes first, and only that counts
    rows = [*{(row.group, row.topic, row.queue): row for row in reversed(found.rows)}.values()]
    text = _not_consumed(found, rows)
    if not found.prediction.starts:
        return text + _("; broker {broker} would not start: {reason}").format(
            broker=found.prediction.broker, reason=found.prediction.reason)
    unknown = sum(row.skips is None for row in rows)
    if unknown == len(rows) and (rows or found.unread):
        return text
    skips, again = (sum(getattr(row, name) or 0 for row in rows) for name in ("skips", "again"))
    text += _("; after a start of {broker}: {messages} skipped, {again:,} consumed again").format(
        broker=found.prediction.broker, messages=count(skips, "message"), again=again)
    return text + (_("; unknown for {offsets}").format(offsets=count(unknown, "offset")) if unknown else "")


def _not_consumed(found: Groups, rows: list[GroupRow]) -> str:
    groups = count(len({row.group for row in rows}), "group") if rows else _("no group")
    unknown = sum(row.lag is None for row in rows)
    if unknown == len(rows) and (rows or found.unread):
        text = _("{groups}; the number of messages not consumed yet is unknown").format(groups=groups)
        return text + (_(": the log is not here") if any(item.code == NO_LOG for item in found.findings) else "")
    lag = sum(row.lag or 0 for row in rows)
    text = _("{groups}, {messages} not consumed yet").format(groups=groups, messages=count(lag, "message"))
    return text + (_(", unknown for {offsets}").format(offsets=count(unknown, "offset")) if unknown else "")
