"""The verdicts of verify and predict, as tables and in one line. They work on documents: every engine's look alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mqtool import exits
from mqtool.printer import Shown, Table, Text, table
from mqtool.text import count, exact_size, human_seconds, human_size, human_time

_DAMAGED = 20
_QUEUES = ("queues", "units", "expected", "right", "missing", "wrong", "lost", "beyond_log", "expired", "holes")
_INDEX = ("files", "entries", "expected", "missing", "wrong", "expired")
_LOG = ("files", "min_offset", "valid_to", "log_end", "messages", "damaged_messages", "ghosts", "superseded")
_TITLES = {"ghosts": "stale", "min_offset": "from", "damaged_messages": "damaged", "fillers": "filler"}
_BAD = {"missing": "bold yellow", "wrong": "bold yellow", "beyond_log": "bold yellow", "ghosts": "bold yellow",
        "lost": "bold red", "damaged_messages": "bold red"}
_GROUP_COLUMNS = (
    "group", "topic", ">queue", ">committed", ">min", ">max", ">min after", ">max after", ">skips", ">again", ">lag",
)


def verify_tables(document: dict[str, Any]) -> list[Shown]:
    """The parts of a verify document as tables."""
    log = document["commitlog"]
    bridges = ("fillers", "markers") if log.get("fillers") or log.get("markers") else ()
    tables = [_one_row("commitlog", log, (*_LOG, *bridges))]
    if log["damaged"]:
        rows = [[item["start"], item["stop"], exact_size(item["stop"] - item["start"]), item["reason"],
                 item["intact_after"]] for item in log["damaged"]]
        columns = [">from", ">to", ">bytes", "reason", ">intact messages after"]
        tables.append(table("damaged ranges of the log", columns, rows, most=_DAMAGED))
    if "consumequeue" in document:
        tables.append(_one_row("consume queues", document["consumequeue"], _QUEUES))
    if "index" in document:
        tables.append(_one_row("index", document["index"], _INDEX))
    if "checkpoint" in document:
        times = {name: human_time(value) for name, value in document["checkpoint"].items()
                 if name.endswith("timestamp") and isinstance(value, int)}
        columns = [name.replace("_msg_timestamp", "").replace("_", " ") for name in times]
        tables.append(table("checkpoint", columns, [list(times.values())]))
    if document.get("not_checked"):
        tables.append(table("not checked: mqtool does not read it", ["part", "*kept in"],
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


def verify_line(document: dict[str, Any], code: int) -> str:
    """The verdict of verify in one line."""
    log = document["commitlog"]
    parts = [f"{count(log['messages'], 'intact message')}"]
    if log["damaged_messages"]:
        parts.append(f"{count(log['damaged_messages'], 'damaged message')}")
    after = max((item["intact_after"] for item in log["damaged"]), default=0)
    if after:
        parts.append(f"{after:,} of the intact ones lie after damage, where a broker may cut them off")
    for part, words in (("consumequeue", "consume queue"), ("index", "index")):
        values = document.get(part, {})
        for state in ("missing", "wrong", "beyond_log"):
            if number := values.get(state, 0):
                entries = count(number, f"{words} entry", f"{words} entries")
                parts.append(f"{entries} {state.replace('_log', ' the log')}")
    if document.get("not_checked"):
        parts.append(f"not checked: {', '.join(document['not_checked'])}")
    verdict = "Messages are damaged or missing" if code & exits.MESSAGES else \
        "Problems are left that lose no intact message" if code & exits.DERIVED else \
        "Not all of it could be read" if code & (exits.UNSUPPORTED | exits.OPERATIONAL) else "No problem found"
    took = f" ({human_size(document['bytes'])} in {human_seconds(document['seconds'])})" if document["bytes"] else ""
    return f"{verdict}: {', '.join(parts)}{took}"


def start_line(document: dict[str, Any]) -> str:
    """What a start costs, in one line, out of a prediction's document."""
    who = f"Broker {document['broker']}"
    unread = ", ".join(document["unsupported"])
    if document["starts"] is None:
        return f"Cannot say what broker {document['broker']} would do: {unread} is not emulated"
    if not document["starts"]:
        return f"{who} would not start: {document['reason']}"
    if document["reason"]:
        who = f"Do not start it: {document['reason'].rstrip('.?')}. {who}"
    costs = []
    if document["lost_messages"]:
        costs.append(f"cut off {count(document['lost_messages'], 'intact message')}")
    if document["unreachable_messages"]:
        costs.append(f"leave {count(document['unreachable_messages'], 'message')} without a unit")
    if document["duplicated_offsets"]:
        costs.append(f"give out {count(document['duplicated_offsets'], 'queue offset')} twice")
    if document["lowered_queues"]:
        costs.append(f"end {count(len(document['lowered_queues']), 'queue')} lower than before")
    if document["config_lost"]:
        costs.append(f"forget {', '.join(document['config_lost'])}")
    if document["deleted_files"]:
        costs.append(f"delete {count(len(document['deleted_files']), 'file')}")
    if unread:
        does = f" and {', '.join(costs)}" if costs else ""
        return f"{who} would start{does}; mqtool cannot say what becomes of {unread}"
    return f"{who} would start and " + (", ".join(costs) if costs else "lose nothing")


def groups_table(title: str, rows: Sequence[dict[str, Any]], most: int) -> Table:
    """Groups against their queues, out of their documents; a question mark where it cannot be said."""
    names = [name.lstrip(">").replace(" ", "_") for name in _GROUP_COLUMNS]
    cells = [["?" if row[name] is None else row[name] for name in names] for row in rows]
    return table(title, _GROUP_COLUMNS, cells, most=most)
