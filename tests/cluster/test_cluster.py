"""A cluster of two workers: the same answers, from executors that do not have our code, and when one is gone."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage import damage
from fixtures.synth import synth_store
from recover.change.journal import journal
from recover.cluster import engine as engines, making
from recover.cluster.engine import SparkEngine
from recover.cluster.jobs import run_job
from recover.cluster.making import SparkProducer
from recover.cluster.session import session_for, spark_settings, stop_session
from recover.findings.code import Refusal
from recover.log.file_scan import FileScan
from recover.log.scan import LocalEngine, LogView, assemble
from recover.log.split_scan import one_split
from recover.store.mapped_files import MappedFileQueue
from recover.store.store import Store
from tests.cli.runner import mqtool
from tests.cluster.cluster import Cluster, cluster
from tests.cluster.twice import needs_spark, plain
from tests.support.stores import copy_store, flip, real_store, struck_store, write_at
from tests.support.trees import assert_unchanged, contents, tree_digest

pytestmark = [pytest.mark.deep, *needs_spark]

ROOT = Path(__file__).resolve().parents[2]


def test_a_cluster_says_and_does_what_this_machine_does(running: Cluster, tmp_path: Path) -> None:
    root = real_store("clean-manyfiles-5.3.3", tmp_path)
    path = sorted((root / "commitlog").iterdir())[1]
    write_at(path, 5000, b"\x55" * 300)
    spark = running.line("mqtool.splitSize=400009")
    with assert_unchanged(root):
        local = mqtool("verify", root, "--json")
        there = mqtool("verify", root, "--json", *spark)
    assert there.code == local.code != 0, there.stderr
    assert plain(there.document, root) == plain(local.document, root)
    for name, line in (("a", ()), ("b", spark)):
        result = mqtool("rebuild", root, "--output", tmp_path / name, *line, "--json")
        assert result.code == local.code & 4, result.stderr
    made = [{path: node.sha256 for path, node in tree_digest(tmp_path / name).items()} for name in ("a", "b")]
    assert made[0] == made[1] and len(made[0]) > 10


def test_executors_that_do_not_see_the_store_are_named_before_anything_starts(
    running: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_store("clean-5.3.3", tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    # a path that means another folder in every process
    result = mqtool("verify", "/proc/self/cwd/clean-5.3.3", "--json", *running.line())
    assert result.code == 8
    assert "cannot see /proc/self/cwd/clean-5.3.3/commitlog/" in result.document["error"]["message"]
    assert "same path on every worker" in result.document["error"]["remedy"]


def test_a_worker_and_its_executor_that_are_killed_cost_time_and_nothing_else(running: Cluster, tmp_path: Path) -> None:
    synth_store(tmp_path / "s", messages=4_000, mapped_file_size=1 << 20)
    store = Store.open(tmp_path / "s")
    confs = ("mqtool.splitSize=20011", *running.line()[3::2])
    engine = SparkEngine(spark_settings(running.url, confs))
    calls: list[int] = []

    def killing(size: int, _records: int) -> None:
        calls.append(size)
        if len(calls) == 3:
            assert running.kill(0)

    with assert_unchanged(tmp_path / "s"):
        found = engine.scan_log(store.commitlog, progress=killing)
    local = LocalEngine().scan_log(store.commitlog)
    assert len(calls) > 6
    assert one_split(found.splits()).records.tolist() == one_split(local.splits()).records.tolist()
    assert one_split(found.splits()).hashes.tolist() == one_split(local.splits()).hashes.tolist()
    assert (found.queues, found.valid_to, found.log_end) == (local.queues, local.valid_to, local.log_end)
    _assert_no_python_is_left(running, 0)


@pytest.mark.parametrize(("command", "is_changed"), [
    pytest.param("verify", False, marks=pytest.mark.long), ("verify", True),
    pytest.param("recover", False, marks=pytest.mark.long),
    pytest.param("recover", True, marks=pytest.mark.long),
])
def test_rows_that_go_with_their_executors_are_scanned_again_and_of_a_changed_log_refused(
    running: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, is_changed: bool,
) -> None:
    root, _ = struck_store("clean-manyfiles-5.3.3", tmp_path / "a", "page-random")
    damage("queue-behind", root, 5)  # its rows are asked for by verify, too
    other = copy_store(root, tmp_path / "b" / root.name)
    lost: list[int] = []

    def losing(queue: MappedFileQueue, scans: list[FileScan]) -> LogView:
        if scans and not lost:
            lost.extend(running.kill_executors(0, 1))
            if is_changed:
                _flip_in_each_log_file(other)
        return assemble(queue, scans)

    monkeypatch.setattr(engines, "assemble", losing)
    line = ("--yes", "--json") if command == "recover" else ("--json",)
    there = mqtool(command, other, *line, *running.line())
    assert len(lost) >= 2
    if is_changed:
        _flip_in_each_log_file(other)
        assert there.code & 8, there.stdout
        # a changing command looks at the store once more, and names the change itself
        said = ("changed while the store was read" if command == "recover"
                else "reads other files of the log than the first scan did")
        assert said in there.document["error"]["message"]
        assert contents(other) == contents(root)
        return
    here = mqtool(command, root, *line)
    assert there.code == here.code != 0, there.stderr
    assert plain(there.document, other) == plain(here.document, root)
    assert contents(other) == contents(root)


def _flip_in_each_log_file(root: Path) -> None:
    """Change a bit of the first message of each, and the next time change it back."""
    for path in (root / "commitlog").iterdir():
        flip(path, 150)


def test_a_log_that_changes_before_the_plan_is_shown_is_no_other_file_of_a_worker(
    running: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, _ = struck_store("clean-manyfiles-5.3.3", tmp_path, "queue-behind")
    path, confirm = min((root / "commitlog").iterdir()), SparkEngine.confirm

    def late(engine: SparkEngine) -> None:
        flip(path, 150)
        confirm(engine)

    monkeypatch.setattr(SparkEngine, "confirm", late)
    done = mqtool("recover", root, "--yes", "--json", *running.line())
    assert done.code & 8 and not journal(root)
    assert done.document["error"]["message"] == f"commitlog/{path.name} changed while the store was read"


@pytest.mark.long
def test_executors_that_come_later_with_another_mqtool_scan_nothing(
    own_session: None, running: Cluster, tmp_path: Path
) -> None:
    synth_store(tmp_path / "s", messages=4_000, mapped_file_size=1 << 20)
    for package in ("formats", "recover"):
        shutil.copytree(ROOT / package, tmp_path / "code" / package)
    confs = ("mqtool.splitSize=20011", f"spark.executorEnv.PYTHONPATH={tmp_path / 'code'}", *running.line()[3::2])
    engine = SparkEngine(spark_settings(running.url, confs))
    calls: list[int] = []

    def replacing(size: int, _records: int) -> None:
        calls.append(size)
        if len(calls) == 3:
            with (tmp_path / "code" / "recover" / "__init__.py").open("a") as file:
                file.write("# another release\n")
            assert running.kill_executors(0, 1)

    with pytest.raises(Refusal, match=f"host {socket.gethostname()} has another mqtool than the driver") as refused:
        engine.scan_log(Store.open(tmp_path / "s").commitlog, progress=replacing)
    assert refused.value.exit_code == 8 and len(calls) >= 3
    stop_session()
    _assert_no_python_is_left(running, 0, 1)


def _assert_no_python_is_left(running: Cluster, *workers: int) -> None:
    """Wait for the Python workers in the folders of these Spark workers to end: no executor of theirs runs."""
    end = time.monotonic() + 30
    folders = tuple(f"{running.folder}/worker-{number}/" for number in workers)
    while left := [pid for pid in os.listdir("/proc") if pid.isdecimal() and _is_pyspark_in(folders, pid)]:
        assert time.monotonic() < end, f"Python workers {left} outlive their executor"
        time.sleep(0.2)


def _is_pyspark_in(folders: tuple[str, ...], pid: str) -> bool:
    try:
        place, line = os.readlink(f"/proc/{pid}/cwd"), Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return place.startswith(folders) and b"pyspark.daemon" in line


def test_a_worker_that_is_killed_while_files_are_made_changes_none_of_them(
    running: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("local", "spark"):
        root = synth_store(tmp_path / name, messages=2_000, mapped_file_size=1 << 20).root
        for part in ("consumequeue", "index"):
            shutil.rmtree(root / part)
            (root / part).mkdir()
    kill = _Killing(running)
    monkeypatch.setattr(making, "stage_products", slow)
    monkeypatch.setattr(SparkProducer, "write", kill.write)
    spark = running.line("mqtool.splitSize=100003")
    here = mqtool("recover", tmp_path / "local", "--yes", "--json")
    there = mqtool("recover", tmp_path / "spark", "--yes", "--json", *spark)
    assert there.code == here.code, there.stderr
    assert kill.killed
    assert contents(tmp_path / "spark") == contents(tmp_path / "local")
    left = [path for path in (tmp_path / "spark" / ".mqtool").rglob("*") if "making" in path.name]
    assert not left


@pytest.mark.long
def test_an_allocation_that_begins_with_nothing_grows_past_16_tasks(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    with cluster(tmp_path / "cluster", cores=16) as made:
        settings = spark_settings(made.url, made.line(
            "spark.executor.cores=16", "spark.cores.max=32", "spark.dynamicAllocation.enabled=true",
            "spark.dynamicAllocation.minExecutors=0", "spark.scheduler.minRegisteredResourcesRatio=0",
        )[3::2])
        try:
            most = max(run_job(session_for(settings), beside(tmp_path / "tasks"), range(2000), "tasks that last"))
        finally:
            stop_session()
    assert most > 16


def beside(folder: Path) -> Any:
    """A task of a second that says how many ran beside each other; once there were more than 16, one of no time."""

    def count(tasks: Iterable[Any]) -> Iterator[int]:
        import time as clock

        for task in tasks:
            (folder / f"{task}").touch()
            if not (folder / "enough").exists():
                clock.sleep(1)
            running = len(list(folder.iterdir()))
            if running > 16:
                (folder / "enough").touch()
            (folder / f"{task}").unlink()
            yield running

    return count


class _Killing:
    """Kills a worker with its executor as soon as the first file is staged."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.killed: list[int] = []
        self._write = SparkProducer.write

    @property
    def write(self) -> Any:
        def write(producer: SparkProducer, folder: Path, contents: Any, interrupted: Any) -> Any:
            def watch() -> None:
                end = time.monotonic() + 120
                while time.monotonic() < end and not list(folder.glob("*")):
                    time.sleep(0.05)
                self.killed += self.cluster.kill(0)

            thread = threading.Thread(target=watch)
            thread.start()
            try:
                return self._write(producer, folder, contents, interrupted)
            finally:
                thread.join()

        return write


def _slow() -> Any:
    """What stages files on executors, so slowly that a kill falls into the middle; it travels whole."""

    def stage(stager: Any, number: int, products: Iterable[Any]) -> Iterator[Any]:
        import time as clock

        from recover.cluster.making import stage_products

        def slowly() -> Iterator[Any]:
            for product in products:
                clock.sleep(0.2)
                yield product

        yield from stage_products(stager, number, slowly())

    return stage


slow = _slow()
