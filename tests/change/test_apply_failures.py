"""Applying plans on disks that are full, read-only or failing, and without the rights to."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from recover.change.carry_out import apply_plan
from recover.change.content import LazyContent
from recover.change.journal import journal
from recover.change.model import Install, Plan, Retire
from recover.change.preconditions import seal
from recover.change.undo import undo
from recover.findings.refusal import Refusal
from tests.support.plans import (
    INDEX,
    PLANS,
    QUEUE,
    count_operations,
    failing,
    hole_map,
    make_old,
    quick_folder,
    sealed,
    small_store,
)
from tests.support.trees import assert_same_tree, assert_unchanged, tree_digest


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    """A small file system of its own; skips where we may not mount."""
    folder.mkdir()
    if subprocess.run(["mount", *options, str(folder)], capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def as_nobody(work: object) -> str:
    """What `work` says when it runs without rights, in a forked process: the refusal's message and remedy."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            work()  # type: ignore[operator]
        except Refusal as refusal:
            os.write(write, f"{refusal.message}; {refusal.remedy}".encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as answer:
        return answer.read()


@pytest.mark.parametrize("name", sorted(PLANS))
def test_a_full_disk_at_any_operation_changes_nothing(name: str) -> None:
    with quick_folder() as folder:
        store = small_store(folder / "s")
        operations = len(count_operations(lambda: apply_plan(store, sealed(name, store))))
        for stop in range(0, operations, 3):
            shutil.rmtree(store)
            small_store(store)
            plan, before, holes = sealed(name, store), tree_digest(store), hole_map(store)
            mtime = store.stat().st_mtime_ns
            try:
                with failing(lambda number, _operation, stop=stop: number == stop, errno.ENOSPC):
                    apply_plan(store, plan)
            except Refusal as refusal:
                if "failed too" in refusal.message:
                    undo(store)
                assert_same_tree(before, tree_digest(store))
                assert hole_map(store) == holes
                assert store.stat().st_mtime_ns == mtime


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_disk_that_fails_for_good_leaves_a_run_that_can_be_undone(code: int) -> None:
    with quick_folder() as folder:
        store = small_store(folder / "s")
        operations = len(count_operations(lambda: apply_plan(store, sealed("everything", store))))
        outcomes = set()
        for stop in range(0, operations, 2):
            shutil.rmtree(store)
            small_store(store)
            plan, before = sealed("everything", store), tree_digest(store)
            try:
                with failing(lambda number, _operation, stop=stop: number >= stop, code):
                    apply_plan(store, plan)
            except Refusal as refused:
                assert refused.remedy
            else:
                assert journal(store)[0].state == "applied", "only the lock file could not be removed"
            states = [run.state for run in journal(store)]
            outcomes.add(tuple(states))
            try:
                undo(store)
            except Refusal:
                assert not states
            assert_same_tree(before, tree_digest(store))
        assert ("unfinished",) in outcomes and () in outcomes


def test_a_file_size_limit_is_refused_with_nothing_changed(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    plan = seal(Plan.of("rebuild", [Retire(INDEX), Install(QUEUE, b"q" * 3_000_000)]), store)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    try:
        with assert_unchanged(store), pytest.raises(Refusal, match="File too large"):
            apply_plan(store, plan)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_disk_without_room_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=2m", "tmpfs") as small:
        store = small_store(small / "s")
        plan = seal(Plan.of("rebuild", [Install(QUEUE, b"q" * 1_500_000)]), store)
        with assert_unchanged(store), pytest.raises(Refusal, match="bytes are needed"):
            apply_plan(store, plan)
        lying = LazyContent(1_900_000, lambda: [b"q" * 1_900_000], allocated=0)
        plan = seal(Plan.of("rebuild", [Retire(INDEX), Install(QUEUE, lying)]), store)
        with assert_unchanged(store), pytest.raises(Refusal, match="No space left"):
            apply_plan(store, plan)


def test_a_read_only_file_system_is_refused(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    plan = sealed("everything", store)
    with mounted(tmp_path / "readonly", "--bind", str(store)) as folder:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        with assert_unchanged(store), pytest.raises(Refusal, match="Read-only") as refused:
            apply_plan(folder, plan)
        assert "--output" in refused.value.remedy


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
@pytest.mark.parametrize("lock", [True, False])
def test_without_permission_nothing_is_touched(lock: bool) -> None:
    with quick_folder() as folder:
        folder.chmod(0o755)
        store = small_store(folder / "s")
        if lock:
            (store / "lock").write_bytes(b"lock")
            make_old(store)
        for path in store.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        plan = sealed("everything", store)
        with assert_unchanged(store):
            answer = as_nobody(lambda: apply_plan(store, plan))
        assert "Permission denied" in answer and "broker's user" in answer
