"""mqtool against the brokers themselves: every prediction, every recovery, every emulation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.lab.observe import kept_observations, observation, reference
from fixtures.lab.packed import manifest, readers
from tests.broker.cases import WITNESS, Case, cases, log_cases, marked, pairs
from tests.broker.judge import (
    LEFT,
    REFUSED,
    broken_promises,
    broker_options,
    damaged,
    delivered_as_stored,
    delivered_of_due,
    due,
    mqtool,
    parts,
    prediction_mismatches,
    start,
    state_mismatches,
    unseen_sizes,
)
from tests.broker.observations import Observations
from tests.support.brokers import VERSIONS
from tests.support.counts import Count
from tests.support.stores import copy_store
from tests.support.trees import assert_same_tree, tree_digest

pytestmark = pytest.mark.broker

#: Damage that leaves nothing to recover, or nothing that may be touched without asking: mqtool refuses, and says so.
REFUSALS = {"log-all-missing"}
#: Files whose names contradict their records: `--policy broker` is refused, as what a broker cuts there is unknown.
NOT_EMULATED = {"log-misnamed"}
#: An LMQ queue without its folder cannot be told from one that was deleted: it stays away, its carriers stay.
DELETED_LMQ = {"lmq-queue-missing"}
#: Offsets of consumers after the end of a queue are reported, and left alone unless --clamp-offsets is given; and what
#: the timer still wants to deliver, of a log that has lost it, is the broker's to forget.
UNTOUCHED = {
    "consumer-offset-above-max", "delay-offset-above-max", "timer-points-beyond-log", "timer-wrong-record",
    "commitlog-begins-late",
}
#: Whole log files are gone: recover asks to look for them, and goes on without them if it may lose their messages.
FILES_GONE = {"log-last-missing", "log-middle-missing"}
#: Why a repair is refused that could cost messages which brokers deliver.
REFUSED_FOR = {"plan-loses-delivered", "plan-overwrites-named", "commitlog-other-log"}
#: Seen once and kept for the tests that run without a JVM.
SEEN = {store: kept_observations(store) for store in {case.store for case in cases()}}
KEPT = [tuple(case) for case in cases() if case.version in SEEN[case.store].get(case.damage, {})]


#: On damage of these seeds nothing was recorded.
OTHER_SEEDS = [
    (damage, seed) for seed, damage in enumerate(
        ("bit-in-body", "blank-too-large", "page-zeroed", "crash-torn-tail", "log-middle-short", "checkpoint-zero"),
        start=11,
    )
]


Record = Callable[[str, object], None]


@pytest.mark.parametrize(("store", "damage", "version"), marked(cases(), 8))
def test_prediction_is_what_the_broker_does(
    store: str, damage: str, version: str, tmp_path: Path, observations: Observations, record_property: Record
) -> None:
    case = Case(store, damage, version)
    root, done = damaged(store, damage, tmp_path)
    seen = observations.of(case, root, done, start)
    record_property("observed", seen.kept)
    options = broker_options(store, version, seen.report.ignored_settings)
    told = mqtool("predict", root, *parts(store, root), *unseen_sizes(store, root), *options)
    assert not told.code & REFUSED, told.document
    assert not prediction_mismatches(case, told.document, seen.kept, done)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("damage", "seed"), OTHER_SEEDS)
def test_prediction_holds_for_damage_of_other_seeds(damage: str, seed: int, version: str, tmp_path: Path) -> None:
    case = Case("clean-5.3.3", damage, version)
    root, done = damaged(case.store, damage, tmp_path, seed)
    told = mqtool("predict", root, *broker_options(case.store, version))
    seen = start(case, root)
    assert not prediction_mismatches(case, told.document, observation(case.store, seen, done, root), done)


@pytest.mark.parametrize(("store", "damage", "version"), marked(KEPT, 2))
def test_what_was_kept_of_a_start_still_happens(
    store: str, damage: str, version: str, tmp_path: Path, observations: Observations
) -> None:
    """fixtures/observed is what `make test` holds predictions against; names of new index files are the clock's."""
    root, done = damaged(store, damage, tmp_path)
    seen = observations.of(Case(store, damage, version), root, done, start)
    assert json.loads(json.dumps(seen.kept)) == SEEN[store][damage][version]


@pytest.mark.parametrize(("store", "damage"), marked(list(pairs()), 5))
def test_every_reader_starts_on_a_recovered_store_and_keeps_all(
    store: str, damage: str, tmp_path: Path, record_property: Record
) -> None:
    root, done = damaged(store, damage, tmp_path)
    line = ("recover", root, *parts(store, root), *unseen_sizes(store, root), "--yes")
    result = mqtool(*line)
    if damage in REFUSALS:
        assert result.code & REFUSED
        record_property("recovered", {"refused": True})
        return
    if damage in FILES_GONE:
        assert result.code & REFUSED
        result = mqtool(*line, "--max-loss", "all")
    assert not result.code & REFUSED, result.document
    assert result.document["lost_messages"] == 0
    assert not result.code & LEFT or _left(result.document) <= UNTOUCHED, result.document["findings"]
    end = max(result.document["valid_to"], result.document["verify"]["commitlog"]["log_end"])
    lmq = damage not in DELETED_LMQ
    wrong, delivered = {}, {}
    for version in _starters(store, result.document):
        case = Case(store, damage, version)
        seen = start(case, copy_store(root, tmp_path / f"started-by-{version}"), write={_busiest(store): 3})
        wrong[version] = broken_promises(case, seen, done, end, root, lmq)
        delivered[version] = len(delivered_of_due(case, seen, done, lmq))
    record_property("recovered", {"due": len(due(Case(store, damage, ""), done, lmq)), "delivered": delivered})
    assert not {version: found for version, found in wrong.items() if found}


@pytest.mark.parametrize(("store", "damage", "version"), marked(log_cases(), 6))
def test_policy_broker_ends_where_the_broker_ends(
    store: str, damage: str, version: str, tmp_path: Path, observations: Observations
) -> None:
    case = Case(store, damage, version)
    root, done = damaged(store, damage, tmp_path)
    theirs = observations.of(case, root, done, start).report
    where = [*parts(store, root), *unseen_sizes(store, root), *broker_options(store, version, theirs.ignored_settings)]
    told = mqtool("predict", root, *where).document
    result = mqtool("recover", root, *where, "--policy", "broker", "--max-loss", "all", "--yes")
    if damage in REFUSALS | NOT_EMULATED:
        assert result.code & REFUSED
        return
    if not theirs.starts:
        return  # nothing to be equal to; what we do then is judged by the test above
    assert not result.code & REFUSED, result.document
    assert not state_mismatches(start(case, root), theirs, told, done)


@pytest.mark.parametrize(("store", "damage", "seed"), marked(WITNESS, 2))
def test_a_witness_that_lies_costs_no_message_that_the_broker_alone_delivers(
    store: str, damage: str, seed: str, tmp_path: Path, count: Count
) -> None:
    """Or recover refuses, names what its plan would cost, and changes nothing."""
    root, done = damaged(store, damage, tmp_path, int(seed))
    case = Case(store, damage, manifest(store)["broker"])
    alone = delivered_as_stored(case, start(case, copy_store(root, tmp_path / "alone")))
    before = tree_digest(root)
    result = mqtool("recover", root, "--yes")
    if result.code & REFUSED:
        count("refused for a witness that lies", 1)
        assert_same_tree(before, tree_digest(root))
        assert REFUSED_FOR & {item["code"] for item in result.document["findings"]}
        return
    end = max(result.document["valid_to"], result.document["verify"]["commitlog"]["log_end"])
    seen = start(case, copy_store(root, tmp_path / "recovered"), write={_busiest(store): 3})
    after = delivered_as_stored(case, seen)
    count("delivered by the broker alone, of stores with a witness that lies", len(alone))
    count("delivered after recover, of the same stores", len(after))
    assert not alone - after
    assert not broken_promises(case, seen, done, end, root)


def _starters(store: str, document: dict[str, Any]) -> list[str]:
    """A folder among the log files is a mere fact in a store of 5.x, which passes over it; 4.x does not start."""
    told = {(item["code"], item["severity"]) for item in document["findings"]}
    folder = ("commitlog-odd-name", "info") in told
    return [version for version in readers(store) if not (folder and version.startswith("4."))]


def _left(document: dict[str, Any]) -> set[str]:
    return {item["code"] for item in document["findings"] if item["severity"] == "warning"}


def _busiest(store: str) -> str:
    """An ordinary queue with many messages, to write new ones to."""
    sound = reference(store).after_start
    assert sound is not None
    system = ("%", "RMQ_", "SCHEDULE_", "rmq_")
    ordinary = {name: high - low for name, (low, high) in sound.queues.items() if not name.startswith(system)}
    return max(ordinary, key=lambda name: (ordinary[name], name), default="Fresh/0")
