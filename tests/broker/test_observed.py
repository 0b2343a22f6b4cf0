"""Predictions against what brokers were once seen to do: fixtures/observed, no JVM needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.lab.observe import OBSERVED, SOUND, kept_observations
from fixtures.lab.packed import manifest
from tests.broker.cases import marked
from tests.broker.judge import broker_options, damaged, kept_mismatches, mqtool, parts, unseen_sizes

KEPT = {path.stem: kept_observations(path.stem) for path in sorted(OBSERVED.glob("*.json"))}
CASES = [(store, damage, version) for store in KEPT for damage in KEPT[store] for version in KEPT[store][damage]]
#: Settings that this version does not know are not passed on.
UNKNOWN = {"4.5.1": ("enableLmq", "enableMultiDispatch")}


def _sound_queues(store: str) -> dict[str, Any]:
    return dict(KEPT[store][SOUND][manifest(store)["broker"]]["all_queues"])


@pytest.mark.broker
@pytest.mark.parametrize(("store", "damage", "version"), marked(CASES, 16))
def test_prediction_is_what_was_seen(store: str, damage: str, version: str, tmp_path: Path) -> None:
    root, done = damaged(store, damage, tmp_path)
    seen = KEPT[store][damage][version]
    assert [[c.file, c.offset, c.what] for c in done.changes] == seen["changes"], "the recipe is not what it was"
    told = mqtool(
        "predict",
        root,
        *parts(store, root),
        *unseen_sizes(store, root),
        *broker_options(store, version, UNKNOWN.get(version, ())),
    )
    assert not kept_mismatches(told.document, seen, _sound_queues(store), done)
