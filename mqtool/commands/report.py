"""`mqtool report`: what happened, what is lost and what to do, on one page."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Annotated, Any

from msgspec import Struct, structs

from mqtool import exits, version
from mqtool.next_steps import STOPS, Step, next_steps
from mqtool.options import ClockChoice, EngineChoice, StoreChoice, command, flag, log_size, new_outside_store, option
from mqtool.printer import Printer, Shown, Text, facts, findings_table, table
from mqtool.screens.page import Page, Section, log_drawing, queue_drawing, render, span, traffic_drawing
from mqtool.screens.verdict import (
    delivers_table,
    groups_table,
    loss_statement,
    plan_document,
    progress_rows,
    start_line,
    steps_table,
    verify_line,
    verify_tables,
)
from mqtool.text import clean, count, human_size, human_time
from mqtool.words import N_, _, listed, retold, told
from recover.broker.settings import BrokerSettings
from recover.broker.versions import boundaries
from recover.change.journal import Run, runs
from recover.check.report import verify
from recover.export.damaged import damaged_messages
from recover.export.messages import Message
from recover.export.write import output_file
from recover.findings.code import Interrupted, Refusal, UsageRefusal
from recover.findings.model import Phrase, builtins_of, shell_line, without_secrets
from recover.look.crash import progress_in
from recover.look.store import NO_LOG, exit_state, settings_of
from recover.predict.delivers import SERVICES
from recover.predict.groups import groups_of
from recover.predict.may_start import start_that_restores
from recover.predict.prediction import Prediction
from recover.predict.start import Starts
from recover.reading.reading import Reading
from recover.reading.traffic import Traffic, stretches, traffic
from recover.repair.losses import RecoverPlan, stated_losses
from recover.repair.never_worse import may_take_messages, refuse_worse
from recover.repair.plan_cost import lost_by
from recover.repair.recover import RecoverOptions, plan_recover
from recover.store.memo import Evidence, evidence
from recover.store.store import COMMITLOG

_KINDS = {".html": "html", ".htm": "html", ".md": "md"}
_MESSAGES, _GROUPS, _FINDINGS, _RUNS, _FILES = 50, 40, 5, 20, 60
_LISTED = 10_000
_PANEL = "The page"
_OTHERWISE = {behaviour.since for behaviour in SERVICES}
"""Releases from which services deliver otherwise, whatever the log and the queues are like."""
_NOT_KNOWN = N_("unknown: the log is not here")


class PageChoice(Struct, frozen=True, kw_only=True):
    """The output file of the page, and optional content."""

    output: Annotated[Path | None, option(
        "--output", "A new file that ends in .html or .md.", _PANEL, metavar="FILE", short="-o")] = None
    digests: Annotated[bool, flag(
        "--digests", "Add the SHA-256 of every file; reads the whole store once more.", _PANEL)] = False

    def check(self, store: StoreChoice, *, json: bool) -> None:
        """Check, before anything is read, that the page can be written: a usage error (16), or a `Refusal` (8)."""
        if self.output is None:
            if not json:
                raise UsageRefusal("no --output", "Write -o FILE.html or -o FILE.md, or --json for the data alone.")
            return
        if self.output.suffix.lower() not in _KINDS:
            raise UsageRefusal(Phrase("{option} {file}: its name has no known extension", option="--output",
                                      file=self.output),
                               "Name a file that ends in .html or .md.")
        new_outside_store(self.output, store.root, store.parts)


class Start(Struct, kw_only=True):
    """The outcome of a start, for adjacent releases with the same outcome."""

    releases: str
    summary: str
    exit_code: int


class Facts:
    """The facts on the page. `plan` is None if recover refuses; `refused` is then the reason."""

    def __init__(
        self, out: Printer, choice: StoreChoice, engine: EngineChoice, *, now: int, digests: bool
    ) -> None:
        self.store = store = choice.settled(engine)
        settings, assumed = settings_of(store, *choice.broker.said)
        self.settings = settings
        with engine.scan(out, store, rebuilds=True) as scan:
            self.before = verify(store, scan)
            analysis = self.before.analysis
            self.groups = groups_of(analysis, settings, delivers_at=now)
            self.progress = progress_in(store, analysis.by_names, settings)
            self.starts = _starts(analysis, settings, now)
            # the plan of `recover --dry-run`, or its refusal
            self.plan: RecoverPlan | None = None
            self.refused: Refusal | None = None
            try:
                made = plan_recover(store, RecoverOptions(settings=settings), self.before)
                self.plan = refuse_worse(store, made, settings, 0) if may_take_messages(store, made) else made
            except Interrupted:
                raise
            except Refusal as refusal:
                self.refused = refusal
        self.at = now
        self.assumed = [*assumed, *self.groups.prediction.assumptions]
        self.runs: list[Run] = []
        self.run_problem: str | None = None
        try:
            self.runs = runs(store.root)
        except Refusal as refusal:
            self.run_problem = refusal.message
        with out.progress("reading the evidence", log_size(store) if digests else 0) as progress:
            self.evidence = evidence(store, digests=digests, most=_LISTED, progress=progress)
        lost = [item.message for item in islice(damaged_messages(analysis), _LISTED + 1)]
        self.lost, self.lost_truncated = lost[:_LISTED], len(lost) > _LISTED
        self.exit_state = exit_state(store)
        self.traffic, self.stretches = traffic(analysis.log, analysis.losses, analysis.queues), stretches(analysis.log)

    @property
    def without_log(self) -> bool:
        """Whether the log is in a part that is not read, or not mounted: its messages are unknown."""
        return COMMITLOG in self.before.analysis.elsewhere or any(item.code == NO_LOG for item in self.before.findings)

    @property
    def loss(self) -> Sequence[dict[str, Any]]:
        """The loss statement: of the plan, else of the damage."""
        if self.plan is not None:
            return self.plan.plan.loss
        return stated_losses(self.before)


@command(
    examples=[
        ("/data/store -o report.html", "one page to share"),
        ("/data/store -o report.md --broker 5.3.3", "for a ticket, with a prediction for 5.3.3 in its first lines"),
        ("/data/store -o report.html --digests", "with a SHA-256 of every file, as evidence"),
        ("/data/store --json", "the data of the page"),
    ],
    bits=(exits.DERIVED, exits.MESSAGES, exits.UNSUPPORTED),
)
def report(out: Printer, store: StoreChoice, engine: EngineChoice, clock: ClockChoice, page: PageChoice) -> int:
    """Report on one page what happened to a store, what is lost and what to do. The store is only read.

    The page is one file without scripts or external content, for light and dark screens and for paper. The exit code
    is that of verify.
    """
    page.check(store, json=out.options.json)
    found = Facts(out, store, engine, now=clock.ms, digests=page.digests)
    document = found.before.json()
    code = found.before.exit_code
    out.found(found.before.findings)
    start = start_that_restores(found.before, found.settings)
    steps = next_steps(out.scene("checked", code, unread=found.before.unread, start=start,
                                 assumed=() if start is None else start.assumed))
    sentence = _sentence(found, document, code)
    written = None if page.output is None else str(page.output)
    out.answer(output=written, sentence=sentence, **_document(found, document))
    if page.output is not None:
        text = render(_page(out, found, document, code, sentence, steps), _KINDS[page.output.suffix.lower()])
        with output_file(page.output, resume=False) as (stream, _left):
            stream.write(text.encode("utf-8", "backslashreplace"))
    out.summary(sentence if written is None else _("{sentence} The report is in {file}").format(
        sentence=sentence, file=written), steps)
    return code


# --- gathering -----------------------------------------------------------------------------------


def _starts(reading: Reading, settings: BrokerSettings, now: int) -> list[Start]:
    """The outcome of a start by each generation of releases; adjacent ones with the same outcome are merged."""
    found: list[Start] = []
    starts = Starts.on(reading)
    firsts = boundaries()
    before_it: Prediction | None = None
    begin = firsts[0]
    for first, behind in [*pairwise(firsts), (firsts[-1], None)]:
        until = _("{first} and later" if behind is None else "{first} to before {next}")
        own = structs.replace(settings, version=first)
        # counting by message takes longer than playing: done once for generations that end with the same log and queues
        played = starts.play(own, counted=False).prediction
        played = structs.replace(played, broker="", assumptions=[])
        if before_it != played or first in _OTHERWISE:
            before_it, counted = played, starts.predict(own, now)
            line = start_line({**counted.json(), "broker": _("the broker")}, counted.exit_code)
            line = line.replace(f"broker {counted.broker}", "a broker")
            if not found or (found[-1].summary, found[-1].exit_code) != (line, counted.exit_code):
                begin = first
                found.append(Start(releases=until.format(first=first, next=behind), summary=line,
                                   exit_code=counted.exit_code))
                continue
        found[-1].releases = until.format(first=begin, next=behind)
    return found


def _document(found: Facts, document: dict[str, Any]) -> dict[str, Any]:
    """The data of the page that other commands do not name differently."""
    plan = found.plan
    return {
        "at": found.at, "verify": {**document, "exit_code": found.before.exit_code},
        "exit_state": builtins_of(found.exit_state),
        "predict": {**found.groups.prediction.json(), **found.progress.json()}, "assumptions": found.assumed,
        "starts": [structs.asdict(item) for item in found.starts],
        "plan": None if plan is None else plan_document(plan.plan),
        "refused": None if found.refused is None else found.refused.message,
        "loss": list(found.loss), "lost_messages": [structs.asdict(item) for item in found.lost],
        "lost_messages_truncated": found.lost_truncated,
        "groups": builtins_of(found.groups.rows), "notes": found.groups.unread,
        "runs": builtins_of([item.info() for item in found.runs]), "traffic": found.traffic.json(),
        "map": [structs.asdict(item) for item in found.stretches], "evidence": found.evidence.json(),
    }


# --- words ---------------------------------------------------------------------------------------

_STOPPED = {"clean": N_("The broker was stopped cleanly"), "unclean": N_("The broker was not stopped cleanly"),
            "running": N_("A broker holds the store now"), "unknown": N_("It is unknown how the broker was stopped")}


def _sentence(found: Facts, document: dict[str, Any], code: int) -> str:
    log = document["commitlog"]
    parts = [_(_STOPPED[found.exit_state.verdict])]
    stop = next((item for item in found.before.findings if item.code in STOPS), None)
    if log["damaged_messages"]:
        damaged, whole = (count(log[name], "message") for name in ("damaged_messages", "messages"))
        places = _(" in {places} of the log").format(places=count(len(log["damaged"]), "place")) if log["damaged"] \
            else ""
        parts.append(_("{messages} damaged or missing").format(messages=damaged) + places
                     + _(", {messages} intact").format(messages=whole))
    elif stop is not None:
        parts.append(told(stop)[0])
    elif code & exits.MESSAGES:
        parts.append(next(told(item)[0] for item in found.before.findings.sorted() if item.severity == "error"))
    elif "commitlog" not in document["not_checked"]:
        parts.append(_("{messages} in the log, all intact").format(messages=count(log["messages"], "message")))
    derived = sum(item.severity == "warning" and bool(item.bits & exits.DERIVED) for item in found.before.findings)
    if derived:
        parts.append(_("{problems}, no message affected").format(problems=count(derived, "problem")))
    if document["not_checked"]:
        parts.append(_("not checked: {parts}").format(parts=", ".join(document["not_checked"])))
    played = found.groups.prediction.json()
    parts.append(start_line({**played, "reason": None if played["reason"] in parts else played["reason"]},
                            found.groups.prediction.exit_code))
    return _("; ").join(part.rstrip(".。") for part in parts) + _(".")


def _lost_card(found: Facts, document: dict[str, Any]) -> list[Shown]:
    damaged = document["commitlog"]["damaged_messages"]
    played = found.groups.prediction
    if found.without_log:
        return [facts("", [(N_("damaged or missing"), Text(_(_NOT_KNOWN), style="red"))])]
    rows: list[tuple[str, object]] = [
        (N_("damaged or missing"), Text(f"{damaged:,}", style="red" if damaged else "green")),
        (_("a start of {broker} loses").format(broker=played.broker), _of_start(played)),
    ]
    if found.plan is not None:
        rows.append((N_("recover gives up"), found.plan.damaged_messages - found.plan.left_messages))
        if found.plan.mendable_messages:
            rows.append((N_("of these --mend-bits restores"), found.plan.mendable_messages))
    topics: Counter[str] = Counter()
    for item in found.loss:
        topics[clean(item.get("topic") or _("unknown topic"), 40)] += int(item["messages"])
    return [facts("", rows), *([table("", ["topic", ">lost"], topics.most_common(), most=5)] if topics else [])]


def _of_start(played: Prediction) -> Text:
    if played.is_unknown:
        return Text(_("unknown"), style="yellow")
    if not played.starts:
        return Text(_("does not start"), style="red")
    number = played.lost_messages + played.unreachable_messages
    return Text(f"{number:,}", style="red" if number else "green")


def _lost_row(item: Message) -> list[object]:
    when = item.store_time or item.born_time
    return [item.topic, item.queue, item.queue_offset, item.phy_offset, item.unique_key, item.keys, item.tags,
            item.born_host, None if not when else human_time(when), ", ".join(item.doubtful) or ""]


_LOST_COLUMNS = ["topic", ">queue", ">queue offset", ">log offset", "unique key", "keys", "tags", "producer", "time",
                 "doubtful"]


def _page(
    out: Printer, found: Facts, document: dict[str, Any], code: int, sentence: str, steps: Sequence[Step]
) -> Page:
    what_to_do: list[Shown] = [Text.assemble((_(step.command), "bold"), (f"\n{_(step.why)}", "dim")) for step in steps]
    cards = [
        Section(_("What happened"), "", [facts("", [
            ("stop", _(_STOPPED[found.exit_state.verdict])),
            ("verify", Text(verify_line(found.before, code), style="red" if code & exits.MESSAGES else "")),
            ("oldest to newest", span(found.traffic)),
            *([] if found.without_log else progress_rows(found.progress.json())),
        ])]),
        Section(_("What is lost"), "", _lost_card(found, document)),
        Section(_("What to do"), "", what_to_do or [Text(_("Nothing."), style="green")]),
    ]
    level = "bad" if code & ~exits.DERIVED else "warn" if code else "good"
    who = [(_("store"), str(found.store.root.absolute())),
           (_("made by"), _("mqtool {version} on {host}").format(version=version(), host=socket.gethostname())),
           (_("at"), human_time(time.time_ns() // 1_000_000)),
           (_("exit code"), f"{code}{_(': ')}{listed(map(_, exits.names(code)))}"),
           (_("command"), shell_line("mqtool", *without_secrets(out.arguments)))]
    return Page(_("Store {store}").format(store=found.store.root.absolute()), sentence, level, cards,
                list(_sections(out, found, document)), who)


def _sections(out: Printer, found: Facts, document: dict[str, Any]) -> Iterator[Section]:
    drawings = [log_drawing(found.stretches)] if found.stretches else []
    if found.traffic.queues:
        drawings.append(queue_drawing(found.traffic))
    more = found.traffic.more_queues
    hidden = _("Queues with lost or missing messages come first; {queues} not shown.").format(
        queues=count(more, "more queue"))
    yield Section(_("Map of the store"), hidden if more else "", [*drawings, *verify_tables(document)])
    starts = [[item.releases, Text(clean(item.summary), style="red" if item.exit_code & ~exits.DERIVED else ""),
               item.exit_code] for item in found.starts]
    yield Section(_("What the start of each release would do"),
                  _("Predicted without a broker. Adjacent releases with the same outcome share a row."),
                  [table("", ["releases", "*what its start does", ">exit code"], starts), *_assumed(found.assumed)])
    if rows := found.groups.prediction.json()["delivers"]:
        broker = found.groups.prediction.broker
        yield Section(_("What a start delivers"), _(
            "By the services of {broker} that keep messages for later, at {time}.").format(
                broker=broker, time=human_time(found.at)), [delivers_table(rows)])
    yield Section(_("What recover would do"), "", _plan_shown(out, found))
    lost = Text(_(_NOT_KNOWN), style="red") if found.without_log else loss_statement(found.loss)
    yield Section(_("What is lost"), "", [lost, *_lost_messages(out, found)])
    wrong = sorted((item for item in found.before.findings.sorted() if item.severity != "info"),
                   key=lambda item: item.severity)
    notes = [item for item in found.before.findings.sorted() if item.severity == "info"]
    yield Section(_("Findings and remedies"), "", [
        findings_table(wrong, out.given, _FINDINGS)._replace(title="") if wrong else Text(_("None."), style="green"),
        *([findings_table(notes, out.given, 1)._replace(title=N_("notes"))] if notes else [])])
    if found.groups.rows or found.groups.unread:
        rows = sorted(found.groups.rows, key=lambda row: -((row.skips or 0) + (row.again or 0)))
        yield Section(_("Consumer groups"), _(
            "Before and after a start of {broker}: what each group skips and receives again; those affected most come "
            "first.").format(broker=found.groups.prediction.broker),
            [groups_table("", builtins_of(rows), _GROUPS),
             *(Text(clean(retold(note))) for note in found.groups.unread)])
    yield _traffic_section(found.traffic)
    yield _runs_section(found)
    yield _evidence_section(found.evidence)


def _assumed(lines: Iterable[str]) -> list[Text]:
    return [Text(_("assumed: {text}").format(text=clean(retold(line))), style="dim") for line in lines]


def _plan_shown(out: Printer, found: Facts) -> list[Shown]:
    if found.refused is not None:
        return [Text.assemble((_("recover refuses: "), "red"), clean(out.given.fill(retold(found.refused.message)))),
                Text(clean(out.given.fill(retold(found.refused.remedy))))]
    assert found.plan is not None
    if not found.plan.plan.steps:
        return [Text(_("No changes are needed."), style="green")]
    return [Text(_("{steps}; nothing was changed for this report.").format(
        steps=count(len(found.plan.plan.steps), "step"))),
            steps_table(found.plan.plan.steps), *_assumed(found.plan.assumptions)]


def _lost_messages(out: Printer, found: Facts) -> list[Shown]:
    if not found.lost:
        return []
    line = out.given.line("recover", "--dry-run", "--loss-out", "lost.csv")
    title = _("the first {n:,} messages, with all legible fields" if found.lost_truncated else
              "each message, with all legible fields").format(n=_LISTED)
    rest = _("{command} lists all").format(command=clean(line))
    return [table(title, _LOST_COLUMNS, map(_lost_row, found.lost), _MESSAGES, rest=rest),
            Text(_("{command} lists all of them for the producers who must send again.").format(command=clean(line)),
                 style="dim")]


def _traffic_section(found: Traffic) -> Section:
    rows = [[topic, held, human_size(size)] for topic, held, size in found.topics]
    drawing = [traffic_drawing(found)] if sum(found.messages) else []
    return Section(_("Traffic"), _("Intact messages of the log, by the topic under which they are stored."), [
        *drawing, table("largest topics", ["topic", ">messages", ">bytes"], rows, most=len(rows),
                        of=len(rows) + found.more_topics)])


def _runs_section(found: Facts) -> Section:
    if found.run_problem is not None:
        return Section(_("Before and after"), "", [Text(clean(retold(found.run_problem)), style="red")])
    if not found.runs:
        return Section(_("Before and after"), "", [Text(_("mqtool never changed this store."))])
    rows: list[list[object]] = []
    for item in reversed(found.runs[-_RUNS:]):
        info = item.info()
        try:
            loss = count(lost_by(item.plan.loss), "message")
        except Refusal as refusal:
            loss = retold(refusal.message)
        rows.append([info.id, info.command, _(info.state), human_time(info.started_ms),
                     _("{n} of {all}").format(n=info.steps_done, all=info.steps), loss, f"{info.user}@{info.host}"])
    now = verify_line(found.before, found.before.exit_code)
    return Section(_("Before and after"), _("Changes by mqtool, newest first, and the losses stated in their plans."), [
        table("", ["run", "command", "state", "when", ">steps", "stated as lost", "by whom"], rows),
        Text(_("Now: {result}").format(result=now))])


def _evidence_section(found: Evidence) -> Section:
    rows = [[item.path, item.size, human_time(item.mtime), item.sha256 or retold(item.problem or "")]
            for item in found.files]
    note = _("{files}, {size}.").format(files=count(found.count, "file"), size=human_size(found.size))
    if found.sha256 is not None:
        note += _(" SHA-256 of the list of all digests (as sha256sum writes it): {digest}.").format(digest=found.sha256)
    if found.unread:
        note += _(" {files} could not be read completely.").format(files=count(found.unread, "file"))
    return Section(_("Evidence"), note, [
        table("", ["file", ">bytes", "changed", "SHA-256 (--digests)"], rows, most=_FILES, of=found.count)])
