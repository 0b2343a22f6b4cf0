"""`mqtool send`: exported messages to a live cluster."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

from msgspec import Struct, field, structs

from mqtool import exits
from mqtool.changing import ask
from mqtool.commands.export import ExportForm, Filter, Reading, parse_kinds, parse_pairs
from mqtool.next_steps import Step
from mqtool.options import BrokerChoice, ConsentChoice, EngineChoice, argument, command, flag, option
from mqtool.printer import Printer, outside_store, table
from mqtool.text import count, human_size
from mqtool.words import N_, _, retold
from recover.broker.settings import DEFAULT_LEVELS, parse_levels
from recover.export.messages import Message
from recover.export.select import Wanted, selected
from recover.export.send import KINDS, Cluster, Outbox, Outgoing, Place, Position, RejectedMessage, Rules, read_messages
from recover.export.sources import Source, open_sources
from recover.findings.code import Interrupted, Refusal, UsageRefusal
from recover.findings.model import Phrase, shell_line, without_secrets
from recover.store.store import StoreOptions

_WHERE, _WHAT = "Where to, and how", "What is sent"
_ENDPOINTS = re.compile(r"[^:;\s]+:\d{1,5}(;[^:;\s]+:\d{1,5})*")
_SHOWN = 20
_KEPT = 1000


class Target(Struct, frozen=True, kw_only=True):
    """The messages, and the target cluster."""

    source: Annotated[Path | None, argument(
        "SOURCE", "An NDJSON file of mqtool export, or a store, a commitlog folder, a log file.")] = None
    endpoints: Annotated[str | None, option(
        "--endpoints", "A proxy of the cluster; several with semicolons.", _WHERE, metavar="HOST:PORT")] = None
    position: Annotated[Path | None, option(
        "--position", "Record progress in this file, and continue from it.", _WHERE, metavar="FILE")] = None
    rate_limit: Annotated[int | None, option(
        "--rate-limit", "At most N messages per second.", _WHERE, metavar="N", min=1)] = None
    in_flight: Annotated[int, option(
        "--in-flight", "Send N messages before waiting for acknowledgements: faster, but the order is lost.", _WHERE,
        metavar="N", min=1)] = 1
    namespace: Annotated[str, option("--namespace", "Namespace of the topics.", _WHERE, metavar="NAME")] = ""
    tls: Annotated[bool, flag("--tls", "Encrypt the connection.", _WHERE)] = False
    topic_map: Annotated[list[str] | None, option(
        "--topic-map", "Send messages of one topic to another; repeat for several.", _WHAT, metavar="OLD=NEW")] = None
    keep_delay: Annotated[bool, flag(
        "--keep-delay", "Also send delayed messages that were not delivered, each at its time.", _WHAT)] = False
    kind: Annotated[list[str] | None, option(
        "--kind", "Also send half, delayed, timer, retry or dead-letter copies, immediately.", _WHAT,
        metavar="KIND")] = None

    def rules(self, broker: BrokerChoice) -> Rules:
        """Which messages are sent, and in which form; a usage error (16) for invalid options."""
        topics = dict(parse_pairs(self.topic_map, "--topic-map", "OLD=NEW", "Orders=Again"))
        if empty := next((old for old, new in topics.items() if not new), None):
            raise UsageRefusal(Phrase("--topic-map {empty}=: write OLD=NEW", empty=empty),
                               "For instance --topic-map Orders=Again.")
        levels = parse_levels(broker.given().get("messageDelayLevel", DEFAULT_LEVELS))
        return Rules(parse_kinds(self.kind, "--kind", KINDS), self.keep_delay, topics, levels)


@command(
    examples=[
        ("messages.ndjson --endpoints 10.0.0.5:8081 --dry-run", "what would be sent, and what would not"),
        ("messages.ndjson --endpoints 10.0.0.5:8081 --position messages.position", "send; run it again to continue"),
        ("/data/store --endpoints 10.0.0.5:8081 --topic Orders --since -2h --rate-limit 500", "from a store, slowly"),
        ("/data/store --endpoints 10.0.0.5:8081 --topic-map Orders=Orders_again", "to another topic"),
    ],
)
def send(out: Printer, target: Target, broker: BrokerChoice, which: Filter, consent: ConsentChoice) -> int:
    """Send messages of an export, or of a store, to a live cluster (5.x, through its proxy).

    Keys, tags, properties and body are kept; the property MQTOOL_ORIGIN names the original place of a message, so
    that a consumer can recognize a duplicate. 0: all were sent; 8: some were not, or the cluster does not
    answer.
    """
    if target.source is None and broker.store:
        target = structs.replace(target, source=Path(broker.store))
    source, endpoints = _checked(target, which)
    rules = target.rules(broker)
    messages = _Messages(out, source, broker, which)
    if target.position is not None:
        outside_store(target.position, [source])
    position = Position(target.position, {
        "source": str(source.absolute()), "options": _digest(target, broker, which)})
    outbox = Outbox(rules)
    plan = _Plan(messages, outbox, limit=which.limit, twice=rules.keep_delay)
    due = plan.due
    out.answer(
        endpoints=endpoints, source=str(source.absolute()), planned=due, topics=dict(sorted(plan.topics.items())),
        types=dict(sorted(plan.types.items())), left_out=dict(sorted(plan.left_out.items())), sent=0, refused=[],
        refused_messages=0, dry_run=consent.dry_run, complete=not messages.incomplete, notes=messages.notes,
        position=None if target.position is None else str(target.position),
    )
    if plan.topics:
        out.show(table("to be sent", ["topic", ">messages"], plan.topics.most_common(), most=_SHOWN))
    if plan.left_out:
        out.show(table("not to be sent", ["*why", ">messages"], (
            (retold(why), n) for why, n in plan.left_out.most_common()), _SHOWN, len(plan.left_out)))
    for kind, what in (("transactional", N_("{n:,} committed transactions are sent as normal messages")),
                       ("ordered", N_("{n:,} ordered messages are sent as normal messages"))):
        if plan.types[kind]:
            out.say(_(what).format(n=plan.types[kind]))
    out.say(*messages.notes)
    code = exits.OPERATIONAL if messages.incomplete else exits.CLEAN
    if consent.dry_run:
        line = _("{messages} ({size}) would be sent to {endpoints}; nothing was sent").format(
            messages=count(due, "message"), size=human_size(plan.size), endpoints=endpoints)
        out.summary(line, [Step(_typed(out, without="--dry-run"), "send them")] if due else [])
        return code
    begin = position.place
    if position.went_on:
        out.say(_("continuing after {messages} that were acknowledged").format(
            messages=count(begin.sent, "message")))
        if not position.ended:
            out.say(_("that run was interrupted: messages in flight (one, or --in-flight N) can arrive twice, right "
                      "after MQTOOL_ORIGIN {origin}").format(origin=begin.origin or _("(none was acknowledged)")))
        if begin.done >= plan.messages:
            refused = due - begin.sent
            out.answer(sent=begin.sent, refused_messages=refused)
            out.summary(_("all messages were sent before: {messages}").format(
                messages=count(begin.sent, "message")) + _not_taken(refused), _refused(target, broker, position))
            return exits.OPERATIONAL if refused else code
    if not due:
        out.summary(_("there is nothing to send"))
        return code
    ask(_("Send {messages} to {endpoints}?").format(
        messages=count(due - begin.sent, "message"), endpoints=endpoints), yes=consent.yes)
    return _send(out, target, broker, messages, outbox, plan, position, endpoints)


def _checked(target: Target, which: Filter) -> tuple[Path, str]:
    """Source and endpoints; a usage error (16) if one is missing, or options do not go together."""
    if target.source is None or not target.source.exists():
        missing = N_("no SOURCE") if target.source is None else Phrase("{path} does not exist", path=target.source)
        raise UsageRefusal(missing, "Name an NDJSON file of mqtool export, or a store.")
    if target.endpoints is None or not _ENDPOINTS.fullmatch(target.endpoints):
        given = N_("no --endpoints") if target.endpoints is None else Phrase(
            "--endpoints {endpoints}: write HOST:PORT", endpoints=target.endpoints)
        raise UsageRefusal(given, "Name a proxy of the cluster, for instance --endpoints 10.0.0.5:8081.")
    if _is_export(target.source) and which != Filter():
        raise UsageRefusal("filters go with a store, not with an exported file",
                           "Export again with these filters, or send from the store.")
    return target.source, target.endpoints


def _is_export(source: Path) -> bool:
    """Whether a file is the text of an export, not a log."""
    if not source.is_file():
        return False
    with source.open("rb") as stream:
        return stream.read(1) in (b"{", b"")


def _digest(target: Target, broker: BrokerChoice, which: Filter) -> str:
    """A digest of all options that decide which messages are sent in which order and form."""
    said = [structs.asdict(which), sorted(target.topic_map or ()), sorted(target.kind or ()), target.keep_delay,
            target.namespace, broker.broker, sorted(broker.given().items())]
    return hashlib.sha256(json.dumps(said, default=str).encode()).hexdigest()[:16]


def _typed(out: Printer, without: str = "") -> str:
    return shell_line("mqtool", *(word for word in without_secrets(out.arguments) if word != without))


class _Messages(Reading):
    """The wanted messages of the source, in the same order each time; --limit counts those that are sent."""

    def __init__(self, out: Printer, source: Path, broker: BrokerChoice, which: Filter) -> None:
        super().__init__(out, broker, EngineChoice(), structs.replace(which, limit=0), ExportForm(unfold=True))
        self._source = source

    def __iter__(self) -> Iterator[Message | str]:
        if _is_export(self._source):
            return read_messages(self._source)
        return (item.message for item in self.all(self._sources()))

    def unfiltered(self) -> Iterator[Message | str]:
        """Yield all messages of the source: a filter may hide that a delayed one was delivered."""
        if _is_export(self._source):
            yield from read_messages(self._source)
            return
        for source in self._sources():
            for item in selected(self.scanned_source(source)[0], Wanted(), self.missed):
                yield item.message

    def _sources(self) -> list[Source]:
        return open_sources([self._source], self.broker.applied(self._source, StoreOptions()))


class _Plan:
    """The result of a first pass over all messages: those to send by topic and type, the others by reason, and the
    number of `messages` of the source covered. `twice`: a pass before that, which finds out which delayed ones were
    delivered."""

    def __init__(self, messages: _Messages, outbox: Outbox, *, limit: int, twice: bool) -> None:
        self.topics, self.types, self.left_out = Counter[str](), Counter[str](), Counter[str]()
        self.size = self.messages = self.due = 0
        for message in messages.unfiltered() if twice else ():
            if not isinstance(message, str):
                outbox.examine(message)
        for message in messages:
            self.messages += 1
            outgoing = message if isinstance(message, str) else outbox.take(message)
            if isinstance(outgoing, str):
                self.left_out[outgoing] += 1
                continue
            self.topics[outgoing.topic] += 1
            self.types[outgoing.type] += 1
            self.size += len(outgoing.body)
            self.due += 1
            if self.due == limit:
                break


class _Answers(Struct):
    """What the cluster said to the messages sent: how many it has, with those of earlier runs, and how many it refused
    (`listed`: the first of them)."""

    sent: int
    not_taken: int = 0
    why: Counter[str] = field(default_factory=Counter)
    listed: list[dict[str, str]] = []

    def refused_of(
        self, going: Iterable[tuple[Message, Outgoing]], problems: Iterable[RejectedMessage | None]
    ) -> Iterator[Message]:
        """Count the answers, and yield the messages that the cluster refused."""
        for (message, item), problem in zip(going, problems, strict=True):
            if problem is None:
                self.sent += 1
                continue
            self.not_taken += 1
            self.why[problem.reason] += 1
            if len(self.listed) < _KEPT:
                self.listed.append({"topic": item.topic, "origin": item.origin, "reason": problem.reason})
            yield message


def _going(batch: Iterable[Message | str], outbox: Outbox) -> Iterator[tuple[Message, Outgoing]]:
    """Yield the messages of a batch that go out, each with what is sent."""
    for message in batch:
        if not isinstance(message, str) and not isinstance(item := outbox.take(message), str):
            yield message, item


def _send(
    out: Printer, target: Target, broker: BrokerChoice, messages: _Messages, outbox: Outbox, plan: _Plan,
    position: Position, endpoints: str,
) -> int:
    """Send the rest of the source; return the exit code."""
    if position.path is None:
        out.say(_("without --position neither progress nor messages that the cluster refuses are recorded"))
    before = position.place.sent
    answers = _Answers(before)
    cluster = Cluster(endpoints, namespace=target.namespace, tls=target.tls)
    try:
        position.begin()
        stream = islice(messages, plan.messages)
        answers.not_taken = _skip(stream, outbox, position, target)
        done = position.place.done
        pause, free = (1 / target.rate_limit if target.rate_limit else 0.0), time.monotonic()
        out.writing = True
        with out.steps("sending") as steps, exits.between_steps() as interrupted:
            while batch := list(islice(stream, target.in_flight)):
                going = [*_going(batch, outbox)]
                time.sleep(max(0.0, free - time.monotonic()))
                free = max(free, time.monotonic()) + pause * len(going)
                problems = cluster.send([item for _, item in going], interrupted) if going else ()
                kept = [*answers.refused_of(going, problems)]
                done += len(batch)
                if going or done == plan.messages:
                    origin = going[-1][1].origin if going else position.place.origin
                    position.move(Place(done, answers.sent, origin, position.keep(kept)))
                steps(answers.sent, plan.due, f"{answers.sent:,} messages")
                if interrupted():
                    position.end()
                    raise Interrupted("stopped by a signal; no message was in flight",
                                      _typed(out) if position.path else "")
        position.end()
    finally:
        position.close()
        cluster.close()
        out.answer(sent=answers.sent, refused=answers.listed, refused_messages=answers.not_taken,
                   sent_again=cluster.again)
        text = _("{sent:,} of {messages} sent to {endpoints}").format(
            sent=answers.sent, messages=count(plan.due, "message"), endpoints=endpoints)
        text += _(", {n:,} of them before").format(n=before) if before else ""
        text += _not_taken(answers.not_taken)
        more = position.path is not None and position.place.done < plan.messages
        out.summary(text, [Step(_typed(out), "continues there")] if more else _refused(target, broker, position))
    if answers.why:
        out.show(table("not taken", ["*why", ">messages"], answers.why.most_common(), most=_SHOWN))
    return exits.OPERATIONAL if answers.not_taken or messages.incomplete else exits.CLEAN


def _refused(target: Target, broker: BrokerChoice, position: Position) -> list[Step]:
    """The step that sends the refused messages alone."""
    if position.refused is None or not position.place.refused or not position.refused.exists():
        return []
    alone = structs.replace(target, source=None, position=Path(f"{position.refused}.position"))
    given = {**structs.asdict(alone), "broker_conf": broker.broker_conf, "set": broker.settings}
    usual = structs.asdict(Target())
    words: list[object] = []
    for name, value in given.items():
        for each in value if isinstance(value, list) else [value] if value != usual.get(name) else ():
            words += [f"--{name.replace('_', '-')}", *(() if value is True else (each,))]
    return [Step(shell_line("mqtool", "send", position.refused, *words),
                 "sends the refused messages alone, once the cluster takes them")]


def _not_taken(number: int) -> str:
    return _("; {n:,} NOT taken by the cluster").format(n=number) if number else ""


def _skip(stream: Iterator[Message | str], outbox: Outbox, position: Position, target: Target) -> int:
    """Skip the messages that are done; return how many of them the cluster refused. `Refusal` (8) if the source has
    changed."""
    place, last, due = position.place, "", 0
    for message in islice(stream, place.done):
        if not isinstance(message, str) and not isinstance(item := outbox.take(message), str):
            last, due = item.origin, due + 1
    if last != place.origin:
        raise Refusal(Phrase("{source} does not hold the messages recorded in {path}", source=target.source,
                             path=position.path), "Send from the same source, or name another position file.")
    return due - place.sent
