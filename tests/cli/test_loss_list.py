"""`--loss-out`: each lost or damaged message with all that is legible of it."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage import damage
from mqtool import exits
from tests.cli.runner import mqtool
from tests.support import plain_reader as plain
from tests.support.stores import unpacked
from tests.support.trees import assert_unchanged


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_bytes().splitlines()]


def records(root: Path) -> dict[int, plain.Record]:
    return {
        record.phy_offset: record for base, file in plain.log_files(root).items() for record in plain.chain(file, base)
    }


@pytest.mark.parametrize("recipe", ["bit-in-body", "page-zeroed"])
def test_predict_lists_what_is_damaged_and_what_the_start_cuts(
    recipe: str, store: Callable[[str], Path], tmp_path: Path,
) -> None:
    root = store("killed-5.5.0")
    before = records(root)
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
    before = records(root)
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


def test_a_sound_store_has_an_empty_list(tmp_path: Path) -> None:
    out = tmp_path / "lost.ndjson"
    assert mqtool("recover", unpacked("clean-5.3.3"), "--dry-run", "--loss-out", out).code == 0
    assert out.read_bytes() == b""


def test_a_list_that_cannot_be_written_is_16(tmp_path: Path) -> None:
    root = unpacked("clean-5.3.3")
    assert mqtool("predict", root, "--loss-out", tmp_path / "lost.txt").code == 16
    assert mqtool("predict", root, "--loss-out", root / "lost.csv").code == 16
    assert mqtool("recover", root, "--loss-out", tmp_path / "lost.csv").code == 16


def test_a_range_of_zeros_that_held_no_message_lists_none(store: Callable[[str], Path], tmp_path: Path) -> None:
    root = store("killed-lmq-4.9.7")
    damage("blank-zeroed", root, 1)
    out = tmp_path / "lost.ndjson"
    assert mqtool("verify", root, "--json").document["commitlog"]["damaged"]
    assert mqtool("recover", root, "--dry-run", "--loss-out", out).code & (exits.OPERATIONAL | exits.BUG) == 0
    assert out.read_bytes() == b""
    assert mqtool("export", root, "-o", tmp_path / "damaged.ndjson", "--damaged").code == exits.CLEAN
