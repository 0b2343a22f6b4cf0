"""Content written into a run's folder: synced, checked, and given up as one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recover.change import disk
from recover.change.carry_out import apply_plan
from recover.change.model import Install, Plan
from recover.change.preconditions import seal
from recover.findings.refusal import Refusal
from tests.support.plans import QUEUE, count_operations, sealed, small_store
from tests.support.trees import contents


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


def _write_to(path: str, data: bytes, mtime_step_ns: int) -> None:
    with open(path, "r+b") as file:
        file.write(data)
    os.utime(path, ns=(0, os.stat(path).st_mtime_ns + mtime_step_ns))


def test_a_staged_file_that_is_written_to_before_it_has_its_name_is_noticed_and_taken_back(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    plan = seal(Plan("rebuild", [Install(QUEUE, b"u" * 20)]), store)

    def hook(item: disk.Operation) -> None:
        if item.name == "rename" and item.path.endswith("staged/000000"):
            _write_to(item.path, b"w", 1)

    before = contents(store)
    disk.set_hook(hook)
    try:
        with pytest.raises(Refusal, match=r"reads back differently .*; the begun steps were taken back"):
            apply_plan(store, plan)
    finally:
        disk.set_hook(None)
    assert contents(store) == before
