"""`mqtool inspect`: one screen about a store, or the records of one file."""

from __future__ import annotations

import ipaddress
import os
from itertools import groupby, zip_longest
from typing import Annotated

from msgspec import structs

from formats.index import IndexGeometry
from mqtool import exits
from mqtool.next_steps import Step, next_steps
from mqtool.options import StoreChoice, command, flag, option
from mqtool.printer import Printer, Table, Text, facts, table
from mqtool.screens.verdict import progress_rows
from mqtool.text import body_text, clean, count, exact_size, flag_text, human_size, human_time, properties_text
from mqtool.words import N_, _, listed, retold
from recover.broker.versions import BrokerVersion
from recover.check.report import first_findings
from recover.findings.code import UsageRefusal
from recover.findings.model import FindingList
from recover.look.file import bits_of, inspect_file
from recover.look.items import Field, FileReport, Item
from recover.look.store import NO_LOG, Start, StoreReport
from recover.store.source import bytes_on_disk
from recover.store.store import COMMITLOG, CONSUMEQUEUE, Store
from recover.store.unread import Elsewhere

_PANEL = "One file"


@command(
    examples=[
        ("/data/store", "parts, sizes, broker generation, offsets, exit state, config health"),
        ("/data/store/commitlog/00000000001073741824", "the first records of a commitlog file"),
        ("/data/store/commitlog/00000000001073741824 --offset 1073742000 --hex",
         "one record, field by field, with every check"),
        ("/data/store/index/20260101120000000 --limit 100", "header and entries of an index file"),
    ],
    bits=(exits.DERIVED, exits.MESSAGES, exits.UNSUPPORTED),
)
def inspect(
    out: Printer,
    store: StoreChoice,
    offset: Annotated[int | None, option(
        "--offset", "Start here: a byte of the file, or a log offset.", _PANEL, metavar="N")] = None,
    limit: Annotated[int | None, option(
        "--limit", "Show at most N items, 0 for all (default: 20; 1 with --offset).", _PANEL, metavar="N",
        min=0)] = None,
    hexadecimal: Annotated[bool, flag("--hex", "Also show the bytes.", _PANEL)] = False,
) -> int:
    """Show one screen about a store: its parts, how it was stopped, what a broker would start from.

    Given a single file, show its kind and its records; with --offset one record, field by field.
    """
    if store.root.is_dir():
        if offset is not None or limit is not None or hexadecimal:
            raise UsageRefusal("--offset, --limit and --hex are for single files", "Name a file of the store.")
        return _show_store(out, store)
    if limit is None:
        limit = 20 if offset is None else 1
    slots, entries = store.index_slots, store.index_entries
    geometry = None if slots is None or entries is None else IndexGeometry(slots, entries)
    return _show_file(out, inspect_file(store.root, offset, limit, geometry), chosen=offset is not None,
                     hexadecimal=hexadecimal)


# --- the screen of a store ------------------------------------------------------------------------


_TOPICS = 15
_STATES = {
    "clean": (N_("stopped cleanly"), "green"),
    "unclean": (N_("NOT stopped cleanly: the abort file is present"), "bold yellow"),
    "running": (N_("held now"), "bold yellow"),
    "unknown": (N_("unknown: there is neither an abort file nor a checkpoint"), "yellow"),
}
_PART_STATES = {"read": "", "listed": N_("listed only"), "not-read": N_("not read by this version"),
                "own": N_("mqtool's own"), "unknown": N_("unknown to mqtool"), "missing": N_("missing")}


def _show_store(out: Printer, choice: StoreChoice) -> int:
    versions = [BrokerVersion.parse(choice.broker.broker)] if choice.broker.broker else []
    store = choice.open()
    report = StoreReport(store, versions)
    found = FindingList(first_findings(store, report))
    # a valid text with an empty table, although the store shows that it was not empty, is not what the broker had
    problems = {item.file: str(item.facts["problem"]) for item in found if "problem" in item.facts}
    report.config = [structs.replace(item, state=problems[f"config/{item.name}"])
                     if item.state == "whole" and f"config/{item.name}" in problems else item for item in report.config]
    out.answer(**report.json())
    out.found(found)
    for item in (_head(store, report), _parts(report), _pointers(report)):
        out.show(item)
    if report.pointers.queues:
        out.show(_topics(report))
    bad = [item for item in report.config if item.state != "whole"]
    if bad:
        rows = ((item.name, Text(_(item.state), style="bold yellow"), _(item.backup), _(item.if_lost)) for item in bad)
        out.show(table("incomplete config files", ["file", "state", ".bak", "*if lost"], rows))
    out.show(_starts(report))
    gone = any(item.code == NO_LOG for item in found)
    out.summary(_summary(report, len(bad), gone=gone), next_steps(out.scene("inspected")))
    return found.bits


def _head(store: Store, report: StoreReport) -> Table:
    state = report.exit_state
    words, style = _STATES[state.verdict]
    holder = _(" by {who}").format(who=state.lock_holder_is) if state.lock_holder_is else ""
    was = _(" (its process was {pid})").format(pid=state.abort_pid) if state.abort_pid is not None and state.abort \
        else ""
    evidence = "; ".join(f"{retold(item.why)} ({item.release})" for item in report.generation.evidence[:4])
    whole = sum(item.state == "whole" for item in report.config)
    config = _("{whole} of {files} complete").format(whole=whole, files=count(len(report.config), "file")) \
        if report.config else _("no file" if store.config_dir.exists() else "missing")
    sizes = report.sizes
    log = _size(sizes["mapped_file_size"], report.elsewhere.get(COMMITLOG), told=bool(store.commitlog.file_size))
    queue = _size(sizes["queue_file_size"], report.elsewhere.get(CONSUMEQUEUE), told=store.queue_file_size_is_told)
    index = _("{slots:,} slots, {entries:,} entries").format(
        slots=sizes["index_slots"], entries=sizes["index_entries"]) if sizes["index_slots"] else _("unknown")
    lock = N_("there, held") if state.lock_holder is not None else \
        N_("there, not held") if state.lock_file else N_("none")
    return facts("", [
        ("store", report.root),
        ("last stop", Text(_(words) + holder + was, style=style)),
        ("lock file", _(lock)),
        ("written by", _("{release} or later: {evidence}").format(
            release=report.generation.at_least, evidence=evidence or _("no trace of a later one"))),
        ("file sizes", _("log {log}, queue {queue}, index {index}").format(log=log, queue=queue, index=index)),
        ("config", config),
    ])


def _size(size: int | None, held: Elsewhere | None, *, told: bool) -> str:
    if size is None:
        return _("unknown") if held is None else _("unknown ({what}, not read)").format(what=held.what)
    return human_size(size) + ("" if told else _(" (assumed)"))


def _parts(report: StoreReport) -> Table:
    rows = [(part.path, part.files, human_size(part.size), human_size(part.on_disk), _(part.what),
             Text(_(_PART_STATES[part.state]), style="yellow" if part.state in ("not-read", "missing") else "dim"))
            for part in report.parts if part.state != "missing" or part.name not in report.elsewhere]
    return table("parts", ["part", ">files", ">size", ">on disk", "*what", ""], rows)


def _pointers(report: StoreReport) -> Table:
    at = report.pointers
    rows: list[tuple[str, object]] = [
        (N_("log"), _("{start:,} to {stop:,} in {files}, newest message stored {time}").format(
            start=at.min_offset, stop=at.log_end, files=count(report.log_files, "file"),
            time=human_time(at.last_timestamp))),
    ]
    if report.log_files:
        rows += progress_rows(report.progress.json())
    rows += [(N_("missing in the log"), _("{start:,} to {stop:,}").format(start=start, stop=stop))
             for start, stop in at.missing_ranges]
    if at.dispatched_to is not None:
        behind = _(", all of the log")
        if at.dispatched_to > at.log_end:
            beyond, held = exact_size(at.dispatched_to - at.log_end), report.elsewhere.get(COMMITLOG)
            behind = _(", {size} after the end of the log: log files are missing").format(size=beyond) \
                if held is None else _(", {size} after the end of the log: in {part}, which is not read").format(
                    size=beyond, part=held.part)
        elif at.undispatched:
            behind = _(", {size} of the log follow").format(size=exact_size(at.undispatched))
        rows.append((N_("queues reach to"), f"{at.dispatched_to:,}{behind}"))
    if at.index_files:
        first, last = at.index_files[0][0], at.index_files[-1][0]
        rows.append((N_("index"), _("{files} ({first} to {last}), last message at {offset}").format(
            files=count(len(at.index_files), "file"), first=first, last=last,
            offset=at.indexed_to if at.indexed_to is None else format(at.indexed_to, ","))))
    if at.checkpoint is None:
        rows.append(("checkpoint", Text(_("missing or too short"), style="yellow")))
    else:
        rows += [(name, human_time(value)) for name, value in (
            (N_("checkpoint: log flushed"), at.checkpoint.physic_msg_timestamp),
            (N_("checkpoint: queues flushed"), at.checkpoint.logics_msg_timestamp),
            (N_("checkpoint: index flushed"), at.checkpoint.index_msg_timestamp))]
        if at.checkpoint.logics_physical_offset:
            rows.append((N_("checkpoint: queues to"), f"{at.checkpoint.logics_physical_offset:,}"))
    return facts("pointers", rows)


def _topics(report: StoreReport) -> Table:
    queues = report.pointers.queues
    largest = sorted(queues, key=lambda topic: -sum(queues[topic].values()))
    rows = [(clean(topic, 60), len(queues[topic]), sum(queues[topic].values())) for topic in largest]
    total = sum(len(ends) for ends in queues.values())
    more = [_("the {n} largest").format(n=_TOPICS)] if len(queues) > _TOPICS else []
    title = listed([count(len(queues), "topic"), count(total, "queue"), *more])
    return table(title, ["topic", ">queues", ">queue offsets used"], rows, most=_TOPICS)


def _starts(report: StoreReport) -> Table:
    """Adjacent generations with the same start share a row."""
    firsts = [next(alike) for _, alike in groupby(report.starts, key=Start.json)]
    rows = []
    for first, behind in zip_longest(firsts, firsts[1:]):
        until = _("{first} to before {next}").format(first=first.broker, next=behind.broker) if behind else ""
        note = "" if first.matched or first.file is None else \
            _("no file matches: begins with the oldest that it may read")
        name = until or (_("{first} and later").format(first=first.broker) if len(report.starts) > 1
                         else str(first.broker))
        rows.append((name, _(first.mode), first.file, note))
    return table("where a broker's recovery would start", ["broker", "mode", "first file", "*"], rows)


def _summary(report: StoreReport, bad: int, *, gone: bool) -> str:
    if gone:
        return _("Do not start the broker: there are queues or an index, but no log. Is the log's disk mounted?")
    state = report.exit_state
    words = {"clean": N_("stopped cleanly"), "unclean": N_("not stopped cleanly"), "running": N_("held by {who}"),
             "unknown": N_("unknown how it was stopped")}
    at = report.pointers
    parts = [_("Store of {release} or later").format(release=report.generation.at_least),
             _(words[state.verdict]).format(who=state.lock_holder_is),
             _("log {start:,} to {stop:,}").format(start=at.min_offset, stop=at.log_end)]
    if bad:
        parts.append(_("{files} incomplete").format(files=count(bad, "config file")))
    return listed(parts) + _("; nothing has been cross-checked yet")


# --- the screen of a file -------------------------------------------------------------------------


_MARKS = {True: (N_("ok"), "green"), False: (N_("FAILED"), "bold red"), None: ("-", "dim")}
_HEX_NAMES = {"magic", "body_crc", "sys_flag", "flag"}


def _on_disk(path: str) -> int | None:
    """The bytes that a file of this machine holds on its disk."""
    try:
        return bytes_on_disk(os.stat(path))
    except OSError:
        return None


def _show_file(out: Printer, report: FileReport, *, chosen: bool, hexadecimal: bool) -> int:
    """Show a file and return the exit bits; `chosen`: the user named the offset."""
    out.answer(**report.json())
    out.show(_facts_of(report))
    if len(report.items) == 1 or chosen:
        for item in report.items:
            _detail(out, item)
    elif report.items:
        if report.items[0].kind == "header":
            _detail(out, report.items[0])
        out.show(_items(report, [item for item in report.items if item.kind != "header"]))
    for item in report.items if hexadecimal else ():
        title = N_("{kind} at {offset}, the first {n} bytes") if len(item.raw) < item.size else N_("{kind} at {offset}")
        out.show(Text(_(title).format(kind=_(item.kind), offset=f"{item.offset:,}", n=len(item.raw)), style="bold"),
                 Text(_hex_dump(item.raw, item.offset)))
    bad = [item for item in report.items if not item.ok]
    at_damage = chosen and bool(bad) and bad[0] is report.items[0]
    steps = [] if report.complete else [
        Step(out.given.line("inspect", "--offset", report.next_offset, "--limit", "20"), "the next items")]
    if "remedy" in report.facts:
        steps.append(Step(out.given.line("recover", "--dry-run"),
                          "makes the file again from its backup, or sets both aside, once the client is stopped"))
    out.summary(_file_summary(report, bad, at_damage=at_damage), steps)
    return bits_of(report, chosen=chosen)


def _facts_of(report: FileReport) -> Table:
    pairs: list[tuple[str, object]] = [
        ("file", report.path), ("kind", _("{title} (by {why})").format(title=_(report.title), why=retold(report.why))),
        (N_("length"), exact_size(report.length))]
    if (held := _on_disk(report.path)) is not None and held < report.length:
        pairs.append((N_("on disk"), _("{size}; the rest are holes, which read as zeros").format(
            size=exact_size(held))))
    if report.base is not None:
        pairs.append((N_("starts at"), f"{report.base:,}"))
    pairs += [(name.replace("_", " "), _fact(value)) for name, value in report.facts.items()]
    return facts("", pairs)


def _file_summary(report: FileReport, bad: list[Item], *, at_damage: bool) -> str:
    first = bad[0] if at_damage else None
    if first is not None and first.kind == "damage":
        end = first.offset + first.size
        template = N_("{title}: no intact record starts at {at} ({reason}); the next one starts at {end}") \
            if end < report.length else \
            N_("{title}: no intact record starts at {at} ({reason}); and none follows in this file")
        return _(template).format(title=_(report.title), at=f"{first.offset:,}", reason=first.reason, end=f"{end:,}")
    bad = [first] if first is not None else bad
    template = N_("{title}: {shown}, {n} with failed checks: {checks}") if bad else \
        N_("{title}: {shown}, no problem in the items shown")
    return _(template).format(
        title=_(report.title), shown=count(len(report.items), "item") if report.items else _("read"), n=len(bad),
        checks=", ".join(sorted(set(map(_why, bad)))))


def _why(item: Item) -> str:
    return item.reason or listed(_(check.name) for check in item.checks if check.ok is False)


def _fact(value: object) -> object:
    if isinstance(value, list):
        return listed(map(str, value)) or _("none")
    return retold(value) if isinstance(value, str) else str(value) if isinstance(value, int) else value


def _items(report: FileReport, items: list[Item]) -> Table:
    if report.kind in ("commitlog", "compaction-log"):
        columns = [">at", ">offset", ">size", "what", "topic", ">queue", ">queue offset", "stored", "*body"]
        return table("", columns, (_record_row(item) for item in items))
    names = [field.name for field in max(items, key=lambda item: len(item.fields)).fields if field.name != "reserved"]
    columns = [">at", "what", ">number", *(">" + name.replace("_", " ") for name in names)]
    return table("", columns, (_unit_row(item, names) for item in items))


def _kind(item: Item) -> Text:
    words = _("zeros to {stop}").format(stop=f"{item.offset + item.size:,}") if item.kind == "zeros" else _(item.kind)
    return Text(words) if item.ok else Text(f"{words}: {_why(item)}", style="bold red")


def _record_row(item: Item) -> list[object]:
    where = [item.offset, item.number, item.size, _kind(item)]
    if item.kind != "record":
        return [*where, *[Text("")] * 5]
    return [*where, item.value("topic"), item.value("queue_id"), item.value("queue_offset"),
            human_time(item.value("store_timestamp")), body_text(item.value("body"), 30)]


def _unit_row(item: Item, names: list[str]) -> list[object]:
    values = {field.name: field for field in item.fields}
    cells: list[object] = [item.offset, _kind(item), item.number]
    for name in names:
        field = values.get(name)
        stamp = None if field is None else _time_of(field)
        cells.append(Text("") if field is None else _field_text(field) if stamp is None else human_time(stamp))
    return cells


def _detail(out: Printer, item: Item) -> None:
    template = N_("{kind} at {offset}, {size}") if item.number is None else \
        N_("{kind} at {offset} (log offset {number}), {size}")
    title = _(template).format(kind=_(item.kind), offset=f"{item.offset:,}", number=f"{item.number or 0:,}",
                               size=exact_size(item.size))
    out.show(Text(title, style="bold") if item.ok else Text(f"{title}: {_why(item)}", style="bold red"))
    if item.fields:
        rows = [(each.offset, each.size, each.name, Text(_field_text(each)), _(each.note)) for each in item.fields]
        out.show(table("", [">at", ">bytes", "*field", "*value", "*meaning"], rows))
    if item.checks:
        marks = {ok: Text(_(word), style) for ok, (word, style) in _MARKS.items()}
        checks = [(_(check.name), marks[check.ok], retold(check.detail)) for check in item.checks]
        out.show(table("", ["check", "verdict", "*detail"], checks))


def _field_text(field: Field) -> str:
    """The value of a field in words, harmless for a terminal."""
    value = field.value
    if isinstance(value, bytes):
        return _bytes_text(field.name, value)
    if not isinstance(value, int):
        return clean(value)
    if (milliseconds := _time_of(field)) is not None:
        return f"{value} ({human_time(milliseconds)})"
    if field.name in _HEX_NAMES:
        extra = flag_text(value) if field.name == "sys_flag" else ""
        return f"{value} (0x{value & 0xFFFFFFFF:08X}{', ' + extra if extra else ''})"
    return str(value)


def _time_of(field: Field) -> int | None:
    """The time of a field (ms since 1970), None for a field that holds no time."""
    if not field.name.endswith("timestamp") and field.name != "instant":
        return None
    return int(field.value) * (1000 if "seconds" in field.note else 1)


def _bytes_text(name: str, value: bytes) -> str:
    if name.endswith("_ip"):
        try:
            return str(ipaddress.ip_address(value))
        except ValueError:
            return value.hex()
    if name == "properties":
        return properties_text(value)
    return clean(value) if name == "topic" else body_text(value)


def _hex_dump(content: bytes, offset: int) -> str:
    """Sixteen bytes per line: offset, hex, printable characters."""
    lines = []
    for at in range(0, len(content), 16):
        row = content[at : at + 16]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        lines.append(f"{offset + at:012x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  {text}")
    return "\n".join(lines)
