"""Applying plans: what they leave, what stops them, and what disks do to them."""

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

from recover.apply import apply_plan, refuse_if_unfinished, resume
from recover.content import LazyContent
from recover.copy_store import copy_store, relocated
from recover.errors import Interrupted, Refusal
from recover.journal import journal
from recover.lock import StoreLock
from recover.plan import Install, Plan, Retire, WriteFile, WriteRange, ZeroRange
from recover.preconditions import seal
from recover.undo import undo
from tests.support.plans import (
    INDEX,
    LOG,
    LOG_SIZE,
    NEW_QUEUE,
    NEXT_LOG,
    PLANS,
    QUEUE,
    contents,
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


def test_ranges_files_and_names_are_as_planned(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    before = {name: (store / name).read_bytes() for name in (LOG, NEXT_LOG, INDEX)}
    result = apply_plan(store, sealed("everything", store))
    assert result.changed and result.run is not None and result.run.state == "applied"
    log = before[LOG][:50_000] + b"m" * 70_000 + before[LOG][120_000:]
    assert (store / LOG).read_bytes() == log
    assert (store / NEXT_LOG).read_bytes() == before[NEXT_LOG][:19_000] + bytes(LOG_SIZE - 19_000)
    assert (store / "checkpoint").read_bytes() == b"c" * 4096
    assert not (store / "abort").exists() and not (store / INDEX).exists() and not (store / "lock").exists()
    assert (store / str(result.journal) / "retired/000000").read_bytes() == before[INDEX]
    assert (store / str(result.journal) / "preimages/000002").read_bytes() == before[LOG][50_000:120_000]


def test_a_plan_without_steps_creates_nothing(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    with assert_unchanged(store):
        assert not apply_plan(store, seal(Plan.of("recover", []), store)).changed


def test_a_zeroed_tail_takes_no_blocks(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    apply_plan(store, seal(Plan.of("truncate", [ZeroRange(LOG, 4096, LOG_SIZE)]), store))
    assert hole_map(store)[LOG] == [(0, 4096)]
    assert (store / LOG).stat().st_size == LOG_SIZE


def test_zeros_of_new_content_take_no_blocks(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    content = LazyContent(6_000_000, lambda: [b"u" * 20, bytes(5_999_980)], allocated=4096)
    apply_plan(store, seal(Plan.of("rebuild", [Install(QUEUE, content)]), store))
    assert (store / QUEUE).stat().st_size == 6_000_000
    assert (store / QUEUE).stat().st_blocks * 512 <= 128 << 10


def test_new_files_take_owner_and_mode_of_the_old_one_or_of_their_neighbours(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    owner = (12345, 54321) if os.geteuid() == 0 else (os.getuid(), os.getgid())
    for path in [store, *store.rglob("*")]:
        os.chown(path, *owner)
    (store / "config/topics.json").chmod(0o600)
    (store / "index").chmod(0o750)
    (store / INDEX).chmod(0o640)
    steps = [WriteFile("config/topics.json", b"{}"), Install("index/2", b"i"), Install(NEW_QUEUE, b"q")]
    apply_plan(store, seal(Plan.of("recover", steps), store))
    paths = [path for path in store.rglob("*") if ".mqtool" not in path.parts]
    assert {(path.stat().st_uid, path.stat().st_gid) for path in paths} == {owner}
    assert (store / "config/topics.json").stat().st_mode & 0o777 == 0o600
    assert (store / "index/2").stat().st_mode & 0o777 == 0o640
    assert (store / NEW_QUEUE).stat().st_mode & 0o777 not in (0o600, 0o640)
    assert (store / "consumequeue/TopicB").stat().st_mode == (store / "consumequeue").stat().st_mode


def test_extended_attributes_stay_and_come_back(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    for name in (LOG, "checkpoint"):
        os.setxattr(store / name, "user.note", b"kept")
    make_old(store)
    plan = Plan.of("recover", [WriteRange(LOG, 5, b"x"), WriteFile("checkpoint", b"c")])
    apply_plan(store, seal(plan, store))
    assert all(os.getxattr(store / name, "user.note") == b"kept" for name in (LOG, "checkpoint"))
    undo(store)
    assert all(os.getxattr(store / name, "user.note") == b"kept" for name in (LOG, "checkpoint"))


def test_a_hard_linked_file_is_replaced_and_its_other_name_keeps_the_old_bytes(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    os.link(store / NEXT_LOG, tmp_path / "backup")
    before, digest, mtime = (tmp_path / "backup").read_bytes(), tree_digest(store), store.stat().st_mtime_ns
    apply_plan(store, sealed("in-place", store))
    plain = small_store(tmp_path / "plain")
    apply_plan(plain, sealed("in-place", plain))
    assert contents(store) == contents(plain)
    assert (tmp_path / "backup").read_bytes() == before
    undo(store)
    assert_same_tree(digest, tree_digest(store))
    assert store.stat().st_mtime_ns == mtime
    assert (tmp_path / "backup").samefile(store / NEXT_LOG) and (store / NEXT_LOG).stat().st_nlink == 2


def test_what_a_symbolic_link_points_to_is_left_alone(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    shutil.move(store / LOG, tmp_path / "elsewhere")
    (store / LOG).symlink_to(tmp_path / "elsewhere")
    (tmp_path / "away").mkdir()
    shutil.move(store / "index", tmp_path / "away/index")
    (store / "index").symlink_to(tmp_path / "away/index")
    make_old(store)
    before, outside = tree_digest(store), (tmp_path / "elsewhere").read_bytes()
    link = tmp_path / "link"
    link.symlink_to(store)
    apply_plan(link, sealed("everything", link))
    assert (tmp_path / "elsewhere").read_bytes() == outside
    assert (store / LOG).read_bytes() != outside
    assert not (tmp_path / "away/index/20240101000000000").exists(), "a linked folder is a part of the store"
    undo(link)
    assert_same_tree(before, tree_digest(store))


def test_a_part_on_another_file_system(tmp_path: Path) -> None:
    with quick_folder() as other:
        if other.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("there is only one file system")
        store = small_store(tmp_path / "s")
        shutil.move(store / "commitlog", other / "log")
        shutil.move(store / "index", other / "index")
        make_old(store), make_old(other)
        files = [f"{other}/log/00000000000000000000", f"{other}/index/20240101000000000", f"{other}/index/3"]
        before = tree_digest(store), tree_digest(other)
        plan = Plan.of(
            "recover", [ZeroRange(files[0], 5000, 70_000), Retire(f"{other}/log/00000000000000131072"),
                        Install(files[1], b"i" * 9000), Install(files[2], b"new")],
            parts=[other / "log", other / "index"],
        )
        apply_plan(store, seal(plan, store))
        assert Path(files[1]).read_bytes() == b"i" * 9000 and Path(files[2]).read_bytes() == b"new"
        assert sorted(path.name for path in other.rglob("*")) == sorted(
            ["log", "index", "00000000000000000000", "20240101000000000", "3"]
        )
        undo(store)
        assert_same_tree(before[0], tree_digest(store))
        assert_same_tree(before[1], tree_digest(other))


def test_an_interrupt_stops_between_two_steps_and_can_be_resumed(tmp_path: Path) -> None:
    expected = small_store(tmp_path / "expected")
    apply_plan(expected, sealed("everything", expected))
    store = small_store(tmp_path / "s")
    done: list[int] = []
    with pytest.raises(Interrupted) as stop:
        apply_plan(
            store, sealed("everything", store), progress=lambda n, _all, _what: done.append(n),
            interrupted=lambda: len(done) == 2,
        )
    assert stop.value.exit_code == 32
    assert [(run.state, run.steps_done) for run in journal(store)] == [("unfinished", 3)]
    with pytest.raises(Refusal, match="is unfinished"):
        refuse_if_unfinished(store)
    with pytest.raises(Refusal, match="is unfinished"):
        apply_plan(store, sealed("everything", store))
    assert resume(store).run is not None
    assert contents(store) == contents(expected)


def test_an_interrupt_before_the_first_step_leaves_nothing(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    plan = seal(Plan.of("rebuild", [Install(QUEUE, b"q" * 100_000)]), store)
    with assert_unchanged(store), pytest.raises(Interrupted):
        apply_plan(store, plan, interrupted=lambda: True)


def test_applying_a_begun_plan_again_goes_on_with_it(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    plan = sealed("everything", store)
    done: list[int] = []
    with pytest.raises(Interrupted):
        apply_plan(store, plan, progress=lambda n, _all, _what: done.append(n), interrupted=lambda: len(done) == 1)
    assert apply_plan(store, plan).changed
    assert [run.state for run in journal(store)] == ["applied"]
    with pytest.raises(Refusal, match="is gone since"):
        apply_plan(store, plan)


def test_two_mqtools_one_refuses(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    plan = sealed("everything", store)
    before = contents(store)
    with StoreLock(store), pytest.raises(Refusal, match="another mqtool"):
        apply_plan(store, plan)
    assert contents(store) == before


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


def test_a_copy_is_recovered_and_the_original_left_alone(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    shutil.move(store / "commitlog", tmp_path / "log")
    (store / "commitlog").mkdir()
    (store / "config/link").symlink_to(store / "checkpoint")
    (store / "lock").write_bytes(b"lock")
    make_old(store), make_old(tmp_path / "log")
    log = tmp_path / "log"
    plan = Plan.of("recover", [ZeroRange(f"{log}/00000000000000000000", 9, 9000), Retire("abort")], parts=[log])
    target = tmp_path / "copy"
    with assert_unchanged(store), assert_unchanged(log):
        names = copy_store([(store, "."), (log, "commitlog")], target)
        assert_same_tree(tree_digest(log), tree_digest(target / "commitlog"))
        assert (target / "abort").stat().st_mtime_ns == (store / "abort").stat().st_mtime_ns
        assert hole_map(target)[NEXT_LOG] == hole_map(log)["00000000000000131072"]
        assert not (target / "config/link").is_symlink()
        apply_plan(target, seal(relocated(plan, names), target))
    assert (target / LOG).read_bytes()[9:9000] == bytes(8991)
    assert not (target / "abort").exists()


@pytest.mark.parametrize("where", ["s", "s/inside", "full", "missing/new", ".", "file"])
def test_a_copy_needs_an_empty_place_of_its_own(where: str, tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").touch()
    (tmp_path / "file").touch()
    with assert_unchanged(tmp_path), pytest.raises(Refusal):
        copy_store([(store, ".")], tmp_path / where)


def test_a_copy_that_fails_is_removed(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    for place in (tmp_path / "new", tmp_path / "empty"):
        if place.name == "empty":
            place.mkdir()
        with assert_unchanged(store):
            with (
                failing(lambda _number, operation: operation.path.endswith("checkpoint"), errno.ENOSPC),
                pytest.raises(Refusal, match="removed"),
            ):
                copy_store([(store, ".")], place)
            with pytest.raises(Interrupted):
                copy_store([(store, ".")], place, interrupted=lambda: True)
        assert place.exists() == (place.name == "empty")
    os.symlink(store, store / "config/loop")
    with pytest.raises(Refusal, match="leads back"):
        copy_store([(store, ".")], tmp_path / "new")
