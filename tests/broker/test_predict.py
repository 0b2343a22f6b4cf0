"""Predictions against brokers started here and now, on damage of other seeds than those that were recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.damage import damage
from fixtures.lab.observe import observe
from recover.log.scan import scan_log
from recover.predict.start import predict
from recover.store.store import Store
from tests.predict.test_predict_observed import (
    comparable,
    expected_queues,
    settings_for,
    without_empty_schedule_queues,
)
from tests.support.brokers import VERSIONS, require_lab
from tests.support.stores import real_store

pytestmark = pytest.mark.broker

CASES = [
    (recipe, version, seed)
    for seed, recipe in enumerate(
        ["bit-in-body", "blank-too-large", "page-zeroed", "crash-torn-tail", "log-middle-short", "checkpoint-zero"],
        start=11,
    )
    for version in VERSIONS
]


@pytest.mark.parametrize(("recipe", "version", "seed"), CASES)
def test_prediction_agrees_with_a_broker(recipe: str, version: str, seed: int, tmp_path: Path) -> None:
    require_lab()
    name = "clean-5.3.3"
    seen = observe(name, recipe, version, seed)
    root = real_store(name, tmp_path)
    damage(recipe, root, seed)
    store = Store.open(root)
    found = comparable(predict(store, scan_log(store.commitlog), settings_for(name, version)), seen)
    assert found["starts"] == seen["starts"] and found["mode"] == seen["mode"]
    if seen["starts"]:
        assert found["loaded_log"] == seen["loaded_log"]
        assert found["queues"] == without_empty_schedule_queues(expected_queues(name, seen))
        assert found["lost"] == seen.get("lost", 0)
