"""Applying plans: what they leave, and what stops them between two steps."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from recover.change.carry_out import apply_plan, refuse_if_unfinished, resume, undo
from recover.change.content import LazyContent
from recover.change.journal import journal
from recover.change.lock import store_lock
from recover.change.model import Install, Plan, Retire, WriteFile, WriteRange, ZeroRange
from recover.change.preconditions import seal
from recover.findings.refusal import Interrupted, Refusal
from tests.support.plans import INDEX, LOG, LOG_SIZE, NEW_QUEUE, NEXT_LOG, QUEUE, make_old, sealed, small_store
from tests.support.trees import assert_same_tree, assert_unchanged, contents, tree_digest


def test_ranges_files_and_names_are_as_planned(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    before = {name: (store / name).read_bytes() for name in (LOG, NEXT_LOG, INDEX)}
    result = apply_plan(store, sealed("everything", store))
    assert result is not None and result.state == "applied"
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
        assert apply_plan(store, seal(Plan("recover", []), store)) is None


def test_zeros_of_new_content_take_no_blocks(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    content = LazyContent(6_000_000, lambda: [b"u" * 20, bytes(5_999_980)], allocated=4096)
    apply_plan(store, seal(Plan("rebuild", [Install(QUEUE, content)]), store))
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
    apply_plan(store, seal(Plan("recover", steps), store))
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
    plan = Plan("recover", [WriteRange(LOG, 5, b"x"), WriteFile("checkpoint", b"c")])
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
    with assert_unchanged(tmp_path), pytest.raises(Refusal, match="index is a link to"):
        apply_plan(link, sealed("everything", link))
    apply_plan(link, sealed("everything", link), parts=[link / "index"])
    assert (tmp_path / "elsewhere").read_bytes() == outside
    assert (store / LOG).read_bytes() != outside
    assert not (tmp_path / "away/index/20240101000000000").exists(), "a linked folder that is named is a part"
    with pytest.raises(Refusal, match="index is a link to"):
        undo(link)
    undo(link, parts=[link / "index"])
    assert_same_tree(before, tree_digest(store))


def test_a_part_on_another_file_system(tmp_path: Path, disk: Path) -> None:
    other, store = tmp_path, small_store(disk / "s")
    shutil.move(store / "commitlog", other / "log")
    shutil.move(store / "index", other / "index")
    make_old(store), make_old(other)
    files = [f"{other}/log/00000000000000000000", f"{other}/index/20240101000000000", f"{other}/index/3"]
    before = tree_digest(store), tree_digest(other)
    plan = Plan(
        "recover", [ZeroRange(files[0], 5000, 70_000), Retire(f"{other}/log/00000000000000131072"),
                    Install(files[1], b"i" * 9000), Install(files[2], b"new")],
        parts=[str(other / "log"), str(other / "index")],
    )
    apply_plan(store, seal(plan, store), parts=plan.parts)
    assert Path(files[1]).read_bytes() == b"i" * 9000 and Path(files[2]).read_bytes() == b"new"
    assert sorted(path.name for path in other.rglob("*")) == sorted(
        ["log", "index", "00000000000000000000", "20240101000000000", "3"]
    )
    undo(store, parts=plan.parts)
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
    assert resume(store).state == "applied"
    assert contents(store) == contents(expected)


def test_applying_a_begun_plan_again_goes_on_with_it(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    plan = sealed("everything", store)
    done: list[int] = []
    with pytest.raises(Interrupted):
        apply_plan(store, plan, progress=lambda n, _all, _what: done.append(n), interrupted=lambda: len(done) == 1)
    assert apply_plan(store, plan) is not None
    assert [run.state for run in journal(store)] == ["applied"]
    with pytest.raises(Refusal, match="is gone since"):
        apply_plan(store, plan)


def test_two_mqtools_one_refuses(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    plan = sealed("everything", store)
    before = contents(store)
    with store_lock(store), pytest.raises(Refusal, match="another mqtool"):
        apply_plan(store, plan)
    assert contents(store) == before


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


def test_a_disk_without_room_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=2m", "tmpfs") as small:
        store = small_store(small / "s")
        plan = seal(Plan("rebuild", [Install(QUEUE, b"q" * 1_500_000)]), store)
        with assert_unchanged(store), pytest.raises(Refusal, match="bytes are needed"):
            apply_plan(store, plan)
        lying = LazyContent(1_900_000, lambda: [b"q" * 1_900_000], allocated=0)
        plan = seal(Plan("rebuild", [Retire(INDEX), Install(QUEUE, lying)]), store)
        with assert_unchanged(store), pytest.raises(Refusal, match="No space left"):
            apply_plan(store, plan)
