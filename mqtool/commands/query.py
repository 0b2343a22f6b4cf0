"""`mqtool query` and `mqtool trace`: messages as a broker finds them, and the life of one message."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

from msgspec import Struct

from formats.record import host_text
from formats.record.message import offset_id
from mqtool import exits
from mqtool.next_steps import Step
from mqtool.options import EngineChoice, StoreChoice, argument, command, flag, log_size, option, refuse_first
from mqtool.printer import Printer, Text, facts, table
from mqtool.text import body_text, count, exact_size, flag_text, human_time, properties_text
from mqtool.words import N_, _, listed, retold
from recover.broker.versions import NEWEST_COMPARED, BrokerVersion
from recover.export.messages import encoded, plain_body
from recover.export.select import FOREVER, Wanted, list_messages, parse_times, scan_for
from recover.export.sources import Scanned, scan_source, source_of
from recover.export.trace import Event, MessageHistory, trace as trace_message
from recover.findings.code import UsageRefusal
from recover.findings.model import Phrase, builtins_of, shell_line
from recover.look import query as look
from recover.store.columns import DEFAULT_MEMORY
from recover.store.config_files import LMQ_PREFIX
from recover.store.store import Store

_WHAT, _HOW = "What to look for", "How"
_SHOWN = 60


class Search(Struct, frozen=True, kw_only=True):
    """The search."""

    topic: Annotated[str | None, option("--topic", "Topic.", _WHAT, metavar="T")] = None
    key: Annotated[str | None, option("--key", "Key or unique key of the message.", _WHAT, metavar="K")] = None
    begin: Annotated[int | None, option("--begin", "Stored at or after (ms).", _WHAT, metavar="MS")] = None
    end: Annotated[int | None, option("--end", "Stored at or before (ms).", _WHAT, metavar="MS")] = None
    since: Annotated[str | None, option(
        "--since", "With --topic alone: stored at or after (ISO 8601 with its zone, ms, or -2h).", _WHAT,
        metavar="T")] = None
    until: Annotated[str | None, option("--until", "With --topic alone: stored before.", _WHAT, metavar="T")] = None
    queue: Annotated[int | None, option("--queue", "Queue of the topic.", _WHAT, metavar="N", min=0)] = None
    offset: Annotated[int | None, option("--offset", "Queue offset.", _WHAT, metavar="O", min=0)] = None
    time: Annotated[int | None, option(
        "--time", "The queue's first message stored at or after this time (ms). With --broker before 5.1.1 the "
        "nearest.", _WHAT, metavar="MS")] = None
    msg_id: Annotated[str | None, option(
        "--msg-id", "Offset id (32 or 56 hex digits) or unique key.", _WHAT, metavar="ID")] = None
    phy_offset: Annotated[int | None, option(
        "--phy-offset", "Record that starts at this offset of the log.", _WHAT, metavar="N", min=0)] = None
    include_stale: Annotated[bool, flag(
        "--include-ghosts", "Also stale records after a break of the log; alone, only those. Scans the log.",
        _WHAT)] = False
    scan: Annotated[bool, flag("--scan", "Scan the whole log instead of using index or queue.", _HOW)] = False
    body: Annotated[bool, flag("--body", "Show bodies, decompressed.", _HOW)] = False
    limit: Annotated[int, option(
        "--limit", "At most N messages, 0 for all (default: 1000).", _HOW, metavar="N", min=0)] = 1000

    def check(self) -> str:
        """The kind of search; a usage error (16) for options that do not go together."""
        ways = [name for name, value in (("msg-id", self.msg_id), ("phy-offset", self.phy_offset), ("key", self.key),
                                         ("offset", self.offset), ("time", self.time)) if value is not None]
        if len(ways) > 1:
            raise UsageRefusal(Phrase("--{first} and --{second} are two different searches", first=ways[0],
                                      second=ways[1]),
                               "Choose one of them.")
        alone = "stale" if self.include_stale else "list" if self.topic is not None else ""
        way = ways[0] if ways else alone
        lists, given = (self.since, self.until), (self.begin, self.end)
        of_topic, of_queue = way in ("key", "offset", "time"), way in ("offset", "time")
        refuse_first((
            (way != "list" and lists != (None, None), N_("--since and --until list the messages of one topic"),
             N_("Use --begin and --end with --key.") if way == "key" else
             N_("They go with --topic and --queue; `mqtool export` writes those of all topics.")),
            (not way, N_("nothing to look for"),
             N_("Name --topic, --key, --queue with --offset or --time, --msg-id, or --phy-offset; `mqtool query "
                "--help` has examples.")),
            (way == "list" and str(self.topic).startswith(LMQ_PREFIX),
             Phrase("{topic} is an LMQ queue: its messages are stored under other topics", topic=self.topic),
             N_("Name --queue 0 and --offset or --time, or the topic that the messages were sent to.")),
            (of_topic and self.topic is None and (way, self.scan) != ("key", True),
             Phrase("--{way} needs --topic", way=way),
             N_("A broker finds messages by topic; --key does without it with --scan.")),
            (of_queue and self.queue is None, Phrase("--{way} needs --queue", way=way),
             N_("Each queue of a topic counts its own offsets.")),
            (way not in ("key", "stale") and given != (None, None), N_("--begin and --end go with --key"),
             N_("Use --since and --until to list a topic, --time to find a position in a queue.")),
        ))
        return way


@command(
    examples=[
        ("/data/store --topic Orders --key 4711", "by key, through the index"),
        ("/data/store --topic Orders --key 4711 --scan", "the same without trusting the index"),
        ("/data/store --topic Orders --queue 0 --offset 12 --body", "by queue offset, with the body"),
        ("/data/store --topic Orders --queue 0 --time 1767225600000", "the first message from that time on"),
        ("/data/store --topic Orders --since -2h", "the messages of a topic, in the order in which they were stored"),
        ("/data/store --msg-id 7F00000100002A9F0000000000000000", "by message id"),
        ("/data/store --include-ghosts", "old records that a truncation left behind"),
    ],
)
def query(out: Printer, store: StoreChoice, engine: EngineChoice, search: Search) -> int:
    """Find messages by key, queue offset, time, id or log offset, the way a broker does, or list those of a topic.

    Every hit is read and checked. Exit 0 means that the search was complete, even if it found nothing; 8 that it
    was not complete.
    """
    way = search.check()
    opened = store.settled(engine) if search.scan or search.include_stale or way == "list" else store.open()
    answer = _search(out, opened, engine, search, way)
    look.note_unread(opened, answer)
    absent = "" if answer.messages or search.topic is None else look.no_such_topic(opened, search.topic)
    answer.notes[:0] = [absent] if absent else []
    out.answer(messages=[message_document(found, body=search.body) for found in answer.messages],
               complete=answer.complete, way=answer.way, notes=answer.notes, more=answer.more,
               more_messages=answer.left_out if way == "list" else None,
               queue_offset=answer.queue_offset, damaged=answer.damaged)
    show_messages(out, answer.messages, body=search.body, as_list=way == "list")
    out.say(*answer.notes)
    if answer.left_out:
        out.say(_("{messages} not shown: raise --limit, or export them").format(
            messages=count(answer.left_out, "more message")))
    elif answer.more:
        out.say(_("there are more than {n}: raise --limit").format(n=search.limit))
    topics = [Step(out.given.line("inspect"), "lists the topics")] if absent else []
    out.summary(_summary(answer), _next(out, answer, search, way) or topics,
                clean=not answer.damaged and not answer.damaged_ranges)
    return exits.CLEAN if answer.complete else exits.OPERATIONAL


def _search(out: Printer, store: Store, engine: EngineChoice, search: Search, way: str) -> look.Answer:
    topic, queue = str(search.topic), int(search.queue or 0)
    if way == "phy-offset":
        return look.query_phy_offset(store, int(search.phy_offset or 0))
    if way == "list":
        since, until = parse_times(search.since, search.until)
        return list_messages(_scanned(out, store, engine), topic,
                             Wanted(queue=search.queue, since=since, until=until), search.limit)
    if search.scan or search.include_stale:
        return _scan(out, store, engine, search, way)
    if way == "msg-id":
        return look.query_id(store, str(search.msg_id), search.topic)
    if way == "offset":
        return look.query_offset(store, topic, queue, int(search.offset or 0))
    if way == "time":
        named = store.options.broker
        version = BrokerVersion.parse(named) if named else NEWEST_COMPARED
        return look.query_time(store, topic, queue, int(search.time or 0), version)
    end = FOREVER if search.end is None else search.end
    return look.query_key(store, [topic], str(search.key), begin=search.begin or 0, end=end, limit=search.limit)


def _scan(out: Printer, store: Store, engine: EngineChoice, search: Search, way: str) -> look.Answer:
    if way == "msg-id" and (placed := look.query_place(store, str(search.msg_id).strip())) is not None:
        return placed
    others = ({"stale"} if search.include_stale else set()) | (set() if way == "time" else {"superseded"})
    wanted = Wanted(
        key=search.msg_id.strip() if search.msg_id else search.key, since=max(0, search.time or search.begin or 0),
        until=FOREVER if search.end is None else search.end + 1, include=frozenset({"system", *others}),
        queue_offsets=(0, FOREVER) if search.offset is None else (search.offset, search.offset + 1),
    )
    answer = scan_for(_scanned(out, store, engine), wanted, topic=search.topic, queue=search.queue,
                      only_stale=way == "stale", limit=1 if way == "time" else search.limit)
    answer.more = answer.more and way != "time"
    return answer


def _scanned(out: Printer, store: Store, engine: EngineChoice) -> Scanned:
    scanner = engine.scanner(out, log_size(store))
    with out.progress("scanning", log_size(store)) as progress:
        return scan_source(source_of(store), scanner, memory=engine.memory or DEFAULT_MEMORY, progress=progress)


def _summary(answer: look.Answer) -> str:
    found = count(len(answer.messages), "message") if answer.messages else _("no message")
    if answer.damaged and not answer.messages:
        first = answer.damaged[0]
        led = answer.way == "index"
        who = N_("an index entry of the key points to a damaged message") if led else N_("the message is damaged")
        return _(who) + _(": {reason} at {offset} of the log ({file})").format(
            reason=first["reason"], offset=first["phy_offset"], file=first["file"])
    if answer.damaged_ranges and not answer.messages:
        return _("no intact message found, but {ranges} of the log may hold the message").format(
            ranges=count(answer.damaged_ranges, "damaged range"))
    if not answer.complete:
        return _("{messages} found").format(messages=found) + _(_INCOMPLETE).format(note=retold(answer.notes[-1]))
    return _("{messages} found").format(messages=found) + (
        _(", {n:,} more exist").format(n=answer.left_out) if answer.left_out else
        _(", more exist") if answer.more else "")


def _next(out: Printer, answer: look.Answer, search: Search, way: str) -> list[Step]:
    if not answer.messages and answer.damaged:
        damaged = answer.damaged[0]
        file = str(Path(out.given.store) / str(damaged["file"]))
        return [Step(shell_line("mqtool", "inspect", file, "--offset", damaged["phy_offset"]),
                     "shows the damaged message, field by field with every check"), *_verify(out)]
    if answer.way == "index" and not (answer.messages and answer.complete):
        named = ["--msg-id", search.msg_id] if way == "msg-id" else ["--topic", search.topic, "--key", search.key]
        return [Step(out.given.line("query", *named, "--scan"), _SCAN)]
    if len(answer.messages) == 1 and not search.body:
        place = answer.messages[0].record.phy_offset
        return [Step(out.given.line("query", "--phy-offset", place, "--body"), "shows the message with its body")]
    return _verify(out) if answer.damaged_ranges else []


_SCAN = N_("scans the log instead of using the index")
_INCOMPLETE = N_(", but the search was NOT complete: {note}")


def _verify(out: Printer) -> list[Step]:
    return [Step(out.given.line("verify"), "reports all damage and its remedies")]


# --- trace ---------------------------------------------------------------------------------------


@command(
    examples=[
        ("/data/store order-4711", "the messages with this key: where each was, and where it is now"),
        ("/data/store 7F00000100002A9F0000000000000000", "by message id, or by unique key"),
        ("/data/store order-4711 --scan", "without trusting the index"),
    ],
    beside_store="name",
)
def trace(
    out: Printer, store: StoreChoice, engine: EngineChoice,
    name: Annotated[str, argument("ID", "A message id, unique key, or key.")] = "",
    scan: Annotated[bool, flag(
        "--scan", "Scan the whole log instead of using the index.", "What")] = False,
) -> int:
    """Show one message's life: half, op, commit or rollback; waiting and delivery; retries and dead letter; consumers.

    Every record with the same unique key is read and checked. Exit 0 means that the search was complete, even if it
    found nothing; 8 that it was not complete.
    """
    if not name.strip():
        raise UsageRefusal("no ID", "Name a message id, a unique key or a key.")
    opened = store.settled(engine) if scan else store.open()
    lives, found = trace_message(opened, name.strip(), _scanned(out, opened, engine) if scan else None)
    found.way = found.way if not found.messages or found.way != "id" else "index"
    look.note_unread(opened, found)
    out.answer(lives=builtins_of(lives), complete=found.complete, way="scan" if scan else "index",
               notes=found.notes, more=found.more, more_messages=found.left_out or None, damaged=found.damaged)
    for life in lives:
        _show(out, life)
    out.say(*found.notes)
    if found.left_out:
        out.say(_("{messages} with this key: name a unique key").format(
            messages=count(found.left_out, "more message")))
    text = f"{lives[0].topic}: {retold(lives[0].ended)}" if len(lives) == 1 else \
        count(len(lives), "message") if lives else _("{messages} found").format(messages=_("no message"))
    out.summary(text + ("" if found.complete else _(_INCOMPLETE).format(note=retold(found.notes[-1]))),
                _after_trace(out, lives, found, name, scan=scan))
    return exits.CLEAN if found.complete else exits.OPERATIONAL


def _after_trace(
    out: Printer, lives: list[MessageHistory], found: look.Answer, name: str, *, scan: bool,
) -> list[Step]:
    """What to do next: look everywhere if something may be missing, else at the last record."""
    steps = []
    if not scan and not (lives and found.complete):
        steps = [Step(out.given.line("trace", name, "--scan"), _SCAN)]
    elif len(lives) == 1:
        last = lives[0].events[-1]
        steps = [Step(out.given.line("query", "--phy-offset", last.phy_offset, "--body"), "shows the last record")]
    return [*steps, *(_verify(out) if found.damaged or found.damaged_ranges else ())]


def _show(out: Printer, life: MessageHistory) -> None:
    out.show(Text(f"{life.unique_key or _('(no unique key)')}  {life.topic}", style="bold"),
             Text(_("keys {keys}: {ended}").format(keys=life.keys or _("none"), ended=retold(life.ended))))
    out.show(table("", ["stage", "stored", "topic", ">queue", ">queue offset", ">log offset", "*details"],
                   map(_cells, life.events), most=_SHOWN))
    if life.consumers:
        cells = [(one.group, one.topic, one.queue, one.queue_offset, one.committed,
                  _("consumed") if one.consumed else _("not yet")) for one in life.consumers]
        out.show(table("committed offsets of its queues",
                       ["group", "topic", ">queue", ">queue offset", ">committed", "state"], cells, most=_SHOWN))


def _cells(event: Event) -> list[object]:
    due = ""
    if event.due is not None:
        has_passed = event.due < time.time() * 1000
        due = _("due {time}, which has passed" if has_passed else "due {time}").format(time=human_time(event.due))
    target = _("for {topic}").format(topic=event.target) if event.target != event.topic else ""
    words = [word for word in (retold(event.note or ""), due, target) if word]
    return [_(event.stage), human_time(event.store_time), event.topic, event.queue, event.queue_offset,
            event.phy_offset, listed(words)]


# --- messages as documents and as screens ---------------------------------------------------------


def message_document(found: look.Found, *, body: bool) -> dict[str, Any]:
    """One message in the document; the body (decompressed) only if requested."""
    record = found.record
    document: dict[str, Any] = {
        "phy_offset": record.phy_offset, "size": record.total_size, "topic": record.topic_name,
        "queue_id": record.queue_id, "queue_offset": record.queue_offset, "store_timestamp": record.store_timestamp,
        "born_timestamp": record.born_timestamp, "store_host": host_text(record.store_host),
        "born_host": host_text(record.born_host), "msg_id": offset_id(*record.store_host, record.phy_offset),
        "uniq_key": record.uniq_key, "keys": record.keys, "tags": record.tags, "sys_flag": record.sys_flag,
        "flag": record.flag, "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset, "properties": record.property_map(),
        "body_length": len(record.body), "body_crc": record.body_crc, "ghost": found.stale,
        "superseded": found.superseded,
    }
    if body:
        content, problem = plain_body(record)
        text, encoding = encoded(content)
        document |= {"body": text} if encoding == "utf-8" else {"body": None, "body_base64": text}
        document |= {"body_problem": problem} if problem else {}
    return document


def show_messages(out: Printer, messages: list[look.Found], *, body: bool, as_list: bool = False) -> None:
    """Show one message in full, several (or one `as_list`) as a table."""
    if len(messages) == 1 and not as_list:
        _show_one(out, messages[0], body)
    elif messages:
        columns = [">log offset", "topic", ">queue", ">queue offset", "stored", "tags", "keys", "*unique key"]
        columns += ["*body"] if body else []
        out.show(table("", columns, (_row(found, body) for found in messages)))


def _mark(found: look.Found) -> str:
    return " stale" if found.stale else " superseded" if found.superseded else ""


def _row(found: look.Found, body: bool) -> list[object]:
    record = found.record
    where = Text(f"{record.phy_offset:,}{_mark(found)}", style="yellow" if _mark(found) else "")
    row: list[object] = [
        where, record.topic_name, record.queue_id, record.queue_offset,
        human_time(record.store_timestamp), record.tags or "", record.keys or "", record.uniq_key or "",
    ]
    return [*row, body_text(plain_body(record)[0], 60)] if body else row


def _show_one(out: Printer, found: look.Found, body: bool) -> None:
    record = found.record
    out.show(facts("", [
        ("topic", record.topic_name), ("queue", f"{record.queue_id}, queue offset {record.queue_offset:,}"),
        ("log offset", f"{record.phy_offset:,}{_mark(found)}"), ("size", exact_size(record.total_size)),
        ("stored", f"{human_time(record.store_timestamp)} by {host_text(record.store_host)}"),
        ("born", f"{human_time(record.born_timestamp)} at {host_text(record.born_host)}"),
        ("message id", offset_id(*record.store_host, record.phy_offset)), ("unique key", record.uniq_key),
        ("keys", record.keys), ("tags", record.tags), ("flags", flag_text(record.sys_flag) or "none"),
        ("redelivered", record.reconsume_times), ("properties", Text(properties_text(record.properties))),
        ("body", f"{exact_size(len(record.body))} stored"),
    ]))
    if body:
        content, problem = plain_body(record)
        out.show(Text(body_text(content, 100_000)))
        if problem:
            out.say(_("the body is shown as stored: {problem}").format(problem=problem))
