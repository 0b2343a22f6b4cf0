"""What a saved plan costs: counted anew before it is carried out. What the plan says about that counts for nothing.

1. Each intact message of the log that a step touches is looked up in the log as the plan would leave it: in its own
   place, else anywhere that the plan writes. It is the same message if body and store time are.
2. What brokers alone deliver from the store, and no longer after the plan, is counted as for a plan of recover.
3. The number of both is compared with what the plan says that it cuts, or takes from brokers.

Not counted again: messages that damage has cost already. The verify after the change names these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, structs

from formats.basics import FormatError
from formats.record import Record
from formats.record.rows import NO_MESSAGE
from recover.broker.settings import BrokerSettings
from recover.change.model import InPlace, Install, Plan, Step, WriteRange, ZeroRange
from recover.check.report import VerifyReport
from recover.findings.code import Refusal
from recover.findings.model import Phrase
from recover.log.file_scan import FileScan
from recover.log.judge import judge
from recover.log.scan import LocalEngine
from recover.repair.losses import RecoverPlan, Statement
from recover.repair.never_worse import may_take_messages, taken_from_brokers
from recover.repair.planned import planned_store
from recover.store.columns import Rows
from recover.store.config_files import LMQ_PREFIX, topic_text
from recover.store.source import open_file
from recover.store.store import Store

CUT, TAKEN = "cut", "delivered-by-broker"
_CHOSEN = frozenset({CUT, TAKEN})
"""Causes of a loss that the plan itself brings about."""


class Cost(Struct, frozen=True):
    """How many intact messages a plan takes away, and the entries of its loss statement for them."""

    messages: int
    entries: list[dict[str, Any]]


def lost_by(loss: Iterable[dict[str, Any]]) -> int:
    """The number of messages in a loss statement; positions of LMQ queues are the same messages again."""
    own = light = 0
    for item in loss:
        messages = int(item.get("messages", 0))
        if str(item.get("topic")).startswith(LMQ_PREFIX):
            light = max(light, messages)
        else:
            own += messages
    return max(own, light)


def refuse_costlier(plan: Plan, cost: Cost, max_loss: int | None, instead: str) -> Plan:
    """Return the plan with the statement of what it costs; `Refusal` (8) with both figures if that is more than it
    says, unless `max_loss` allows so many (None: any number). `instead`: what else to do, as a sentence."""
    said = [item for item in plan.loss if item.get("cause") in _CHOSEN]
    stated = lost_by(said)
    if cost.messages <= stated:
        return plan
    if max_loss is not None and cost.messages > max_loss:
        raise Refusal(Phrase("this plan takes away {messages:intact message}, and says {stated}",
                             messages=cost.messages, stated=f"{stated:,}"),
                      Phrase("Do not use it if it is not of your own making. {instead} To accept the loss: `{typed} "
                             "--max-loss {messages}`.", instead=instead, messages=cost.messages),
                      lost_messages=cost.messages, stated_messages=stated, max_loss=max_loss)
    other = [item for item in plan.loss if item.get("cause") not in _CHOSEN]
    return structs.replace(plan, loss=(*other, *cost.entries))


def cost_of(
    store: Store, plan: Plan, before: VerifyReport, settings: BrokerSettings, *, steps: Sequence[Step] | None = None,
) -> Cost:
    """What a plan for the verified store costs. `steps`: those that are left of a begun run; then only the log is
    compared, as queues and log need not match half way."""
    left = tuple(plan.steps if steps is None else steps)
    gone = {item.phy_offset: item for item in _gone_from_log(store, before, left)}
    taken: dict[int, _Gone] = {}
    # bits and fields of these messages may have been corrected
    doubtful = {*before.wrong_messages, *(edit.start for edit in before.flipped)}
    corrected = [{"start": start, "before": ""} for start in doubtful]
    made = RecoverPlan(
        structs.replace(plan, steps=left, loss=()), before, None, corrected, lost_messages=0, damaged_messages=0,
        unproven_messages=0, valid_to=0,
    )
    if steps is None and may_take_messages(store, made):
        missed, named, _ = taken_from_brokers(store, made, settings)
        for item in (missed | named).values():
            taken.setdefault(item.phy_offset, _Gone(item.phy_offset, item.topic, item.queue, item.queue_offset,
                                                    item.store_timestamp))
    statement = Statement()
    for one in (*gone.values(), *(item for place, item in taken.items() if place not in gone)):
        at, time = one.queue_offset, one.store_timestamp
        statement.add(one.topic, one.queue, (at, at), (time, time), CUT if one.phy_offset in gone else TAKEN)
    return Cost(len(gone.keys() | taken.keys()), statement.entries())


class _Gone(Struct, frozen=True):
    phy_offset: int
    topic: str
    queue: int
    queue_offset: int
    store_timestamp: int


_Read = Callable[[int, int], bytes]
_Message = tuple[int, bytes]


def _message(record: Record) -> _Message:
    """What stays the same of a message that a repair corrects or moves."""
    return record.store_timestamp, bytes(record.body)


def _gone_from_log(store: Store, before: VerifyReport, steps: Sequence[Step]) -> Iterator[_Gone]:
    """The intact messages of the log that it no longer holds after the steps."""
    view = before.analysis.log
    touching: dict[Path, list[Step]] = defaultdict(list)
    for step in steps:
        touching[store.path(step.file)].append(step)
    touched = [(scan, own) for scan in view.files if (own := _of_file(touching, scan.mapped_file.path))]
    if not touched:
        return
    with planned_store(store, steps) as (planned, path_in):
        left: list[tuple[_Gone, _Message]] = []
        for scan, own in touched:
            for row, record in _changed_messages(scan, own, path_in):
                topic, queue = view.queues[row["queue"]]
                gone = _Gone(int(row["phy_offset"]), topic_text(topic), queue, int(row["queue_offset"]),
                             int(row["store_timestamp"]))
                if record is None:
                    yield gone
                else:
                    left.append((gone, _message(record)))
        writes = {path_in(path) for path, own in touching.items() if any(
            isinstance(step, (WriteRange, Install)) for step in own) and any(
            path.is_relative_to(folder) for folder in store.commitlog_dirs)}
        elsewhere = _messages_in(planned, writes) if left and writes else set()
        yield from (gone for gone, message in left if message not in elsewhere)


def _of_file(touching: dict[Path, list[Step]], path: Path) -> list[Step]:
    return [step for each in (path, *path.parents) for step in touching.get(each, ())]


def _changed_messages(
    scan: FileScan, steps: list[Step], path_in: Callable[[Path], Path]
) -> Iterator[tuple[Any, Record | None]]:
    """Yield the rows of messages that are not in their place after the steps, with their record; None for those that
    are zeroed without another place to look for."""
    path, base, end = scan.mapped_file.path, scan.mapped_file.file_from_offset, scan.file_end
    within = sorted((step.start + base, step.stop + base) for step in steps if isinstance(step, InPlace))
    whole = len(within) < len(steps)
    only_zeros = all(isinstance(step, ZeroRange) for step in steps)
    with open_file(path) as now:
        after = _reader(path_in(path))
        for split in scan.splits:
            rows = split.records[(split.records["bits"] & NO_MESSAGE) == 0]
            for row in rows if whole else rows[_overlapped(rows, within)]:
                at = int(row["phy_offset"])
                if only_zeros:
                    yield row, None
                    continue
                record = judge(now.read, at - base, base, end)
                try:
                    then = judge(after, at - base, base, end)
                except (FormatError, OSError):
                    then = None
                if then is None or _message(then) != _message(record):
                    yield row, record


def _reader(path: Path) -> _Read:
    def read(offset: int, length: int) -> bytes:
        with open_file(path) as reader:
            return bytes(reader.read(offset, length))

    return read


def _overlapped(rows: Rows, ranges: list[tuple[int, int]]) -> Rows:
    """Which records one of some ascending, disjoint ranges overlaps (bool array)."""
    starts, stops = np.array(ranges, dtype=np.int64).reshape(-1, 2).T
    following = np.searchsorted(stops, rows["phy_offset"], side="right")
    return np.append(starts, np.iinfo(np.int64).max)[following] < rows["phy_offset"] + rows["size"]


def _messages_in(planned: Store, files: set[Path]) -> set[_Message]:
    """The intact messages in some files of a planned log, wherever each says that it belongs."""
    found: set[_Message] = set()
    for scan in LocalEngine().scan_log(planned.commitlog, with_keys=False, open_error=lambda *_: None).files:
        if scan.mapped_file.path not in files:
            continue
        with open_file(scan.mapped_file.path) as reader:
            for split in scan.splits:
                for row in split.records[(split.records["bits"] & NO_MESSAGE) == 0]:
                    base = scan.mapped_file.file_from_offset
                    found.add(_message(judge(reader.read, int(row["phy_offset"]) - base, base, scan.file_end)))
    return found
