"""Predictions held against what released brokers did with the same damaged store (fixtures/observed)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.lab.observe import OBSERVED, SOUND
from fixtures.lab.packed import settings as packed_settings
from recover.broker.settings import BrokerSettings
from recover.broker.versions import BrokerVersion
from recover.log.scan import scan_log
from recover.predict.prediction import Prediction
from recover.predict.start import predict
from recover.store.store import Store
from tests.support.sampling import chosen
from tests.support.stores import real_store, struck_store

KEPT: dict[str, dict[str, dict[str, Any]]] = {
    path.stem: json.loads(path.read_text("utf-8")) for path in sorted(OBSERVED.glob("*.json"))
}
# What no reader of the damaged store can know: which of two contradicting places was changed.
UNTOLD = {
    ("clean-5.3.3", "pages-swapped"): {"unreachable"},  # bytes of another page inside a record's properties
    ("killed-v2-ipv6-5.3.3", "bit-in-topic-legal"): {"unreachable", "duplicated_offsets"},  # no list of topics
}
CASES = [(name, recipe) for name, recipes in KEPT.items() for recipe in recipes]


def settings_for(name: str, version: str) -> BrokerSettings:
    given = {key: str(value).lower() if isinstance(value, bool) else str(value)
             for key, value in packed_settings(name).items()}
    return BrokerSettings(BrokerVersion.parse(version), given)


def expected_queues(name: str, seen: dict[str, Any]) -> dict[str, list[int]]:
    """The observation names what differs from the sound store under the version that wrote it."""
    sound = next(iter(o["all_queues"] for o in KEPT[name][SOUND].values() if not o.get("queues")))
    changed = {**sound, **seen.get("queues", {})}
    return {queue: limits for queue, limits in changed.items() if limits is not None}


def without_empty_schedule_queues(queues: dict[str, list[int]]) -> dict[str, list[int]]:
    """4.9 asks for a queue of every delay level; those that hold nothing exist in its memory only."""
    return {queue: limits for queue, limits in queues.items()
            if not (queue.startswith("SCHEDULE_TOPIC_XXXX/") and list(limits) == [0, 0])}


def comparable(prediction: Prediction, seen: dict[str, Any]) -> dict[str, Any]:
    """The prediction in the words of an observation, as far as this one goes."""
    found: dict[str, Any] = {"starts": prediction.starts, "mode": prediction.mode}
    if "start_file" in seen and prediction.start_file is not None:
        found["start_file"] = Path(prediction.start_file).name
    if "loaded_log" in seen:
        found["loaded_log"] = [prediction.min_phy, prediction.max_phy]
    if prediction.starts:
        found["deleted_files"] = [f for f in prediction.deleted_files if not f.startswith("consumequeue_ext/")]
        found["queues"] = without_empty_schedule_queues(prediction.queues)
        found["lost"] = prediction.lost_messages
        found["unreachable"] = prediction.unreachable_messages
        found["duplicated_offsets"] = prediction.duplicated_offsets
    return found


@pytest.mark.parametrize(("name", "recipe"), chosen(CASES, quick=70))
def test_prediction_agrees_with_brokers(name: str, recipe: str, tmp_path: Path) -> None:
    root = real_store(name, tmp_path) if recipe == SOUND else struck_store(name, tmp_path, recipe)[0]
    store = Store.open(root)
    view = scan_log(store.commitlog)
    for version, seen in KEPT[name][recipe].items():
        predicted = comparable(predict(store, view, settings_for(name, version)), seen)
        observed = {key: seen.get(key, 0) for key in ("lost", "unreachable", "duplicated_offsets")}
        observed |= {key: seen[key] for key in ("starts", "start_file", "loaded_log", "mode") if key in seen}
        observed["deleted_files"] = [f for f in seen.get("deleted_files", []) if not f.startswith("consumequeue_ext/")]
        observed["queues"] = without_empty_schedule_queues(expected_queues(name, seen))
        untold = UNTOLD.get((name, recipe), set())
        observed = {key: value for key, value in observed.items() if key in predicted and key not in untold}
        assert {key: predicted[key] for key in observed} == observed, version
