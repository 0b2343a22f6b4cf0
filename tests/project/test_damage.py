"""The damage recipes do what they say, to what they say, and the same again for the same seed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.damage import RECIPES, Damage, NotApplicable, damage, walk
from tests.support.sampling import sampled
from tests.support.stores import EXPECTED, STORES, unpacked
from tests.support.trees import Node, assert_same_tree, contents, tree_digest

# Records whose bytes differ and that still pass every check there is.
UNDETECTABLE = {"bit-in-topic-legal", "bit-in-properties"}


def _try(name: str, root: Path) -> Damage | None:
    try:
        return damage(name, root)
    except NotApplicable:
        return None


def _check(name: str, root: Path) -> Damage | None:
    """Run the recipe; if it applies to the store it must name what it touched, else touch nothing."""
    before = tree_digest(root)
    done = _try(name, root)
    after = tree_digest(root)
    if done is None:
        assert_same_tree(before, after)
        return None
    named = {change.file for change in done.changes}
    expected = named | {parent.as_posix() for file in named for parent in Path(file).parents}
    touched = {path for path in before.keys() | after.keys() if _content(before, path) != _content(after, path)}
    assert touched, f"{name} changed nothing"
    unnamed = {path for path in touched - expected if not any(path.startswith(file + "/") for file in named)}
    # A renamed file is named by where it was.
    assert not unnamed or any("renamed" in change.what for change in done.changes), unnamed
    return done


def _content(digest: dict[str, Node], path: str) -> tuple[str, int] | None:
    node = digest.get(path)
    return None if node is None else (node.sha256, node.size)


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_does_what_it_says_and_the_same_again(name: str, store: Callable[[str], Path]) -> None:
    if name == "queue-first-file-missing":
        pytest.skip("needs a queue of two files; see test_synth")
    for source in STORES:
        one = store(source)
        if done := _check(name, one):
            other = store(source)
            assert _try(name, other) == done
            assert contents(one) == contents(other)
            _reports_the_records_it_hit(name, done)
            return
    pytest.fail("no store has what this recipe damages")


@pytest.mark.parametrize(("source", "name"), sampled(STORES, RECIPES, one_in=10))
def test_recipe_changes_what_it_says_in_every_store(name: str, source: str, store: Callable[[str], Path]) -> None:
    if done := _check(name, store(source)):
        _reports_the_records_it_hit(name, done)


def _reports_the_records_it_hit(name: str, done: Damage) -> None:
    """Held against what the recipe is known to do; damage beside the log leaves the records alone."""
    area = RECIPES[name].area
    if area in ("queue", "index", "checkpoint", "abort", "config"):
        assert name == "consumer-offset-below-min" or (not done.changed and not done.lost)
    if area != "log":
        return
    phy_offset = done.facts["phy_offset"]
    if name.startswith(("blank-", "tail-", "stale-", "ghosts-")):
        assert not done.changed and not done.lost
    elif name in UNDETECTABLE:
        assert done.changed == (phy_offset,) and not done.lost
    elif "page" in name:
        # A page may begin or end in properties, whose bytes nothing checks.
        assert done.lost and set(done.lost) <= set(done.changed) and len(done.changed) <= len(done.lost) + 4
        assert done.lost[-1] < max(phy_offset, done.facts.get("other", 0)) + done.facts["size"]
    else:
        assert done.changed == done.lost == (phy_offset,)


@pytest.mark.parametrize("source", STORES)
def test_walk_sees_every_record_and_unit_of_a_sound_store(source: str) -> None:
    root = unpacked(source)
    records = walk.records(root)
    assert len(records) == EXPECTED[source]["records"]
    assert records[-1].record.phy_offset + records[-1].record.total_size == EXPECTED[source]["log_end"]
    assert sum(len(walk.units(queue)) for queue in walk.queues(root)) == EXPECTED[source]["units"]


def test_every_recipe_says_in_one_line_what_it_does() -> None:
    for entry in RECIPES.values():
        assert entry.summary.endswith("."), entry.name
        assert len(entry.summary) < 120, entry.name
