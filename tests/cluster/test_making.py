"""Queues and index files that executors make: the same bytes, and what comes of it when something goes wrong."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage.patch import flip_bit
from fixtures.synth import synth_store
from recover.change import disk
from recover.change.carry_out import apply_plan, undo
from recover.change.content import DeferredContent, make
from recover.change.journal import journal
from recover.change.model import Plan, load_plan
from recover.change.preconditions import seal
from recover.change.steps import LARGEST
from recover.cluster import making
from recover.cluster.derived import Stager
from recover.cluster.engine import SparkEngine
from recover.cluster.making import SparkProducer
from recover.cluster.session import session_for, spark_settings
from recover.findings.code import Refusal
from recover.reading.facts import ScanOptions
from recover.repair.rebuild import RebuildOptions, plan_rebuild
from recover.store.store import Store
from tests.cli.runner import Result, mqtool
from tests.cluster.cluster import Cluster
from tests.cluster.twice import needs_spark, plain, same_changes, stages
from tests.support.plans import count_operations, hooked
from tests.support.stores import copy_store, real_store, write_at
from tests.support.system import reachable, small_disk
from tests.support.trees import assert_same_tree, assert_unchanged, contents, tree_digest
from tests.torture.trouble import failing_reads

pytestmark = [pytest.mark.deep, *needs_spark]

LOCAL = ("--master", "local[2]", "--conf", "spark.driver.memory=512m")
SPARK = (*LOCAL, "--conf", "mqtool.splitSize=100003")


def bare(folder: Path, name: str = "s") -> Path:
    """A store that has lost everything that derives from its log, and some of its log."""
    root = folder / name
    synth_store(root, messages=4_000, mapped_file_size=1 << 19, tags=False)
    for part in ("consumequeue", "index"):
        shutil.rmtree(root / part)
        (root / part).mkdir()
    write_at(min((root / "commitlog").iterdir()), 300_000, bytes(900))  # across the end of a split
    return root


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that executors wrote so far."""
    names: list[str] = []
    write = SparkProducer.write

    def noting(producer: SparkProducer, folder: Path, contents: Any, interrupted: Callable[[], bool]) -> Any:
        manifest = write(producer, folder, contents, interrupted)
        names.extend(manifest)
        return manifest

    monkeypatch.setattr(SparkProducer, "write", noting)
    return names


def broken(work: Callable[[Any], None]) -> Any:
    """What stages files, with something that happens before each on the executor."""

    def stage(stager: Any, number: int, products: Iterable[Any]) -> Iterator[Any]:
        from recover.cluster.making import stage_products

        def watched() -> Iterator[Any]:
            for product in products:
                if getattr(product, "file", None) is not None:  # the others say what was read
                    work(product)
                yield product

        yield from stage_products(stager, number, watched())

    return stage


def rebuilt(root: Path, output: Path, *spark: str) -> Result:
    return mqtool("rebuild", root, "--output", output, "--json", *spark)


def refused(root: Path) -> str:
    """Why a recovery is given up, which leaves the store as it was."""
    with assert_unchanged(root):
        result = mqtool("recover", root, "--yes", "--json", *LOCAL)
    assert result.code & 8
    return str(result.document["error"]["message"])


def assert_as_without_spark(root: Path, folder: Path, *options: str) -> None:
    """Both engines write the same files from a store, and leave nothing else."""
    local, spark = rebuilt(root, folder / "local"), rebuilt(root, folder / "spark", *(options or SPARK))
    assert spark.code == local.code and local.code & 8 == 0, spark.stderr
    local_document, spark_document = plain(local.document, folder / "local"), plain(spark.document, folder / "spark")
    assert spark_document == local_document
    assert contents(folder / "spark") == contents(folder / "local")


def test_executors_write_what_this_process_would(folder: Path, made: list[str]) -> None:
    root = bare(folder)
    with assert_unchanged(root):
        assert_as_without_spark(root, folder)
    assert len(made) > 10
    made.clear()
    for command in ("rebuild-index", "rebuild-consumequeue", "recover"):
        same_changes(bare(folder, command), command)
        assert made, command
        made.clear()
    lmq = real_store("killed-lmq-4.9.7", folder)
    shutil.rmtree(lmq / "consumequeue")
    same_changes(lmq, "recover", "--include-deleted")
    assert made


def tasks_that_make_queues(since: int) -> int:
    """The most tasks that positions were shuffled to, from that stage on."""
    return max((stage.numTasks() for stage in stages() if stage.stageId() >= since
                and stage.shuffleReadBytes() and str(stage.description().get()) == "queues"), default=0)


# a task makes 390 positions, so three files of one queue; of its messages 90 kB of log would be
@pytest.mark.parametrize("gone", [
    (), pytest.param((range(300_000, 300_900), range(500_000, 800_000)), marks=pytest.mark.long), (range(200_000),),
], ids=str)
def test_a_queue_made_in_parts_is_the_whole_of_it(gone: tuple[range, ...], folder: Path, made: list[str]) -> None:
    """Files of the other queue tell how long they are."""
    root = folder / "s"
    synth_store(root, messages=4_000, topics=2, queues=1, mapped_file_size=1 << 20)
    shutil.rmtree(root / "consumequeue" / "Topic0")
    for part in gone:
        write_at(min((root / "commitlog").iterdir()), part.start, bytes(len(part)))
    session_for(spark_settings(LOCAL[1], [LOCAL[3]]))  # that of an earlier test goes on, or another begins
    since = 1 + max((stage.stageId() for stage in stages()), default=-1)
    if len(gone) > 1:  # in the middle, where it matters what stands for a lost message
        for command in ("recover",), ("recover", "--lost", "visible"):
            same_changes(copy_store(root, folder / "other"), *command, spark=("--engine", "spark", *SPARK))
            shutil.rmtree(folder / "other")
            assert tasks_that_make_queues(since) > 2
        made.clear()
    assert_as_without_spark(root, folder)
    assert tasks_that_make_queues(since) > 2
    assert len([path for path in contents(folder / "spark") if "consumequeue/Topic" in path]) > 30


def test_a_queue_with_ext_units_is_made_whole(folder: Path, made: list[str]) -> None:
    root = real_store("killed-ext-5.5.0", folder)
    assert_as_without_spark(root, folder, *LOCAL, "--conf", "mqtool.splitSize=20011")  # 78 positions a task
    assert any("consumequeue_ext/" in path for path in contents(folder / "spark"))


@pytest.mark.long
def test_a_dry_run_writes_nothing_and_a_saved_plan_holds_it_all(folder: Path, made: list[str]) -> None:
    root = bare(folder)
    other = copy_store(root, folder / "other")
    with assert_unchanged(root):
        assert mqtool("recover", root, "--dry-run", "--json", *SPARK).code & 8 == 0
        assert not made
        mqtool("recover", root, "--dry-run", "--plan-out", folder / "plan.json", "--json", *SPARK)
    assert made
    apply_plan(root, load_plan(folder / "plan.json"))
    mqtool("recover", other, "--yes", "--json")
    assert contents(root) == contents(other)


def test_a_worker_that_dies_while_it_writes_is_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(product: Any) -> None:
        import os as system

        from pyspark import TaskContext

        context = TaskContext.get()
        if product.number == 0 and context.partitionId() == 1 and context.attemptNumber() < 2:
            system._exit(9)

    monkeypatch.setattr(making, "stage_products", broken(dies))
    assert_as_without_spark(bare(folder), folder)


@pytest.mark.long
def test_a_worker_that_always_dies_leaves_the_store_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(_product: Any) -> None:
        import os as system

        system._exit(9)

    monkeypatch.setattr(making, "stage_products", broken(dies))
    assert "crashed" in refused(bare(folder))


@pytest.mark.long
def test_a_disk_that_takes_no_more_leaves_the_store_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def filling(stager: Any, number: int, products: Iterable[Any]) -> Iterator[Any]:
        from recover.cluster.making import stage_products as right

        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, before[1]))
        try:
            yield from right(stager, number, products)
        finally:  # the worker lives on
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    monkeypatch.setattr(making, "stage_products", filling)
    said = refused(bare(folder))
    assert "File too large" in said and "nothing was changed" in said


@pytest.mark.long
def test_what_spark_lost_on_a_full_disk_of_its_own_is_refused(folder: Path, own_session: None) -> None:
    """The last block of a small file does not fit, and Spark reports no error."""
    root = bare(folder)
    with small_disk(folder / "small", "60k") as small, assert_unchanged(root):
        result = mqtool("rebuild", root, "--yes", "--json", *LOCAL, "--conf", "mqtool.splitSize=60013",
                        "--conf", f"spark.local.dir={small}")
    assert result.code == 8, result.stderr
    assert "lost a result that it persisted: its disk may be full" in result.document["error"]["message"]


@pytest.mark.long
def test_files_of_queues_that_spark_lost_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def losing(task: Any, chunks: Iterable[Any]) -> Iterator[Any]:
        from recover.cluster.making import make_queues as right

        yield from list(right(task, chunks))[:-2]  # the last file, and what was read

    monkeypatch.setattr(making, "make_queues", losing)
    assert "executors lost parts of the queues that they built: a disk may be full" in refused(bare(folder))


@pytest.mark.long
def test_keys_that_spark_lost_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def losing(stager: Any, task: Any, chunks: Iterable[Any]) -> Iterator[Any]:
        from recover.cluster.making import stage_index as right

        return right(stager, task, list(chunks)[1:])

    monkeypatch.setattr(making, "stage_index", losing)
    assert "the content is not as announced" in refused(bare(folder))


@pytest.mark.long
def test_an_output_disk_that_is_full_is_said_and_nothing_stays(folder: Path, made: list[str]) -> None:
    root = bare(folder)
    with small_disk(folder / "small", "200k") as small:
        with assert_unchanged(root):
            result = rebuilt(root, small / "out", *LOCAL)
        assert result.code & 8
        assert "No space left on device" in result.document["error"]["message"]
        assert not list(small.iterdir())


@pytest.mark.long
def test_a_log_file_that_goes_before_files_are_made_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = bare(folder)
    last = sorted((root / "commitlog").iterdir())[-1]
    queues = SparkProducer.queues

    def vanishing(producer: SparkProducer, *arguments: Any, **more: Any) -> Any:
        last.unlink()
        producer.kept.job.rdd.unpersist(True)
        return queues(producer, *arguments, **more)

    monkeypatch.setattr(SparkProducer, "queues", vanishing)
    before = contents(root)
    result = mqtool("recover", root, "--yes", "--json", *SPARK)
    assert result.code & 8
    assert result.document["error"]["message"] == "commitlog changed while the store was read"
    name = f"commitlog/{last.name}"
    assert contents(root) == {path: node for path, node in before.items() if path != name}


def test_what_was_not_made_as_announced_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(stager: Any, number: int, products: Iterable[Any]) -> Iterator[Any]:
        from msgspec import structs

        from recover.cluster.making import stage_products as right

        def struck() -> Iterator[Any]:
            for product in products:
                if (file := getattr(product, "file", None)) is not None:
                    other = structs.replace(file, data=b"\x01" * len(file.data))
                    yield structs.replace(product, step=structs.replace(product.step, given=other))

        yield from right(stager, number, struck())

    monkeypatch.setattr(making, "stage_products", wrong)
    assert "not produced as announced" in refused(bare(folder))


def test_what_a_late_try_writes_is_not_taken(tmp_path: Path) -> None:
    """A Python worker outlives its executor, and takes the end of its input for the end of the data."""
    whole, part = bytes(range(256)) * 16, bytes(range(256)) * 8 + bytes(2048)

    class Twice:
        def write(self, folder: Path, contents: Any, interrupted: Any) -> dict[str, tuple[str, int, int]]:
            (name,) = contents
            lines = [line for content in (whole, part)
                     for line in Stager(folder, {"key": name}, sync=False)([("key", [(0, content)])])]
            assert isinstance(lines[0], dict)
            return lines[0]

        def chunks(self, content: DeferredContent) -> Iterator[bytes]:
            yield whole

    made = tmp_path / "made"
    make(tmp_path / "staging", {made: DeferredContent(Twice(), "key", len(whole), len(whole))},
         interrupted=lambda: False)
    assert made.read_bytes() == whole
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


# --- On a cluster: what one worker wrote is read back by any, and what is killed is completed without Spark.


def sealed_rebuild(root: Path, scan: ScanOptions) -> Plan:
    return seal(plan_rebuild(Store.open(root), RebuildOptions(scan=scan)).plan, root)


@pytest.fixture
def scan(running: Cluster) -> ScanOptions:
    """A scan by two workers that make files of what they keep."""
    _, master, *settings = running.line("mqtool.splitSize=100003")
    return ScanOptions(engine=SparkEngine(spark_settings(master, settings[1::2]), makes=True))


@contextmanager
def reads() -> Iterator[Counter[str]]:
    """How many bytes of which file this process asks for in the block."""
    seen: Counter[str] = Counter()

    def note(path: str, _offset: int, length: int) -> bool:
        seen[path] += length
        return False

    with failing_reads(note):
        yield seen


def test_workers_read_back_what_workers_wrote_and_the_driver_no_byte_of_it(
    folder: Path, scan: ScanOptions, made: list[str]
) -> None:
    root = bare(folder)
    other = copy_store(root, folder / "other")
    plan, local = sealed_rebuild(root, scan), sealed_rebuild(other, ScanOptions())
    before = tree_digest(root)
    with reads() as here:
        apply_plan(root, plan)
    with reads() as there:
        apply_plan(other, local)
    assert contents(root) == contents(other) and len(made) > 10
    new = [step.file for step in plan.steps if isinstance(step.content, DeferredContent)]
    assert len(new) == len(made)

    def of_new(read: Counter[str]) -> int:
        return sum(size for path, size in read.items() if "/staged/" in path or any(map(path.endswith, new)))

    assert of_new(here) == 0 and of_new(there) >= sum((root / file).stat().st_blocks * 512 for file in new) > 0
    undo(root)
    assert_same_tree(before, tree_digest(root))


def _flipped(path: Path) -> None:
    flip_bit(path.parent, path, path.stat().st_size - 1, 3)


def _no_file(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(("strike", "said"), [
    (_flipped, "reads back on host {host} otherwise than it was written"),
    (_no_file, "it is not a file but a pipe .*/staged/0.*; nothing was changed"),
])
def test_a_file_that_is_not_what_its_worker_wrote_is_refused_before_the_store_changes(
    strike: Callable[[Path], None], said: str, folder: Path, scan: ScanOptions
) -> None:
    root = bare(folder)
    plan, written = sealed_rebuild(root, scan), []

    def between(item: disk.Operation) -> None:
        if item.name == "rename" and "/making/" in item.path:
            written.append(item.target)
            if len(written) == 5:
                strike(Path(item.path))

    meant = pytest.raises(Refusal, match=said.format(host=socket.gethostname()))
    with hooked(between), assert_unchanged(root), meant as refusal:
        apply_plan(root, plan)
    assert refusal.value.exit_code == 8
    assert (refusal.value.facts.get("file") or written[4]) in written


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: another user needs root")
def test_for_root_executors_write_as_the_owner_of_the_store(folder: Path, made: list[str]) -> None:
    root, copy = reachable(bare(folder)), bare(folder, "local")
    for path in (root, *root.rglob("*")):
        os.chown(path, 54321, 54321)
    done, here = mqtool("rebuild", root, "--yes", *SPARK), mqtool("rebuild", copy, "--yes")
    assert made and done.code == here.code and not done.code & 8, done
    assert {path.lstat().st_uid for path in (root, *root.rglob("*"))} == {54321}
    assert {name: node.sha256 for name, node in tree_digest(root).items()} == {
        name: node.sha256 for name, node in tree_digest(copy).items()}


_KILLED = """
import os, signal, sys
from recover.change import disk
left = int(sys.argv[1])
def hook(item):
    global left
    left -= item.name == "rename" and item.path.split("/")[-2] == sys.argv[2]
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
disk.set_hook(hook)
from mqtool.cli import main
main(sys.argv[3:])
"""


def killed(left: int, where: str, *line: object) -> bool:
    """Run a command that is killed at its rename of that number out of a folder of that name; whether it was."""
    environment = dict(os.environ) | {"PYTHONPATH": os.getcwd(), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-c", _KILLED, str(left), where, *map(str, line), "--yes"]
    return subprocess.run(command, env=environment, capture_output=True).returncode == -signal.SIGKILL


@pytest.mark.long
def test_a_rebuild_of_many_files_goes_on_wherever_it_was_killed(folder: Path) -> None:
    root = folder / "s"
    synth_store(root, messages=1_200, topics=30, queues=20)
    for part in ("consumequeue", "index"):
        shutil.rmtree(root / part)
        (root / part).mkdir()
    other, before = copy_store(root, folder / "other"), tree_digest(root)
    assert mqtool("rebuild", other, "--yes").code & 8 == 0
    # while files are staged: nothing has begun
    assert killed(150, "making", "rebuild", root, *LOCAL)
    assert journal(root) == []
    # within a commit
    assert killed(200, "staged", "rebuild", root, *LOCAL)
    (run,) = journal(root)
    assert (run.steps, run.steps_begun, run.steps_done) == (601, LARGEST, 0)
    undone = copy_store(root, folder / "undone")
    undo(undone)
    assert_same_tree(before, tree_digest(undone))
    # within the next one, after the rest of the first
    assert killed(LARGEST - 200 + 30, "staged", "resume", root)
    (run,) = journal(root)
    assert (run.steps_begun, run.steps_done) == (600 - LARGEST, LARGEST)
    done = count_operations(lambda: mqtool("resume", root, "--yes"))
    assert not [item.path for item in done if item.name in ("create", "write") and item.path != f"{root}/lock"]
    assert sum(item.name == "rename" for item in done) == 601 - LARGEST - 30
    assert contents(root) == contents(other)
