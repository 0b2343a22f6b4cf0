"""The tests' own tools: store copies are faithful, tree comparisons see what they must, counts add up."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.counts import NOTE, PREFIX, lines
from tests.support.stores import STORES, unpacked
from tests.support.trees import assert_same_tree, assert_unchanged, tree_digest


@pytest.mark.parametrize("name", STORES)
def test_copy_of_a_store_equals_the_unpacked_one(name: str, store: Callable[[str], Path]) -> None:
    assert_same_tree(tree_digest(unpacked(name)), tree_digest(store(name)))


def test_copy_of_a_store_stays_sparse(store: Callable[[str], Path]) -> None:
    spare = store("killed-5.5.0") / "timerwheel"
    assert spare.stat().st_blocks * 512 < spare.stat().st_size


@pytest.mark.parametrize("change", ["content", "mode", "mtime", "new", "gone"])
def test_tree_comparison_sees_every_change(change: str, store: Callable[[str], Path]) -> None:
    root = store("clean-4.5.1")
    target = root / "checkpoint"
    status = target.stat()
    with pytest.raises(AssertionError, match="checkpoint"), assert_unchanged(root):
        if change == "content":
            target.write_bytes(b"x" + target.read_bytes()[1:])
            os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
        elif change == "mode":
            target.chmod(0o600)
        elif change == "mtime":
            os.utime(target, ns=(0, 0))
        elif change == "new":
            (root / "checkpoint.copy").touch()
        else:
            target.unlink()


def test_tree_comparison_leaves_the_journal_out(store: Callable[[str], Path]) -> None:
    root = store("clean-4.5.1")
    before = tree_digest(root)
    (root / ".mqtool").mkdir()
    (root / ".mqtool" / "journal").touch()
    assert_same_tree(before, tree_digest(root))


def test_counts_of_all_tests_add_up_and_a_miss_in_a_failed_one_is_told() -> None:
    def report(when: str, *properties: tuple[str, object]) -> SimpleNamespace:
        return SimpleNamespace(when=when, user_properties=list(properties))

    stats = {
        "passed": [report("call", (PREFIX + "kills", 1200)), report("teardown", (PREFIX + "kills", 5))],
        "failed": [report("call", (PREFIX + "kills", 34), (NOTE + "MISSED a bit", True), ("other", 1))],
    }
    assert list(lines(stats)) == ["    1,234 kills", "MISSED a bit"]
    assert list(lines({})) == []
