"""The packed stores that the lab wrote hold what their manifests say, by the word of the broker that wrote them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.lab.packed import made, manifest, readers, settings
from fixtures.lab.recipes import RECIPES
from fixtures.lab.toolchain import RELEASES
from tests.support.brokers import VERSIONS, oracle
from tests.support.stores import real_store

pytestmark = pytest.mark.broker


def test_every_recipe_has_its_store() -> None:
    assert {recipe.name for recipe in RECIPES} == set(made())


@pytest.mark.parametrize("name", made())
def test_store_holds_what_its_manifest_says(name: str, tmp_path: Path) -> None:
    known = manifest(name)
    seen = oracle(known["broker"]).start(real_store(name, tmp_path), settings(name), read=True, walk=True)
    assert seen.starts and seen.after_start is not None, seen
    assert (seen.after_start.min_phy, seen.after_start.max_phy) == (known["min_phy"], known["max_phy"])
    assert len(seen.walked) == known["records"]
    assert {queue: high for queue, (_, high) in seen.after_start.queues.items()} == {
        queue: high for queue, (_, high) in known["queues"].items()
    }
    assert sum(1 for _ in seen.messages()) == known["started_by"][known["broker"]]["delivered"]
    assert {message.phy_offset for _, message in seen.messages()} == {record.phy_offset for record in seen.walked}
    assert not seen.ignored_settings


@pytest.mark.parametrize("name", made())
def test_readers_are_the_versions_that_delivered_everything(name: str) -> None:
    known = manifest(name)
    own = known["started_by"][known["broker"]]["delivered"]
    full = {
        version
        for version in RELEASES
        if known["started_by"][version].get("delivered") == own and known["min_phy"] >= 0
    }
    assert full & set(VERSIONS) == set(readers(name)) & set(RELEASES) or name.startswith("clean-empty")
