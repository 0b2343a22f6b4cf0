"""A log that is counted without keeping its rows is told as the scan tells it that keeps them, or left to that."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from fixtures.damage import NotApplicable, damage, of_area
from fixtures.lab.packed import WHOLE_BROKER, made
from fixtures.synth import synth_store
from formats.record_columns import BIT_FILLER, BIT_LMQ, BIT_MARKER, BIT_V2
from formats.sysflag import HOSTS_V6
from recover.errors import Refusal
from recover.scan import cut_files, engine
from recover.scan.engine import LocalEngine
from recover.scan.log import LogView
from recover.scan.log_scan import count_log, scan_log
from recover.scan.split_scan import one_split
from tests.cli.runner import mqtool
from tests.support.looks import counted_files, opened
from tests.support.stores import unpacked

Copy = Callable[[str], Path]
STORES = (*WHOLE_BROKER, *made())
NUMBERS = ("positions", "least", "most", "fallen")


def _told(log: LogView) -> dict[str, Any]:
    tally = {name: getattr(log.tally, name) for name in type(log.tally).__slots__}  # type: ignore[attr-defined]
    return {
        "places": (log.min_offset, log.valid_to, log.log_end, log.damaged, log.tail, log.ghosts, log.superseded),
        "queues": log.queues, "messages": log.messages, "blanks": log.blanks, "has_keys": log.has_keys,
        "tally": {name: value.tolist() if name in NUMBERS else value for name, value in tally.items()},
        "files": [(scan.mapped_file, scan.holes, scan.blank, scan.end, scan.record_count) for scan in log.files],
    }


def _rows(log: LogView) -> list[Any]:
    return one_split(log.splits()).records.tolist()  # type: ignore[no-any-return]


def _assert_same(root: Path, threads: int = 2) -> bool:
    """Whether the log was counted; then it is told as by the scan that keeps rows."""
    queue = opened(root).commitlog
    counted, kept = count_log(queue, threads=threads), scan_log(queue, with_keys=False)
    if counted is None:
        return False
    assert _told(counted) == _told(kept)
    assert _rows(counted) == _rows(kept)
    return True


@pytest.mark.parametrize("name", STORES)
def test_counts_of_a_broker_s_log_are_those_of_its_rows(name: str) -> None:
    kept = scan_log(opened(unpacked(name)).commitlog)
    asked_for = BIT_LMQ | BIT_V2 | BIT_FILLER | BIT_MARKER
    is_plain = not (kept.damaged or kept.tail or kept.ghosts or kept.tally.fallen.any() or kept.tally.bits & asked_for)
    assert _assert_same(unpacked(name)) == bool(is_plain and kept.messages and not kept.tally.flags & HOSTS_V6)


@pytest.mark.parametrize("recipe", sorted(of_area("log", "crash", "files")))
def test_a_damaged_log_is_told_the_same(recipe: str, tmp_path: Path) -> None:
    root = tmp_path / "s"
    synth_store(root, messages=600, mapped_file_size=32 * 1024)
    try:
        damage(recipe, root, 2)
    except NotApplicable:
        pytest.skip("the store lacks what this damages")
    if opened(root).commitlog.files:
        _assert_same(root)


def test_a_sound_log_of_many_files_is_counted_and_no_file_is_scanned_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synth_store(tmp_path / "s", messages=900, mapped_file_size=32 * 1024)
    scanned = counted_files(monkeypatch)
    monkeypatch.setattr(engine, "scan_log", lambda *a, **k: pytest.fail("the log is sound"))
    result = mqtool("verify", tmp_path / "s", "--only", "commitlog", "--json")
    assert result.code == 0 and result.document["commitlog"]["messages"] == 900
    assert len(scanned) > 5 and len(set(scanned)) == len(scanned)


@pytest.mark.parametrize(("options", "counted"), [({}, False), ({"first_queue_offset": 5000}, True)])
def test_queue_offsets_that_fall_back_between_two_files_take_rows(
    tmp_path: Path, options: dict[str, Any], counted: bool
) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    synth_store(first, messages=300, mapped_file_size=32 * 1024)
    last = max((first / "commitlog").iterdir())
    synth_store(second, messages=300, mapped_file_size=32 * 1024, first_phy_offset=int(last.name), **options)
    for path in (second / "commitlog").iterdir():
        shutil.copyfile(path, first / "commitlog" / path.name)
    assert _assert_same(first) == counted
    assert scan_log(opened(first).commitlog).tally.fallen.any() != counted


def test_a_file_that_cannot_be_opened_is_left_to_who_reports_it(tmp_path: Path) -> None:
    synth_store(tmp_path / "s", messages=300, mapped_file_size=32 * 1024)
    queue = opened(tmp_path / "s").commitlog
    queue.files[1].path.unlink()
    assert count_log(queue, threads=2) is None


@pytest.mark.parametrize("threads", [1, 3])
def test_progress_of_what_is_done_once_more_is_taken_back(tmp_path: Path, threads: int) -> None:
    root = tmp_path / "s"
    synth_store(root, messages=900, mapped_file_size=32 * 1024)
    path = sorted((root / "commitlog").iterdir())[3]
    content = bytearray(path.read_bytes())
    content[9000:9100] = bytes(100)
    path.write_bytes(content)
    told: list[tuple[int, int]] = []
    queue = opened(root).commitlog
    log = LocalEngine(threads).scan_log(queue, progress=lambda *it: told.append(it), with_keys=False)
    assert sum(size for size, _ in told) == sum(file.length for file in queue.files)
    assert sum(records for _, records in told) == log.messages and log.damaged


def test_rows_of_a_file_that_changed_since_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "s"
    synth_store(root, messages=300, mapped_file_size=32 * 1024)
    log = count_log(opened(root).commitlog)
    assert log is not None
    path = sorted((root / "commitlog").iterdir())[1]
    shutil.copyfile(path, tmp_path / "kept")
    path.write_bytes(bytes(32 * 1024))
    with pytest.raises(Refusal, match="changed"):
        list(log.splits())


def test_who_is_stopped_does_not_wait_for_the_rest_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synth_store(tmp_path / "s", messages=3000, mapped_file_size=4 << 20)
    queue = opened(tmp_path / "s").commitlog
    (file,) = queue.files
    begun, stopped, told = Event(), Event(), []

    def progress(size: int, records: int) -> None:
        told.append(size)
        begun.set()
        stopped.wait(10)

    class Pool(ThreadPoolExecutor):
        def map(self, *given: Any, **options: Any) -> Any:
            super().map(*given, **options)
            assert begun.wait(10)
            raise KeyboardInterrupt

        def __exit__(self, *error: Any) -> None:
            stopped.set()
            super().__exit__(*error)

    monkeypatch.setattr(cut_files, "ThreadPoolExecutor", Pool)
    with pytest.raises(KeyboardInterrupt):
        count_log(queue, threads=2, split_size=1 << 20, progress=progress, window=4096)
    assert 0 < sum(told) < file.length
