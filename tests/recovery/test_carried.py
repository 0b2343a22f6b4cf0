"""Judging derived files against a planned log: as a look at everything would, without looking at everything again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from fixtures import shapes
from fixtures.damage import RECIPES, NotApplicable, damage
from recover.broker.delays import DelayTable
from recover.errors import Refusal
from recover.evidence.expected import expect
from recover.evidence.queue_verdict import QueueVerdict
from recover.mend.after import after_replacing
from recover.mend.carried import judge_against
from recover.mend.log_changes import keep_everything
from recover.mend.log_cut import cut_log
from recover.mend.recover_plan import RecoverOptions, plan_recover
from recover.plan.model import Retire
from recover.verify import consumequeue
from recover.verify.checkpoint import check_checkpoint
from recover.verify.config import check_config
from recover.verify.index import check_index
from recover.verify.report import verify
from tests.cli.runner import mqtool
from tests.support.looks import opened
from tests.support.sampling import sampled
from tests.support.stores import real_store

STORES = ("clean-plain-4.9.7", "killed-lmq-4.9.7", "clean-expired-5.5.0", "clean-4.5.1", "killed-ext-5.5.0")
Checks = Callable[[], int]


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    """How many queues were checked since it was asked last."""
    counted = 0
    verdicts = consumequeue._Checker.verdicts

    def counting(self: Any, followed: Any, expectation: Any) -> Any:
        nonlocal counted
        counted += len(followed.members)
        return verdicts(self, followed, expectation)

    def since() -> int:
        nonlocal counted
        result, counted = counted, 0
        return result

    monkeypatch.setattr(consumequeue._Checker, "verdicts", counting)
    return since


def _plain(verdict: QueueVerdict) -> tuple[object, ...]:
    return (*(getattr(verdict, name) for name in (
        "key", "units", "expected", "counts", "missing", "end", "min_index", "lost", "beyond", "wrong", "findings",
    )), [*map(int, verdict.missing_offsets)])


def _compare(root: Path, cut: int | None = None) -> None:
    store = opened(root)
    before = verify(store)
    look = before.survey
    try:
        changes = keep_everything(look) if cut is None else cut_log(look, cut, anywhere=True)
    except Refusal:
        return
    after = after_replacing(look.log, changes.replaced, cut_from=changes.cut_from, drop_files=changes.dropped)
    judged = judge_against(store, before, changes, after)
    delays = DelayTable(look.delays.levels)
    delays.observed = dict(look.delays.observed)
    expectation = expect(after, look.topics)
    queues = consumequeue.check_consumequeue(store, after, expectation, delays)
    assert judged.look.queues is not None
    assert judged.look.queues.json() == queues.json()
    got, want = judged.look.queues.verdicts, queues.verdicts
    assert {key: _plain(verdict) for key, verdict in got.items()} == {key: _plain(v) for key, v in want.items()}
    assert sorted(map(repr, judged.look.queues.findings)) == sorted(map(repr, queues.findings))
    whole = structs.replace(look, log=after, expectation=expectation, delays=delays, queues=queues)
    assert judged.index.json() == check_index(store, after).json()
    assert judged.checkpoint.sound == check_checkpoint(store, after).sound
    assert judged.config.findings == check_config(store, whole).findings


@pytest.mark.parametrize("recipe", [
    "bit-in-body", "bit-in-size", "bit-in-queue-offset", "page-zeroed", "torn-tail", "stale-behind-tail",
    "ghosts-behind-tail", "log-last-missing", "queue-behind", "queue-unit-elsewhere", "abort-added", "log-misnamed",
])
@pytest.mark.parametrize("name", ["clean-plain-4.9.7", "killed-lmq-4.9.7", "clean-expired-5.5.0"])
def test_what_is_kept_is_what_a_second_look_finds(name: str, recipe: str, tmp_path: Path) -> None:
    assert recipe in RECIPES
    root = real_store(name, tmp_path)
    try:
        damage(recipe, root, seed=2)
    except NotApplicable:
        pytest.skip("the store lacks what this damages")
    _compare(root)


@pytest.mark.parametrize(("name", "recipe"), sampled(STORES, RECIPES, one_in=10))
def test_what_is_kept_is_what_a_second_look_finds_anywhere(name: str, recipe: str, tmp_path: Path) -> None:
    root = real_store(name, tmp_path)
    try:
        damage(recipe, root, seed=3)
    except NotApplicable:
        pytest.skip("the store lacks what this damages")
    _compare(root)


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_what_is_kept_is_what_a_second_look_finds_behind_a_cut(name: str, share: float, tmp_path: Path) -> None:
    root = real_store(name, tmp_path)
    log = verify(opened(root)).survey.log
    places = np.concatenate([split.records["phy_offset"] for split in log.live()])
    _compare(root, cut=int(places[int(places.size * share)]))


def test_queues_are_read_once_for_a_plan_that_leaves_the_log(tmp_path: Path, checks: Checks) -> None:
    root = tmp_path / "s"
    shapes.many_queues(root, 200)
    assert verify(opened(root)).exit_code == checks() - 200 == 0
    (root / "abort").touch()
    assert plan_recover(opened(root), RecoverOptions()).plan.steps == (Retire("abort"),)
    assert checks() == 200
    queue = root / "consumequeue" / "Topic00001" / "0" / ("0" * 20)
    queue.write_bytes(bytes(queue.stat().st_size))
    assert len(plan_recover(opened(root), RecoverOptions()).plan.steps) == 2
    assert checks() == 200


def test_only_queues_that_a_changed_log_touches_are_read_again(tmp_path: Path, checks: Checks) -> None:
    root = real_store("clean-plain-4.9.7", tmp_path)
    queues = verify(opened(root)).json()["consumequeue"]["queues"]
    assert checks() == queues
    damage("bit-in-body", root, seed=1)
    assert plan_recover(opened(root), RecoverOptions()).damaged_messages == 1
    assert checks() == queues + 1


def test_a_look_that_was_taken_is_not_taken_again(tmp_path: Path, checks: Checks) -> None:
    root = real_store("clean-plain-4.9.7", tmp_path)
    damage("checkpoint-zero", root, seed=1)
    store = opened(root)
    before = verify(store)
    checks()
    plan = plan_recover(store, RecoverOptions(), before)
    assert checks() == 0
    assert plan.before is before
    assert plan.plan.steps


def test_a_refusal_knows_what_was_found_from_the_one_look(tmp_path: Path, checks: Checks) -> None:
    root = real_store("clean-plain-4.9.7", tmp_path)
    queues = verify(opened(root)).json()["consumequeue"]["queues"]
    damage("bit-in-body", root, seed=1)
    checks()
    refused = mqtool("recover", root, "--no-bridge", "--yes", "--json")
    assert (refused.code, refused.document["exit_code"]) == (8 | 4, 12)
    assert {item["code"] for item in refused.document["findings"]} >= {"commitlog-damaged-record"}
    assert checks() == queues
    assert mqtool("truncate", root, "--to", 77, "--yes", "--json").document["findings"] == []
    assert mqtool("recover", root, "--max-loss", "many", "--yes").code == 16
    assert checks() == queues, "a wrong option is seen before anything is read"


def test_a_change_is_planned_from_one_look_and_proved_by_another_at_what_it_changed(
    tmp_path: Path, checks: Checks
) -> None:
    root = real_store("clean-plain-4.9.7", tmp_path)
    queues = verify(opened(root)).json()["consumequeue"]["queues"]
    (root / "abort").touch()
    checks()
    assert mqtool("recover", root, "--yes").code == 1
    assert checks() == queues
    damage("queue-missing", root)
    assert mqtool("recover", root, "--yes").code == 1
    assert checks() == queues + 1
    damage("bit-in-body", root)
    assert mqtool("recover", root, "--yes").code == 5
    assert checks() >= 2 * queues
