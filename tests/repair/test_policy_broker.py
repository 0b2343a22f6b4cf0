"""`--policy broker`: the state that a broker's own recovery would leave, no worse at the start that comes after."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.damage import damage
from recover.broker.settings import BrokerSettings
from recover.broker.versions import BrokerVersion
from recover.change.model import Retire, ZeroRange
from recover.predict.start import predict
from recover.repair.recover import RecoverOptions, plan_recover
from recover.store.store import Store
from tests.support.looks import looked_at, opened
from tests.support.stores import real_store


def _plan(store: Store, version: str) -> list[object]:
    settings = BrokerSettings(BrokerVersion.parse(version), {})
    options = RecoverOptions(policy="broker", settings=settings, max_loss=None)
    return list(plan_recover(store, options).plan.steps)


def test_a_log_file_that_begins_at_the_cut_stays_and_becomes_zeros(tmp_path: Path) -> None:
    """MappedFileQueue.truncateDirtyFiles deletes files that begin after the cut, not the one that begins at it."""
    root = real_store("clean-5.3.3", tmp_path)
    damage("first-page-zeroed", root, 0)
    (step,) = [step for step in _plan(opened(root), "4.5.1") if str(getattr(step, "file", "")).startswith("commitlog")]
    assert isinstance(step, ZeroRange) and step.file == f"commitlog/{1 << 20:020d}"


def test_abort_stays_while_the_log_holds_damage_that_the_recovery_did_not_look_at(tmp_path: Path) -> None:
    """After an orderly stop 4.x looks at the last three files, and would cut at damage that it passed over before."""
    root = real_store("clean-4.5.1", tmp_path)
    damage("crash-power-loss", root, 0)
    store, look = looked_at(root)
    assert not [step for step in _plan(store, "4.9.7") if isinstance(step, Retire) and step.file == "abort"]
    normal = predict(store, look.log, BrokerSettings(BrokerVersion.parse("4.9.7"), {}), mode="normal")
    assert normal.lost_messages > 0


@pytest.mark.parametrize(("recipe", "goes"), [("crash-bit-without-checkpoint", True), ("bit-in-topic", False)])
def test_abort_goes_where_the_next_abnormal_recovery_would_look_at_one_file_more_and_cut(
    tmp_path: Path, recipe: str, goes: bool
) -> None:
    """5.4 and later look at the ten newest files; a recovery takes the empty last one away."""
    root = real_store("killed-manyfiles-5.5.0", tmp_path)
    damage(recipe, root, 0)
    store, _ = looked_at(root)
    steps = _plan(store, "5.5.0")
    assert any(isinstance(step, Retire) and step.file == f"commitlog/{15 * 65536:020d}" for step in steps)
    assert any(isinstance(step, Retire) and step.file == "abort" for step in steps) is goes


def test_the_unit_of_a_record_whose_topic_changed_stays(tmp_path: Path) -> None:
    """A broker that does not dispatch the record again goes on serving it where its queue has it."""
    root = real_store("clean-4.5.1", tmp_path)
    damage("bit-in-topic-legal", root, 0)
    assert not [step for step in _plan(opened(root), "5.5.0") if getattr(step, "file", "").startswith("consumequeue")]
