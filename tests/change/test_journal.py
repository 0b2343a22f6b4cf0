"""The journal: what it tells, what a torn or damaged one does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recover.change.carry_out import apply_plan, resume, undo
from recover.change.journal import decode_records, encode_record, journal, run_findings
from recover.change.model import Plan, Retire
from recover.change.preconditions import seal
from recover.findings.refusal import Interrupted, Refusal
from tests.support.plans import INDEX, QUEUE, sealed, small_store
from tests.support.trees import assert_same_tree, assert_unchanged, contents, tree_digest


def _stopped(store: Path, batches: int) -> None:
    """Leave a run with so many batches done: the first is one step, the second two."""
    done: list[int] = []
    with pytest.raises(Interrupted):
        apply_plan(
            store, sealed("everything", store), progress=lambda n, _all, _what: done.append(n),
            interrupted=lambda: len(done) == batches,
        )


def test_runs_are_told_oldest_first(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    apply_plan(store, seal(Plan("truncate", [Retire(INDEX)]), store))
    undo(store)
    apply_plan(store, seal(Plan("rebuild", [Retire(QUEUE)]), store))
    with assert_unchanged(store):
        first, second = journal(store)
    assert (first.command, first.state, second.command, second.state) == ("truncate", "undone", "rebuild", "applied")
    assert first.started_ms <= (first.ended_ms or 0) <= second.started_ms
    assert (second.steps, second.steps_done) == (1, 1)
    assert json.loads((store / second.plan_path).read_text())["body"]["command"] == "rebuild"


def test_an_unfinished_run_is_a_finding(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
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


def test_every_prefix_of_a_journal_can_be_read(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    result = apply_plan(store, sealed("in-place", store))
    data = (store / str(result.journal) / "journal.ndjson").read_bytes()
    records = decode_records(data)
    for stop in range(len(data)):
        part = decode_records(data[:stop])
        assert part == records[: len(part)]


def test_a_record_lost_in_the_middle_is_noticed(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
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
def test_a_journal_that_is_none_is_a_refusal(damage: bytes, tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    result = apply_plan(store, sealed("in-place", store))
    (store / str(result.journal) / "journal.ndjson").write_bytes(damage)
    with pytest.raises(Refusal, match="damaged"):
        journal(store)


def test_staged_content_that_went_bad_is_not_installed(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    before = tree_digest(store)
    _stopped(store, 2)
    folder = store / ".mqtool/runs" / journal(store)[0].id / "staged"
    (folder / "000003").write_bytes(b"Q" * 6000)
    with pytest.raises(Refusal, match="staged content"):
        resume(store)
    undo(store)
    assert_same_tree(before, tree_digest(store))
