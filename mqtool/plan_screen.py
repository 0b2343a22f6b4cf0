"""A plan on a screen: what would be changed, and what that costs, before anybody is asked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mqtool.screens import table
from mqtool.shown import Table, Text
from mqtool.text import count, human_size, human_time

if TYPE_CHECKING:
    from mqtool.output import Printer
    from recover.change.model import Plan, Step

_WORDS = {
    "zero-range": "zero a range", "write-range": "overwrite", "install": "install",
    "write-file": "write a small file", "retire": "quarantine",
    "retire-folder": "quarantine a folder",
}
_LISTED = 12
_LOSSES = 40


def show_plan(out: Printer, plan: Plan) -> None:
    """Steps, grouped by kind and folder, then the loss statement."""
    if not plan.steps:
        return
    out.show(Text(f"plan {plan.id}: {count(len(plan.steps), 'step')}", style="bold"), steps_table(plan.steps), Text(""))
    if choices := plan.summary.get("config"):
        rows = [[item["file"], item["action"], item["text"]] for item in choices]
        out.show(table("config files", ["file", "what is done", "*why"], rows), Text(""))
    for text in plan.summary.get("assumptions", ()):
        out.show(Text(f"assumed: {text}"))
    out.show(*loss_statement(plan.loss), Text(""))


def steps_table(steps: Sequence[Step]) -> Table:
    """Steps one by one; many of them by kind and folder."""
    groups: dict[tuple[str, str], list[Step]] = defaultdict(list)
    if len(steps) <= _LISTED:
        return table("", ["what", "file", "where"], ((_WORDS.get(s.kind, s.kind), s.file, _where(s)) for s in steps))
    for step in steps:
        groups[step.kind, step.file.rsplit("/", 1)[0] if "/" in step.file else "."].append(step)
    shown = sorted(groups.items(), key=lambda item: -len(item[1]))[:_LISTED]
    rows: list[list[object]] = [
        [_WORDS.get(kind, kind), f"{folder}/", count(len(group), "file"), human_size(sum(map(_size, group)))]
        for (kind, folder), group in shown
    ]
    if len(groups) > len(shown):
        rest = len(steps) - sum(len(group) for _, group in shown)
        rows.append(["…", f"{len(groups) - len(shown)} more folders: --json shows all", count(rest, "file"), ""])
    return table("", ["what", "where", ">files", ">bytes"], rows)


def _where(step: Step) -> str:
    start, stop = getattr(step, "start", None), getattr(step, "stop", None)
    if start is not None and stop is not None:
        return f"{start:,} to {stop:,} ({human_size(stop - start)})"
    size = _size(step)
    return human_size(size) if size else ""


def _size(step: Step) -> int:
    if hasattr(step, "start"):
        return int(step.stop - step.start)  # type: ignore[attr-defined]
    return step.content.size if step.content is not None else 0


def loss_statement(loss: Sequence[dict[str, Any]]) -> list[Any]:
    """What is lost: one row a topic, queue and time span."""
    if not loss:
        return [Text("No message is lost.", style="green")]
    total = sum(int(item.get("messages", 0)) for item in loss)
    rows: list[list[object]] = [
        [item.get("topic", "?"), item.get("queue", "?"), item.get("messages", "?"), _offsets(item), _span(item),
         item.get("cause", "")] for item in loss[:_LOSSES]
    ]
    if len(loss) > _LOSSES:
        rows.append(["…", "", f"{len(loss) - _LOSSES} more queues: --json shows all", "", "", ""])
    columns = ["topic", ">queue", ">messages", ">queue offsets", "stored", "*cause"]
    return [table(f"what is lost: {count(total, 'message')}", columns, rows)]


def _offsets(item: dict[str, Any]) -> str:
    first, last = item.get("first_offset"), item.get("last_offset")
    return "" if first is None else str(first) if last in (None, first) else f"{first} to {last}"


def _span(item: dict[str, Any]) -> str:
    begin, end = item.get("begin") or 0, item.get("end") or 0
    if not begin and not end:
        return "unknown"
    return human_time(begin) if begin == end else f"{human_time(begin)} to {human_time(end)}"


def step_list(plan: Plan) -> list[dict[str, Any]]:
    """The steps as the documents show them."""
    return [step.json() for step in plan.steps]


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan as the documents show it."""
    return {"id": plan.id, "steps": step_list(plan), "loss": list(plan.loss)}
