"""Every document of `--json` is held to the JSON Schema that the wheel carries."""

from __future__ import annotations

import csv
import json
import random
import re
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

import mqtool as package
from fixtures.damage import damage
from mqtool import exits
from mqtool.commands import COMMANDS
from recover.drill import DRILLS
from tests.cli.runner import mqtool
from tests.support import plain_reader as plain
from tests.support.command_docs import page
from tests.support.sampling import chosen, few
from tests.support.stores import broker_conf, real_store, unpacked
from tests.support.trees import assert_unchanged, contents, tree_digest

SCHEMAS = Path(package.__file__).parent / "schemas"


@cache
def validator(name: str) -> Draft202012Validator:
    loaded = {path.name: json.loads(path.read_text()) for path in SCHEMAS.glob("*.json")}
    registry = Registry().with_resources((key, Resource.from_contents(value)) for key, value in loaded.items())
    return Draft202012Validator(loaded[f"{name}.json"], registry=registry)


def held(document: dict[str, Any], name: str) -> None:
    problems = [f"{error.json_path}: {error.message[:200]}" for error in validator(name).iter_errors(document)]
    assert not problems, problems


@pytest.mark.parametrize("name", [*COMMANDS, "envelope", "message"])
def test_each_command_has_a_schema(name: str) -> None:
    Draft202012Validator.check_schema(json.loads((SCHEMAS / f"{name}.json").read_text()))


LINES = {
    "inspect": ("STORE",), "verify": ("STORE",), "predict": ("STORE", "--broker", "5.3.3"),
    "query": ("STORE", "--phy-offset", "0"), "journal": ("STORE",), "recover": ("STORE", "--dry-run"),
    "rebuild": ("STORE", "--dry-run"), "rebuild-index": ("STORE", "--dry-run"),
    "rebuild-consumequeue": ("STORE", "--dry-run"),
    "truncate": ("STORE", "--to", "0", "--max-loss", "all", "--dry-run"),
    "undo": ("STORE",), "resume": ("STORE",), "apply": ("no-such-plan.json",), "explain": ("bad-body-crc",),
    "exit-codes": (),
}


@pytest.mark.parametrize(("recipe", "name"), chosen([
    (recipe, name) for recipe in ("", "log-middle-missing", "crash-everything-derived") for name in LINES
    if not recipe or "STORE" in LINES[name]
], quick=18))
def test_a_document_is_as_its_schema_says(name: str, recipe: str, store: Callable[[str], Path]) -> None:
    root = store("clean-manyfiles-5.3.3") if recipe else unpacked("clean-5.3.3")
    if recipe:
        damage(recipe, root, 1)
    words = [root if word == "STORE" else word for word in LINES[name]]
    result = mqtool(name, *words, "--json")
    held(result.document, name)
    assert result.document["exit_code"] == result.code
    if "STORE" in LINES[name]:
        assert Path(result.document["store"]).is_absolute()


@pytest.mark.parametrize("words", [
    ("recover", "--from", "STORE", "--output", "NEW"), ("rebuild", "STORE", "--output", "NEW"),
])
def test_a_run_without_a_plan_says_so_as_its_schema_does(words: tuple[str, ...], tmp_path: Path) -> None:
    places = {"STORE": unpacked("clean-manyfiles-5.3.3"), "NEW": tmp_path / "new"}
    result = mqtool(*(places.get(word, word) for word in words), "--yes", "--json")
    held(result.document, words[0])
    assert result.document["plan"] is None and result.document["applied"]


def test_a_refusal_and_a_wrong_line_are_documents_too(tmp_path: Path) -> None:
    held(mqtool("verify", tmp_path / "nowhere", "--json").document, "verify")
    held(mqtool("query", unpacked("clean-5.3.3"), "--json").document, "query")


def test_a_refusal_says_why_in_its_summary_and_names_what_a_person_does_before_what_goes_on_without(
    store: Callable[[str], Path],
) -> None:
    root = store("clean-expired-5.5.0")
    for path in (root / "commitlog").iterdir():
        path.write_bytes(random.Random(7).randbytes(path.stat().st_size))
    with assert_unchanged(root):
        refused = mqtool("recover", root, "--dry-run", "--json")
    assert refused.code & exits.OPERATIONAL
    assert refused.document["summary"] == refused.document["error"]["message"]
    first, then = (step["command"] for step in refused.document["next"])
    assert first.startswith("Look for the log") and "`" not in first
    assert then == f"mqtool recover {root} --max-loss all --dry-run"


def test_a_line_of_an_export_is_as_its_schema_says(store: Callable[[str], Path], tmp_path: Path) -> None:
    root = store("clean-5.3.3")
    damage("page-random", root, 1)
    for more in ("--damaged",), ("--include", "system,stale,superseded"):
        out = tmp_path / f"{more[0]}.ndjson"
        held(mqtool("export", root, "-o", out, *more, "--json").document, "export")
        for line in out.read_bytes().splitlines()[::7]:
            held(json.loads(line), "message")


# --- mqtool drill: a copy is damaged as the recipe says, the store never, and a drill that cannot be leaves no copy.


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


# --- `--loss-out`: each lost or damaged message with all that is legible of it.


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_bytes().splitlines()]


@few("recipe", ["bit-in-body", "page-zeroed"], quick=1)
def test_predict_lists_what_is_damaged_and_what_the_start_cuts(
    recipe: str, store: Callable[[str], Path], tmp_path: Path,
) -> None:
    root = store("killed-5.5.0")
    before = plain.records_by_place(root)
    damage(recipe, root, 2)
    out = tmp_path / "lost.ndjson"
    with assert_unchanged(root):
        result = mqtool("predict", root, "--broker", "5.3.3", "--loss-out", out, "--json")
    lines = lines_of(out)
    cut = [line for line in lines if line["state"] == "live"]
    damaged = [line for line in lines if line["state"] == "damaged"]
    assert damaged
    assert all(line["damage"] for line in damaged)
    assert len(cut) == result.document["lost_messages"] > 0
    assert result.document["loss_list"] == {
        "output": str(out), "damaged": len(damaged), "cut": len(cut), "complete": True, "notes": []}
    for line in cut:
        record = before[line["phy_offset"]]
        assert line["phy_offset"] >= result.document["max_phy"]
        assert (line["stored_topic"], line["unique_key"], line["tags"], line["store_time"]) == (
            record.topic, record.properties.get("UNIQ_KEY"), record.properties.get("TAGS"), record.store_time)


def test_recover_lists_the_damaged_message_with_its_keys(store: Callable[[str], Path], tmp_path: Path) -> None:
    root = store("clean-5.3.3")
    before = plain.records_by_place(root)
    damage("bit-in-body", root, 2)
    files = {kind: tmp_path / f"lost.{kind}" for kind in ("ndjson", "csv")}
    for file in files.values():
        with assert_unchanged(root):
            assert mqtool("recover", root, "--dry-run", "--loss-out", file).code & 4
    (line,) = lines_of(files["ndjson"])
    record = before[line["phy_offset"]]
    assert (line["stored_topic"], line["queue_offset"], line["unique_key"], line["keys"], line["tags"]) == (
        record.topic, record.queue_offset, record.properties.get("UNIQ_KEY"), record.properties.get("KEYS"),
        record.properties.get("TAGS"))
    assert line["doubtful"] == ["body"]
    with files["csv"].open(newline="") as stream:
        (row,) = csv.DictReader(stream)
    assert (row["phy_offset"], row["doubtful"]) == (str(line["phy_offset"]), "body")


@few("as_typed", [("--loss-out", "{}"), ("--loss-out={}",)], quick=1)
def test_what_follows_a_list_of_losses_can_be_typed(
    as_typed: tuple[str, ...], store: Callable[[str], Path], tmp_path: Path,
) -> None:
    root = store("clean-5.3.3")
    damage("page-zeroed", root, 1)
    words = [word.format(tmp_path / "lost.csv") for word in as_typed]
    step = mqtool("recover", root, "--dry-run", *words, "--json").document["next"][0]["command"]
    assert mqtool(*shlex.split(step)[1:], "--yes").code == exits.CORRECTED | exits.MESSAGES


def test_a_list_that_cannot_be_written_is_refused_before_the_scan(tmp_path: Path) -> None:
    root = unpacked("clean-5.3.3")
    assert mqtool("predict", root, "--loss-out", tmp_path / "lost.txt").code == 16
    assert mqtool("predict", root, "--loss-out", root / "lost.csv").code == 16
    (tmp_path / "there.csv").touch()
    taken = mqtool("recover", unpacked("killed-5.5.0"), "--dry-run", "--loss-out", tmp_path / "there.csv")
    assert taken.code == exits.OPERATIONAL, "before the scan, which finds the abort file"
    assert mqtool("recover", root, "--loss-out", tmp_path / "lost.csv").code == 16


def test_a_range_of_zeros_that_held_no_message_lists_none(store: Callable[[str], Path], tmp_path: Path) -> None:
    root = store("killed-lmq-4.9.7")
    damage("blank-zeroed", root, 1)
    out = tmp_path / "lost.ndjson"
    assert mqtool("verify", root, "--json").document["commitlog"]["damaged"]
    assert mqtool("recover", root, "--dry-run", "--loss-out", out).code & (exits.OPERATIONAL | exits.BUG) == 0
    assert out.read_bytes() == b""
    assert mqtool("export", root, "-o", tmp_path / "damaged.ndjson", "--damaged").code == exits.CLEAN
