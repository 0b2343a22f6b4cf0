"""One plan over one small store, made again for each fault that strikes while it is applied or taken back."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from recover.change.carry_out import apply_plan, resume, undo
from recover.change.journal import journal
from recover.findings.code import Refusal
from tests.support.plans import count_operations, hole_map, make_old, sealed, small_store
from tests.support.trees import assert_same_tree, contents, tree_digest


class Case:
    """The store at `store` as `fresh` leaves it, and how many operations an apply and an undo take. `journal`: the
    folder for the undo data."""

    def __init__(self, folder: Path, name: str, lock: bool = True, journal: Path | None = None) -> None:
        self.store, self.name, self.lock, self.journal = folder / "store", name, lock, journal
        self.fresh()
        self.before, self.holes = tree_digest(self.store), hole_map(self.store)
        self.mtime = self.store.stat().st_mtime_ns
        self.applying = len(count_operations(self.apply))
        self.after = contents(self.store)
        self.undoing = len(count_operations(self.undo))
        self.assert_as_before()

    def fresh(self) -> None:
        """The store as before any run, and the plan bound to it."""
        shutil.rmtree(self.store, ignore_errors=True)
        for left in self.journal.iterdir() if self.journal else ():
            shutil.rmtree(left)
        small_store(self.store)
        if self.lock:
            (self.store / "lock").write_bytes(b"lock")
            make_old(self.store)
        self.plan = sealed(self.name, self.store)

    def apply(self) -> None:
        """Carry the plan out."""
        apply_plan(self.store, self.plan, journal=self.journal)

    def undo(self) -> None:
        """Take the last run back."""
        undo(self.store)

    def resume(self) -> None:
        """Complete the last run."""
        resume(self.store)

    def assert_as_before(self) -> None:
        """Fail unless content, owner, modes, times and holes are those of before."""
        assert_same_tree(self.before, tree_digest(self.store))
        assert hole_map(self.store) == self.holes
        assert self.store.stat().st_mtime_ns == self.mtime

    def taken_back(self) -> None:
        """Undo what there is, or what was left where no run came to exist: the store is as before."""
        if refused(self.undo):
            assert all(run.state == "undone" for run in journal(self.store))
        self.assert_as_before()

    def completed(self) -> None:
        """Resume what there is; if no run came to exist the plan is still good. The store is as an apply leaves it."""
        if not journal(self.store):
            self.apply()
        elif refused(self.resume):
            assert [run.state for run in journal(self.store)] == ["applied"]
        assert contents(self.store) == self.after


def refused(work: Callable[[], object]) -> bool:
    """Whether some work was refused; any other error is one of ours."""
    try:
        work()
    except Refusal:
        return True
    return False
