"""A new store from an export: its records at their places, bridges between them, and all derived files.

Records keep their physical and queue offsets. What is left out or damaged between two records is bridged as recover
bridges damage: markers for positions of queues that continue after it, filler, end marks. Log files before the first
record and after the last are left out; so are positions before a queue's first message, unless the log begins at 0,
where brokers take a place without a unit for one whose message they still have.
"""

from __future__ import annotations

import tempfile
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from msgspec import structs

from formats.basics import offset_to_name
from formats.record import encode_blank
from formats.record.rows import BIT_INNER_BATCH, RECORD
from recover.change import disk
from recover.change.carry_out import apply_plan
from recover.change.content import stop_if
from recover.change.copy_store import check_target, copy_file, new_folder
from recover.change.preconditions import seal
from recover.check.report import VerifyReport, verify
from recover.derived.expected import QueueKey, expect
from recover.export.messages import Counts, count_key
from recover.export.select import Wanted, selected
from recover.export.sources import Scanned
from recover.findings.code import N_, Refusal
from recover.findings.model import Phrase
from recover.log.file_scan import FileScan
from recover.log.generations import with_place
from recover.reading.candidates import on_disk
from recover.reading.facts import ScanOptions
from recover.reading.lost import LostPosition, Neighbour, lost_positions, neighbour_in
from recover.repair.bridge import Bridge, range_between
from recover.repair.losses import unknown_sizes
from recover.repair.rebuild import RebuildOptions, write_derived
from recover.repair.recover import RecoverOptions, plan_recover
from recover.store.columns import Rows
from recover.store.config_files import LMQ_PREFIX, Topics, topic_text
from recover.store.reading import Piece, in_order, zeros
from recover.store.source import open_file, url_of
from recover.store.store import COMMITLOG, CONFIG, JOURNAL_DIR, Store, StoreOptions

PART = ".part"
_PIECE = 8 << 20
_TIMER = ("timerwheel", "timerlog")
_TIMER_CHECK = "timercheck"


def write_store(
    scanned: Scanned, wanted: Wanted, output: Path, options: ScanOptions, settings: dict[str, str], *,
    note: Callable[[str], None], progress: Callable[[int, int], None] | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> NewStore:
    """Write the wanted records of a source to `output`, a new folder, which appears when it is complete.

    `settings` are those of the broker that will read it.

    `Refusal` (8) if nothing is wanted, a bridge does not fit, or the disk fails; nothing is left behind then.
    """
    output = output.absolute()
    part = output.with_name(output.name + PART)
    files = [on_disk(file.path) for file in scanned.log.queue.files]
    sources = [(path.parent, path.parent.name) for path in files if url_of(path) is not None or path.exists()]
    for target in (output, part):
        if target.exists():
            raise Refusal(Phrase("{path} exists", path=target), "Name a new folder, or remove this one.",
                          path=str(target))
        check_target(sources, target)
    with new_folder(part) as tree:
        made = NewStore(scanned, wanted, note)
        made.write_log(part, progress, interrupted)
        made.derive(part, options, settings)
        tree.open_up()
        disk.rename(part, output)
        disk.fsync_dir(output.parent)
    return made


class NewStore:
    """The rows that the new log keeps, and what is written: messages by topic, their bytes, bridged positions, and the
    verify `report` of it. `assumed_settings`: by setting, a file length that nothing told. `batch`: topics whose batch
    queues the first start of a broker writes."""

    report: VerifyReport
    batch: list[str]
    assumed_settings: dict[str, int]

    def __init__(self, scanned: Scanned, wanted: Wanted, note: Callable[[str], None]) -> None:
        self.log, self.store, self.wants_everything = scanned.log, scanned.source.store, wanted.wants_everything
        self.topics: Counts = Counter()
        self.size = self.bridged = 0
        offsets = array("q")
        for item in selected(scanned, wanted, note):
            offsets.append(item.message.phy_offset)
            self.topics[count_key(item.message)] += 1
            self.size += item.message.size
        # those of settled transactions go with any --topic
        if not offsets or (wanted.topics and all(kind == "op" for _, kind in self.topics)):
            of_all = N_("Name a source that holds messages.") if self.store is None else \
                N_("`mqtool verify {store}` reports the state of the log.")
            why = of_all if wanted.wants_everything else N_("Check the filters.")
            raise Refusal("no message matches, and a store needs at least one", why)
        self.kept: Rows = np.frombuffer(offsets, dtype=np.int64)
        self.queues = [QueueKey(topic_text(topic), queue_id) for topic, queue_id in self.log.queues]
        self.numbers = {key: number for number, key in enumerate(self.queues)}
        self.file_size = self.log.queue.file_size
        self.begin = int(self.kept[0]) // self.file_size * self.file_size
        self.first, self.last = self._spans()
        self.lost = self._lost()
        self.starts = sorted(self.lost)
        self.before: Neighbour | None = None

    def _spans(self) -> tuple[Rows, Rows]:
        """Return for each queue the first and last position that must be filled; last is -1 if there is none."""
        first = np.full(len(self.log.queues), np.iinfo(np.int64).max)
        last = np.full(first.size, -1)
        for scan in self.log.files:
            rows = scan.records()
            rows = rows[with_place(rows) & np.isin(rows["phy_offset"], self.kept)]
            np.minimum.at(first, rows["queue"], rows["queue_offset"])
            np.maximum.at(last, rows["queue"], rows["queue_offset"])
        if self.begin == 0:
            first[:] = 0
        lmq = [key.topic.startswith(LMQ_PREFIX) for key in self.queues]
        last[np.array(lmq, dtype=bool)] = -1
        return first, last

    def _lost(self) -> dict[int, list[LostPosition]]:
        """Lost positions by the start of their damage."""
        with tempfile.TemporaryDirectory(prefix="mqtool-no-store-") as nothing:
            topics = Topics(self.store or Store(Path(nothing), StoreOptions()), include_deleted=True)
            losses = lost_positions(self.log, expect(self.log, topics), None)
        return {damage.start: losses.by_damage[number] for number, damage in enumerate(self.log.damaged)}

    def write_log(
        self, root: Path, progress: Callable[[int, int], None] | None, interrupted: Callable[[], bool],
    ) -> None:
        disk.mkdir(root / COMMITLOG)
        scans = {scan.mapped_file.file_from_offset: scan for scan in self.log.files}
        end = int(self.kept[-1])
        for base in range(self.begin, end + 1, self.file_size):
            stop_if(interrupted, N_("stopped; what was written so far was removed"))
            pieces = self._file(base, scans.get(base), is_last=base + self.file_size > end)
            disk.create_from_pieces(root / COMMITLOG / offset_to_name(base), pieces, disk.MODE)
            if progress is not None:
                progress(self.file_size, int(np.searchsorted(self.kept, base + self.file_size)
                                             - np.searchsorted(self.kept, base)))
        disk.fsync_dir(root / COMMITLOG)

    def _file(self, base: int, scan: FileScan | None, *, is_last: bool) -> Iterator[Piece]:
        """The pieces of one file, ascending."""
        stop = base + self.file_size
        kept = self.kept[np.searchsorted(self.kept, base) : np.searchsorted(self.kept, stop)]
        rows = scan.records() if scan is not None else np.empty(0, dtype=RECORD)
        is_kept = np.isin(rows["phy_offset"], kept)
        # brokers read a batch queue over positions without a unit
        taken, left = rows[is_kept], rows[~is_kept & with_place(rows) & ((rows["bits"] & BIT_INNER_BATCH) == 0)]
        left = left[(left["queue_offset"] >= self.first[left["queue"]])
                    & (left["queue_offset"] <= self.last[left["queue"]])]
        starts = taken["phy_offset"].astype(np.int64)
        ends = starts + taken["size"]
        at = base
        breaks = [*np.flatnonzero(np.r_[True, starts[1:] != ends[:-1]]).tolist(), taken.size] if taken.size else []
        for first, behind in pairwise(breaks):
            run, run_end = int(starts[first]), int(ends[behind - 1])
            if run > at:
                yield from self._bridge(base, at, run, neighbour_in(taken, first), left, to_file_end=False)
            assert scan is not None
            yield from _copied(scan, base, run, run_end)
            self.before = neighbour_in(taken, behind - 1)
            at = run_end
        if is_last:
            for chunk in zeros(stop - at):
                yield at - base, chunk
                at += len(chunk)
        elif scan is not None and scan.blank == at:
            yield at - base, encode_blank(stop - at)
            after = at - base + len(encode_blank(stop - at))
            yield from in_order(zeros(self.file_size - after), after)
        else:
            yield from self._bridge(base, at, stop, self.before, left, to_file_end=True)

    def _bridge(
        self, base: int, start: int, stop: int, behind: Neighbour | None, left: Rows, *, to_file_end: bool
    ) -> Iterator[Piece]:
        low, high = np.searchsorted(left["phy_offset"], [start, stop])
        lost = [
            LostPosition(self.queues[int(row["queue"])], int(row["queue_offset"]), int(row["phy_offset"]),
                         int(row["size"])) for row in left[low:high]
        ]
        for damage in self.starts[bisect_left(self.starts, start) : bisect_left(self.starts, stop)]:
            for position in self.lost[damage]:
                number = self.numbers.get(position.key)
                if number is not None and self.first[number] <= position.queue_offset <= self.last[number]:
                    lost.append(position)
        lost.sort(key=lambda position: (position.key, position.queue_offset))
        self.bridged += len(lost)
        bridge = Bridge(range_between(start, stop, (self.before, behind), to_file_end=to_file_end), lost)
        at = start - base
        for chunk in bridge.content.chunks():
            yield at, chunk
            at += len(chunk)
        yield from in_order(zeros(stop - base - at), at)

    def derive(self, root: Path, options: ScanOptions, settings: dict[str, str]) -> None:
        """Write config, queues, index and checkpoint; then apply what recover still finds to do."""
        source = self.store
        if source is not None:
            _copy_config(source, root, whole=self.wants_everything)
        opened = Store(root, StoreOptions(mapped_file_size=self.file_size, settings=settings))
        self.assumed_settings = unknown_sizes(opened)
        if source is not None and source.queue_file_size_is_told:
            opened.queue_file_size, self.assumed_settings = source.queue_file_size, {}
        fresh = structs.replace(options, include_deleted=True)
        write_derived(opened, RebuildOptions(scan=fresh), root, source)
        repair = plan_recover(Store.open(root, opened.options), RecoverOptions(scan=options, clamp_offsets=True))
        self.report = repair.before
        if repair.plan.steps:
            apply_plan(root, seal(repair.plan, root))
            disk.remove_tree(root / JOURNAL_DIR)
            self.report = verify(Store.open(root, opened.options), options)
        made = Store.open(root, opened.options)
        self.batch = sorted({topic for topic, _ in self.topics} & Topics(made).batch)
        if self.batch:
            # after an unclean stop a broker dispatches all records again, from the first file if no checkpoint names
            # another one
            disk.create_from_pieces(made.abort_path, (), disk.MODE)
            disk.unlink(made.checkpoint_path)
            self.report = verify(Store.open(root, opened.options), options)


def _copied(scan: FileScan, base: int, start: int, stop: int) -> Iterator[Piece]:
    with open_file(scan.mapped_file.path) as reader:
        for at in range(start - base, stop - base, _PIECE):
            yield at, bytes(reader.read(at, min(_PIECE, stop - base - at)))


def _copy_config(source: Store, root: Path, *, whole: bool) -> None:
    """Copy the config files; those of the timer only if `whole`, since they count positions in a log without gaps."""
    disk.mkdir(root / CONFIG)
    paths = sorted(source.config_dir.iterdir()) if source.config_dir.is_dir() else []
    for path in paths:
        if path.is_file() and (whole or not path.name.startswith(_TIMER_CHECK)):
            copy_file(path, root / CONFIG / path.name)
    for name in _TIMER if whole else ():
        path = source.root / name
        if path.is_file():
            copy_file(path, root / name)
        elif path.is_dir():
            disk.mkdir(root / name)
            for file in sorted(path.iterdir()):
                copy_file(file, root / name / file.name)
    disk.fsync_dir(root / CONFIG)
