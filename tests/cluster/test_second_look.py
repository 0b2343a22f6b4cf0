"""A worker that sees other files of the same name: refused before anything is planned on it, and nothing is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from fixtures.damage import NotApplicable, damage, of_area, walk
from recover.check.survey import ScanOptions
from recover.cluster import engine as engines
from recover.cluster.engine import SparkEngine
from recover.cluster.session import spark_settings, stop_session
from recover.findings.refusal import Refusal
from recover.log.file_scan import scan_split
from recover.log.scan import LogView, assemble
from recover.log.split_scan import FileJoin, splits_of
from recover.repair.recover import RecoverOptions, plan_recover
from recover.store.mapped_files import MappedFileQueue
from recover.store.store import Store
from tests.cluster.twice import needs_spark
from tests.scenarios.drill import body_at
from tests.support.sampling import sampled
from tests.support.stores import real_store
from tests.support.trees import assert_unchanged


class Worker:
    """Scans what stands at other places under the same names, and reports it as the store's."""

    def __init__(self, elsewhere: Callable[[Path], Path]) -> None:
        self.elsewhere = elsewhere
        self.hosts: dict[str, str] = {}

    def scan_log(self, queue: MappedFileQueue, **_options: Any) -> LogView:
        scans = []
        for own in queue.files:
            there = structs.replace(own, path=self.elsewhere(own.path))
            join = FileJoin([scan_split(part) for part in splits_of(there, queue.file_size)])
            while isinstance(found := join.join(), list):
                for part, entry in found:
                    join.add(scan_split(part, entry))
            scans.append(found)
            scans[-1].mapped_file = own
            self.hosts[str(own.path.absolute())] = "worker-7"
        return assemble(queue, scans)

    def json(self) -> dict[str, Any]:
        return {}


def _plan(root: Path, engine: Any) -> Any:
    return plan_recover(Store.open(root), RecoverOptions(scan=ScanOptions(engine=engine)))


@pytest.mark.parametrize("recipe", ["bit-in-body", "page-random", "first-page-zeroed", "bit-in-phy-offset"])
def test_damage_that_only_a_worker_sees_is_refused_with_its_host(tmp_path: Path, recipe: str) -> None:
    root, other = real_store("clean-5.3.3", tmp_path / "a"), real_store("clean-5.3.3", tmp_path / "b")
    hit = damage(recipe, other)
    worker = Worker(lambda path: other / "commitlog" / path.name)
    with assert_unchanged(root), pytest.raises(Refusal, match="worker-7 reads something else in commitlog/") as refused:
        _plan(root, worker)
    facts = refused.value.facts
    base = int(Path(str(facts["file"])).name)
    assert facts["host"] == "worker-7" and base + int(str(facts["start"])) <= hit.changed[0]
    assert refused.value.exit_code == 8


def test_other_damage_than_the_worker_sees_is_refused(tmp_path: Path) -> None:
    root, other = real_store("clean-5.3.3", tmp_path / "a"), real_store("clean-5.3.3", tmp_path / "b")
    hit = walk.records(root)[100]
    for place, position in ((root, hit.position + 4), (other, hit.end - 1)):
        with (place / "commitlog" / hit.file.path.name).open("r+b") as file:
            file.seek(position)
            file.write(b"\xff")
    damage("bit-in-body", other, 3)
    with pytest.raises(Refusal, match="reads something else"):
        _plan(root, Worker(lambda path: other / "commitlog" / path.name))


@pytest.mark.parametrize("recipe", sampled(of_area("log", "files", "crash", "witness"), quick=14))
def test_a_worker_that_sees_the_same_is_believed(tmp_path: Path, recipe: str) -> None:
    root = real_store("clean-manyfiles-5.3.3", tmp_path)
    try:
        damage(recipe, root)
    except NotApplicable:
        pytest.skip("the store lacks what this damages")
    try:
        expected: Any = [step.json() for step in _plan(root, None).plan.steps]
    except Refusal as refused:
        expected = refused.message
    try:
        assert [step.json() for step in _plan(root, Worker(lambda path: path)).plan.steps] == expected
    except Refusal as refused:
        # records that the scan of the whole file misses after a hole are found by the look at a part of it
        assert refused.message == expected or recipe == "log-hole-after-damage"


def _elsewhere(other: str) -> Any:
    """The task of a scan on a host where another store stands at the path."""

    def scan(tasks: Iterable[Any]) -> Iterator[Any]:
        from pathlib import Path as Folder

        from msgspec import structs as records

        from recover.cluster.jobs import scan_splits

        for task in tasks:
            file = records.replace(task.part.mapped_file, path=Folder(other) / task.part.mapped_file.path.name)
            yield from scan_splits([records.replace(task, part=records.replace(task.part, mapped_file=file))])

    return scan


@pytest.mark.deep
@pytest.mark.spark
@needs_spark[1]
@pytest.mark.parametrize("place", [0, 20, -1])
def test_a_task_that_reads_another_file_is_named_with_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    root, other = real_store("clean-5.3.3", tmp_path / "a"), real_store("clean-5.3.3", tmp_path / "b")
    path = next(iter(sorted((other / "commitlog").iterdir())))
    status = path.stat()
    content = bytearray(path.read_bytes())
    # the last one is in a body of a record in mid-split
    inside = body_at(list(walk.records_of(walk.log_files(other)[0]))[40])
    content[inside if place < 0 else place] ^= 1
    path.write_bytes(content)
    # with the same time, too: head or borders tell, or else the second look
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    monkeypatch.setattr(engines, "scan_splits", _elsewhere(str(other / "commitlog")))
    settings = spark_settings("local[2]", ["spark.driver.memory=512m", "mqtool.splitSize=400009"])
    try:
        with assert_unchanged(root), pytest.raises(Refusal, match=r"reads (another file|something else)") as refused:
            _plan(root, SparkEngine(settings))
    finally:
        stop_session()
    assert refused.value.facts["host"]
