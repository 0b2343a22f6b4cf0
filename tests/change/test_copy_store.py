"""Recovering a copy: it is whole, and the original is left alone."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from recover.change.carry_out import apply_plan
from recover.change.copy_store import copy_store, relocated
from recover.change.model import Plan, Retire, ZeroRange
from recover.change.preconditions import seal
from recover.findings.refusal import Interrupted, Refusal
from tests.support.plans import LOG, NEXT_LOG, failing, hole_map, make_old, small_store
from tests.support.trees import assert_same_tree, assert_unchanged, tree_digest


def test_a_copy_is_recovered_and_the_original_left_alone(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    shutil.move(store / "commitlog", tmp_path / "log")
    (store / "commitlog").mkdir()
    (store / "config/link").symlink_to(store / "checkpoint")
    (store / "lock").write_bytes(b"lock")
    make_old(store), make_old(tmp_path / "log")
    log = tmp_path / "log"
    plan = Plan("recover", [ZeroRange(f"{log}/00000000000000000000", 9, 9000), Retire("abort")], parts=[str(log)])
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
