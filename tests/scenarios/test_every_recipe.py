"""The promise of recover for every way in which the fixtures can break a store: the same has to hold of all."""

from __future__ import annotations

import pytest

from fixtures.damage import RECIPES, NotApplicable, of_area
from mqtool import exits
from tests.scenarios.conftest import Start
from tests.scenarios.drill import Broken, Drill, messages
from tests.support.sampling import sampled
from tests.support.trees import assert_unchanged

STORES = ("clean-plain-4.9.7", "clean-manyfiles-5.3.3", "killed-lmq-4.9.7", "clean-5.3.3", "killed-5.5.0")
WITH_CONFIG = ("clean-4.5.1", "clean-5.3.3", "killed-5.5.0")
CONFIG = of_area("config")
WITNESS = of_area("witness")  # see test_never_worse
SAMPLE = [
    ("clean-manyfiles-5.3.3", "bit-in-size"), ("clean-manyfiles-5.3.3", "page-random"),
    ("clean-manyfiles-5.3.3", "first-page-zeroed"), ("clean-manyfiles-5.3.3", "log-misnamed"),
    ("clean-manyfiles-5.3.3", "log-stray-file"), ("killed-lmq-4.9.7", "log-stray-folder"),
    ("killed-lmq-4.9.7", "bit-in-topic-legal"),
    ("killed-lmq-4.9.7", "bit-in-queue-offset"), ("killed-lmq-4.9.7", "lmq-queue-missing"),
    ("killed-lmq-4.9.7", "bit-in-size"), ("killed-lmq-4.9.7", "body-length-huge"),
    ("killed-lmq-4.9.7", "crash-torn-tail"), ("killed-lmq-4.9.7", "crash-after-truncation"),
    ("clean-plain-4.9.7", "crash-power-loss"), ("clean-plain-4.9.7", "queue-file-garbage"),
    ("clean-plain-4.9.7", "log-last-missing"), ("clean-plain-4.9.7", "log-first-missing"),
    ("clean-plain-4.9.7", "log-all-missing"), ("clean-plain-4.9.7", "log-preallocated"),
]
# Files that are gone from either end leave a sound log: at the front it begins late, at the back only queues remember.
NOT_DAMAGED = {"log-first-missing", "consumer-offset-below-min", "log-last-missing"}
DERIVED_ONLY = {"queue", "index", "checkpoint", "config", "abort"}


def found_as_it_should(store: Drill, recipe: str) -> int:
    """The bits that verify gives, held against what the recipe is known to have done."""
    result = store.verify()
    code = result.code
    if store.lost and recipe not in NOT_DAMAGED:
        assert code & exits.MESSAGES, "messages are lost"
        if recipe != "log-all-missing":
            assert result.document["commitlog"]["damaged_messages"] > 0
    if store.lost and recipe != "consumer-offset-below-min":
        assert code != exits.CLEAN
    if RECIPES[recipe].area in DERIVED_ONLY:
        assert code & exits.MESSAGES == 0, "no message is touched"
        assert result.document["commitlog"]["messages"] == len(store.intact)
    assert store.intact <= messages(store.root)
    return code


def left_over(store: Drill, recipe: str) -> int:
    """What recover can do nothing about: offsets, and a topic under no checksum, which only --mend-bits writes."""
    if recipe == "bit-in-topic-legal" and store.found("commitlog-contradicted-field"):
        return exits.MESSAGES
    offsets = store.root / "config" / "consumerOffset.json"
    if recipe.startswith("config-zeros-bak-") and offsets.exists() and not offsets.read_bytes().strip(b"\0"):
        return exits.DERIVED if "sound" not in recipe else exits.CLEAN  # offsets are never invented
    if recipe.endswith("-offset-above-max"):
        return exits.DERIVED
    if recipe == "log-last-missing" and (store.root / "config" / "subscriptionGroup.json").exists():
        return exits.DERIVED  # groups have read messages that are gone
    if recipe == "log-middle-short" and all((store.root / name).exists() for name in ("timerlog", "abort")):
        return exits.DERIVED  # timers that were pending when the broker was killed lead to lost messages
    return exits.CLEAN


def recovered_and_undone(store: Drill, recipe: str) -> None:
    try:
        store.strike(recipe)
    except NotApplicable:
        pytest.skip("the store lacks what this damages")
    if recipe == "log-misnamed":
        store.broken = Broken(frozenset(), frozenset())  # the records say themselves where they belong
    before = found_as_it_should(store, recipe)
    left = left_over(store, recipe)
    options = ()
    if any(item["code"] == "commitlog-missing-file" for item in store.verify().document["findings"]):
        with assert_unchanged(store.root):
            assert store.run("recover", "--yes").code == exits.OPERATIONAL | before
        options = ("--max-loss", "all")
    planned = store.run("recover", "--dry-run", *options)
    assert planned.code & ~exits.OPERATIONAL == before
    if planned.code & exits.OPERATIONAL:
        assert recipe == "log-all-missing"
        with assert_unchanged(store.root):
            assert store.run("recover", "--yes").code == exits.OPERATIONAL | before
    elif planned.document["plan"]["steps"]:
        assert before
        with store.recovered(left, *options) as done:
            assert done["plan"]["steps"] == planned.document["plan"]["steps"]
            assert done["damaged_messages"] == planned.document["damaged_messages"]
    else:
        assert before == left | store.asks, "a warning that recover does nothing about"
        with assert_unchanged(store.root):
            assert store.run("recover", "--yes").code == before


@pytest.mark.parametrize(("name", "recipe"), SAMPLE)
def test_whatever_is_broken_no_intact_message_is_lost(drill: Start, name: str, recipe: str) -> None:
    recovered_and_undone(drill(name), recipe)


@pytest.mark.parametrize(("name", "recipe"), [
    *sampled(STORES, [name for name in RECIPES if name not in (*CONFIG, *WITNESS)], one_in=20),
    *sampled(WITH_CONFIG, CONFIG, one_in=12),
])
def test_whatever_is_broken_anywhere_no_intact_message_is_lost(drill: Start, name: str, recipe: str) -> None:
    recovered_and_undone(drill(name), recipe)
