"""`mqtool trace`: one message's life."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

from mqtool import exits
from mqtool.declared import FLAG, argument, option
from mqtool.next_steps import Step
from mqtool.options import BrokerChoice, EngineChoice, StoreChoice, command
from mqtool.output import Printer
from mqtool.progress import Progress
from mqtool.scanning import store_options
from mqtool.screens import table
from mqtool.shown import Text
from mqtool.text import count, human_time
from recover.findings.refusal import UsageRefusal

if TYPE_CHECKING:
    from recover.export.trace import Event, Life

_SHOWN = 60


@command(
    examples=[
        ("order-4711 /data/store", "the messages with this key: where each was, and where it is now"),
        ("7F00000100002A9F0000000000000000 /data/store", "by message id, or by unique key"),
        ("order-4711 /data/store --scan", "without trusting the index"),
    ],
    bits=(),
)
def run(
    out: Printer,
    name: Annotated[str, argument("ID", "A message id, unique key, or key.")],
    store: StoreChoice, broker: BrokerChoice, engine: EngineChoice,
    scan: Annotated[bool, option(
        "--scan", "Look through the whole log instead of the index.", "What", metavar=FLAG)] = False,
) -> int:
    """Show one message's life: half, op, commit or rollback; waiting and delivery; retries and dead letter; consumers.

    Every record with the same unique key is read and checked. Exit 0 says that the search was complete, even when it
    found nothing; 8 that it could not look everywhere.
    """
    from recover.export.trace import trace
    from recover.look.query import note_unread
    from recover.store.store import Store

    if not name.strip():
        raise UsageRefusal("no ID", "Name a message id, a unique key or a key.")
    opened = Store.open(store.root, store_options(store, broker))
    total = sum(mapped_file.length for mapped_file in opened.commitlog.files)
    with Progress("scanning", out.options.progress, out.stderr_console, total) as progress:
        lives, found = trace(opened, name.strip(), engine=engine.scanner() if scan else None, progress=progress)
    found.way = found.way if not found.messages or found.way != "id" else "index"
    note_unread(opened, found)
    out.answer(lives=[life.json() for life in lives], complete=found.complete, way="scan" if scan else "index",
               notes=found.notes, more=found.more, more_messages=found.left_out or None, damaged=found.damaged)
    for life in lives:
        _show(out, life)
    for note in found.notes:
        out.say(note)
    if found.left_out:
        out.say(f"{count(found.left_out, 'more message')} with this key: name a unique key")
    steps = []
    if len(lives) == 1:
        last = lives[0].events[-1]
        steps = [Step(out.given.line("query", "--phy-offset", last.phy_offset, "--body"), "the last record, with body")]
    elif not lives and not scan:
        steps = [Step(out.given.line("trace", "--scan", before=name), "the index has no hit: look through the log")]
    text = f"{lives[0].topic}: {lives[0].ended}" if len(lives) == 1 else \
        count(len(lives), "message") if lives else "no message found"
    out.summary(text + ("" if found.complete else f", but the search was NOT complete: {found.notes[-1]}"), steps)
    return exits.CLEAN if found.complete else exits.OPERATIONAL


def _show(out: Printer, life: Life) -> None:
    out.show(Text(f"{life.unique_key or '(no unique key)'}  {life.topic}", style="bold"),
             Text(f"keys {life.keys or 'none'}: {life.ended}"))
    rows = [_cells(event) for event in life.events[:_SHOWN]]
    left = len(life.events) - len(rows)
    more = [(f"… {left} more", *[""] * 6)] if left else []
    out.show(table("", ["stage", "stored", "topic", ">queue", ">queue offset", ">log offset", "*what else"],
                   [*rows, *more]))
    if life.consumers:
        cells = [(one.group, one.topic, one.queue, one.queue_offset, one.committed,
                  "consumed" if one.consumed else "not yet") for one in life.consumers[:_SHOWN]]
        out.show(table("committed offsets of its queues",
                       ["group", "topic", ">queue", ">queue offset", ">committed", "so it is"], cells))
    out.show(Text(""))


def _cells(event: Event) -> list[object]:
    due = ""
    if event.due is not None:
        due = f"due {human_time(event.due)}" + (", which has passed" if event.due < time.time() * 1000 else "")
    words = [word for word in (event.note, due, f"for {event.target}" if event.target != event.topic else "") if word]
    return [event.stage, human_time(event.store_time), event.topic, event.queue, event.queue_offset, event.phy_offset,
            ", ".join(words)]
