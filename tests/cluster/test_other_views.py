"""A worker that sees other files of the same name: refused with host and file, and nothing is made of its bytes."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from fixtures.damage import damage, of_area, walk
from fixtures.synth import synth_store
from mqtool import exits
from recover.check.report import verify
from recover.cluster import export
from recover.cluster.jobs import TaskReads, Views
from recover.findings.code import Refusal
from recover.log.file_scan import SplitRange, SplitScan, scan_split
from recover.log.scan import LogView, assemble
from recover.log.split_scan import Again, join_files, splits_of
from recover.reading.facts import ScanOptions
from recover.repair.rebuild import RebuildOptions, plan_rebuild, write_rebuild
from recover.repair.recover import RecoverOptions, plan_recover
from recover.store.columns import ask
from recover.store.mapped_files import MappedFile, MappedFileQueue
from recover.store.reading import recorded
from recover.store.source import open_file
from recover.store.store import Store
from tests.cli.runner import mqtool
from tests.cluster.cluster import Cluster, can_mount
from tests.cluster.twice import needs_spark
from tests.support.sampling import sampled
from tests.support.stores import copy_store, flip, real_store, strike
from tests.support.trees import assert_same_tree, assert_unchanged, contents, tree_digest

TRIES = 1
SPLIT = 100_003

Strike = Callable[[Path, random.Random], None]
"""Makes another store of the same files."""


def _records_by_split(root: Path) -> Iterator[list[walk.Located]]:
    """The records that begin in each split of each log file, where one does."""
    for file in walk.log_files(root):
        found = list(walk.records_of(file))
        for start in range(0, file.path.stat().st_size, SPLIT):
            if inside := [hit for hit in found if start <= hit.position < start + SPLIT]:
                yield inside


def _in_each_split(place: Callable[[walk.Located], int]) -> Strike:
    """Change one bit of a record in each split, which stays a whole file of the same length."""

    def strike(root: Path, dice: random.Random) -> None:
        for inside in _records_by_split(root):
            hit = dice.choice([one for one in inside if one.record.body])
            flip(hit.file.path, hit.position + place(hit))

    return strike


def _other_run(root: Path, dice: random.Random) -> None:
    """The log of another store of the same layout, cut or filled up to the same lengths."""
    other = root.with_name("other-run")
    size = walk.log_files(root)[0].path.stat().st_size
    synth_store(other, messages=3_000, mapped_file_size=size, seed=dice.randrange(1000))
    found = [file.path.read_bytes() for file in walk.log_files(other)]
    for number, file in enumerate(walk.log_files(root)):
        file.path.write_bytes(found[min(number, len(found) - 1)])
    shutil.rmtree(other)


def _in_each_file(folder: str, least: int) -> Strike:
    """Change one bit after the first `least` bytes of what each file of a folder stores."""

    def strike(root: Path, dice: random.Random) -> None:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and (used := len(path.read_bytes().rstrip(b"\0"))) > least:
                flip(path, dice.randrange(least, used))

    return strike


LOG: dict[str, Strike] = {
    "a bit of a body": _in_each_split(lambda hit: hit.record.total_size // 2),
    "queue offset": _in_each_split(lambda _hit: 27),
    "store time": _in_each_split(lambda _hit: 63),
    "queue id": _in_each_split(lambda _hit: 15),
    "flag": _in_each_split(lambda _hit: 19),
    "another run": _other_run,
}
FOLDERS = {"queue unit": "consumequeue", "ext unit": "consumequeue_ext"}
DERIVED: dict[str, Strike] = {
    "ext unit": _in_each_file("consumequeue_ext", 0),
    "queue unit": _in_each_file("consumequeue", 0),
    "index file": _in_each_file("index", 40),
}


class Worker:
    """An engine whose worker finds other files under the store's names."""

    def __init__(self, elsewhere: Path) -> None:
        self.elsewhere = elsewhere
        self.views = Views(time.time())

    def scan_log(self, queue: MappedFileQueue, **_options: Any) -> LogView:
        there = [structs.replace(own, path=self.elsewhere / "commitlog" / own.path.name) for own in queue.files]
        own = dict(zip(there, queue.files, strict=True))

        def scan(splits: list[Again]) -> list[SplitScan | OSError]:
            return [self._scan(own[part.mapped_file], part, entry) for part, entry in splits]

        parts = [splits_of(file, queue.file_size, SPLIT) for file in there]
        scans = join_files(parts, scan([(part, None) for each in parts for part in each]), scan, None)
        for found in scans:
            found.mapped_file = own[found.mapped_file]
        log = assemble(queue, scans)
        self.views.check_damage(log)
        return log

    def producer(self, *_: object) -> None:
        """Build nothing elsewhere."""

    def _scan(self, own: MappedFile, part: SplitRange, entry: int | None = None) -> SplitScan:
        with recorded() as files:
            scan = scan_split(part, entry)
        # kept without the look at its first bytes: what is elsewhere has to be noticed, too
        for reads in files.values():
            self.views.reads.setdefault(str(own.path.absolute()), []).append(("worker-7", reads))
        return scan

    def confirm(self) -> None:
        self.views.confirm()

    def json(self) -> dict[str, Any]:
        return {}


def _scan(other: Path) -> ScanOptions:
    return ScanOptions(engine=Worker(other))


def _needs_work(root: Path) -> Path:
    """The store without one queue file and its index."""
    next(path for path in sorted((root / "consumequeue").rglob("0*")) if path.is_file()).unlink()
    shutil.rmtree(root / "index")
    return root


@pytest.mark.parametrize(("command", "difference"), [
    ("recover", "a bit of a body"), ("rebuild", "queue id"), ("rebuild --output", "another run"),
    *(pytest.param("recover", difference, marks=pytest.mark.long) for difference in list(LOG)[1:]),
])
def test_no_plan_is_made_of_bytes_that_only_a_worker_sees(tmp_path: Path, difference: str, command: str) -> None:
    root = _needs_work(real_store("clean-5.3.3", tmp_path / "a"))
    other = copy_store(root, tmp_path / "b" / root.name)
    LOG[difference](other, random.Random(5))
    with assert_unchanged(root), pytest.raises(Refusal, match="host worker-7 reads another file as ") as refused:
        if command == "recover":
            plan_recover(Store.open(root), RecoverOptions(scan=_scan(other)))
        elif command == "rebuild":
            plan_rebuild(Store.open(root), RebuildOptions(scan=_scan(other)))
        else:
            write_rebuild(Store.open(root), RebuildOptions(scan=_scan(other)), tmp_path / "out")
    assert refused.value.exit_code == exits.OPERATIONAL
    facts = refused.value.facts
    assert facts["host"] == "worker-7" and Path(str(facts["file"])).parent == root / "commitlog"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("recipe", ["bit-in-body", "page-random", "first-page-zeroed", "bit-in-phy-offset"])
def test_damage_that_only_a_worker_sees_is_no_finding(tmp_path: Path, recipe: str) -> None:
    root, other = real_store("clean-5.3.3", tmp_path / "a"), real_store("clean-5.3.3", tmp_path / "b")
    hit = damage(recipe, other)
    with pytest.raises(Refusal, match="worker-7 reads another file") as refused:
        verify(Store.open(root), _scan(other))
    facts = refused.value.facts
    base = int(Path(str(facts["file"])).name)
    assert base + int(str(facts["start"])) <= hit.changed[0] < base + int(str(facts["stop"]))


@pytest.mark.parametrize("recipe", sampled(of_area("log", "files", "crash", "witness"), quick=3, one_in=24))
def test_a_worker_that_sees_the_same_is_believed(tmp_path: Path, recipe: str) -> None:
    root = real_store("clean-manyfiles-5.3.3", tmp_path)
    strike(recipe, root)

    def steps(scan: ScanOptions) -> Any:
        try:
            return [step.json() for step in plan_recover(Store.open(root), RecoverOptions(scan=scan)).plan.steps]
        except Refusal as refused:
            return refused.message

    assert steps(_scan(root)) == steps(ScanOptions())


def test_a_file_of_another_length_is_noticed_though_the_rest_was_not_read(tmp_path: Path) -> None:
    (tmp_path / "own").write_bytes(b"abc")
    (tmp_path / "other").write_bytes(b"ab")
    with recorded() as files, open_file(tmp_path / "other") as reader:
        reader.read(0, 2)
    seen = TaskReads({str(tmp_path / "own"): files[str(tmp_path / "other")]}, "worker-7")
    views = Views(time.time() + 10)
    with pytest.raises(Refusal, match="worker-7 reads another file"):
        views.take(seen)


def test_what_both_see_as_one_file_in_one_state_is_not_read_again(tmp_path: Path) -> None:
    root = _needs_work(real_store("clean-5.3.3", tmp_path / "a"))
    copy = tmp_path / "b" / root.name
    copy.parent.mkdir()
    subprocess.run(["cp", "-a", root, copy], check=True)
    for there, is_read in ((root, False), (copy, True)):
        scan = _scan(there)
        plan_recover(Store.open(root), RecoverOptions(scan=scan))
        engine = scan.engine
        assert isinstance(engine, Worker) and (engine.views.compared > 0) == is_read


@pytest.mark.parametrize("ahead", [0, 3600])
def test_a_clock_ahead_does_not_make_another_file_a_written_one(tmp_path: Path, ahead: int) -> None:
    root, other = real_store("clean-5.3.3", tmp_path / "a"), real_store("clean-5.3.3", tmp_path / "b")
    damage("page-random", other)
    for path in (*root.rglob("0*"), *other.rglob("0*")):
        os.utime(path, (time.time() + ahead,) * 2)
    with pytest.raises(Refusal, match="worker-7 reads another file"):
        verify(Store.open(root), _scan(other))


def test_a_file_that_a_broker_writes_to_is_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000"
    path.write_bytes(bytes(9000))
    views = Views(time.time() + 10)
    views.look([path])
    with recorded() as files, open_file(path) as reader:
        reader.read(0, 9000)
    flip(path, 5)
    views.take(TaskReads(files, "worker-7"))


@pytest.mark.deep
@pytest.mark.skipif(not can_mount(), reason="NOT RUN: no process with mounts of its own can be started here")
class TestCluster:
    """Two workers, the second of which finds another store at the path."""

    pytestmark = needs_spark

    @pytest.mark.parametrize("kinds", [
        ["a bit of a body", *DERIVED],
        pytest.param(["another run", "queue offset", "store time", "queue id", "flag"], marks=pytest.mark.long),
    ], ids=", ".join)
    def test_what_is_written_is_never_made_of_another_file(
        self, running: Cluster, tmp_path: Path, kinds: list[str]
    ) -> None:
        pristine = real_store("killed-ext-5.5.0", tmp_path / "pristine")
        # each queue with units has work for the executors, which read its files and its ext files
        for path in (pristine / "consumequeue").rglob("0*"):
            if path.is_file() and (used := len(path.read_bytes().rstrip(b"\0"))):
                flip(path, used - 1)
        root, other, local = (copy_store(pristine, tmp_path / name / "store") for name in ("a", "b", "c"))
        assert mqtool("recover", local, "--yes", "--json").code & ~7 == 0
        refused: dict[str, list[str]] = defaultdict(list)
        line = running.line(f"mqtool.splitSize={SPLIT}")
        # both executors have Python by then: the task of one that does not start it in time goes to the other
        assert mqtool("verify", local, *line).code == 0
        with running.mounted(other, root):
            for seed in range(TRIES):
                for name in kinds:
                    _renew(root, pristine)
                    _renew(other, pristine)
                    (LOG | DERIVED)[name](other, random.Random(seed))
                    before = tree_digest(root)
                    done = mqtool("recover", root, "--yes", "--json", *line)
                    if done.code & exits.OPERATIONAL:
                        refused[name].append(done.document["error"]["message"])
                    if done.code & exits.OPERATIONAL and not done.document.get("applied"):
                        assert_same_tree(before, tree_digest(root))
                    else:  # the other worker got no task, or none before the check of the result
                        assert contents(root) == contents(local), f"{name}, try {seed}"
        host = socket.gethostname()
        for name in {*kinds} - {"index file"}:
            said, folder = refused[name], FOLDERS.get(name, "commitlog")
            assert any(f"host {host} reads another file as {root}/{folder}/" in one for one in said), said

    def test_the_driver_reads_a_fiftieth_of_a_log_that_all_see_alike(self, running: Cluster, tmp_path: Path) -> None:
        small = synth_store(tmp_path / "small").root
        root = synth_store(tmp_path / "s", messages=18_000, body=30_000, mapped_file_size=64 << 20).root
        shutil.rmtree(root / "index")
        size = sum(path.stat().st_blocks * 512 for path in (root / "commitlog").iterdir())
        assert size > 250 << 20
        figures = []
        # the first starts a session, the second tells what a command reads whatever the log is
        for line in (("verify", small), ("verify", small), ("rebuild", root, "--output", tmp_path / "out"),
                     ("recover", root, "--output", tmp_path / "copy", "--yes"), ("recover", root, "--yes")):
            before = _read_so_far()
            done = mqtool(*line, *running.line())
            figures.append(_read_so_far() - before)
            assert done.code & ~7 == 0 and "again to compare" not in done.stderr
        _, fixed, rebuilt, copied, recovered = figures
        # a copy is read once and checked by a second scan
        assert max(rebuilt - fixed, recovered - fixed, copied - size - 2 * fixed) <= size / 50, (figures, size)

    def test_what_is_exported_is_never_read_of_another_file(
        self, running: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root = real_store("clean-5.3.3", tmp_path / "a")
        other = copy_store(root, tmp_path / "b" / root.name)
        _other_run(other, random.Random(1))

        def late(questions: Any) -> list[Any]:
            # as an executor that joins after the scan, on a host where another store lies
            with running.mounted(other, root):
                return ask(questions)

        monkeypatch.setattr(export, "ask", late)
        done = mqtool("export", root, "-o", tmp_path / "out", "--format", "parquet", "--json",
                      *running.line(f"mqtool.splitSize={SPLIT}"))
        assert done.code == exits.OPERATIONAL and not (tmp_path / "out").exists()
        assert f"reads another file as {root}/commitlog/" in done.document["error"]["message"]


def _read_so_far() -> int:
    """Bytes that this process has read by system calls, from files and sockets."""
    return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["rchar"])


def _renew(root: Path, pristine: Path) -> None:
    """Fill a folder, which stays the same one, with what a store holds."""
    for path in root.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in pristine.iterdir():
        if path.is_dir():
            shutil.copytree(path, root / path.name)
        else:
            shutil.copy2(path, root / path.name)
