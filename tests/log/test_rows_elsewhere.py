"""A log whose rows lie elsewhere: the same answers, with rows of damage, and of what differs, alone."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from datetime import UTC
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import Struct

from fixtures.damage import RECIPES, damage
from fixtures.synth import synth_store
from formats.consumequeue import CQ_UNIT
from recover.check.report import verify
from recover.cluster import splits
from recover.cluster.jobs import Job, Views
from recover.cluster.splits import RowsElsewhere, digest_of, summary_of
from recover.derived.index_check import check_index
from recover.derived.index_rebuild import rebuild_index
from recover.findings.code import Refusal
from recover.log.file_scan import FileScan
from recover.log.scan import SEED, LocalEngine, LogView, assemble
from recover.log.split_scan import scan_files, splits_of
from recover.look.store import default_broker
from recover.reading.facts import ScanOptions
from recover.repair.recover import RecoverOptions, plan_recover
from recover.store.columns import ColumnStore, Foresight, Split
from recover.store.mapped_files import MappedFile, MappedFileQueue
from tests.support.analysed import opened
from tests.support.sampling import few, sampled
from tests.support.stores import STORES, copy_store, real_store, strike
from tests.torture.trouble import failing_reads

SYNTH = "synth"
EVERY = (*STORES, SYNTH)


class Elsewhere(Struct):
    """An engine that keeps the rows of splits of so many bytes, and hands out what it is asked for.

    `brought` are the first phy offsets of the splits whose rows it had to hand out, `answered` how many rows it
    answered questions with, `rounds` how often it was asked some. `foresees`: the scan answers what will be asked.
    """

    size: int = 7_001
    foresees: bool = True
    brought: list[int] = []
    answered: int = 0
    rounds: int = 0
    kept: list[Split] = []

    def scan_log(
        self, queue: MappedFileQueue, foresight: Callable[[], Foresight] | None = None, **how: Any,
    ) -> LogView:
        foreseen = foresight() if foresight is not None and self.foresees else None
        scans = scan_files([splits_of(file, queue.file_size, self.size) for file in queue.files], 1)
        for scan in scans:
            scan.splits = [self._away(split, len(scan.queues), foreseen) for split in scan.splits]
        return assemble(queue, scans)

    def producer(self, *_: object) -> None:
        """Build nothing elsewhere."""

    def _away(self, split: Split, queues: int, foreseen: Foresight | None) -> Split:
        question = None if foreseen is None else foreseen.within(split.first, split.end)
        summary = pickle.loads(pickle.dumps(summary_of(split, queues, SEED, question)))
        if summary is None:
            return split
        self.kept.append(split)
        return Split.elsewhere(summary, self, len(self.kept) - 1)

    def fetch_rows(self, split: Split) -> None:
        self.brought.append(split.first)
        kept = self.kept[split.place]
        split.take(kept.records.copy(), kept.hashes.copy())

    def ask(self, questions: Sequence[tuple[Split, Callable[[Split], Any]]]) -> list[Any]:
        self.rounds += 1
        found = [pickle.loads(pickle.dumps(question))(self.kept[split.place]) for split, question in questions]
        self.answered += sum(len(one) for one in found if hasattr(one, "dtype"))
        return found

    def spread(self, function: Callable[[Any], Any], items: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
        assert len(items) == len(sizes)
        return [function(item) for item in pickle.loads(pickle.dumps(items))]

    def confirm(self) -> None:
        pass

    def json(self) -> dict[str, Any]:
        return {}


def said(root: Path, engine: Elsewhere | None = None) -> dict[str, Any]:
    """What verify says of a store, but how long it took."""
    report = verify(opened(root), ScanOptions(engine=engine or LocalEngine()))
    return {**report.json(), "seconds": 0, "engine": 0, "findings": [item.json() for item in report.findings.sorted()]}


def planned(root: Path, engine: Elsewhere | None = None) -> object:
    """What recover would do to a store, to the byte; or why not."""
    try:
        made = plan_recover(opened(root), RecoverOptions(ScanOptions(engine=engine or LocalEngine()), max_loss=None))
    except Refusal as refusal:
        return refusal.message
    contents = [None if step.content is None else b"".join(map(bytes, step.content.chunks()))
                for step in made.plan.steps]
    return [step.json() for step in made.plan.steps], contents, made.plan.loss


@pytest.mark.parametrize(("recipe", "name"), sampled(RECIPES, EVERY, quick=2, one_in=400))
def test_a_damaged_store_is_judged_the_same_wherever_rows_are(recipe: str, name: str, tmp_path: Path) -> None:
    root = real_store(name, tmp_path) if name != SYNTH else synth_store(
        tmp_path / "s", messages=600, mapped_file_size=32 * 1024).root
    strike(recipe, root, 4)
    assert said(root, Elsewhere()) == said(root)
    assert planned(root, Elsewhere()) == planned(root)


QUEUE = 6_000
"""Messages of each queue."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of four queues, to copy."""
    return synth_store(
        tmp_path_factory.mktemp("large") / "s", messages=4 * QUEUE, topics=2, queues=2, mapped_file_size=4 << 20,
        index_slots=5_000, index_entries=10_000, queue_file_size=QUEUE * CQ_UNIT.size,
    ).root


@few(("recipe", "splits", "positions"), [
    (None, 0, 0), ("checkpoint-missing", 0, 0), ("index-all-missing", 0, 0), ("index-middle-missing", 0, 0),
    ("stale-behind-tail", 0, 0), ("all-queues-missing", 0, 0), ("queue-unit-size", 1, 2 * QUEUE),
    # the damaged split, the log's last, and the three of the index file that is wrong there; a queue, asked twice
    ("bit-in-body", 5, 2 * QUEUE), ("torn-tail", 3, 3 * QUEUE),
    # the split with the older record; the queue that falls back is asked about twice more
    ("record-older-whole", 4, 6 * QUEUE),
], quick=(0, 4, 6, 7))
def test_rows_come_of_damage_and_of_what_differs_alone(
    recipe: str | None, splits: int, positions: int, large: Path, tmp_path: Path
) -> None:
    root = copy_store(large, tmp_path / "s")
    if recipe:
        damage(recipe, root)
    engine = Elsewhere(1 << 19)
    said(root, engine)
    assert len(engine.kept) > 2 * 5
    assert len(engine.brought) <= splits
    assert engine.answered <= positions


@few("name", ["clean-5.3.3", "killed-5.5.0"], quick=1)
def test_what_timer_entries_name_is_looked_up_where_the_rows_are(name: str, tmp_path: Path) -> None:
    root, engine = real_store(name, tmp_path), Elsewhere(1 << 16)
    timers = [found for found in engine.scan_log(opened(root).commitlog).queues if found[0] == b"rmq_sys_wheel_timer"]
    assert timers and (root / "timerlog").is_dir()
    assert said(root, engine) == said(root)
    assert not engine.brought


def test_the_release_is_told_by_who_has_the_rows_and_the_log_is_not_read_again(large: Path) -> None:
    store, wide = opened(large), list[str]()

    def note(path: str, _offset: int, length: int) -> bool:
        wide.extend([path] if "/commitlog/" in path and length > 4096 else [])
        return False

    log = Elsewhere(1 << 19).scan_log(store.commitlog)
    with failing_reads(note):
        found = default_broker(store, log)
    assert not wide and found == default_broker(store)


def test_where_index_files_begin_and_end_is_one_round_of_questions_and_no_rows(large: Path) -> None:
    store, engine = opened(large), Elsewhere(1 << 19)
    made, rounds = [], []
    for log in (engine.scan_log(store.commitlog), LocalEngine().scan_log(store.commitlog)):
        report = check_index(store, log)
        rounds.append(engine.rounds)
        files = rebuild_index(store, log, fresh=True, zone=UTC, report=report).files
        made.append([(file.name, file.units, file.end_timestamp) for file in files])
    assert made[0] == made[1] and len(made[0]) > 2
    assert engine.rounds == rounds[0] + 1 and not engine.brought


def with_index_files(root: Path, count: int) -> Path:
    """A store with so many index files of 20 units."""
    synth_store(root, messages=10 * count, mapped_file_size=1 << 18, body=20, index_slots=7, index_entries=21)
    assert len([*(root / "index").iterdir()]) == count
    return root


def test_many_index_files_are_asked_about_in_as_many_rounds_as_few(tmp_path: Path) -> None:
    rounds = {}
    for count in (8, 80, 600):
        engine = Elsewhere(1 << 14, foresees=False)
        root = with_index_files(tmp_path / str(count), count)
        assert said(root, engine) == said(root)
        assert not engine.brought
        rounds[count] = engine.rounds
    assert rounds == {8: 1, 80: 1, 600: 1}


@few("count", [8, 80, 600], quick=(1,))
def test_a_scan_adds_up_what_sound_index_files_hold_and_nothing_is_asked_afterwards(count: int, tmp_path: Path) -> None:
    root, engine = with_index_files(tmp_path / "s", count), Elsewhere(1 << 14)
    assert said(root, engine) == said(root)
    assert not engine.rounds and not engine.brought


@few("recipe", [
    "index-unit-hash", "index-chain-cycle", "index-short", "index-middle-missing", "index-count-too-large",
], quick=(0, 3))
def test_one_index_file_among_many_is_judged_the_same_wherever_rows_are(recipe: str, tmp_path: Path) -> None:
    root = with_index_files(tmp_path / "s", 40)
    damage(recipe, root, 4)
    assert said(root, Elsewhere(1 << 14)) == said(root)
    assert planned(root, Elsewhere(1 << 14)) == planned(root)


def test_a_split_of_one_scan_is_not_one_of_another_scan_that_has_its_number(tmp_path: Path) -> None:
    root = synth_store(tmp_path / "s", messages=600, mapped_file_size=1 << 20).root
    (whole,) = [split for scan in LocalEngine().scan_log(opened(root).commitlog).files for split in scan.splits]
    half = Split(whole.records[:300], whole.hashes[: int(whole.records["hashes"][:300].sum())])
    holders, logs = [], []
    for rows in (whole, half):
        holder = RowsElsewhere(cast(Job, None), ColumnStore(0), Views(0))
        summary = summary_of(rows, 64, SEED)
        assert summary is not None
        scan = FileScan(MappedFile(root, 0, 1 << 20), 1 << 20)
        scan.splits, scan.queues = [holder.split(0, summary, 0)], [(b"t", number) for number in range(64)]
        logs.append(assemble(MappedFileQueue((), 1 << 20, [scan.mapped_file]), [scan]))
        holders.append(holder)
    assert holders[1].sources(logs[1]) == ({0: 0}, [])
    kept, here = holders[1].sources(logs[0])
    assert not kept and [number for number, _ in here] == [0]


def test_another_row_hash_or_queue_is_another_digest(tmp_path: Path) -> None:
    root = synth_store(tmp_path / "s", messages=600, mapped_file_size=1 << 20).root
    log = LocalEngine().scan_log(opened(root).commitlog)
    (whole,) = log.splits()
    digest = digest_of(whole, log.queues)
    whole.records["tags_code"][7] ^= 1
    assert digest_of(whole, log.queues) != digest
    whole.records["tags_code"][7] ^= 1
    whole.hashes[7] ^= 1
    assert digest_of(whole, log.queues) != digest
    whole.hashes[7] ^= 1
    assert digest_of(whole, log.queues[::-1]) != digest == digest_of(whole, log.queues)


def test_a_task_with_the_driver_s_mounts_records_no_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "enter", lambda: None)
    queue = opened(synth_store(tmp_path / "s", messages=600, mapped_file_size=1 << 20).root).commitlog
    (part,) = splits_of(queue.files[0], queue.file_size)
    homes = []
    for is_local in (True, False):
        ((_, content, _),) = splits.scan_splits([splits.ScanTask(0, part, is_local=is_local)])
        homes.append(splits.unpacked(content))
    local, remote = homes
    assert isinstance(local, splits.Home) and isinstance(remote, splits.Home)
    assert not local.reads.files and [*remote.reads.files] == [str(part.mapped_file.path)]
    assert local.digest == remote.digest
