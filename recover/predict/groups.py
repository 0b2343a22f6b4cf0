"""Consumer groups and their queues: now, and after a broker has started."""

from __future__ import annotations

import fnmatch
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from formats.config.tables import read_consumer_offsets
from formats.record.rows import STAND_IN
from recover.broker.settings import BrokerSettings
from recover.broker.versions import OVERFLOW_TO_FIRST
from recover.check.config import ConfigReport
from recover.derived.expected import EXPIRED, QueueKey
from recover.findings.code import N_
from recover.findings.model import Finding, Phrase
from recover.look.store import log_is_gone
from recover.predict.dispatch import Key
from recover.predict.prediction import Prediction, right_units
from recover.predict.queues import UNIT, QueueState
from recover.predict.start import Starts
from recover.reading.reading import Reading
from recover.store.columns import Rows
from recover.store.config_files import (
    IN_ROCKSDB,
    LMQ_OFFSETS_FILE,
    MAPPING_FILE,
    OFFSET_FILES,
    OFFSETS_FILE,
    ConfigPair,
)
from recover.store.derived_files import ExtFiles
from recover.store.store import COMMITLOG, CONFIG, Store
from recover.store.unread import unread_parts

_OF_START = frozenset({"start-cannot-say", "start-refused", "start-lowers-queues", "start-forgets-config",
                       "config-other-offsets"})
_MISSING = frozenset({"consumequeue-missing-units", "consumequeue-missing-file"})
_OFFSET_PLACES = frozenset(f"config/{name}{end}" for name in OFFSET_FILES for end in ("", ".bak")) | {CONFIG}


class GroupRow(Struct):
    """One group at one queue; None means unknown.

    `min`, `max`: [first, next) of the queue's units that the log still has; `_after`: the same after the broker
    started. `resumes`: the queue offset at which that broker lets the group continue. Counts are of intact messages of
    the log: `lag` from `committed` up to `max`; if the group resumes right after that start, `skips` counts those from
    `committed` on that it does not get, `again` those before `committed` that it gets again.
    """

    group: str
    topic: str
    queue: int
    committed: int
    min: int | None = None
    max: int | None = None
    min_after: int | None = None
    max_after: int | None = None
    resumes: int | None = None
    skips: int | None = None
    again: int | None = None
    lag: int | None = None


class Groups(NamedTuple):
    """The rows, findings about offsets and about the start, its prediction, and lines about `unread` offsets."""

    rows: list[GroupRow]
    findings: list[Finding]
    prediction: Prediction
    unread: list[str]


def has_offsets(store: Store) -> bool:
    """Whether a file with committed offsets of groups exists."""
    return any((store.config_dir / (name + end)).exists() for name in OFFSET_FILES for end in ("", ".bak"))


def groups_of(
    analysis: Reading, settings: BrokerSettings, *, group: str = "*", topic: str = "*", delivers_at: int | None = None,
) -> Groups:
    """Return every committed offset of the groups and topics that match these patterns. `delivers_at` (ms): to foretell
    what the start delivers then, too."""
    config = ConfigReport(analysis)
    unread = offsets_in_rocksdb(analysis.store)
    assumed: list[str] = []
    rows = [row for row in _committed(settings, config, assumed, unread)
            if fnmatch.fnmatchcase(row.group, group) and fnmatch.fnmatchcase(row.topic, topic)]
    by_queue = _by_queue(rows, analysis, config)
    short = _as_they_are(analysis, by_queue)
    if short:
        unread.append(Phrase(
            "{n:queue} without the entries of the newest messages: their lag is unknown", n=len(short)))

    starts = Starts.on(analysis)
    prediction, _, queues = starts.play(settings)
    if delivers_at is not None:
        prediction = starts.predict(settings, delivers_at)
    prediction.assumptions += assumed
    if prediction.starts and not prediction.is_unknown and analysis.queues is not None:
        _once_started(analysis, by_queue, queues, prediction.cut_at, settings)
    gone = list(log_is_gone(analysis.store))
    if gone or COMMITLOG in analysis.elsewhere:
        # messages are counted in the log; without it the counts are unknown
        for row in rows:
            row.lag = row.skips = row.again = None
    of_start = [item for item in prediction.findings() if item.code in _OF_START]
    of_offsets = _of_offsets(config, {item.code for item in of_start}, group, topic)
    return Groups(rows, [*gone, *of_offsets, *_of_queues(analysis, short), *of_start], prediction, unread)


def _committed(
    settings: BrokerSettings, config: ConfigReport, assumed: list[str], unread: list[str]
) -> list[GroupRow]:
    """All committed offsets that this broker reads, in order; what is assumed, and what is not read."""
    found = [row for pair in _read_by(settings, config.pairs, assumed) for row in committed_rows(pair, unread)]
    if not found and not unread and any(item.file in _OFFSET_PLACES for item in config.findings):
        unread.append(N_("config/ holds no offset although there were groups: their committed offsets are unknown"))
    return sorted(found, key=lambda row: (row.group, row.topic, row.queue))


def _of_offsets(config: ConfigReport, told: set[str], group: str, topic: str) -> list[Finding]:
    """The findings about offsets of these groups and topics that the start does not tell of."""
    return [item for item in config.findings
            if item.file in _OFFSET_PLACES and item.code not in told and _fits(item, group, topic)]


def _by_queue(rows: list[GroupRow], analysis: Reading, config: ConfigReport) -> dict[QueueKey, list[GroupRow]]:
    """The rows with an offset, by queue, without those of batch and static topics, which count differently."""
    otherwise = set(analysis.topics.batch)
    otherwise.update(name for pair in config.pairs if pair.name == MAPPING_FILE for name in pair.main.table)
    found: dict[QueueKey, list[GroupRow]] = defaultdict(list)
    for row in rows:
        if row.topic not in otherwise and row.committed >= 0:
            found[QueueKey(row.topic, row.queue)].append(row)
    return found


def offsets_in_rocksdb(store: Store) -> list[str]:
    """Return a line for each database of committed offsets that holds data: none of them is read."""
    return [Phrase("offsets in {part}, a RocksDB, are not read: they are not listed", part=store.relative(part.path))
            for part in unread_parts(store, queues=False)
            if part.path.name in IN_ROCKSDB[OFFSETS_FILE] and part.holds(part.path)]


def _read_by(settings: BrokerSettings, pairs: list[ConfigPair], assumed: list[str]) -> list[ConfigPair]:
    """The offset files that this broker reads: with LMQ queues it keeps all groups in a separate one. All that exist,
    if the setting is not given or only the other exists; `assumed` says so."""
    found = [pair for pair in pairs if pair.name in OFFSET_FILES and pair.present]
    own = LMQ_OFFSETS_FILE if settings.flag("enableLmq") else OFFSETS_FILE
    others = [pair for pair in found if pair.name != own]
    if "enableLmq" not in settings.given:
        if len(found) > 1:
            assumed.append(Phrase(
                "enableLmq is unknown: with it a broker reads only {file}, without it only {other}; rows of both are "
                "listed, and the summary counts those of the latter", file=LMQ_OFFSETS_FILE, other=OFFSETS_FILE))
        return found
    for pair in others:
        assumed.append(Phrase("a broker with {setting} does not read {file}",
                              setting=f"enableLmq={settings.text('enableLmq')}", file=pair.name))
    return found if len(found) == 1 else [pair for pair in found if pair.name == own]


def _fits(item: Finding, group: str, topic: str) -> bool:
    return all(name not in item.facts or fnmatch.fnmatchcase(str(item.facts[name]), pattern)
               for name, pattern in (("group", group), ("topic", topic)))


def committed_rows(pair: ConfigPair, unread: list[str]) -> Iterator[GroupRow]:
    """Yield a row for each offset in a file, with nothing else filled in; what is not read goes to `unread`."""
    copy = pair.chosen
    if copy is None:
        if pair.present:
            unread.append(Phrase("{file} and its backup are both incomplete: its offsets are not listed",
                                 file=pair.name))
        return
    if copy is not pair.main:
        unread.append(Phrase("{file} is incomplete: the offsets come from its backup, which may be older",
                             file=pair.name))
    offsets = read_consumer_offsets(copy.value)
    for (topic, group), queues in offsets.offsets.items():
        for queue, offset in queues.items():
            yield GroupRow(group, topic, queue, offset)
    for (topic, group), offset in offsets.lmq_offsets.items():
        yield GroupRow(group, topic, 0, offset)
    if offsets.rejected:
        unread.append(Phrase("{file}: {n} members were not written by a broker and are not listed", file=pair.name,
                             n=len(offsets.rejected)))


def _as_they_are(analysis: Reading, by_queue: dict[QueueKey, list[GroupRow]]) -> set[QueueKey]:
    """Fill in ranges and lag; return the queues that end before messages of the log, whose lag stays unknown. A queue
    without units, of which the log has messages, has lost its files: its range is unknown too."""
    if analysis.queues is None:
        return set()
    for key, rows in by_queue.items():
        verdict = analysis.queues.verdicts.get(key)
        for row in rows:
            row.min = verdict.min_index + verdict.counts.get(EXPIRED, 0) if verdict and verdict.units else 0
            row.max = verdict.end if verdict and verdict.units else 0
            row.lag = 0
    short: set[QueueKey] = set()
    for key, positions in analysis.expectation.grouped(set(by_queue)):
        offsets = np.sort(_messages(positions)["queue_offset"])
        for row in by_queue[key]:
            assert row.max is not None
            row.lag = _between(offsets, row.committed, row.max)
            if offsets.size and offsets[-1] >= row.max:
                short.add(key)
                row.lag = None
                if not row.max:
                    row.min = row.max = None
    return short


def _of_queues(analysis: Reading, keys: set[QueueKey]) -> list[Finding]:
    found = analysis.queues.findings if analysis.queues is not None else []
    return [item for item in found if item.code in _MISSING
            and QueueKey(item.facts["topic"], item.facts["queue"]) in keys]


def _once_started(
    analysis: Reading, by_queue: dict[QueueKey, list[GroupRow]], states: dict[Key, QueueState], log_end: int,
    settings: BrokerSettings,
) -> None:
    rewinds = settings.version.has(OVERFLOW_TO_FIRST)
    for key, rows in by_queue.items():
        state = states.get((key.topic, key.queue_id))
        for row in rows:
            row.min_after, row.max_after = (state.min_offset, state.max_offset) if state is not None else (0, 0)
            row.skips, row.again = 0, 0
            row.resumes = _resumes(row.committed, row.min_after, row.max_after, rewinds=rewinds)
    for key, positions in analysis.expectation.grouped(set(by_queue)):
        positions = _messages(positions)
        state = states.get((key.topic, key.queue_id))
        right = right_units(positions, state, settings.delay_table, ExtFiles(analysis.store, *key))
        offsets = positions["queue_offset"]
        cells = offsets if state is None or right.all() else np.where(right, offsets, _moved(positions, state))
        served = (positions["phy_offset"] < log_end) & (cells >= (0 if state is None else state.min_offset))
        for row in by_queue[key]:
            assert row.resumes is not None
            gets = served & (cells >= row.resumes) & (state is not None)
            row.skips = int((~gets & (offsets >= row.committed)).sum())
            row.again = int((gets & (offsets < row.committed)).sum())


def _moved(positions: Rows, state: QueueState) -> Rows:
    """The position in its queue of each message's unit, -1 if it has none. A broker delivers whatever a unit leads to,
    also where a start appended it at another position than its queue offset."""
    cells = np.full(positions.size, -1, dtype=np.int64)
    order = np.argsort(positions["phy_offset"], kind="stable")
    for queue_file in state.files:
        units = queue_file.valid()
        at = np.searchsorted(positions["phy_offset"], units["phy_offset"], sorter=order)
        which = order[np.minimum(at, positions.size - 1)]
        same = np.logical_and.reduce(
            [units[name] == positions[name][which] for name in ("phy_offset", "size", "tags_code")])
        cells[which[same]] = queue_file.start // UNIT + np.flatnonzero(same)
    return cells


def _resumes(committed: int, first: int, end: int, *, rewinds: bool) -> int:
    """Where a broker sends a group that asks for its committed offset (DefaultMessageStore.getMessage)."""
    if committed < first:
        return first
    if committed > end:
        return first if rewinds and first == 0 else end
    return committed


def _messages(positions: Rows) -> Rows:
    return np.asarray(positions[(positions["bits"] & STAND_IN) == 0])


def _between(offsets: Rows, first: int, end: int) -> int:
    low, high = np.searchsorted(offsets, [first, end])
    return max(0, int(high) - int(low))
