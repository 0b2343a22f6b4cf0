"""A kill at any instant: the process gets SIGKILL just before an operation on the disk.

Afterwards resume must end at the bytes of an undisturbed run, or undo at the bytes, modes, times and holes of before.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import recover.change.disk
from recover.change.carry_out import apply_plan, prunable, prune, resume, undo
from recover.change.journal import journal
from recover.change.model import Install, Plan, Retire, WriteFile
from recover.change.preconditions import seal
from recover.findings.code import Refusal
from tests.support.counts import Count
from tests.support.plans import LOG, NEW_QUEUE, NEXT_LOG, PLANS, count_operations, killed_at, make_old, small_store
from tests.support.stores import write_at
from tests.support.trees import assert_same_tree, assert_unchanged, contents, tree_digest
from tests.torture.case import Case, refused

ONCE = [(name, number % 2 == 0) for number, name in enumerate(PLANS)]
"""Each plan, in a store with a lock file or without."""


@pytest.fixture(autouse=True)
def torn_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pieces, so that a kill also falls between two parts of one write."""
    monkeypatch.setattr(recover.change.disk, "CHUNK", 20_000)


def sample(operations: int, one_in: int) -> list[int]:
    """One operation in so many: another choice each time, the first and the last always."""
    return sorted({0, operations - 1, *random.sample(range(operations), operations // one_in)})


def _each_point(case: Case, one_in: int) -> int:
    """How many kills; after each, if all operations are asked for, both ways are gone, else one of them."""
    killed = 0
    for number in sample(case.applying, one_in):
        for resumed in (True, False) if one_in == 1 else (random.random() < 0.5,):
            case.fresh()
            assert killed_at(number, case.apply)
            if resumed:
                case.completed()
            case.taken_back()
            killed += 1
    return killed


def _each_undo_point(case: Case, one_in: int) -> int:
    killed = 0
    for number in sample(case.undoing, one_in):
        case.fresh()
        case.apply()
        assert killed_at(number, case.undo)
        # A kill in the undo of an undo, half the way further.
        killed_at(random.randrange(case.undoing), lambda: refused(case.undo))
        case.taken_back()
        killed += 1
    return killed


@pytest.mark.parametrize(("name", "lock", "one_in"), [
    *((*case, 16) for case in ONCE if case[0] in ("everything", "growing")),
    *(pytest.param(*case, 8, marks=pytest.mark.deep) for case in ONCE),
    *(pytest.param(name, lock, 1, marks=pytest.mark.long) for name in PLANS for lock in (True, False)),
])
def test_a_kill_before_every_operation(name: str, lock: bool, one_in: int, folder: Path, count: Count) -> None:
    case = Case(folder, name, lock)
    count("fault points killed by SIGKILL", _each_point(case, one_in) + _each_undo_point(case, one_in))


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.deep if name in ("everything", "folders") else pytest.mark.long)
    for name in sorted(PLANS)
])
def test_killed_again_and_again_while_resuming(name: str, folder: Path) -> None:
    case = Case(folder, name, False)
    case.fresh()
    kills = 0
    while killed_at(7 + kills // 2, lambda: refused(case.apply)):
        kills += 1
    assert contents(case.store) == case.after
    while killed_at(7 + kills // 8, lambda: refused(case.undo)):
        kills += 1
    assert kills > 20
    case.assert_as_before()


@pytest.mark.parametrize(("name", "one_in"), [
    ("everything", 80), ("folders", 30),
    *(pytest.param(name, 4, marks=pytest.mark.deep) for name in PLANS),
])
def test_a_kill_with_the_undo_data_on_another_disk(
    name: str, one_in: int, folder: Path, disk: Path, count: Count
) -> None:
    case = Case(folder, name, journal=disk)
    assert (case.undoing, len(list(disk.iterdir()))) > (0, 0)
    count("fault points killed by SIGKILL", _each_point(case, one_in) + _each_undo_point(case, one_in))
    for number in (0, case.applying // 6, case.applying // 3):
        case.fresh()
        assert killed_at(number, case.apply)
        refused(case.undo)
        kept = {run.undo_data for run in journal(case.store)}
        assert {str(path) for path in disk.iterdir()} == kept - {None}, "nothing of a run that never began is left"
    case.fresh()
    case.apply()
    prune(case.store)
    assert not list(disk.iterdir()) and contents(case.store) == case.after and refused(case.undo)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_kill_while_undo_data_are_removed(elsewhere: bool, folder: Path, disk: Path) -> None:
    case = Case(folder, "everything", journal=disk if elsewhere else None)
    case.fresh()
    case.apply()
    for number in range(3, 999, 17):
        killed = killed_at(number, lambda: prune(case.store))
        assert contents(case.store) == case.after
        run, = journal(case.store)
        assert run.state == "applied" and (run.pruned_ms is not None) == refused(case.undo)
        if not killed:
            break
        if run.pruned_ms is None:  # killed before its record: undone
            case.fresh()
            case.apply()
    assert not prunable(case.store)
    assert not any(path.is_file() for name in ("staged", "preimages", "retired")
                   for path in (case.store / run.journal / name).rglob("*"))
    assert not list(disk.iterdir())


def _broker_started(store: Path) -> None:
    """What a broker leaves that started and was stopped again: a written lock file, a synced checkpoint."""
    (store / "lock").write_bytes(b"lock")
    (store / "checkpoint").touch()


def _broker_appended(store: Path) -> None:
    write_at(store / NEXT_LOG, 30_000, b"a new record")


def _broker_dispatched(store: Path) -> None:
    (store / NEW_QUEUE).parent.mkdir(parents=True, exist_ok=True)
    (store / NEW_QUEUE).write_bytes(bytes(20))


@pytest.mark.parametrize("broker", [_broker_started, _broker_appended, _broker_dispatched])
def test_a_broker_between_kill_and_resume_is_noticed(
    broker: Callable[[Path], None], folder: Path, count: Count
) -> None:
    case, noticed = Case(folder, "everything"), 0
    for number in range(0, case.applying, 18):
        case.fresh()
        assert killed_at(number, case.apply)
        if any(run.state == "unfinished" for run in journal(case.store)):
            broker(case.store)
            with assert_unchanged(case.store), pytest.raises(Refusal, match=r"since|after|not as|appeared|bytes"):
                case.resume()
            noticed += 1
    assert noticed > 2
    count("starts of a broker between kill and resume refused", noticed)


def test_a_half_written_range_with_foreign_bytes_is_not_run_over(folder: Path) -> None:
    case = Case(folder, "in-place")
    case.fresh()
    operations = count_operations(case.apply)
    case.fresh()
    write = max(n for n, each in enumerate(operations) if each.name == "write" and each.path.endswith(LOG))
    assert killed_at(write, case.apply)
    write_at(case.store / LOG, 5000, b"\xff\xfe")
    for work in (case.resume, case.undo):
        with assert_unchanged(case.store), pytest.raises(Refusal, match=LOG):
            work()


def _across(store: Path, other: Path) -> Plan:
    """A small store whose index lies on another file system, and a plan that replaces, makes and takes away there."""
    small_store(store)
    shutil.move(store / "index", other / "index")
    (other / "index/2").write_bytes(b"second" * 900)
    make_old(store)
    make_old(other)
    steps = [
        Install(f"{other}/index/20240101000000000", b"i" * 50_000), Retire(f"{other}/index/2"),
        Install(f"{other}/index/3", b"third" * 700), WriteFile("checkpoint", b"c"),
    ]
    return seal(Plan("rebuild", steps, parts=[str(other / "index")]), store)


@pytest.mark.deep
@pytest.mark.parametrize("how", ["resume", "undo"])
def test_a_kill_with_a_part_on_another_file_system(how: str, folder: Path, disk: Path) -> None:
    store, other = disk / "s", folder / "other"
    other.mkdir()
    plan, parts = _across(store, other), [other / "index"]
    operations = len(count_operations(lambda: apply_plan(store, plan, parts=parts)))
    after = contents(store), contents(other)
    for number in range(operations - 40, operations, 2):
        shutil.rmtree(store)
        shutil.rmtree(other / "index")
        plan = _across(store, other)
        before = tree_digest(store), tree_digest(other)
        assert killed_at(number, lambda plan=plan: apply_plan(store, plan, parts=parts))  # type: ignore[misc]
        if how == "undo":
            undo(store, parts=parts)
            assert_same_tree(before[0], tree_digest(store))
            assert_same_tree(before[1], tree_digest(other))
        else:
            refused(lambda: resume(store, parts=parts))
            assert (contents(store), contents(other)) == after
