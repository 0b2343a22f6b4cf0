"""The power fails after any operation of apply or undo, and what was not synced is gone, or there, or in part.

Whatever comes back, resume ends at the bytes of an undisturbed run, and undo at the store as it was.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from recover.change.carry_out import apply_plan, resume
from recover.change.journal import journal
from recover.change.undo import undo
from recover.findings.refusal import Refusal
from tests.support.counts import Count
from tests.support.plans import PLANS, make_old, sealed, small_store
from tests.support.trees import assert_same_tree, contents, tree_digest
from tests.torture.power import Disk, Noted, recorded

ALL = [(name, lock) for name in sorted(PLANS) for lock in (True, False)]


class Case:
    """One plan over one store. Trees come back at the store's own path, for a run is bound to it."""

    def __init__(self, folder: Path, name: str, lock: bool) -> None:
        self.store, self.trees = small_store(folder / "store"), 0
        if lock:
            (self.store / "lock").write_bytes(b"lock")
            make_old(self.store)
        self.before = tree_digest(self.store)
        plan = sealed(name, self.store)
        self.sound = Disk(self.store)
        self.applying = recorded(lambda: apply_plan(self.store, plan))
        self.after = contents(self.store)
        self.applied = Disk(self.store)
        self.undoing = recorded(lambda: undo(self.store))
        assert_same_tree(self.before, tree_digest(self.store))

    def replay(self, model: Disk, notes: Sequence[Noted], chance: random.Random, one_in: int, each: int) -> None:
        """Let the power fail between operations, at one place in so many, and see what comes back."""
        for note in [None, *notes]:
            if note is not None:
                model.take(note)
            if chance.randrange(one_in) == 0:
                for kept in (0.0, 1.0, *[0.5] * each):
                    seed = chance.random()
                    for check in (self.resumed, self.undone):
                        shutil.rmtree(self.store)
                        model.come_back(self.store, random.Random(seed), kept)
                        check()
                    self.trees += 1

    def resumed(self) -> None:
        """Complete what there is, whatever it was; without a run the store is as before."""
        there = bool(journal(self.store))
        _try(lambda: resume(self.store))
        states = [run.state for run in journal(self.store)]
        assert states in ([["applied"], ["undone"]] if there else [[]])
        if states == ["applied"]:
            assert contents(self.store) == self.after
        else:
            assert_same_tree(self.before, tree_digest(self.store))

    def undone(self) -> None:
        """Take back what there is."""
        _try(lambda: undo(self.store))
        assert all(run.state == "undone" for run in journal(self.store))
        assert_same_tree(self.before, tree_digest(self.store))


def _try(work: Callable[[], object]) -> None:
    """Do it, unless there is nothing to do."""
    try:
        work()
    except Refusal as refusal:
        if not any(text in refusal.message for text in _NOTHING_TO_DO):
            raise


_NOTHING_TO_DO = ("no unfinished run", "nothing was applied", "no run had changed")


def replay(folder: Path, name: str, lock: bool, chance: random.Random, one_in: int, each: int) -> int:
    """Let the power fail in one run of apply and one of undo; how many trees came back."""
    case = Case(folder, name, lock)
    case.replay(case.sound, case.applying, chance, one_in, each)
    case.replay(case.applied, case.undoing, chance, one_in, each)
    return case.trees


@pytest.mark.parametrize(("name", "lock"), [("everything", True), ("whole-files", False)])
def test_power_that_fails_now_and_then(name: str, lock: bool, folder: Path, count: Count) -> None:
    count("prefixes replayed", replay(folder, name, lock, random.Random(1), 12, 1))


@pytest.mark.deep
@pytest.mark.parametrize(("name", "lock"), [case for number, case in enumerate(ALL) if number % 4 in (0, 3)])
def test_power_that_fails_after_some_operations(name: str, lock: bool, folder: Path, count: Count) -> None:
    count("prefixes replayed", replay(folder, name, lock, random.Random(2), 9, 1))


@pytest.mark.long
@pytest.mark.parametrize(("name", "lock"), ALL)
def test_power_that_fails_after_each_operation(name: str, lock: bool, folder: Path, count: Count) -> None:
    count("prefixes replayed", replay(folder, name, lock, random.Random(3), 1, 8))
