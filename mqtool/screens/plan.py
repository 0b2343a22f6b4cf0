"""A plan on a screen: its steps and its loss statement, before anybody is asked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from mqtool.printer import Printer, Shown, Table, Text, table
from mqtool.text import count, human_size, human_time
from recover.change.model import Plan, Step
from recover.repair.losses import RecoverPlan
from recover.store.config_files import LMQ_PREFIX

_WORDS = {
    "zero-range": "zero a range", "write-range": "overwrite", "install": "install", "write-file": "write a small file",
    "retire": "quarantine", "retire-folder": "quarantine a folder",
}
_STEPS, _LOSSES = 12, 40


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan as the documents show it."""
    return {"id": plan.id, "steps": [step.json() for step in plan.steps], "loss": list(plan.loss)}


def show_plan(out: Printer, plan: Plan) -> None:
    """Steps, grouped by kind and folder, then the loss statement."""
    if not plan.steps:
        return
    out.show(Text(f"plan {plan.id}: {count(len(plan.steps), 'step')}", style="bold"), steps_table(plan.steps))
    if choices := plan.summary.get("config"):
        rows = [[item["file"], item["action"], item["text"]] for item in choices]
        out.show(table("config files", ["file", "what is done", "*why"], rows))
    out.show(*(Text(f"assumed: {text}") for text in plan.summary.get("assumptions", ())), loss_statement(plan.loss))


def steps_table(steps: Sequence[Step]) -> Table:
    """Steps one by one; many of them by kind and folder."""
    if len(steps) <= _STEPS:
        return table("", ["what", "file", "where"], ((_WORDS.get(s.kind, s.kind), s.file, _where(s)) for s in steps))
    groups: dict[tuple[str, str], list[Step]] = defaultdict(list)
    for step in steps:
        groups[step.kind, step.file.rpartition("/")[0] or "."].append(step)
    rows = [[_WORDS.get(kind, kind), f"{folder}/", count(len(group), "file"), human_size(sum(map(_size, group)))]
            for (kind, folder), group in sorted(groups.items(), key=lambda item: -len(item[1]))]
    return table("", ["what", "where", ">files", ">bytes"], rows, most=_STEPS)


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


def loss_statement(loss: Sequence[dict[str, Any]]) -> Shown:
    """The lost messages: a row for each topic, queue and time span."""
    if not loss:
        return Text("No message is lost.", style="green")
    rows = [[item.get("topic", "?"), item.get("queue", "?"), item.get("messages", "?"), _offsets(item), _span(item),
             item.get("cause", "")] for item in loss]
    columns = ["topic", ">queue", ">messages", ">queue offsets", "stored", "*cause"]
    return table(f"what is lost: {count(lost_by(loss), 'message')}", columns, rows, most=_LOSSES)


def lost_by(loss: Sequence[dict[str, Any]]) -> int:
    """How many messages a loss statement counts; the places of light queues are further ones of the same messages."""
    own = light = 0
    for item in loss:
        messages = int(item.get("messages", 0))
        if str(item.get("topic")).startswith(LMQ_PREFIX):
            light = max(light, messages)
        else:
            own += messages
    return max(own, light)


def _offsets(item: dict[str, Any]) -> str:
    first, last = item.get("first_offset"), item.get("last_offset")
    return "" if first is None else str(first) if last in (None, first) else f"{first} to {last}"


def _span(item: dict[str, Any]) -> str:
    begin, end = item.get("begin") or 0, item.get("end") or 0
    if not begin and not end:
        return "unknown"
    # times are those of the records around: with one neighbour it is no span
    return f"near {human_time(begin)}" if begin == end else f"{human_time(begin)} to {human_time(end)}"


def losses(made: RecoverPlan, mendable: str = "--mend-bits would restore") -> str:
    """What a plan loses and leaves, in words; `mendable` is said of the damaged messages that one bit explains."""
    parts = []
    if made.lost_messages:
        parts.append(f"{count(made.lost_messages, 'intact message')} dropped")
    if made.given_up_messages:
        parts.append(f"{count(made.given_up_messages, 'message')} of missing log files given up")
    lost = made.damaged_messages - made.left_messages - made.given_up_messages
    for number, what in ((lost, "lost"), (made.left_messages, "left")):
        if number:
            parts.append(f"{count(number, 'damaged message')} {what}")
    if made.mendable_messages:
        parts[-1] += f" ({mendable} {made.mendable_messages:,})"
    if made.unproven_messages:
        parts.append(f"{count(made.unproven_messages, 'message')} lost that only a queue names")
    text = ", ".join(parts) if parts else "0 messages lost"
    sizes = [f"{name}={size}" for name, size in made.assumed_settings.items()]
    return f"{text}, assumed {', '.join(sizes)}" if sizes else text
