"""The results of verify and predict, as tables and in one line, from documents and reports: all engines look alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

from mqtool import exits
from mqtool.printer import Printer, Shown, Table, Text, table
from mqtool.text import clean, count, exact_size, human_seconds, human_size, human_time
from mqtool.words import C_, N_, _, listed, retold
from recover.change.model import Plan, Retire, Step
from recover.change.places import Room
from recover.check.report import VerifyReport
from recover.repair.losses import RecoverPlan
from recover.repair.plan_cost import lost_by

_DAMAGED = 20
_QUEUES = ("queues", "units", "expected", "right", "missing", "wrong", "lost", "beyond_log", "expired", "holes")
_INDEX = ("files", "entries", "expected", "missing", "wrong", "expired")
_LOG = ("files", "min_offset", "valid_to", "log_end", "messages", "damaged_messages", "ghosts", "superseded")
_TITLES = {"units": "entries", "ghosts": "stale", "min_offset": "from", "damaged_messages": "damaged",
           "fillers": "filler"}
_BAD = {"missing": "bold yellow", "wrong": "bold yellow", "beyond_log": "bold yellow", "ghosts": "bold yellow",
        "lost": "bold red", "damaged_messages": "bold red"}
_KINDS = {"delay": N_("delayed"), "timer": N_("timer"), "half": N_("half (producers are asked)"),
          "revive": N_("popped")}
_TOLD = {"again": "bold yellow", "now": "", "pending": "", "skipped": "bold red"}
_DELIVERS = 30
_POINTERS = {"wrote": N_("wrote"), "committed": N_("committed"), "flushed": N_("flushed at least"),
             "dispatched": N_("dispatched")}
_GROUP_COLUMNS = (
    "group", "topic", ">queue", ">committed", ">min", ">max", ">min after", ">max after", ">skips", ">again", ">lag",
)


def verify_tables(document: dict[str, Any]) -> list[Shown]:
    log = document["commitlog"]
    bridges = ("fillers", "markers") if log.get("fillers") or log.get("markers") else ()
    tables = [_one_row("commitlog", log, (*_LOG, *bridges))]
    if log["damaged"]:
        rows = [[item["start"], item["stop"], exact_size(item["stop"] - item["start"]), item["reason"],
                 item["intact_after"]] for item in log["damaged"]]
        tables.append(table("damaged ranges of the log", [">from", ">to", ">bytes", "reason", ">intact messages after"],
                            rows, most=_DAMAGED))
    if "consumequeue" in document:
        tables.append(_one_row(N_("consume queues"), document["consumequeue"], _QUEUES))
    if "index" in document:
        tables.append(_one_row("index", document["index"], _INDEX))
    if "checkpoint" in document:
        times = {name: human_time(value) for name, value in document["checkpoint"].items()
                 if name.endswith("timestamp") and isinstance(value, int)}
        columns = [name.replace("_msg_timestamp", "").replace("_", " ") for name in times]
        tables.append(table("checkpoint", columns, [list(times.values())]))
    if document.get("not_checked"):
        tables.append(table("not checked, as mqtool does not read it", ["part", "*kept in"],
                            [list(item) for item in document["not_checked"].items()]))
    return [item for each in tables for item in (each, Text(""))][:-1]


def _one_row(title: str, values: dict[str, Any], names: tuple[str, ...]) -> Table:
    names = tuple(name for name in names if name in values)
    cells = []
    for name in names:
        cut_short = name == "valid_to" and values[name] != values["log_end"]
        cells.append(Text(f"{values[name]:,}", style="bold red" if cut_short else
                          _BAD.get(name, "") if values[name] else ""))
    return table(title, [">" + _TITLES.get(name, name.replace("_", " ")) for name in names], [cells])


def verify_line(report: VerifyReport, code: int, left_out: Collection[str] = (), start: int = 0) -> str:
    """The result of a verify in one line; `start`: the exit bits of a start, for a line that stands for both."""
    document, missing = report.json(), report.analysis.account.missing()
    log = document["commitlog"]
    parts = [count(log["messages"], "intact message")]
    if damaged := log["damaged_messages"] - missing:
        parts.append(count(damaged, "damaged message"))
    if missing:
        parts.append(_("{messages} in missing log files").format(messages=count(missing, "message")))
    after = max((item["intact_after"] for item in log["damaged"]), default=0)
    if after:
        parts.append(_("{n:,} of the intact ones are after damage, where a broker may cut them off").format(n=after))
    for part, noun in (("consumequeue", C_("consume queue entry")), ("index", C_("index entry"))):
        values = {} if part in left_out else document.get(part, {})
        for state, told in (("missing", N_("{entries} missing")), ("wrong", N_("{entries} wrong")),
                            ("beyond_log", N_("{entries} beyond the log"))):
            if number := values.get(state, 0):
                parts.append(_(told).format(entries=count(number, noun, f"{noun[:-1]}ies")))
    if not_checked := [*left_out, *document.get("not_checked", ())]:
        parts.append(_("not checked: {parts}").format(parts=", ".join(dict.fromkeys(not_checked))))
    verdict = N_("Messages are damaged or missing") if code & exits.MESSAGES else \
        N_("No message is damaged or missing, but do not start it yet") \
        if start & exits.MESSAGES else N_("Repairable: no message affected") if code & exits.DERIVED else \
        N_("Not all of it could be read") if code & (exits.UNSUPPORTED | exits.OPERATIONAL) else \
        N_("No problem found in the checked parts") if left_out else N_("No problem found")
    took = _(" ({size} in {time})").format(
        size=human_size(document["bytes"]), time=human_seconds(document["seconds"])) if document["bytes"] else ""
    return f"{_(verdict)}{_(': ')}{listed(parts)}{took}"


def start_line(document: dict[str, Any], code: int) -> str:
    """The cost of a start in one line, from the document of a prediction; `code`: the exit bits of that question."""
    who = {"broker": document["broker"], "reason": retold(document["reason"] or "").rstrip(".?。\uff1f")}
    unread = list(dict.fromkeys(_(part.split(": ")[0]) for part in document["unsupported"]))
    if document["starts"] is None:
        return _("Cannot predict the start of {broker}: mqtool does not read {parts}").format(
            **who, parts=listed(map(retold, document["unsupported"])))
    if not document["starts"]:
        return _("DO NOT START: {broker} would not start: {reason}").format(**who)
    does = _costs(document)
    if document["deleted_files"]:
        does.append(_("delete {files}").format(files=count(len(document["deleted_files"]), "file")))
    what = listed(does)
    beside = _("; cannot predict {parts}").format(parts=listed(unread)) if unread else ""
    # the messages that it deletes say more than the place from which they are missing
    cause = bool(who["reason"]) and not document["lost_messages"]
    line = {
        (True, True): N_("DO NOT START: {reason}. {broker} would start all the same, and would {what}"),
        (True, False): N_("DO NOT START: {reason}. {broker} would start all the same"),
        (False, True): N_("DO NOT START: {broker} would {what}"),
        (False, False): N_("DO NOT START: {broker} would start, but not without a loss: see the findings"),
    }[cause, bool(what)] if code & exits.MESSAGES else {
        (True, True): N_("{broker} would start, but {what}"), (True, False): N_("{broker} would start"),
        (False, True): N_("{broker} would start and lose no message, but {what}"),
        (False, False): N_("{broker} would start and lose no message"),
    }[bool(unread), bool(what)]
    return _(line).format(**who, what=what) + beside


def _costs(document: dict[str, Any]) -> list[str]:
    """What a start does to messages, queues and configuration, in words that follow "would"."""
    unreachable, lowered, light = (
        document[name] for name in ("unreachable_messages", "lowered_queues", "missing_lmq_units"))
    misaligned, reused = 0 if unreachable else document["misaligned_units"], document["duplicated_offsets"]
    lost, entry = document["lost_messages"], (C_("queue entry"), "queue entries")
    told = (
        (lost, N_("delete {n} (cut at {cut:,})"), count(lost, "intact message")),
        (unreachable, N_("not deliver {n} (no queue entry)"), count(unreachable, "message")),
        (misaligned, N_("put {n} at wrong positions"), count(misaligned, *entry)),
        (reused, N_("reuse {n}"), count(reused, "queue offset")),
        (lowered, N_("lower the max offset of {n}"), count(len(lowered), "queue")),
        (light, N_("leave out {n} of LMQ queues, whose consumers do not get the messages"), count(light, *entry)),
        (document["config_lost"], N_("forget content of {n}"), listed(document["config_lost"])),
    )
    return [*(_(text).format(n=n, cut=document["max_phy"]) for number, text, n in told if number),
            *_deliveries(document["delivers"])]


def progress_rows(document: dict[str, Any]) -> list[tuple[str, object]]:
    """How far the log was written, flushed and dispatched, and after a crash what the disk need not have had."""
    at = document["pointers"]
    parts = [_("{name} to {offset:,}").format(name=_(_POINTERS[name]), offset=pointer["offset"]) + _behind(pointer)
             for name, pointer in at.items() if pointer["offset"] is not None
             and (name != "committed" or pointer["behind_bytes"])]
    rows: list[tuple[str, object]] = [(N_("progress"), listed(parts))]
    if (window := document["crash_window"]) and window["messages"]:
        what = _("{messages} of the last {seconds:g} s ({size}), from {start:,} on: a power loss can take them") \
            if window["whole"] else _("at least {messages} of the last {seconds:g} s ({size}), from before {start:,} "
                                      "on: a power loss can take them")
        rows.append((N_("perhaps not on disk"), what.format(
            seconds=window["seconds"], messages=count(window["messages"], "message"), start=window["start"],
            size=exact_size(window["bytes"]))))
    return rows


def _behind(pointer: dict[str, Any]) -> str:
    if not pointer["behind_bytes"]:
        return ""
    messages = pointer["behind_messages"]
    parts = [exact_size(pointer["behind_bytes"]), *([] if messages is None else [count(messages, "message")])]
    return _(" ({behind} behind)").format(behind=listed(parts))


def delivers_line(rows: Sequence[dict[str, Any]]) -> str:
    """What a start delivers, in words that follow "would"; empty if that is nothing."""
    return listed(_deliveries(rows))


def _deliveries(rows: Sequence[dict[str, Any]]) -> list[str]:
    again, now = (sum(row[name] for row in rows) for name in ("again", "now"))
    given_up = sum(row["skipped"] for row in rows if row["kind"] == "half")
    skipped = sum(row["skipped"] for row in rows) - given_up
    told = (
        (skipped, N_("never deliver {n}"), count(skipped, "waiting message")),
        (given_up, N_("give up {n}"), count(given_up, "half message")),
        (again, N_("deliver {n} a second time"), count(again, "message")),
        (now, N_("deliver or ask for {n} at once"), count(now, "overdue message")),
    )
    return [_(text).format(n=n) for number, text, n in told if number]


def groups_table(title: str, rows: Sequence[dict[str, Any]], most: int) -> Table:
    """Groups and their queues, from their documents; a question mark for an unknown value."""
    columns = [column for column in _GROUP_COLUMNS if _tells(_key(column), rows)]
    cells = [["?" if row[_key(column)] is None else row[_key(column)] for column in columns] for row in rows]
    return table(title, columns, cells, most=most)


def _key(column: str) -> str:
    return column.lstrip(">").replace(" ", "_")


def _tells(name: str, rows: Sequence[dict[str, Any]]) -> bool:
    """Whether a column of groups says more than the others: a start that moves nothing needs none of its own."""
    if name in ("skips", "again"):
        return any(row[name] != 0 for row in rows)
    return not name.endswith("_after") or any(row[name] != row[name.removesuffix("_after")] for row in rows)


def delivers_table(rows: Sequence[dict[str, Any]], title: str = N_("what the start delivers")) -> Table:
    """What a start delivers, by kind, topic and delay level, from the rows of its document."""
    cells = [[_(_KINDS[row["kind"]]), row["topic"], row["level"] or "", *(
        Text(f"{row[name]:,}", style=_TOLD[name] if row[name] else "") for name in _TOLD)] for row in rows]
    return table(title, ["kind", "topic", ">delay level", ">a second time", ">at once", ">later",
                                             ">never"], cells, most=_DELIVERS)


# --- plans: their steps and their loss statement, before the question ---------------------------------


_WORDS = {
    "zero-range": N_("zero a range"), "write-range": N_("overwrite"), "install": N_("install"),
    "write-file": N_("write a small file"), "retire": N_("quarantine"), "retire-folder": N_("quarantine a folder"),
}
_STEPS, _NAMED, _LOSSES = 12, 20, 40


def plan_document(plan: Plan) -> dict[str, Any]:
    return {"id": plan.id, "steps": [step.json() for step in plan.steps], "loss": list(plan.loss)}


def show_plan(out: Printer, plan: Plan) -> None:
    """Show steps, grouped by kind and folder, then the loss statement."""
    if not plan.steps:
        return
    title = _("plan {id}: {steps}").format(id=plan.id, steps=count(len(plan.steps), "step"))
    out.show(Text(title, style="bold"), steps_table(plan.steps))
    if choices := plan.summary.get("config"):
        rows = [[item["file"], _(item["action"]), retold(item["text"])] for item in choices]
        out.show(table("config files", ["file", "what is done", "*why"], rows))
    lost = loss_statement(plan.loss, plan.summary.get("index_units", 0))
    assumed = plan.summary.get("assumptions", ())
    out.show(*(Text(_("assumed: {text}").format(text=retold(text))) for text in assumed), lost)


def room_text(room: Room, place: str) -> str:
    """What a plan needs on one file system, and the place there as it was typed."""
    told = N_("undo data: {undo} in {place}; {needed} are needed there, {free} are free") if room.undo else \
        N_("{needed} are needed on the disk of {place}, {free} are free")
    return _(told).format(place=clean(place), undo=human_size(room.undo), needed=human_size(room.needed),
                          free=human_size(room.free))


def steps_table(steps: Sequence[Step]) -> Table:
    """Steps one by one; if there are many, by kind and folder, but removed files by name."""
    if len(steps) <= _STEPS:
        return table("", ["what", "file", "where"], ((_(_WORDS.get(s.kind, s.kind)), s.file, _where(s)) for s in steps))
    groups: dict[tuple[str, str], list[Step]] = defaultdict(list)
    for step in steps:
        groups[step.kind, step.file.rpartition("/")[0] or "."].append(step)
    rows = []
    for (kind, folder), group in sorted(groups.items(), key=lambda item: (item[0][0] != Retire.kind, -len(item[1]))):
        if kind == Retire.kind and len(group) <= _NAMED:
            rows += [[_(_WORDS[kind]), step.file, count(1, "file"), ""] for step in group]
        else:
            size = human_size(sum(map(_size, group))) if any(map(_size, group)) else ""
            rows.append([_(_WORDS.get(kind, kind)), f"{folder}/", count(len(group), "file"), size])
    return table("", ["what", "where", ">files", ">bytes"], rows, most=_STEPS + _NAMED)


def _where(step: Step) -> str:
    start, stop = getattr(step, "start", None), getattr(step, "stop", None)
    if start is not None and stop is not None:
        return _("{start:,} to {stop:,} ({size})").format(start=start, stop=stop, size=human_size(stop - start))
    size = _size(step)
    return human_size(size) if size else ""


def _size(step: Step) -> int:
    if hasattr(step, "start"):
        return int(step.stop - step.start)  # type: ignore[attr-defined]
    return step.content.size if step.content is not None else 0


def loss_statement(loss: Sequence[dict[str, Any]], index_units: int = 0) -> Shown:
    """The table of what is lost. `index_units`: units of messages that no log file holds, if only the index tells."""
    if not loss and index_units:
        entries = count(index_units, "entry", "entries")
        unknown = _("An unknown number of messages is lost: the index has {entries} for some.")
        return Text(unknown.format(entries=entries), style="red")
    if not loss:
        return Text(_("No message is known to be lost."), style="green")
    rows = [[item.get("topic", "?"), item.get("queue", "?"), item.get("messages", "?"), _offsets(item), _span(item),
             _(item.get("cause", ""))] for item in loss]
    return table(_("what is lost: {messages}").format(messages=count(lost_by(loss), "message")), [
        "topic", ">queue", ">messages", ">queue offsets", "stored", "*cause"], rows, most=_LOSSES)


def _offsets(item: dict[str, Any]) -> str:
    first, last = item.get("first_offset"), item.get("last_offset")
    if first is None or last in (None, first):
        return "" if first is None else str(first)
    return _("{first} to {last}").format(first=first, last=last)


def _span(item: dict[str, Any]) -> str:
    begin, end = item.get("begin") or 0, item.get("end") or 0
    if not begin and not end:
        return _("unknown")
    # times are those of adjacent records: with one neighbour there is no span
    return _("near {first}" if begin == end else "{first} to {last}").format(
        first=human_time(begin), last=human_time(end))


def losses(made: RecoverPlan, mendable: str = N_("--mend-bits would restore")) -> str:
    """What a plan loses and leaves, in words; `mendable` describes the damaged messages that one bit explains."""
    lost = made.damaged_messages - made.left_messages - made.given_up_messages
    mended = f" ({_(mendable)} {made.mendable_messages:,})" if made.mendable_messages else ""
    parts = [_(text).format(n=count(number, noun)) + more for number, noun, text, more in (
        (made.lost_messages, C_("intact message"), N_("{n} dropped"), ""),
        (made.given_up_messages, C_("message"), N_("{n} of missing log files given up"), ""),
        (lost, C_("damaged message"), N_("{n} lost"), "" if made.left_messages else mended),
        (made.left_messages, C_("damaged message"), N_("{n} left"), mended),
        (made.unproven_messages, C_("message"), N_("{n} lost that only a queue or the index names"), ""),
    ) if number]
    none = N_("an unknown number of messages lost") if made.plan.summary.get("index_units") else N_("0 messages lost")
    text = listed(parts) if parts else _(none)
    sizes = [f"{name}={size}" for name, size in made.assumed_settings.items()]
    return f"{text}, assumed {', '.join(sizes)}" if sizes else text
