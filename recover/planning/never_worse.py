"""Never worse than the broker alone: what brokers would deliver from the store as it is, and as a plan would leave it.

Both are played by predict's rules over the bytes, names and units as they are; what our own evidence makes of them
decides nothing here. A message counts as delivered if a queue has a unit that leads to it once the broker has started
and dispatched: an intact record, in its own place, of that topic and queue.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, structs

from formats import properties as props
from formats.commitlog import OFFSET_PHY_OFFSET, Record, decode
from formats.errors import FormatError
from formats.record_columns import BIT_FILLER, BIT_MARKER
from recover.broker.settings import BrokerSettings
from recover.broker.versions import NEWEST_COMPARED
from recover.errors import Refusal
from recover.files.store import Store
from recover.files.topics import LMQ_PREFIX, topic_text
from recover.findings import finding
from recover.memory.columns import Rows, Split
from recover.plan.model import InPlace, Step
from recover.planning.as_planned import as_planned
from recover.planning.planned import RecoverPlan
from recover.predict.broker_log import BrokerLog
from recover.predict.dispatch import Key
from recover.predict.queue_file import UNIT
from recover.predict.queue_state import QueueState
from recover.predict.start import predict
from recover.scan.file_scan import FileScan
from recover.scan.judge import judge
from recover.scan.log import LogView

_STAND_INS = BIT_FILLER | BIT_MARKER
_LISTED = 10_000
I64_SIZE = 8
_DELIVERY = np.dtype([("offset", "<i8"), ("own", "<i8"), ("phy_offset", "<i8"), ("size", "<i4")])
_OWN_OFFSET = slice(OFFSET_PHY_OFFSET, OFFSET_PHY_OFFSET + I64_SIZE)


class Missed(Struct, frozen=True):
    """A message that the broker alone delivers and would not deliver any more."""

    topic: str
    queue: int
    queue_offset: int
    phy_offset: int
    store_timestamp: int


def refuse_worse(store: Store, made: RecoverPlan, settings: BrokerSettings, max_loss: int | None) -> RecoverPlan:
    """The plan, with a loss statement of what brokers alone would deliver and will not; `Refusal` (8) of more than
    `max_loss` messages (None: any number)."""
    steps = made.plan.steps
    if not any(_bears(store, step) for step in steps):
        return made
    missed: dict[tuple[str, int, int], Missed] = {}
    releases = {str(version): structs.replace(settings, version=version)
                for version in (settings.version, NEWEST_COMPARED)}
    with as_planned(store, steps) as (planned, stand_ins):
        view = made.before.survey.log
        after_view = _changed(view, stand_ins, steps, store)
        for release in releases.values():
            for item in missed_between(store, view, planned, after_view, release):
                missed[item.topic, item.queue, item.queue_offset] = item
    mended = _mended(made)
    missed = {key: item for key, item in missed.items() if item.phy_offset not in mended}
    if not missed:
        return made
    loss = _statement(missed.values())
    if max_loss is not None and len(missed) > max_loss:
        found = finding("plan-loses-delivered", count=len(missed), broker=" and ".join(releases))
        made.before.findings.add(found)
        raise Refusal(
            found.message, found.remedy, code=found.code, lost=loss,
            messages=[structs.asdict(missed[key]) for key in sorted(missed)][:_LISTED],
        )
    plan = structs.replace(made.plan, loss=(*made.plan.loss, *loss))
    return structs.replace(made, plan=plan, lost_messages=max(made.lost_messages, len(missed)))


def _mended(made: RecoverPlan) -> set[int]:
    """Records of which a bit or a field is written: asked for, or of a message that nobody can read."""
    asked = {item["start"] for item in made.bridged if item["kind"] == "property" or "before" in item}
    return asked | {item.wrong.stored.phy_offset for item in made.before.rejected if item.wrong is not None}


def _bears(store: Store, step: Step) -> bool:
    path = store.path(step.file)
    return any(path.is_relative_to(folder) for folder in (*store.commitlog_dirs, store.consumequeue_dir))


def _changed(view: LogView, stand_ins: dict[Path, Path], steps: Iterable[Step], store: Store) -> LogView:
    """The rows of what stays as it is; brokers' own check judges the rest."""
    within: dict[Path, list[tuple[int, int]]] = {}
    gone: set[Path] = set()
    for step in steps:
        if isinstance(step, InPlace):
            within.setdefault(store.path(step.file), []).append((step.start, step.stop))
        else:
            gone.add(store.path(step.file))
    files = []
    for scan in view.files:
        path = scan.mapped_file.path
        if path in gone:
            continue
        if path not in within:
            files.append(scan)
            continue
        kept = FileScan(structs.replace(scan.mapped_file, path=stand_ins.get(path, path)), scan.file_size)
        for split in scan.splits:
            rows = split.records
            begin = rows["phy_offset"] - scan.mapped_file.file_from_offset
            keep = np.ones(rows.size, dtype=bool)
            for start, stop in within[path]:
                keep &= (begin >= stop) | (begin + rows["size"] <= start)
            kept.splits.append(Split(rows[keep], np.empty(0, dtype=np.int32)))
        kept.queues = scan.queues
        files.append(kept)
    return structs.replace(view, files=files)


def missed_between(
    store: Store, view: LogView, planned: Store, after_view: LogView, settings: BrokerSettings
) -> list[Missed]:
    """What the broker of these settings delivers from `store` and not from `planned`; nothing if it does not start."""
    found: list[Missed] = []

    def before(log: BrokerLog, states: dict[Key, QueueState]) -> None:
        def after(log_after: BrokerLog, later: dict[Key, QueueState]) -> None:
            for key, state in states.items():
                found.extend(_of_queue(key, log, state, log_after, later.get(key)))

        if not predict(planned, after_view, settings, counted=False, started=after).starts:
            after(log, {})

    predict(store, view, settings, counted=False, started=before)
    return found


def _of_queue(
    key: Key, before: BrokerLog, state: QueueState, after: BrokerLog, later: QueueState | None
) -> Iterable[Missed]:
    was = _deliveries(key, before, state)
    if not was.size:
        return
    now = np.empty(0, dtype=_DELIVERY) if later is None else _deliveries(key, after, later)
    places = set(zip(now["offset"].tolist(), now["phy_offset"].tolist(), now["size"].tolist(), strict=True))
    doubtful = [
        item for item in was.tolist()
        if (item[0], item[2], item[3]) not in places or _was_changed(before, after, item[2], item[3])
    ]
    if not doubtful:
        return
    digests = {(int(item["offset"]), _digest(after, int(item["phy_offset"]), int(item["size"]))) for item in now}
    anywhere = {digest for _, digest in digests}
    for offset, own, phy_offset, size in doubtful:
        digest = _digest(before, phy_offset, size)
        if (offset, digest) in digests or (offset != own and digest in anywhere):
            continue
        record = decode(before.read(phy_offset, size), check_crc=False)
        if key[0].startswith(LMQ_PREFIX) and not _names(record, key[0], offset):
            continue
        yield Missed(key[0], key[1], offset, phy_offset, record.store_timestamp)


def _was_changed(before: BrokerLog, after: BrokerLog, phy_offset: int, size: int) -> bool:
    """Whether a record's bytes may differ: brokers' own check, not a scan, judged it afterwards."""
    index, other = before.index_of(phy_offset), after.index_of(phy_offset)
    if index is None or other is None:
        return True
    if before.files[index].path.name == after.files[other].path.name and after.rows(other) is before.rows(index):
        return False
    rows = after.rows(other)
    at = int(np.searchsorted(rows["phy_offset"], phy_offset))
    return not (at < rows.size and int(rows["phy_offset"][at]) == phy_offset and int(rows["size"][at]) == size)


def _deliveries(key: Key, log: BrokerLog, state: QueueState) -> Rows:
    """The units of a queue that lead to an intact message of it (dtype `_DELIVERY`)."""
    parts = [np.empty(0, dtype=_DELIVERY)]
    for queue_file in state.files:
        base = queue_file.start // UNIT
        units = queue_file.valid()
        first = max(0, state.min_offset - base)
        chosen = np.flatnonzero(units["size"][first:] > 0) + first
        if chosen.size:
            parts.append(_intact(key, log, base + chosen, units[chosen]))
    return np.concatenate(parts)


def _intact(key: Key, log: BrokerLog, offsets: Rows, units: Rows) -> Rows:
    result = np.zeros(units.size, dtype=_DELIVERY)
    result["offset"], result["phy_offset"], result["size"] = offsets, units["phy_offset"], units["size"]
    taken = np.zeros(units.size, dtype=bool)
    numbers = {number for number, (topic, queue) in enumerate(log.view.queues) if (topic_text(topic), queue) == key}
    multi = key[0].startswith(LMQ_PREFIX)
    starts = np.array([file.file_from_offset for file in log.files], dtype=np.int64)
    index = np.searchsorted(starts, units["phy_offset"], side="right") - 1
    for file in np.unique(index).tolist():
        if file < 0:
            continue
        inside = np.flatnonzero(index == file)
        rows = log.rows(file)
        at = np.searchsorted(rows["phy_offset"], units["phy_offset"][inside])
        hit = np.minimum(at, max(0, rows.size - 1))
        if rows.size:
            known = (rows["phy_offset"][hit] == units["phy_offset"][inside]) & (at < rows.size)
            fits = known & (rows["size"][hit] == units["size"][inside]) & ((rows["bits"][hit] & _STAND_INS) == 0)
            if not multi:
                fits &= np.isin(rows["queue"][hit], list(numbers))
            taken[inside[fits]] = True
            result["own"][inside[fits]] = offsets[inside[fits]] if multi else rows["queue_offset"][hit][fits]
            inside = inside[~known]
        for one in inside.tolist():
            record = _judged(log, file, int(units["phy_offset"][one]))
            if record is not None and record.total_size == int(units["size"][one]) and (
                multi or (record.topic_name, record.queue_id) == key
            ):
                taken[one] = True
                result["own"][one] = offsets[one] if multi else record.queue_offset
    return result[taken]


def _judged(log: BrokerLog, file: int, phy_offset: int) -> Record | None:
    base = log.files[file].file_from_offset
    try:
        return judge(log.read_at(file), phy_offset - base, base, base + log.file_size)
    except FormatError:
        return None


def _digest(log: BrokerLog, phy_offset: int, size: int) -> bytes:
    """A digest of a record but for its own physical offset, which may change when it is moved."""
    content = bytearray(log.read(phy_offset, size))
    content[_OWN_OFFSET] = bytes(I64_SIZE)
    return hashlib.blake2b(content, digest_size=16).digest()


def _names(record: Record, topic: str, offset: int) -> bool:
    values = record.property_map()
    queues = values.get(props.INNER_MULTI_DISPATCH, "").split(",")
    offsets = values.get(props.INNER_MULTI_QUEUE_OFFSET, "").split(",")
    return (topic, str(offset)) in zip(queues, offsets, strict=False)


def _statement(missed: Collection[Missed]) -> list[dict[str, Any]]:
    """One entry a queue, as the loss statement of a plan has them."""
    queues: dict[tuple[str, int], list[Missed]] = {}
    for item in missed:
        queues.setdefault((item.topic, item.queue), []).append(item)
    return [{
        "topic": topic, "queue": queue, "messages": len(items),
        "first_offset": min(item.queue_offset for item in items),
        "last_offset": max(item.queue_offset for item in items),
        "begin": min(item.store_timestamp for item in items), "end": max(item.store_timestamp for item in items),
        "cause": "delivered-by-broker",
    } for (topic, queue), items in sorted(queues.items())]
