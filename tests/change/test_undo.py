"""The journal and undo: the store of before, bit for bit, or a refusal that names what stands in the way."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from recover.change.carry_out import apply_plan, resume, undo
from recover.change.journal import decode_records, encode_record, journal, run_findings
from recover.change.model import Plan, Retire, WriteFile, WriteRange, ZeroRange
from recover.change.preconditions import seal
from recover.findings.code import Interrupted, Refusal
from tests.support.plans import INDEX, LOG, NEW_QUEUE, NEXT_LOG, PLANS, QUEUE, hole_map, make_old, sealed, small_store
from tests.support.trees import assert_same_tree, assert_unchanged, contents, tree_digest

# --- The journal: what it tells, what a torn or damaged one does.


def _stopped(store: Path, batches: int) -> None:
    """Leave a run with so many batches done: the first is one step, the second two."""
    done: list[int] = []
    with pytest.raises(Interrupted):
        apply_plan(
            store, sealed("everything", store), progress=lambda n, _all, _what: done.append(n),
            interrupted=lambda: len(done) == batches,
        )


def test_runs_are_told_oldest_first(store: Path) -> None:
    apply_plan(store, seal(Plan("truncate", [Retire(INDEX)]), store))
    undo(store)
    apply_plan(store, seal(Plan("rebuild", [Retire(QUEUE)]), store))
    with assert_unchanged(store):
        first, second = journal(store)
    assert (first.command, first.state, second.command, second.state) == ("truncate", "undone", "rebuild", "applied")
    assert first.started_ms <= (first.ended_ms or 0) <= second.started_ms
    assert (second.steps, second.steps_done) == (1, 1)
    assert json.loads((store / second.plan_path).read_text())["body"]["command"] == "rebuild"


def test_an_unfinished_run_is_a_finding(store: Path) -> None:
    _stopped(store, 1)
    found = run_findings(store)
    assert [item.code for item in found] == ["run-unfinished"]
    assert found[0].facts["steps_done"] == 1 and found[0].bits == 2
    resume(store)
    assert run_findings(store) == []


@pytest.mark.parametrize("keep", range(1, 60, 6))
def test_a_torn_last_line_is_as_if_it_had_never_been(keep: int, tmp_path: Path) -> None:
    expected = small_store(tmp_path / "expected")
    apply_plan(expected, sealed("everything", expected))
    store = small_store(tmp_path / "s")
    before = tree_digest(store)
    _stopped(store, 2)
    path = store / journal(store)[0].plan_path.replace("plan.json", "journal.ndjson")
    whole = path.read_bytes()
    path.write_bytes(whole + encode_record({"event": "begin", "seq": 99, "step": 3})[:keep])
    assert journal(store)[0].steps_done == 3
    if keep % 2:
        resume(store)
        assert contents(store) == contents(expected)
    undo(store)
    assert_same_tree(before, tree_digest(store))


def test_every_prefix_of_a_journal_can_be_read(store: Path) -> None:
    result = apply_plan(store, sealed("in-place", store))
    data = (store / str(result.journal) / "journal.ndjson").read_bytes()
    records = decode_records(data)
    for stop in range(len(data)):
        part = decode_records(data[:stop])
        assert part == records[: len(part)]


def test_a_record_lost_in_the_middle_is_noticed(store: Path) -> None:
    result = apply_plan(store, sealed("everything", store))
    path = store / str(result.journal) / "journal.ndjson"
    lines = path.read_bytes().split(b"\n")
    lines[5] = lines[5].replace(b"begin", b"begun").replace(b"done", b"dome")
    path.write_bytes(b"\n".join(lines))
    before = tree_digest(store)
    for work in (journal, undo, resume):
        with pytest.raises(Refusal, match="damaged"):
            work(store)
    assert [item.code for item in run_findings(store)] == ["run-journal-damaged"]
    assert_same_tree(before, tree_digest(store))


@pytest.mark.parametrize("damage", [b"", b"{}", b"\n\n", b"[1]\n", b"\xff" * 100])
def test_a_journal_that_is_none_is_a_refusal(damage: bytes, store: Path) -> None:
    result = apply_plan(store, sealed("in-place", store))
    (store / str(result.journal) / "journal.ndjson").write_bytes(damage)
    with pytest.raises(Refusal, match="damaged"):
        journal(store)


def test_a_journal_of_an_earlier_release_is_read_and_its_owners_and_modes_are_not_believed(store: Path) -> None:
    before = tree_digest(store)
    result = apply_plan(store, sealed("everything", store))
    path = store / str(result.journal) / "journal.ndjson"
    old = [{**record, "mode": 0o104777, "uid": 12345, "gid": 12345} if "blocks" in record else record
           for record in decode_records(path.read_bytes())]
    assert sum("uid" in record for record in old) == 2
    path.write_bytes(b"".join(map(encode_record, old)))
    undo(store)
    assert_same_tree(before, tree_digest(store))


def test_staged_content_that_went_bad_is_not_installed(store: Path) -> None:
    before = tree_digest(store)
    _stopped(store, 2)
    folder = store / ".mqtool/runs" / journal(store)[0].id / "staged"
    (folder / "000003").write_bytes(b"Q" * 6000)
    with pytest.raises(Refusal, match="staged content"):
        resume(store)
    undo(store)
    assert_same_tree(before, tree_digest(store))


# --- Undo: the store of before, bit for bit, or a refusal that names what stands in the way.


@pytest.mark.parametrize("name", sorted(PLANS))
@pytest.mark.parametrize("lock", [False, True])
def test_the_store_is_as_before(name: str, lock: bool, store: Path) -> None:
    if lock:
        (store / "lock").write_bytes(b"lock")
        make_old(store)
    before, holes, mtime = tree_digest(store), hole_map(store), store.stat().st_mtime_ns
    plan = sealed(name, store)
    apply_plan(store, plan)
    undone = undo(store)
    assert_same_tree(before, tree_digest(store))
    assert hole_map(store) == holes
    assert store.stat().st_mtime_ns == mtime
    assert list(undone.restored) == sorted({step.file for step in plan.steps})
    assert [run.state for run in journal(store)] == ["undone"]


def test_inodes_of_replaced_files_come_back(store: Path) -> None:
    inodes = {name: (store / name).stat().st_ino for name in (INDEX, QUEUE)}
    apply_plan(store, sealed("whole-files", store))
    undo(store)
    assert {name: (store / name).stat().st_ino for name in (INDEX, QUEUE)} == inodes


def test_runs_are_undone_newest_first(store: Path) -> None:
    trees = []
    for byte in b"abc":
        trees.append(tree_digest(store))
        plan = Plan("recover", [WriteRange(LOG, 100, bytes([byte]) * 10), WriteFile("checkpoint", bytes([byte]))])
        apply_plan(store, seal(plan, store))
    while trees:
        undo(store)
        assert_same_tree(trees.pop(), tree_digest(store))
    with assert_unchanged(store), pytest.raises(Refusal, match="all were undone"):
        undo(store)


def test_a_store_without_runs_is_refused_and_nothing_made(store: Path) -> None:
    with assert_unchanged(store):
        with pytest.raises(Refusal, match="no run was applied"):
            undo(store)
        with pytest.raises(Refusal, match="no unfinished run"):
            resume(store)


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize(("file", "change"), [
    (LOG, Path.touch), (NEXT_LOG, _truncate), ("checkpoint", lambda path: path.write_bytes(b"d" * 4096)),
    ("abort", Path.touch), (INDEX, Path.touch), (NEW_QUEUE, Path.unlink),
])
def test_a_file_that_is_not_as_the_run_left_it_is_named_and_left(file: str, change: object, store: Path) -> None:
    apply_plan(store, sealed("everything", store))
    change(store / file)  # type: ignore[operator]
    before = tree_digest(store)
    with pytest.raises(Refusal, match=file) as refused:
        undo(store)
    assert refused.value.facts["files"] == [file]
    assert_same_tree(before, tree_digest(store))
    assert [run.state for run in journal(store)] == ["applied"]


def test_a_foreign_file_in_a_new_directory_stops_the_undo_until_it_is_gone(store: Path) -> None:
    before = tree_digest(store)
    apply_plan(store, sealed("whole-files", store))
    (store / "consumequeue/TopicB/3/other").touch()
    with pytest.raises(Refusal, match="TopicB/3 holds files"):
        undo(store)
    assert [run.state for run in journal(store)] == ["undoing"]
    (store / "consumequeue/TopicB/3/other").unlink()
    undo(store)
    assert_same_tree(before, tree_digest(store))


def test_damaged_saved_bytes_are_never_put_back(store: Path) -> None:
    result = apply_plan(store, seal(Plan("truncate", [ZeroRange(LOG, 100, 9000)]), store))
    (store / str(result.journal) / "preimages/000000").write_bytes(b"\1" * 8900)
    before = tree_digest(store)
    with pytest.raises(Refusal, match="saved bytes of"):
        undo(store)
    assert_same_tree(before, tree_digest(store))


def test_an_undo_that_was_interrupted_goes_on(store: Path) -> None:
    before = tree_digest(store)
    apply_plan(store, sealed("everything", store))
    for go_on in (undo, resume):
        count = iter([False, False, True])
        with pytest.raises(Interrupted):
            undo(store, interrupted=lambda count=count: next(count))
        assert [run.state for run in journal(store)] == ["undoing"]
        if go_on is resume:
            resume(store)
    assert_same_tree(before, tree_digest(store))
    assert [run.state for run in journal(store)] == ["undone"]


def test_a_moved_store_can_still_be_undone(store: Path, tmp_path: Path) -> None:
    before = tree_digest(store)
    apply_plan(store, sealed("everything", store))
    store.rename(tmp_path / "moved")
    undo(tmp_path / "moved")
    assert_same_tree(before, tree_digest(tmp_path / "moved"))


def test_the_journal_of_another_store_is_refused(tmp_path: Path) -> None:
    store, other = small_store(tmp_path / "a"), small_store(tmp_path / "b")
    apply_plan(store, sealed("everything", store))
    shutil.copytree(store / ".mqtool", other / ".mqtool")
    before = tree_digest(other)
    with pytest.raises(Refusal, match="not as the run"):
        undo(other)
    assert_same_tree(before, tree_digest(other))
