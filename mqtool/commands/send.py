"""`mqtool send`: exported messages into a live cluster."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from msgspec import Struct, structs

from mqtool import exits
from mqtool.changing import ConsentChoice, ask
from mqtool.commands.export import Filter, Reading, Shape
from mqtool.declared import FLAG, argument, option
from mqtool.next_steps import Step
from mqtool.options import BrokerChoice, EngineChoice, command
from mqtool.output import Printer, outside_store
from mqtool.progress import Steps
from mqtool.scanning import given_settings
from mqtool.screens import table
from mqtool.shown import Text
from mqtool.text import count, human_size
from recover.findings.refusal import Interrupted, Refusal, UsageRefusal

if TYPE_CHECKING:
    from recover.export.messages import Message
    from recover.export.send import Cluster, NotTaken, Outbox, Outgoing, Position, Rules

_WHERE, _WHAT = "Where to, and how", "As what"
_ENDPOINTS = re.compile(r"[^:;\s]+:\d{1,5}(;[^:;\s]+:\d{1,5})*")
_SHOWN = 20
_KEPT = 1000


class Target(Struct, frozen=True, kw_only=True):
    """The messages, and the cluster that they go to."""

    source: Annotated[Path | None, argument(
        "SOURCE", "An NDJSON file of mqtool export, or a store, a commitlog folder, a log file.")] = None
    endpoints: Annotated[str | None, option(
        "--endpoints", "A proxy of the cluster; several with semicolons.", _WHERE, metavar="HOST:PORT")] = None
    position: Annotated[Path | None, option(
        "--position", "Keep here how far the sending is, and go on from there.", _WHERE, metavar="FILE")] = None
    rate_limit: Annotated[int | None, option(
        "--rate-limit", "At most N messages a second.", _WHERE, metavar="N", min=1)] = None
    in_flight: Annotated[int, option(
        "--in-flight", "Send N before waiting for their acknowledgements: faster, and the order is lost.", _WHERE,
        metavar="N", min=1)] = 1
    namespace: Annotated[str, option("--namespace", "Namespace of the topics.", _WHERE, metavar="NAME")] = ""
    tls: Annotated[bool, option("--tls", "Encrypt the connection.", _WHERE, metavar=FLAG)] = False
    topic_map: Annotated[list[str] | None, option(
        "--topic-map", "Send messages of one topic to another; repeat for several.", _WHAT, metavar="OLD=NEW")] = None
    keep_delay: Annotated[bool, option(
        "--keep-delay", "Delayed messages that were not delivered, too, each at its time.", _WHAT,
        metavar=FLAG)] = False
    kind: Annotated[list[str] | None, option(
        "--kind", "half, delayed, timer, retry, dead-letter: these copies, too, at once.", _WHAT,
        metavar="KIND")] = None

    def rules(self, broker: BrokerChoice) -> Rules:
        """What goes out as what; a usage error (16) for options that cannot be read."""
        from recover.broker.delays import DEFAULT_LEVELS, parse_levels
        from recover.export.send import KINDS, Rules

        kinds = frozenset(word for item in self.kind or () for word in item.split(",") if word)
        if unknown := sorted(kinds - set(KINDS)):
            raise UsageRefusal(f"--kind {unknown[0]}: there is no such kind", f"Choose from {', '.join(KINDS)}.")
        topics = {}
        for item in self.topic_map or ():
            old, equals, new = item.partition("=")
            if not (old and equals and new):
                raise UsageRefusal(f"--topic-map {item}: write OLD=NEW", "For instance --topic-map Orders=Again.")
            topics[old] = new
        levels = parse_levels(given_settings(broker).get("messageDelayLevel", DEFAULT_LEVELS))
        return Rules(kinds, self.keep_delay, topics, levels)


class _Plan(NamedTuple):
    """What one look at all messages says: those to be sent by topic and by type, and those that are not, by reason."""

    topics: Counter[str]
    types: Counter[str]
    left_out: Counter[str]
    size: int
    messages: int


@command(
    examples=[
        ("messages.ndjson --endpoints 10.0.0.5:8081 --dry-run", "what would be sent, and what would not"),
        ("messages.ndjson --endpoints 10.0.0.5:8081 --position messages.position", "send; the same again goes on"),
        ("/data/store --endpoints 10.0.0.5:8081 --topic Orders --since -2h --rate-limit 500", "out of a store, slowly"),
        ("/data/store --endpoints 10.0.0.5:8081 --topic-map Orders=Orders_again", "to another topic"),
    ],
    bits=(),
)
def run(out: Printer, target: Target, broker: BrokerChoice, which: Filter, consent: ConsentChoice) -> int:
    """Send messages of an export, or of a store, to a live cluster (5.x, through its proxy).

    Keys, tags, properties and body are kept; the property MQTOOL_ORIGIN says where a message first was, so that a
    consumer can tell one that comes twice. 0: all were sent; 8: some were not, or the cluster does not answer.
    """
    from recover.export.send import Outbox, Position

    source, endpoints = _checked(target, which)
    rules = target.rules(broker)
    messages = _Messages(out, source, broker, which)
    position = None
    if target.position is not None:
        outside_store(target.position, [source])
        position = Position(target.position, {
            "source": str(source.absolute()), "options": _digest(target, broker, which)})
    outbox = Outbox(rules)
    plan = _look(messages, outbox, twice=rules.keep_delay)
    due = plan.topics.total()
    out.answer(
        endpoints=endpoints, source=str(source.absolute()), planned=due, topics=dict(sorted(plan.topics.items())),
        types=dict(sorted(plan.types.items())), left_out=dict(sorted(plan.left_out.items())), sent=0, refused=[],
        refused_messages=0, dry_run=consent.dry_run, complete=not messages.incomplete, notes=messages.notes,
        position=None if target.position is None else str(target.position),
    )
    _show(out, plan)
    for note in messages.notes:
        out.say(note)
    if consent.dry_run:
        out.summary(f"{count(due, 'message')} ({human_size(plan.size)}) would be sent to {endpoints}; nothing was sent",
                    [Step(_typed(out, without="--dry-run"), "send them")] if due else [])
        return exits.OPERATIONAL if messages.incomplete else exits.CLEAN
    begin = position.place if position is not None else None
    if position is not None and position.went_on:
        _say_going_on(out, position)
    if begin is not None and begin.done >= plan.messages:
        out.answer(sent=begin.sent)
        out.summary(f"all were sent before: {count(begin.sent, 'message')}")
        return exits.CLEAN
    if not due:
        out.summary("there is nothing to send")
        return exits.OPERATIONAL if messages.incomplete else exits.CLEAN
    ask(f"Send {count(due - (begin.sent if begin else 0), 'message')} to {endpoints}?", yes=consent.yes)
    return _Sending(out, target, messages, outbox, plan, position).run(endpoints)


def _checked(target: Target, which: Filter) -> tuple[Path, str]:
    """Source and endpoints; a usage error (16) where one is missing, or options do not go together."""
    if target.source is None:
        raise UsageRefusal("no SOURCE", "Name an NDJSON file of mqtool export, or a store.")
    if not target.source.exists():
        raise UsageRefusal(f"there is no {target.source}", "Name an NDJSON file of mqtool export, or a store.")
    if target.endpoints is None or not _ENDPOINTS.fullmatch(target.endpoints):
        given = "no --endpoints" if target.endpoints is None else f"--endpoints {target.endpoints}: write HOST:PORT"
        raise UsageRefusal(given, "Name a proxy of the cluster, for instance --endpoints 10.0.0.5:8081.")
    if _is_export(target.source) and which != Filter():
        raise UsageRefusal("filters go with a store, not with an exported file",
                           "Export again with these filters, or send from the store.")
    return target.source, target.endpoints


def _is_export(source: Path) -> bool:
    """Whether a file is not a log, but text of an export."""
    if not source.is_file():
        return False
    with source.open("rb") as stream:
        return stream.read(1) in (b"{", b"")


def _digest(target: Target, broker: BrokerChoice, which: Filter) -> str:
    """A name for all that decides which messages come in which order, and as what."""
    said = [structs.asdict(which), sorted(target.topic_map or ()), sorted(target.kind or ()), target.keep_delay,
            target.namespace, broker.broker, sorted(given_settings(broker).items())]
    return hashlib.sha256(json.dumps(said, default=str).encode()).hexdigest()[:16]


def _typed(out: Printer, without: str = "") -> str:
    return shlex.join(["mqtool", *(word for word in out.arguments if word != without)])


class _Messages(Reading):
    """The messages of the source, the same ones in the same order each time."""

    def __init__(self, out: Printer, source: Path, broker: BrokerChoice, which: Filter) -> None:
        super().__init__(out, broker, EngineChoice(), which, Shape(unfold=True))
        self._source = source

    def __iter__(self) -> Iterator[Message | str]:
        from recover.export.select import open_sources
        from recover.export.send import read_messages
        from recover.store.store import StoreOptions

        if _is_export(self._source):
            yield from read_messages(self._source)
            return
        options = StoreOptions(settings=given_settings(self.broker), broker=self.broker.broker)
        for item in self.all(open_sources([self._source], options)):
            yield item.message


def _look(messages: _Messages, outbox: Outbox, *, twice: bool) -> _Plan:
    """The plan; `twice`: which delayed messages were delivered shows only once all were seen."""
    for message in messages if twice else ():
        if not isinstance(message, str):
            outbox.look(message)
    plan = _Plan(Counter(), Counter(), Counter(), 0, 0)
    size = seen = 0
    for message in messages:
        seen += 1
        outgoing = message if isinstance(message, str) else outbox.take(message)
        if isinstance(outgoing, str):
            plan.left_out[outgoing] += 1
        else:
            plan.topics[outgoing.topic] += 1
            plan.types[outgoing.type] += 1
            size += len(outgoing.body)
    return plan._replace(size=size, messages=seen)


def _show(out: Printer, plan: _Plan) -> None:
    if plan.topics:
        rows = plan.topics.most_common(_SHOWN)
        more = [(f"… {len(plan.topics) - _SHOWN} more topics", "")] if len(plan.topics) > _SHOWN else []
        out.show(table("to be sent", ["topic", ">messages"], [*rows, *more]), Text(""))
    if plan.left_out:
        rows = plan.left_out.most_common(_SHOWN)
        out.show(table("not to be sent", ["*why", ">messages"], rows), Text(""))
    for kind, what in (("transactional", "committed transactions"), ("ordered", "ordered messages")):
        if plan.types[kind]:
            out.say(f"{plan.types[kind]:,} {what} are sent as normal messages")


def _say_going_on(out: Printer, position: Position) -> None:
    out.say(f"going on after {count(position.place.sent, 'message')} that were acknowledged")
    if not position.ended:
        out.say("that run did not end by itself: what it had under way (one message, or --in-flight N) can come twice, "
                f"right after MQTOOL_ORIGIN {position.place.origin or '(none was acknowledged)'}")


class _Sending:
    """One run on its way."""

    def __init__(
        self, out: Printer, target: Target, messages: _Messages, outbox: Outbox, plan: _Plan, position: Position | None,
    ) -> None:
        self.out, self.target, self.messages, self.outbox = out, target, messages, outbox
        self.plan, self.position = plan, position
        self.refused: Counter[str] = Counter()
        self.list: list[dict[str, str]] = []
        self.sent = self.before = position.place.sent if position is not None else 0

    def run(self, endpoints: str) -> int:
        """Send what is left of the source; the exit code."""
        from recover.export.send import Cluster

        if self.position is None:
            self.out.say("without --position nothing remembers how far the sending is, should it stop")
        cluster = Cluster(endpoints, namespace=self.target.namespace, tls=self.target.tls)
        try:
            if self.position is not None:
                self.position.begin()
            self._send(cluster)
            if self.position is not None:
                self.position.end()
        finally:
            if self.position is not None:
                self.position.close()
            cluster.close()
            self.out.answer(sent=self.sent, refused=self.list, refused_messages=self.refused.total(),
                            sent_again=cluster.again)
            self.out.summary(self._line(endpoints), [Step(_typed(self.out), "go on where it stopped")]
                             if self.position is not None and self.sent < self.plan.topics.total() else [])
        for reason, number in self.refused.most_common(_SHOWN):
            self.out.say(f"{count(number, 'message')} not taken: {reason}")
        return exits.OPERATIONAL if self.refused or self.messages.incomplete else exits.CLEAN

    def _line(self, endpoints: str) -> str:
        due = self.plan.topics.total()
        text = f"{self.sent:,} of {count(due, 'message')} sent to {endpoints}"
        if self.before:
            text += f", {self.before:,} of them before"
        return text + (f"; {self.refused.total():,} NOT taken by the cluster" if self.refused else "")

    def _send(self, cluster: Cluster) -> None:
        from recover.export.send import Place

        stream = iter(self.messages)
        done, due = self._passed(stream), self.plan.topics.total()
        pause, free = (1 / self.target.rate_limit if self.target.rate_limit else 0.0), time.monotonic()
        options = self.out.options
        self.out.writing = True
        with Steps("sending", options.progress, self.out.stderr_console) as steps, \
                exits.between_steps() as interrupted:
            while batch := list(islice(stream, self.target.in_flight)):
                going = [item for message in batch if not isinstance(
                    item := message if isinstance(message, str) else self.outbox.take(message), str)]
                time.sleep(max(0.0, free - time.monotonic()))
                free = max(free, time.monotonic()) + pause * len(going)
                if going:
                    self._note(going, cluster.send(going, interrupted))
                done += len(batch)
                if self.position is not None and (going or done == self.plan.messages):
                    origin = going[-1].origin if going else self.position.place.origin
                    self.position.move(Place(done, self.sent, origin))
                steps(self.sent, due, f"{self.sent:,} messages")
                if interrupted():
                    if self.position is not None:
                        self.position.end()
                    raise Interrupted("stopped by a signal; nothing was under way",
                                      _typed(self.out) if self.position else "")

    def _note(self, going: list[Outgoing], results: Sequence[NotTaken | None]) -> None:
        for item, refused in zip(going, results, strict=True):
            if refused is None:
                self.sent += 1
                continue
            self.refused[refused.reason] += 1
            if len(self.list) < _KEPT:
                self.list.append({"topic": item.topic, "origin": item.origin, "reason": refused.reason})

    def _passed(self, stream: Iterator[Message | str]) -> int:
        """Pass over what is done with; `Refusal` (8) where the source is not what it was."""
        if self.position is None:
            return 0
        place, last = self.position.place, ""
        for message in islice(stream, place.done):
            if not isinstance(message, str) and not isinstance(item := self.outbox.take(message), str):
                last = item.origin
        if last != place.origin:
            raise Refusal(f"{self.target.source} does not hold the messages that {self.position.path} counts",
                          "Send from the very same source, or name another position file.")
        return place.done
