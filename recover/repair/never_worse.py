"""The guard: compares what brokers would deliver from the store as it is, and as a plan would leave it.

Both are played by predict's rules on the bytes, names and units as they are; our own evidence has no say here. A
message counts as delivered if, once the broker has started and dispatched, a unit leads to it: an intact record, at
its own place, of that topic and queue.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, structs

from formats import properties as props
from formats.basics import FormatError, offset_in_name
from formats.record import Record, decode
from formats.record.rows import BIT_MISNUMBERED, BIT_STALE, STAND_IN
from recover.broker.settings import BrokerSettings
from recover.broker.versions import NEWEST_COMPARED, BrokerVersion, generation_of
from recover.change.model import InPlace, Step
from recover.check.surroundings import Surroundings
from recover.derived.queue_check import ranges
from recover.findings.code import Refusal
from recover.findings.model import FindingList, finding
from recover.log.generations import batches
from recover.log.judge import judge, without_own_offset
from recover.log.scan import LogView
from recover.predict.dispatch import BrokerLog, Key
from recover.predict.queues import UNIT, QueueState
from recover.predict.start import Played, Starts, play
from recover.reading.accepting import Becomes, Dropped, Rewritten
from recover.reading.policy import Explanation
from recover.reading.reading import Reading
from recover.repair.losses import RecoverPlan, Statement
from recover.repair.planned import planned_store
from recover.store.columns import Rows
from recover.store.config_files import LMQ_PREFIX, topic_text
from recover.store.store import Store

_AT_ONCE = 500_000
"""Queue units compared with the log in one batch."""
_DELIVERY = np.dtype([
    ("queue", "<i4"), ("offset", "<i8"), ("own", "<i8"), ("phy_offset", "<i8"), ("size", "<i4"), ("known", "?"),
    ("stored", "?"),
])
"""A unit that leads to a message: `own` is the queue offset in the message, `known` means a scan saw its bytes as they
are, `stored` that the unit is on the disk, not only written by this start."""


Stretch = tuple[int, int, int]
"""A part of the log that a plan leaves as it is: first offset of its file, start, stop."""


class Missed(Struct, frozen=True):
    """A message that the broker delivers from the store as it is, but not after the plan."""

    topic: str
    queue: int
    queue_offset: int
    phy_offset: int
    store_timestamp: int
    size: int


States = dict[Key, QueueState]
Place = tuple[str, int, int]
"""Topic, queue, queue offset."""


class Sums(Struct):
    """How many messages brokers deliver from the store as it is (`alone`), and after the plan."""

    alone: int = 0
    after: int = 0


def refuse_worse(
    store: Store, made: RecoverPlan, settings: BrokerSettings, max_loss: int | None,
    findings: FindingList | None = None, again: Callable[[Store], RecoverPlan] | None = None,
) -> RecoverPlan:
    """Return the plan (see `may_take_messages`) with a loss statement of the messages that brokers alone would deliver.
    If the rest of it is never worse, and `again` plans nothing after it, it is a plan without the steps that take them.

    `Refusal` (8) for more than `max_loss` messages (None: any number), with a finding that lists them and the sums."""
    missed, named, sums = taken_from_brokers(store, made, settings)
    if not (missed or named):
        return made
    dropped = len(missed | named) + made.lost_messages
    if max_loss is None or dropped <= max_loss:
        loss = _stated({**missed, **named}.values())
        plan = structs.replace(made.plan, loss=(*made.plan.loss, *loss))
        return structs.replace(made, plan=plan, lost_messages=dropped)
    if made.cut_from is None and not named and again is not None:
        steps = _without_those_that_take(store, made.plan.steps, missed.values())
        if not any(taken_from_brokers(store, made, settings, steps)[:2]) and _is_final(store, steps, again):
            kept = {*map(id, steps)}
            left = _left_by(store, made, (step for step in made.plan.steps if id(step) not in kept))
            return structs.replace(made, plan=structs.replace(made.plan, steps=tuple(steps)),
                                   left_messages=made.left_messages + left)
    loss = _stated({**missed, **named}.values())
    offsets: dict[tuple[str, int], list[int]] = defaultdict(list)
    for topic, queue, offset in sorted(missed | named):
        offsets[topic, queue].append(offset)
    listed = [{**entry, "offsets": [[first, stop - 1] for first, stop in ranges(
        np.array(offsets[entry["topic"], entry["queue"]]))]} for entry in loss]
    releases = " and ".join(map(str, _releases(settings)))
    found = (
        finding("plan-loses-delivered", count=len(missed), broker=releases, lost=listed, limit=dropped,
                alone=sums.alone, after=sums.after) if missed
        else finding("plan-overwrites-named", count=len(named), lost=listed, limit=dropped)
    )
    if findings is not None:
        findings.extend([found])
    raise Refusal(found.message, found.remedy, code=found.code, **found.facts)


def taken_from_brokers(
    store: Store, made: RecoverPlan, settings: BrokerSettings, steps: Sequence[Step] | None = None,
) -> tuple[dict[Place, Missed], dict[Place, Missed], Sums]:
    """Return what brokers alone would deliver and a plan (see `may_take_messages`), or only these `steps` of it, takes
    from them; what these overwrite of old log files; and the sums of the store's own release."""
    steps = made.plan.steps if steps is None else steps
    found: dict[Place, Missed] = {}
    sums = Sums()
    with planned_store(store, steps) as (planned, path_in):
        analysis = made.before.analysis
        view = analysis.as_it_is
        after_view, stays = _changed(Reading.first(analysis.facts, view), path_in, steps)
        after = Surroundings(planned, after_view)
        for version in reversed(_releases(settings)):
            sums, own = Sums(), structs.replace(settings, version=version)
            for item in missed_between(Starts.on(analysis).alone(own), after, own, stays, sums):
                found[item.topic, item.queue, item.queue_offset] = item
    mended = {item["start"] for item in made.bridged if "before" in item}  # a bit or a field written on demand
    # a requested cut is in the plan's statement already, and was held to `max_loss`
    cut = made.cut_from
    # a broker may create queues of topics that are not in its table, but serves no client from them
    deleted = set(analysis.expectation.deleted)
    found = {key: item for key, item in found.items()
             if item.phy_offset not in mended and (cut is None or item.phy_offset < cut)
             and item.topic not in deleted and not any(file.holds(item.phy_offset) for file in analysis.foreign)}
    named = {(item.topic, item.queue, item.queue_offset): item for item in _whole_old_files(made, store, steps)}
    return found, named, sums


def _is_final(store: Store, steps: Sequence[Step], again: Callable[[Store], RecoverPlan]) -> bool:
    """Whether nothing is left to do after these steps: what is left alone now must not be changed by the next run."""
    with planned_store(store, steps, with_index=True) as (planned, _):
        try:
            return not again(planned).plan.steps
        except Refusal:
            return False


def _releases(settings: BrokerSettings) -> list[BrokerVersion]:
    """The releases that are compared: the store's own, and the newest if it starts in another way."""
    own, newest = settings.version, NEWEST_COMPARED
    return [own] if generation_of(own) == generation_of(newest) else [own, newest]


def _stated(missed: Iterable[Missed]) -> list[dict[str, Any]]:
    statement = Statement()
    for item in missed:
        at, time = item.queue_offset, item.store_timestamp
        statement.add(item.topic, item.queue, (at, at), (time, time), "delivered-by-broker")
    return statement.entries()


def _without_those_that_take(store: Store, steps: Sequence[Step], missed: Iterable[Missed]) -> list[Step]:
    """Return the steps but those on the queues or on the bytes of these messages; of the latter, `abort` stays, too, as
    damage does."""
    items = [*missed]
    queues = tuple({f"{store.relative(store.consumequeue_dir / item.topic / str(item.queue))}/" for item in items})
    places = [_range_in_log(store, step) for step in steps]
    taken = [place is not None and any(place[0] < item.phy_offset + item.size and item.phy_offset < place[1]
                                       for item in items) for place in places]
    abort = store.relative(store.abort_path) if any(taken) else None
    return [step for step, takes in zip(steps, taken, strict=True)
            if not takes and not step.file.startswith(queues) and step.file != abort]


def _range_in_log(store: Store, step: Step) -> tuple[int, int] | None:
    """Return the range of the log that a step overwrites, None for any other."""
    path = store.path(step.file)
    base = offset_in_name(path.name)
    if base is None or not isinstance(step, InPlace) or not any(map(path.is_relative_to, store.commitlog_dirs)):
        return None
    return base + step.start, base + step.stop


def _left_by(store: Store, made: RecoverPlan, dropped: Iterable[Step]) -> int:
    """Return how many damaged messages these steps would have bridged."""
    found = [place for step in dropped if (place := _range_in_log(store, step)) is not None]
    return made.before.analysis.account.touched(found)


def _whole_old_files(made: RecoverPlan, store: Store, steps: Iterable[Step]) -> Iterable[Missed]:
    """Messages of whole log files that the plan overwrites as old ones.

    A broker that cuts its log deletes the files after the cut: it leaves old records after the end of one file only.
    """
    analysis = made.before.analysis
    written = {store.path(step.file) for step in steps if isinstance(step, InPlace)}
    old = []
    for scan in analysis.log.files:
        splits = [split.records for split in scan.splits if split.records.size]
        if scan.mapped_file.path in written and splits and splits[0]["bits"][0] & BIT_STALE:
            old += [rows[(rows["bits"] & BIT_STALE) != 0] for rows in splits]
    if not old:
        return
    rows = np.concatenate(old)
    for row in rows[(rows["bits"] & STAND_IN) == 0]:
        topic, queue = analysis.log.queues[row["queue"]]
        place = topic_text(topic), queue, int(row["queue_offset"])
        yield Missed(*place, int(row["phy_offset"]), int(row["store_timestamp"]), int(row["size"]))


def may_take_messages(store: Store, made: RecoverPlan) -> bool:
    """Whether a plan may take messages from a broker: it writes to the log or to queues.

    Exempt: a plan that creates all queues of a plain log without any; the broker would take the same records.
    """
    analysis, steps = made.before.analysis, made.plan.steps
    expected = analysis.expectation
    plain = analysis.log.is_plain and not analysis.log.tally.bits & BIT_MISNUMBERED and not (
        analysis.contradictions or analysis.misnamed or analysis.placed or analysis.foreign or expected.unsafe)
    queues = [store.consumequeue_dir]
    if plain and not store.queue_folders:
        written = {store.path(step.file).parent for step in steps}
        all_made = all(store.consumequeue_dir / key.topic / str(key.queue_id) in written
                       for key, count in zip(expected.keys, expected.counts.tolist(), strict=True) if count)
        queues = [] if all_made else queues
    folders = [*store.commitlog_dirs, *queues]
    return any(store.path(step.file).is_relative_to(folder) for step in steps for folder in folders)


def _changed(
    before: Reading, path_in: Callable[[Path], Path], steps: Iterable[Step]
) -> tuple[LogView, list[Stretch]]:
    """Return the rows of the unchanged records, and their ranges; the brokers' own check judges the rest."""
    store, within = before.store, defaultdict[Path, list[tuple[int, int]]](list)
    gone: set[Path] = set()
    for step in steps:
        if isinstance(step, InPlace):
            within[store.path(step.file)].append((step.start, step.stop))
        else:
            gone.add(store.path(step.file))
    found: list[Becomes] = [Dropped(str(path)) for path in gone]
    stays: list[Stretch] = []
    for scan in before.log.files:
        file, base = scan.mapped_file, scan.mapped_file.file_from_offset
        if file.path in gone:
            continue
        ranges = tuple((base + start, base + stop) for start, stop in sorted(within[file.path]))
        edges = [base, *chain(*ranges), scan.file_end]
        stays += zip(repeat(base), edges[::2], edges[1::2])
        if ranges:
            found.append(Rewritten(file, structs.replace(file, path=path_in(file.path)), ranges))
    return before.accepting([Explanation("written-over", one) for one in found]).log, stays


def missed_between(
    alone: Played, planned: Surroundings, settings: BrokerSettings, stays: Collection[Stretch] = (),
    sums: Sums | None = None,
) -> list[Missed]:
    """Return what the broker of these settings delivers from a store (its start there: `alone`) and not from the
    `planned` one; nothing if it does not start. What it delivers of both is added to `sums`.

    Queues are skipped if their units do not change and lead into unchanged ranges of the log (`stays`).
    """
    after = play(planned, settings, counted=False, rights=False)
    if alone.log is None or (after.log is None and after.prediction.starts):
        return []
    # where it does not start on the plan, it delivers nothing of it
    return [*_missed(alone.log, alone.states, after.log or alone.log, after.states, stays, sums or Sums())]


def _missed(
    log: BrokerLog, states: States, log_after: BrokerLog, later: States, stays: Collection[Stretch], sums: Sums,
) -> Iterator[Missed]:
    """Yield what one start delivers and the other does not, as in `missed_between`."""
    both = _scanned(log) & _scanned(log_after)
    same = np.array([part[1:] for part in stays if part[0] in both], dtype=np.int64).reshape(-1, 2)
    asked = [key for key, state in states.items() if not _is_same(state, later.get(key), same)]
    sums.alone = sums.after = sum(_units(states[key]) for key in states.keys() - {*asked})
    sums.after += sum(_deliveries([key], log_after, later).size for key in later.keys() - states.keys())
    held = [[file for state in (states, later) if key in state for file in state[key].files] for key in asked]
    sizes = np.array([sum(file.wrote for file in files) // UNIT for files in held])
    for some in batches(range(len(asked)), sizes, _AT_ONCE):
        keys = [asked[number] for number in some]
        was, now = _deliveries(keys, log, states), _deliveries(keys, log_after, later)
        sums.alone, sums.after = sums.alone + was.size, sums.after + now.size
        yield from _compare(keys, log, was, log_after, now)


def _scanned(log: BrokerLog) -> set[int]:
    """The first offsets of the files of a broker's log that a scan has read."""
    return {file.file_from_offset for file in log.files if log.scan_of(file)}


def _units(state: QueueState) -> int:
    """How many units of a queue lead somewhere."""
    found = 0
    for queue_file in state.files:
        first = max(0, state.min_offset - queue_file.start // UNIT)
        found += int(np.count_nonzero(queue_file.valid()["size"][first:] > 0))
    return found


def _is_same(state: QueueState, later: QueueState | None, stretches: Rows) -> bool:
    """Whether a queue has the same units before and after, all leading into these ranges of the log."""
    if later is None or (state.min_offset, len(state.files)) != (later.min_offset, len(later.files)):
        return False
    for one, other in zip(state.files, later.files, strict=True):
        units = one.valid()
        if one.start != other.start or not np.array_equal(units, other.valid()):
            return False
        led_to = units[units["size"] > 0]
        at = np.searchsorted(stretches[:, 0], led_to["phy_offset"], side="right") - 1
        ends = np.append(stretches[:, 1], 0)[at]
        if ((at < 0) | (led_to["phy_offset"] + led_to["size"] > ends)).any():
            return False
    return True


def _compare(keys: list[Key], before: BrokerLog, was: Rows, after: BrokerLog, now: Rows) -> Iterator[Missed]:
    """Skip units that still lead to the same bytes in the same place, all at once; read the few that are left."""
    same = now[now["known"]]
    doubtful = was[~np.isin(_hashed(was), _hashed(same))]
    # a unit in the place of another of its queue: the message must be somewhere in the queue
    moved = doubtful["own"] != doubtful["offset"]
    doubtful = doubtful[~(moved & np.isin(_hashed(doubtful, place=False), _hashed(same, place=False)))]
    doubtful = doubtful[doubtful["stored"] | ~_are_older(doubtful, now)]
    if not doubtful.size:
        return
    changed = now[~now["known"] | ~np.isin(_hashed(now), _hashed(was))]
    changed = changed[np.isin(changed["queue"], doubtful["queue"])]
    read_before, read_after = before.reads(), after.reads()
    digests = {(queue, offset, _digest(read_after(phy_offset, size)))
               for queue, offset, _, phy_offset, size, *_ in changed.tolist()}
    anywhere = {(queue, digest) for queue, _, digest in digests}
    for queue, offset, own, phy_offset, size, *_ in doubtful.tolist():
        content = read_before(phy_offset, size)
        digest = _digest(content)
        if (queue, offset, digest) in digests or (offset != own and (queue, digest) in anywhere):
            continue
        topic, queue_id = keys[queue]
        record = decode(content, check_crc=False)
        if _repeats(after, now, queue, own, record) or (offset != own and _repeats(before, was, queue, own, record)):
            continue
        if not topic.startswith(LMQ_PREFIX) or (topic, offset) in props.multi_dispatch(record.property_map()):
            yield Missed(topic, queue_id, offset, phy_offset, record.store_timestamp, size)


def _are_older(messages: Rows, delivered: Rows) -> Rows:
    """Which messages precede a restart of their queue: two messages later in the log that are delivered at the same or
    lower places, one after the other (bool array). A single one may have a damaged queue offset.

    Without units, brokers dispatch the older messages first, and skip those after the restart.
    """
    older = np.zeros(messages.size, dtype=bool)
    in_place = delivered[delivered["own"] == delivered["offset"]]
    in_place = in_place[np.argsort(in_place["queue"], kind="stable")]
    for queue in np.unique(messages["queue"]):
        at = np.flatnonzero(messages["queue"] == queue)
        rows = in_place[slice(*np.searchsorted(in_place["queue"], [queue, queue + 1]))]
        starts = rows[:-1][np.diff(rows["offset"]) == 1]
        lowest = np.append(np.minimum.accumulate(starts["offset"][::-1])[::-1], np.iinfo(np.int64).max)
        following = np.searchsorted(starts["phy_offset"], messages["phy_offset"][at], side="right")
        older[at] = lowest[following] <= messages["own"][at]
    return older


def _repeats(log: BrokerLog, delivered: Rows, queue: int, own: int, record: Record) -> bool:
    """Whether a record's own place leads to an earlier record of the log that is the same message or was stored later.

    The log is written in order of time, so such a record is of an earlier generation, in the place of another message.
    """
    holders = delivered[
        (delivered["queue"] == queue) & (delivered["offset"] == own) & (delivered["own"] == own)
    ]
    for phy_offset, size in holders[["phy_offset", "size"]].tolist():
        if phy_offset < record.phy_offset:
            content = log.read(phy_offset, size)
            newer = decode(content, check_crc=False).store_timestamp > record.store_timestamp
            if newer or _digest(content) == _digest(log.read(record.phy_offset, record.total_size)):
                return True
    return False


def _hashed(deliveries: Rows, *, place: bool = True) -> Rows:
    """A 64-bit hash per delivery: its queue, the position of its record, and with `place` its queue offset."""
    mixed = np.zeros(deliveries.size, dtype=np.uint64)
    for name in ("queue", "phy_offset", "size", *(("offset",) if place else ())):
        mixed = (mixed ^ deliveries[name].astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return mixed


def _deliveries(keys: Sequence[Key], log: BrokerLog, states: Mapping[Key, QueueState]) -> Rows:
    """The units that lead to an intact message of their queue (dtype `_DELIVERY`), by physical offset."""
    parts = [np.empty(0, dtype=_DELIVERY)]
    for number, key in enumerate(keys):
        state = states.get(key)
        for queue_file in state.files if state is not None else ():
            base = queue_file.start // UNIT
            units = queue_file.valid()
            first = max(0, state.min_offset - base) if state is not None else 0
            chosen = np.flatnonzero(units["size"][first:] > 0) + first
            part = np.zeros(chosen.size, dtype=_DELIVERY)
            part["queue"], part["offset"] = number, base + chosen
            part["phy_offset"], part["size"] = units["phy_offset"][chosen], units["size"][chosen]
            part["stored"] = (chosen + 1) * UNIT <= queue_file.stored
            parts.append(part)
    found = np.concatenate(parts)
    found = found[np.argsort(found["phy_offset"], kind="stable")]
    numbers = {key: number for number, key in enumerate(keys)}
    of_row = np.array([numbers.get((topic_text(topic), queue), -1) for topic, queue in log.view.queues] or [-1])
    multi = np.array([key[0].startswith(LMQ_PREFIX) for key in keys] or [False])
    taken = np.zeros(found.size, dtype=bool)
    for index, file in enumerate(log.files):
        low, high = np.searchsorted(found["phy_offset"], [file.file_from_offset, file.file_from_offset + log.file_size])
        if low < high:
            taken[low:high] = _intact(keys, log, index, found[low:high], of_row, multi)
    return found[taken]


def _intact(keys: Sequence[Key], log: BrokerLog, index: int, units: Rows, of_row: Rows, multi: Rows) -> Rows:
    """Which units lead to an intact message of their queue in one file (bool array); sets their `own` and `known`."""
    scan, starts = log.scan_of(log.files[index]), units["phy_offset"]
    taken, seen = np.zeros(units.size, dtype=bool), np.zeros(units.size, dtype=bool)
    for split in scan.splits if scan is not None else ():
        low, high = np.searchsorted(starts, [split.first, split.last + 1]) if split.size else (0, 0)
        if low == high:
            continue
        rows, part = split.records, units[low:high]
        hit = np.searchsorted(rows["phy_offset"], part["phy_offset"])
        seen[low:high] = rows["phy_offset"][hit] == part["phy_offset"]
        fits = (rows["size"][hit] == part["size"]) & ((rows["bits"][hit] & STAND_IN) == 0)
        fits &= multi[part["queue"]] | (of_row[rows["queue"][hit]] == part["queue"])
        part["known"] = taken[low:high] = seen[low:high] & fits
        part["own"] = np.where(multi[part["queue"]], part["offset"], rows["queue_offset"][hit])
    base, read = log.files[index].file_from_offset, log.read_at(index)
    for one in np.flatnonzero(~seen).tolist():
        queue, offset, _, phy_offset, size, *_ = units[one].tolist()
        try:
            record = judge(read, phy_offset - base, base, base + log.file_size)
        except FormatError:
            continue
        if record.total_size == size and (multi[queue] or (record.topic_name, record.queue_id) == keys[queue]):
            taken[one], units["own"][one] = True, offset if multi[queue] else record.queue_offset
    return taken


def _digest(content: bytes) -> bytes:
    """A digest of a record without its own position, which changes when the record is moved."""
    return hashlib.blake2b(without_own_offset(content), digest_size=16).digest()
