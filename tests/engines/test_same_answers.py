"""Local engine and Spark: the same findings, files and exit codes, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.damage import RECIPES, NotApplicable, damage
from tests.engines.twice import no_java, same_answers, same_changes
from tests.scenarios.drill import all_stores
from tests.support.sampling import sampled
from tests.support.stores import real_store

pytestmark = pytest.mark.skipif(bool(no_java()), reason=f"NOT RUN, the Spark engine: {no_java()}")

SAMPLE = [
    ("killed-5.5.0", ""), ("clean-manyfiles-5.3.3", "bit-in-size"), ("killed-lmq-4.9.7", "crash-torn-tail"),
    ("clean-plain-4.9.7", "page-random"),
]
STORES = ("clean-manyfiles-5.3.3", "killed-ext-5.5.0")


def everything(name: str, recipe: str, target: Path) -> None:
    """What both engines say of a store, and what they make of it."""
    root = real_store(name, target)
    if recipe:
        try:
            damage(recipe, root)
        except NotApplicable:
            pytest.skip("the store lacks what this damages")
    same_answers(root, "verify")
    same_changes(root, "recover")


@pytest.mark.slow
def test_spark_says_and_does_what_the_local_engine_does(folder: Path) -> None:
    # one test, so that one Spark serves all of it
    for number, (name, recipe) in enumerate(SAMPLE):
        everything(name, recipe, folder / str(number))
    root = real_store("clean-5.3.3", folder)
    same_answers(root, "predict", "--broker", "5.3.3")
    same_answers(root, "query", "--topic", "TopicTest", "--key", "nowhere", "--scan")
    same_answers(root, "rebuild", "--dry-run")
    same_changes(root, "rebuild-index")
    for path in (root / "commitlog").iterdir():
        path.unlink()
    same_answers(root, "verify")


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long) for name in all_stores()])
def test_every_store_is_the_same_to_both(name: str, folder: Path) -> None:
    everything(name, "", folder)


@pytest.mark.parametrize(("name", "recipe"), sampled(STORES, sorted(RECIPES), one_in=12))
def test_every_kind_of_damage_is_the_same_to_both(name: str, recipe: str, folder: Path) -> None:
    everything(name, recipe, folder)
