"""Content written into a run's folder, what is large on a thread of its own: synced, checked, and given up as one."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from recover.change import disk, staging, step_replace
from recover.change.carry_out import apply_plan
from recover.change.content import LazyContent
from recover.change.model import Install, Plan
from recover.change.preconditions import seal
from recover.findings.refusal import Interrupted, Refusal
from recover.store.reading import file_crc
from tests.support.plans import NEW_QUEUE, QUEUE, count_operations, failing, sealed, small_store
from tests.support.trees import assert_unchanged, contents


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Some of the content of the plans is large. No thread outlives a run but those that are kept for syncs."""
    monkeypatch.setattr(staging, "LARGE", 5000)
    before = _threads()
    yield
    assert _threads() == before


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.name.startswith("sync_")}


@pytest.mark.parametrize("name", ["everything", "whole-files"])
def test_every_content_is_synced_before_the_run_gets_its_name(name: str, tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    plan = sealed(name, store)
    done = [(item.name, item.path) for item in count_operations(lambda: apply_plan(store, plan))]
    named = next(number for number, (what, _) in enumerate(done) if what == "rename")
    made = [path for what, path in done if what == "create" and "/staged/" in path]
    assert len(made) >= 2
    for path in made:
        last = max(number for number, item in enumerate(done[:named]) if item == ("fsync", path))
        assert all(number < last for number, (what, own) in enumerate(done) if own == path and what == "write")


def test_large_content_is_written_on_another_thread_and_the_rest_on_this_one(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    threads: dict[str, int] = {}

    def content(name: str, size: int) -> LazyContent:
        def chunks() -> Iterator[bytes]:
            threads[name] = threading.get_ident()
            yield b"u" * size

        return LazyContent(size, chunks)

    plan = Plan.of("rebuild", [Install(QUEUE, content("small", 4999)), Install(NEW_QUEUE, content("large", 5000))])
    apply_plan(store, seal(plan, store))
    assert threads["small"] == threading.get_ident() != threads["large"]
    assert (store / NEW_QUEUE).read_bytes() == b"u" * 5000


@pytest.mark.parametrize("part", ["large", "small"])
def test_a_disk_that_fails_under_either_leaves_the_store_as_it_was(part: str, tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    plan = seal(Plan.of("rebuild", [Install(QUEUE, b"u" * 20), Install(NEW_QUEUE, b"v" * 500_000)]), store)
    file = "000000" if part == "small" else "000001"
    with (
        assert_unchanged(store), pytest.raises(Refusal, match=os.strerror(errno.ENOSPC)),
        failing(lambda _, item: item.name == "write" and item.path.endswith(f"staged/{file}"), errno.ENOSPC),
    ):
        apply_plan(store, plan)


def test_what_is_large_is_written_no_further_once_the_rest_has_failed(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    failed = threading.Event()
    begun = threading.Event()
    written = []

    def endless() -> Iterator[bytes]:
        while True:
            written.append(b"e" * 5000)
            begun.set()
            yield written[-1]
            failed.wait(10)

    def hook(item: disk.Operation) -> None:
        if item.name == "write" and item.path.endswith("staged/000000"):
            assert begun.wait(10)
            failed.set()
            raise OSError(errno.EIO, "gone", item.path)

    large = LazyContent(1 << 40, endless, allocated=9999)
    plan = Plan.of("rebuild", [Install(QUEUE, b"u" * 20), Install(NEW_QUEUE, large)])
    disk.set_hook(hook)
    try:
        with pytest.raises(Refusal, match="gone"):
            apply_plan(store, seal(plan, store))
    finally:
        disk.set_hook(None)


def _write_to(path: str, data: bytes, mtime_step_ns: int) -> None:
    with open(path, "r+b") as file:
        file.write(data)
    os.utime(path, ns=(0, os.stat(path).st_mtime_ns + mtime_step_ns))


def test_a_staged_file_that_is_written_to_before_it_has_its_name_is_noticed_and_taken_back(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    plan = seal(Plan.of("rebuild", [Install(QUEUE, b"u" * 20)]), store)

    def hook(item: disk.Operation) -> None:
        if item.name == "rename" and item.path.endswith("staged/000000"):
            _write_to(item.path, b"w", 1)

    before = contents(store)
    disk.set_hook(hook)
    try:
        with pytest.raises(Refusal, match=r"does not read back as it was written .*; the begun steps were taken back"):
            apply_plan(store, plan)
    finally:
        disk.set_hook(None)
    assert contents(store) == before


def test_a_file_that_was_read_back_is_not_read_again_under_its_name_and_any_other_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def reading(path: Path, *bounds: int) -> tuple[int, int]:
        read.append(path.name)
        return file_crc(path, *bounds)

    monkeypatch.setattr(step_replace, "file_crc", reading)
    store = small_store(tmp_path / "s")
    apply_plan(store, seal(Plan.of("rebuild", [Install(NEW_QUEUE, b"v" * 20)]), store))
    assert not read

    def elsewhere(item: disk.Operation) -> None:
        if item.name == "rename" and item.path.endswith("staged/000000"):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), item.path)

    disk.set_hook(elsewhere)
    try:
        apply_plan(store, seal(Plan.of("rebuild", [Install(QUEUE, b"u" * 20)]), store))
    finally:
        disk.set_hook(None)
    assert read == [Path(QUEUE).name]
    assert (store / QUEUE).read_bytes() == b"u" * 20


def test_an_interruption_stops_both(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    with assert_unchanged(store), pytest.raises(Interrupted):
        apply_plan(store, sealed("whole-files", store), interrupted=lambda: True)
