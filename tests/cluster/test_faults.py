"""What goes wrong in mid-job on Spark: a value or a clear end, and never a trace in the store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from fixtures.synth import synth_store
from recover.check.report import verify
from recover.cluster import engine as engines, export as cluster_export
from recover.cluster.engine import SparkEngine
from recover.cluster.session import running_session, session_for, spark_settings, stop_session
from recover.findings.code import Refusal
from recover.log.scan import LocalEngine
from recover.log.split_scan import one_split
from recover.reading.facts import ScanOptions
from recover.store.store import Store
from tests.cli.runner import mqtool
from tests.cluster.cluster import children
from tests.cluster.twice import needs_spark
from tests.support.trees import assert_unchanged

pytestmark = [pytest.mark.deep, *needs_spark]

SETTINGS = spark_settings("local[2]", ["spark.driver.memory=512m", "mqtool.splitSize=40009"])
# a task for each file: one that fails costs its worker, which starts anew for each try
WHOLE_FILES = spark_settings("local[2]", ["spark.driver.memory=512m", "mqtool.splitSize=262144"])


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    synth_store(tmp_path / "s", messages=3_000, mapped_file_size=1 << 18)
    yield tmp_path / "s"
    session = running_session()
    if session is not None and session.failed:
        stop_session()


def dying(attempts: int) -> Any:
    """The task of a scan, with a worker that is killed by the system the first `attempts` times."""

    def scan(tasks: Iterable[Any]) -> Iterator[Any]:
        import os as system

        from pyspark import TaskContext

        from recover.cluster.splits import scan_splits

        for task in tasks:
            if task.number == 5 and TaskContext.get().attemptNumber() < attempts:
                system._exit(9)
            yield from scan_splits([task])

    return scan


def test_a_worker_that_dies_is_replaced(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "scan_splits", dying(2))
    queue = Store.open(root).commitlog
    found, local = SparkEngine(SETTINGS).scan_log(queue), LocalEngine().scan_log(queue)
    assert one_split(found.splits()).records.tolist() == one_split(local.splits()).records.tolist()


def waiting(folder: Path, others: int) -> Any:
    """The task of a scan; the first ends only when so many others have, which each leave a file."""

    def scan(tasks: Iterable[Any]) -> Iterator[Any]:
        import time as clock

        from recover.cluster.splits import scan_splits

        for task in tasks:
            end = clock.monotonic() + 60
            while task.number == 0 and len(list(folder.iterdir())) < others:
                assert clock.monotonic() < end, f"only {len(list(folder.iterdir()))} tasks ran beside this one"
                clock.sleep(0.05)
            yield from scan_splits([task])
            (folder / str(task.number)).touch()

    return scan


def test_a_slow_split_holds_no_other_up(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ended").mkdir()
    queue = Store.open(root).commitlog
    splits = sum(-(-file.length // SETTINGS.split_size) for file in queue.files)
    monkeypatch.setattr(engines, "scan_splits", waiting(tmp_path / "ended", splits - 1))
    found, local = SparkEngine(SETTINGS).scan_log(queue), LocalEngine().scan_log(queue)
    assert splits > 20 and found.tally.positions.tolist() == local.tally.positions.tolist()


def scan_with(failing: Callable[[Any], Any]) -> Any:
    """The task of a scan in which what `failing` makes of `scan_split` takes its place, for the first file alone."""

    def scan(tasks: Iterable[Any]) -> Iterator[Any]:
        from recover.cluster import splits

        real, fails = splits.scan_split, failing(splits.scan_split)
        splits.scan_split = lambda part, *more, **how: (
            real if part.mapped_file.file_from_offset else fails)(part, *more, **how)
        try:
            yield from splits.scan_splits(tasks)
        finally:
            splits.scan_split = real

    return scan


def stale() -> Any:
    """The task of a scan on a host that cannot read the log the first time."""

    def failing(real: Any) -> Any:
        def scan_split(*arguments: Any, **how: Any) -> Any:
            import errno

            from pyspark import TaskContext

            if TaskContext.get().attemptNumber() == 0:
                raise OSError(errno.ESTALE, "Stale file handle")
            return real(*arguments, **how)

        return scan_split

    return scan_with(failing)


def test_what_one_host_cannot_read_is_tried_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "scan_splits", stale())
    queue = Store.open(root).commitlog
    found, local = SparkEngine(WHOLE_FILES).scan_log(queue), LocalEngine().scan_log(queue)
    assert one_split(found.splits()).records.tolist() == one_split(local.splits()).records.tolist()


def failing_at_last(is_range: bool) -> Any:
    """The task of a scan on a host that never opens a file, or never reads a range of it."""

    def failing(real: Any) -> Any:
        def scan_split(part: Any, *arguments: Any, **how: Any) -> Any:
            import errno

            from recover.store.reader import ReadFailure

            cause = OSError(errno.EACCES, "Permission denied")
            if not is_range:
                raise cause
            found = real(part, *arguments, **how)
            found.scan.unreadable.append(ReadFailure(part.mapped_file.path, part.start, 100, 0, cause))
            return found

        return scan_split

    return scan_with(failing)


@pytest.mark.parametrize("is_range", [True, False])
def test_what_a_worker_never_reads_and_this_machine_does_is_no_finding(
    root: Path, monkeypatch: pytest.MonkeyPatch, is_range: bool
) -> None:
    monkeypatch.setattr(engines, "scan_splits", failing_at_last(is_range))
    store = Store.open(root)
    with pytest.raises(Refusal, match=f"cannot read {root}/commitlog/.*, which this machine can: Perm"):
        verify(store, ScanOptions(engine=SparkEngine(WHOLE_FILES)))


@pytest.mark.long
def test_a_worker_that_dies_every_time_ends_the_command_and_names_the_log(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "scan_splits", dying(99))
    with assert_unchanged(root), pytest.raises(Refusal) as refused:
        SparkEngine(SETTINGS).scan_log(Store.open(root).commitlog)
    assert refused.value.exit_code == 8
    assert "crashed" in refused.value.message
    log = Path(refused.value.remedy.split(": ", 1)[1])
    assert log.is_file() and log.stat().st_size
    monkeypatch.undo()
    # what has failed is not used again
    assert SparkEngine(SETTINGS).scan_log(Store.open(root).commitlog).tally.messages == 3_000


def test_java_s_temporary_files_are_where_the_user_says_and_of_a_spark_that_is_killed_only_its_log_stays(
    root: Path, tmp_path: Path, own_session: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / "it's \"deep\"" / ("d" * 60)
    deep.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    session = session_for(SETTINGS)
    assert session.context._jvm.System.getProperty("java.io.tmpdir").startswith(str(deep))
    # a socket's path is never longer than the system takes
    assert session.context.parallelize(range(10), 2).map(str).count() == 10
    left: list[str] = []

    def kill(_size: int, _records: int) -> None:
        session.process.kill()
        left.extend(path.name for path in (session.folder / "scratch").iterdir())

    with assert_unchanged(root), pytest.raises(Refusal) as refused:
        SparkEngine(SETTINGS).scan_log(Store.open(root).commitlog, progress=kill)
    stop_session()
    assert "Spark's own log" in refused.value.remedy
    assert any(name.startswith("blockmgr-") for name in left)
    assert [path.name for path in deep.glob("mqtool-*/*")] == ["spark.log"]


def test_a_file_that_vanishes_in_mid_job_is_refused_as_on_one_machine(tmp_path: Path) -> None:
    # a task for each of many files, and only that of the last one fails
    store = Store.open(synth_store(tmp_path / "s", messages=3_000, mapped_file_size=1 << 15).root)
    last = store.commitlog.files[-1].path

    def vanish(_size: int, _records: int) -> None:
        last.unlink(missing_ok=True)

    with pytest.raises(Refusal) as refused:
        verify(store, ScanOptions(engine=SparkEngine(SETTINGS), progress=vanish))
    assert refused.value.exit_code == 8
    assert refused.value.message == f"cannot read commitlog/{last.name}: No such file or directory"


def twice(export: Any, room: int) -> Any:
    """The task of an export that is killed with a whole table written, runs again, and so does a copy of it: whose
    disk takes `room` bytes a file, so that it ends in the middle of one."""

    def run(split: Any) -> Any:
        import resource
        from contextlib import suppress

        from pyspark import TaskContext

        found = export(split)
        if TaskContext.get().attemptNumber() == 0:
            raise OSError("killed")
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
        with suppress(OSError):
            export(split)
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        return found

    return run


@pytest.mark.parametrize("room", [500, pytest.param(1 << 30, marks=pytest.mark.long)])
def test_of_a_task_of_an_export_that_runs_twice_one_is_taken(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    questions = cluster_export._questions
    monkeypatch.setattr(cluster_export, "_questions", lambda *arguments: (
        (split, twice(export, room)) for split, export in questions(*arguments)))
    line = ("export", root, "--format", "parquet", "--json")
    there = mqtool(*line, "-o", tmp_path / "there", "--master", "local[2]", "--conf", "spark.driver.memory=512m")
    here = mqtool(*line, "-o", tmp_path / "here")
    assert there.code == here.code == 0, there.stdout
    rows = parquet.read_table(tmp_path / "there").drop_columns(["topic", "day"]).sort_by("phy_offset")
    assert rows.to_pylist() == parquet.read_table(tmp_path / "here").drop_columns(["topic"]).to_pylist()


def test_an_export_that_fails_leaves_no_folder(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_split: Any) -> Any:
        raise OSError("no disk")

    questions = cluster_export._questions
    monkeypatch.setattr(cluster_export, "_questions", lambda *arguments: (
        (split, fails) for split, _ in questions(*arguments)))
    done = mqtool("export", root, "-o", tmp_path / "out", "--format", "parquet", "--json", "--master", "local[2]",
                  "--conf", "spark.driver.memory=512m")
    assert done.code == 8 and "no disk" in done.document["error"]["message"]
    assert not list(tmp_path.glob("out*"))


def test_ctrl_c_ends_within_seconds_and_leaves_nothing(root: Path, tmp_path: Path) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    # whoever runs the tests in the background ignores it, and what is ignored stays ignored
    code = ("import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
            "from mqtool.cli import main; sys.exit(main())")
    line = ["verify", str(root), "--master", "local[2]", "--conf", "mqtool.splitSize=1009", "--progress",
            "--conf", "spark.driver.memory=512m"]
    environment = {**os.environ, "TMPDIR": str(place), "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    with (tmp_path / "said").open("wb") as said, assert_unchanged(root):
        process = subprocess.Popen([sys.executable, "-c", code, *line], stdout=said, stderr=said, env=environment)
        end = time.monotonic() + 120
        while b"verifying" not in (tmp_path / "said").read_bytes():
            assert time.monotonic() < end and process.poll() is None, (tmp_path / "said").read_text()
            time.sleep(0.1)
        java = children(process.pid)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 32, (tmp_path / "said").read_text()
        assert time.monotonic() - began < 20
    assert java and not [pid for pid in java if Path(f"/proc/{pid}").exists()]
    assert not list(place.glob("mqtool-*")), "the session's folder stays only when something failed"
    assert tempfile.gettempdir() != str(place)
