"""The step that takes a folder away: everything in it moves with it, and comes back with it."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from recover.change.carry_out import apply_plan, resume, undo
from recover.change.journal import journal
from recover.change.model import Plan, RetireFolder
from recover.change.places import can_be_retired
from recover.change.preconditions import seal
from recover.findings.refusal import Refusal
from tests.support.plans import LOG, count_operations, killed_at, make_old, small_store
from tests.support.trees import assert_same_tree, assert_unchanged, tree_digest

STRAY = "commitlog/lost+found"


def with_stray(root: Path) -> Path:
    """A small store with a folder in its commitlog that holds whatever a folder can hold."""
    store = small_store(root)
    stray = store / STRAY
    (stray / "deep" / "deeper").mkdir(parents=True)
    (stray / "deep" / "file").write_bytes(b"x" * 5000)
    (stray / "deep" / "deeper" / "empty").touch(mode=0o600)
    (stray / "link").symlink_to("deep/file")
    (stray / "nowhere").symlink_to("/does/not/exist")
    os.mkfifo(stray / "pipe")
    stray.chmod(0o700)
    make_old(store)
    return store


def retiring(store: Path, file: str = STRAY) -> Plan:
    return seal(Plan("recover", [RetireFolder(file)]), store)


def test_everything_in_it_goes_and_comes_back(folder: Path) -> None:
    store = with_stray(folder / "s")
    before, inode = tree_digest(store), (store / STRAY / "deep" / "file").stat().st_ino
    applied = apply_plan(store, retiring(store))
    assert not (store / STRAY).exists()
    assert applied is not None
    kept = store / applied.journal / "retired" / "000000"
    assert (kept / "deep" / "file").stat().st_ino == inode
    assert undo(store).restored == (STRAY,)
    assert_same_tree(before, tree_digest(store))


def test_a_link_to_a_folder_goes_and_what_it_leads_to_stays(folder: Path) -> None:
    store = small_store(folder / "s")
    target = folder / "elsewhere"
    target.mkdir()
    (target / "file").write_bytes(b"x")
    (store / STRAY).symlink_to(target)
    before = tree_digest(store)
    apply_plan(store, retiring(store))
    assert not (store / STRAY).is_symlink()
    assert (target / "file").read_bytes() == b"x"
    undo(store)
    assert_same_tree(before, tree_digest(store))


@pytest.mark.parametrize("change", ["new file", "longer file", "file gone", "touched", "gone", "a file now"])
def test_a_folder_that_changed_after_the_plan_is_refused(change: str, folder: Path) -> None:
    store = with_stray(folder / "s")
    plan = retiring(store)
    stray = store / STRAY
    if change == "new file":
        (stray / "deep" / "deeper" / "new").touch()
    elif change == "longer file":
        (stray / "deep" / "file").open("ab").write(b"y")
    elif change == "file gone":
        (stray / "deep" / "deeper" / "empty").unlink()
    elif change == "touched":
        os.utime(stray)
    else:
        shutil.rmtree(stray)
        if change == "a file now":
            stray.touch()
    with assert_unchanged(store), pytest.raises(Refusal, match=r"lost\+found"):
        apply_plan(store, plan)


@pytest.mark.parametrize("file", [LOG, "commitlog/nothing"])
def test_what_is_no_folder_is_not_taken_for_one(file: str, folder: Path) -> None:
    store = small_store(folder / "s")
    if file == LOG:
        with pytest.raises(Refusal, match="not a folder"):
            retiring(store, file)
    else:
        assert not retiring(store, file).preconditions[0].exists


def test_undo_is_refused_when_the_name_is_taken_again(folder: Path) -> None:
    store = with_stray(folder / "s")
    apply_plan(store, retiring(store))
    (store / STRAY).mkdir()
    with assert_unchanged(store, [".mqtool"]), pytest.raises(Refusal, match=r"lost\+found"):
        undo(store)
    (store / STRAY).rmdir()
    undo(store)
    assert (store / STRAY / "deep" / "file").exists()


# --- on another file system -----------------------------------------------------------------------------


def on_two_disks(store: Path, other: Path) -> Plan:
    """A store whose log lies on another file system, with an empty folder in it, as file systems make them."""
    small_store(store)
    shutil.move(store / "commitlog", other / "log")
    stray = other / "log" / "lost+found"
    stray.mkdir(mode=0o700)
    make_old(store)
    make_old(other)
    return seal(Plan("recover", [RetireFolder(str(stray))], parts=[str(other / "log")]), store)


def test_on_another_file_system_an_empty_folder_goes_and_comes_back_whenever_it_is_killed(
    folder: Path, disk: Path
) -> None:
    store, other = disk / "s", folder / "other"
    other.mkdir()
    plan = on_two_disks(store, other)
    stray = plan.steps[0].file
    assert can_be_retired(store, stray)
    operations = len(count_operations(lambda: apply_plan(store, plan, parts=[str(other / "log")])))
    assert not Path(stray).exists()
    undone = len(count_operations(lambda: undo(store, parts=[str(other / "log")])))
    for number in range(random.randrange(2), operations + undone, 2):
        shutil.rmtree(store)
        shutil.rmtree(other / "log")
        plan = on_two_disks(store, other)
        before = tree_digest(store), tree_digest(other)
        if number < operations:
            assert killed_at(number, lambda plan=plan: apply_plan(store, plan, parts=[str(other / "log")]))  # type: ignore[misc]
            if number % 4 > 1 and any(run.state == "unfinished" for run in journal(store)):
                resume(store, parts=[str(other / "log")])
                assert not Path(stray).exists()
        else:
            apply_plan(store, plan, parts=[str(other / "log")])
            assert killed_at(number - operations, lambda: undo(store, parts=[str(other / "log")]))
        try:
            undo(store, parts=[str(other / "log")])
        except Refusal:
            assert all(run.state == "undone" for run in journal(store))
        assert_same_tree(before[0], tree_digest(store))
        assert_same_tree(before[1], tree_digest(other))
