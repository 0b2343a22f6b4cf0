"""mqtool against the brokers themselves: every prediction, every recovery, every emulation."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.lab.observe import reference
from tests.broker.cases import Case, cases, log_cases, marked, pairs
from tests.broker.judge import (
    LEFT,
    REFUSED,
    broken_promises,
    broker_options,
    damaged,
    mqtool,
    parts,
    prediction_mismatches,
    start,
    state_mismatches,
    unseen_sizes,
    versions_for,
)
from tests.support.stores import copy_store

pytestmark = pytest.mark.broker

#: Damage that leaves nothing to recover, or nothing that may be touched without asking: mqtool refuses, and says so.
REFUSALS = {"log-all-missing"}
#: An LMQ queue without its folder cannot be told from one that was deleted: it stays away, its carriers stay.
DELETED_LMQ = {"lmq-queue-missing"}


@pytest.mark.parametrize(("store", "damage", "version"), marked(cases(), 16))
def test_prediction_is_what_the_broker_does(store: str, damage: str, version: str, tmp_path: Path) -> None:
    case = Case(store, damage, version)
    root, done = damaged(store, damage, tmp_path / "told")
    copy = copy_store(root, tmp_path / "seen")
    seen = start(case, copy)
    options = broker_options(store, version, seen.ignored_settings)
    told = mqtool("predict", root, *parts(store, root), *unseen_sizes(store, root), *options)
    assert not told.code & REFUSED, told.document
    assert not prediction_mismatches(case, told.document, seen, done, copy)


@pytest.mark.parametrize(("store", "damage"), marked(list(pairs()), 10))
def test_every_reader_starts_on_a_recovered_store_and_keeps_all(store: str, damage: str, tmp_path: Path) -> None:
    root, done = damaged(store, damage, tmp_path)
    result = mqtool("recover", root, *parts(store, root), *unseen_sizes(store, root), "--yes")
    if damage in REFUSALS:
        assert result.code & REFUSED
        return
    assert not result.code & REFUSED, result.document
    assert result.document["lost_messages"] == 0
    assert not result.code & LEFT, result.document["findings"]
    end = max(result.document["valid_to"], result.document["verify"]["commitlog"]["log_end"])
    wrong = {}
    for version in versions_for(store):
        copy = copy_store(root, tmp_path / f"started-by-{version}")
        seen = start(Case(store, damage, version), copy, write={_busiest(store): 3})
        lmq = damage not in DELETED_LMQ
        wrong[version] = broken_promises(Case(store, damage, version), seen, done, end, root, lmq)
    assert not {version: found for version, found in wrong.items() if found}


@pytest.mark.parametrize(("store", "damage", "version"), marked(log_cases(), 12))
def test_policy_broker_ends_where_the_broker_ends(store: str, damage: str, version: str, tmp_path: Path) -> None:
    case = Case(store, damage, version)
    root, _ = damaged(store, damage, tmp_path / "ours")
    theirs = start(case, copy_store(root, tmp_path / "theirs"))
    options = ["--policy", "broker", "--max-loss", "all", *broker_options(store, version, theirs.ignored_settings)]
    result = mqtool("recover", root, *parts(store, root), *unseen_sizes(store, root), *options, "--yes")
    if not theirs.starts:
        return  # nothing to be equal to; what we do then is judged by the test above
    assert not result.code & REFUSED, result.document
    assert not state_mismatches(start(case, root), theirs)


def _busiest(store: str) -> str:
    """An ordinary queue with many messages, to write new ones to."""
    sound = reference(store).after_start
    assert sound is not None
    system = ("%", "RMQ_", "SCHEDULE_", "rmq_")
    ordinary = {name: high - low for name, (low, high) in sound.queues.items() if not name.startswith(system)}
    return max(ordinary, key=lambda name: (ordinary[name], name), default="Fresh/0")
