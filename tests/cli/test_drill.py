"""mqtool drill: a copy is damaged as the recipe says, the store never, and a drill that cannot be leaves no copy."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fixtures.damage import damage
from mqtool import exits
from recover.drill import DRILLS
from tests.cli.runner import mqtool
from tests.cli.test_documents import held
from tests.support.command_docs import page
from tests.support.stores import broker_conf, real_store, unpacked
from tests.support.trees import contents, tree_digest

STORE = "clean-manyfiles-5.3.3"


@pytest.mark.parametrize("name", DRILLS)
def test_a_drill_damages_the_copy_and_never_the_store(name: str, tmp_path: Path) -> None:
    root, copy = unpacked(STORE), tmp_path / "copy"
    before = tree_digest(root)
    result = mqtool("drill", name, "--copy-to", copy, root, "--json")
    assert result.code == exits.CLEAN, result.stdout
    held(result.document, "drill")
    assert tree_digest(root) == before
    kept = json.loads((tmp_path / "copy.drill.json").read_text())
    assert kept["changes"] == result.document["changes"] and kept["recipe"] == name
    here, there = contents(root), contents(copy)
    touched = {file for file in here.keys() | there.keys() if here.get(file) != there.get(file)}
    named = {change["file"] for change in kept["changes"]}
    assert touched and all(any(file == n or file.startswith(f"{n}/") for n in named) for file in touched)


def test_a_drill_hits_what_the_recipe_of_the_tests_hits(tmp_path: Path) -> None:
    """They are one recipe; a scan and the plain walk over a sound store find the same places."""
    for name in ("bit-in-body", "page-zeroed", "torn-tail", "log-middle-missing"):
        copy, other = tmp_path / name, real_store(STORE, tmp_path / f"{name}-other")
        assert mqtool("drill", name, "--copy-to", copy, unpacked(STORE), "--seed", 3).code == exits.CLEAN
        damage(name, other, 3)
        assert contents(copy) == contents(other), name


def test_verify_finds_the_message_that_the_drill_says_it_hit(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    facts = mqtool("drill", "bit-in-body", "--copy-to", copy, unpacked(STORE), "--json").document["facts"]
    (damaged,) = mqtool("verify", copy, "--json").document["commitlog"]["damaged"]
    assert damaged["start"] == facts["phy_offset"]
    assert damaged["stop"] == facts["phy_offset"] + facts["size"]


def test_only_a_copy_of_its_own_is_damaged(tmp_path: Path) -> None:
    root, copy = real_store(STORE, tmp_path), tmp_path / "copy"
    before = tree_digest(root)
    for target in (root, root / "inside", tmp_path):
        assert mqtool("drill", "torn-tail", "--copy-to", target, root).code == exits.OPERATIONAL
    assert tree_digest(root) == before
    assert mqtool("drill", "torn-tail", "--copy-to", copy, root).code == exits.CLEAN
    made = tree_digest(copy)
    again = mqtool("drill", "checkpoint-zero", "--copy-to", copy, root)
    assert again.code == exits.OPERATIONAL and "exists" in again.stderr
    (tmp_path / "copy.drill.json").unlink()
    again = mqtool("drill", "checkpoint-zero", "--copy-to", copy, root)
    assert again.code == exits.OPERATIONAL and "not an empty directory" in again.stderr
    assert tree_digest(copy) == made


def test_a_drill_for_which_the_store_has_nothing_leaves_no_copy(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    result = mqtool("drill", "bit-in-body", "--copy-to", copy, unpacked("clean-empty-5.3.3"))
    assert result.code == exits.OPERATIONAL and "no record" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_log_in_several_folders_is_copied_whole(tmp_path: Path) -> None:
    name = "clean-multipath-4.9.7"
    root = real_store(name, tmp_path / "from")
    conf = broker_conf(name, root, tmp_path / "broker.conf")
    copy = tmp_path / "copy"
    assert mqtool("drill", "torn-tail", "--copy-to", copy, root, "--broker-conf", conf).code == exits.CLEAN
    here = mqtool("verify", root, "--broker-conf", conf, "--json").document["commitlog"]
    there = mqtool("verify", copy, "--only", "commitlog", "--json").document["commitlog"]
    assert there["messages"] == here["messages"] - 1 and there["files"] == here["files"]


def test_a_name_that_is_none_and_a_line_without_a_place_are_usage_errors(tmp_path: Path) -> None:
    assert mqtool("drill", "no-such-drill", "--copy-to", tmp_path / "x", unpacked(STORE)).code == exits.USAGE
    assert mqtool("drill", "torn-tail", unpacked(STORE)).code == exits.USAGE
    assert mqtool("drill").code == exits.USAGE


def test_the_list_is_the_table_of_the_page() -> None:
    listed = mqtool("drill", "--list", "--json").document
    held(listed, "drill")
    rows = re.findall(r"^\| `([a-z][a-z-]+)` \| ([^|]+) \|", page("drill").read_text(), re.MULTILINE)
    assert rows == [(item["name"], item["what"]) for item in listed["drills"]]
