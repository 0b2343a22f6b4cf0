"""What verify found, on one screen and in one line. Works on the document, so that every engine's looks alike."""

from __future__ import annotations

from typing import Any

from mqtool import exits
from mqtool.screens import table
from mqtool.shown import Shown, Text
from mqtool.text import count, exact_size, human_seconds, human_size, human_time

_DAMAGED_SHOWN = 20


def verify_tables(document: dict[str, Any]) -> list[Shown]:
    """The parts of a verify document as tables."""
    shown: list[Shown] = [_commitlog(document["commitlog"])]
    if document["commitlog"]["damaged"]:
        shown += [Text(""), _damaged(document["commitlog"]["damaged"])]
    if "consumequeue" in document:
        shown += [Text(""), _one_row("consume queues", document["consumequeue"], _QUEUE_COLUMNS)]
    if "index" in document:
        shown += [Text(""), _one_row("index", document["index"], _INDEX_COLUMNS)]
    if "checkpoint" in document:
        times = {name: human_time(value) for name, value in document["checkpoint"].items()
                 if name.endswith("timestamp") and isinstance(value, int)}
        columns = [name.replace("_msg_timestamp", "").replace("_", " ") for name in times]
        shown += [Text(""), table("checkpoint", columns, [list(times.values())])]
    if document.get("not_checked"):
        shown += [Text(""), table("not checked: mqtool does not read it", ["part", "*kept in"],
                                  [list(item) for item in document["not_checked"].items()])]
    return [*shown, Text("")]


_QUEUE_COLUMNS = ("queues", "units", "expected", "right", "missing", "wrong", "lost", "beyond_log", "expired", "holes")
_INDEX_COLUMNS = ("files", "entries", "expected", "missing", "wrong", "expired")
_BAD = {"missing": "bold yellow", "wrong": "bold yellow", "beyond_log": "bold yellow", "lost": "bold red"}


def _one_row(title: str, values: dict[str, Any], names: tuple[str, ...]) -> Any:
    columns = [name for name in names if name in values]
    cells = [Text(f"{values[name]:,}", style=_BAD.get(name, "") if values[name] else "") for name in columns]
    return table(title, [">" + name.replace("_", " ") for name in columns], [cells])


def _commitlog(log: dict[str, Any]) -> Any:
    columns = [">files", ">from", ">valid to", ">log end", ">messages", ">damaged", ">ghosts", ">superseded"]
    broken = log["valid_to"] != log["log_end"]
    row = [
        log["files"], log["min_offset"], Text(f"{log['valid_to']:,}", style="bold red" if broken else ""),
        log["log_end"], log["messages"],
        Text(f"{log['damaged_messages']:,}", style="bold red" if log["damaged_messages"] else ""),
        Text(f"{log['ghosts']:,}", style="bold yellow" if log["ghosts"] else ""), log["superseded"],
    ]
    if log.get("fillers") or log.get("markers"):
        columns += [">filler", ">markers"]
        row += [log.get("fillers", 0), log.get("markers", 0)]
    return table("commitlog", columns, [row])


def _damaged(damaged: list[dict[str, Any]]) -> Any:
    rows: list[list[object]] = [
        [item["start"], item["stop"], exact_size(item["stop"] - item["start"]), item["reason"], item["intact_after"]]
        for item in damaged[:_DAMAGED_SHOWN]
    ]
    if len(damaged) > _DAMAGED_SHOWN:
        rows.append(["…", "", f"{len(damaged) - _DAMAGED_SHOWN} more: --json shows all", "", ""])
    return table("damaged ranges of the log", [">from", ">to", ">bytes", "reason", ">intact messages after"], rows)


def verify_line(document: dict[str, Any], code: int) -> str:
    """The verdict in one line."""
    log = document["commitlog"]
    parts = [f"{count(log['messages'], 'intact message')}"]
    if log["damaged_messages"]:
        parts.append(f"{count(log['damaged_messages'], 'damaged message')}")
    behind = max((item["intact_after"] for item in log["damaged"]), default=0)
    if behind:
        parts.append(f"{behind:,} of the intact ones lie after damage, where a broker may cut them off")
    for part, words in (("consumequeue", "consume queue"), ("index", "index")):
        values = document.get(part, {})
        for state in ("missing", "wrong", "beyond_log"):
            if number := values.get(state, 0):
                entries = count(number, f"{words} entry", f"{words} entries")
                parts.append(f"{entries} {state.replace('_log', ' the log')}")
    if document.get("not_checked"):
        parts.append(f"not checked: {', '.join(document['not_checked'])}")
    verdict = "messages are damaged or missing" if code & exits.MESSAGES else \
        "problems are left that lose no intact message" if code & exits.DERIVED else \
        "not all of it could be read" if code & (exits.UNSUPPORTED | exits.OPERATIONAL) else "no problem found"
    took = f" ({human_size(document['bytes'])} in {human_seconds(document['seconds'])})" if document["bytes"] else ""
    return f"{verdict[0].upper()}{verdict[1:]}: {', '.join(parts)}{took}"
