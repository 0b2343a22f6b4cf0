"""`mqtool groups`: committed offsets against the queues, counted by the plain reader."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage import damage
from mqtool import exits
from tests.cli.runner import mqtool
from tests.support import plain_reader as plain
from tests.support.stores import real_store, unpacked
from tests.support.trees import assert_unchanged

_BARE_KEY = re.compile(r"([{,]\s*)(-?\d+):")


def committed(root: Path) -> dict[tuple[str, str, int], int]:
    """(group, topic, queue) -> offset, of both offset files."""
    found = {}
    for name in ("consumerOffset.json", "lmqConsumerOffset.json"):
        file = root / "config" / name
        if not file.exists():
            continue
        value = json.loads(_BARE_KEY.sub(r'\1"\2":', file.read_text()))
        for key, queues in value.get("offsetTable", {}).items():
            topic, group = key.split("@")
            found.update({(group, topic, int(queue)): offset for queue, offset in queues.items()})
        for key, offset in value.get("lmqOffsetTable", {}).items():
            topic, group = key.split("@")
            found[group, topic, 0] = offset
    return found


def records(root: Path) -> list[plain.Record]:
    return [record for base, file in plain.log_files(root).items() for record in plain.chain(file, base)]


def ends(root: Path) -> dict[tuple[str, int], tuple[int, int]]:
    """Each queue's first and next queue offset, by its units."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for topic, queue, offset in plain.units(root):
        first, end = found.get((topic, queue), (offset, 0))
        found[topic, queue] = min(first, offset), max(end, offset + 1)
    return found


def rows_of(root: Path, *options: object, code: int = 0) -> dict[tuple[str, str, int], dict[str, Any]]:
    with assert_unchanged(root):
        result = mqtool("groups", root, *options, "--json")
    assert result.code == code, result.stdout
    return {(row["group"], row["topic"], row["queue"]): row for row in result.document["groups"]}


@pytest.mark.parametrize("name", ["clean-4.5.1", "clean-5.3.3", "killed-5.5.0"])
@pytest.mark.parametrize("broker", ["4.9.8", "5.3.3"])
def test_every_committed_offset_is_a_row_with_its_lag(name: str, broker: str) -> None:
    root = unpacked(name)
    rows = rows_of(root, "--broker", broker)
    queues, log = ends(root), records(root)
    assert {key: row["committed"] for key, row in rows.items()} == committed(root)
    assert sum(row["lag"] for row in rows.values()) > 0
    for (_, topic, queue), row in rows.items():
        first, end = queues.get((topic, queue), (0, 0))
        assert (row["min"], row["max"], row["min_after"], row["max_after"]) == (first, end, first, end)
        if topic.startswith("%LMQ%"):
            continue
        assert row["lag"] == sum(
            (record.topic, record.queue_id) == (topic, queue) and row["committed"] <= record.queue_offset < end
            and record.has_unit for record in log)
        assert (row["skips"], row["again"], row["resumes"]) == (0, 0, row["committed"])


def test_group_and_topic_choose_rows() -> None:
    root = unpacked("clean-5.3.3")
    every = rows_of(root)
    assert rows_of(root, "--group", "CG_retry", "--topic", "TopicT?") == {
        key: row for key, row in every.items() if key[0] == "CG_retry" and key[1] == "TopicTx"}
    assert rows_of(root, "--group", "nobody") == {}


@pytest.mark.parametrize(("broker", "rewinds"), [("4.9.8", True), ("5.3.3", False)])
def test_an_offset_above_the_end_is_a_finding_that_clamping_ends(
    broker: str, rewinds: bool, store: Callable[[str], Path],
) -> None:
    root = store("clean-5.3.3")
    facts = damage("consumer-offset-above-max", root, 5).facts
    result = mqtool("groups", root, "--broker", broker, "--json")
    assert result.code == 2
    (found,) = result.document["findings"]
    assert (found["code"], found["facts"]["group"]) == ("consumer-offset-above-max", facts["group"])
    assert "--clamp-offsets" in found["remedy"]
    assert "--clamp-offsets" in result.document["next"][0]["command"]
    place = facts["group"], facts["topic"], facts["queue_id"]
    row = rows_of(root, "--broker", broker, code=2)[place]
    held = [r for r in records(root) if (r.topic, r.queue_id) == place[1:]]
    assert row["committed"] == facts["offset"] > row["max_after"] == facts["max"]
    assert (row["resumes"], row["again"]) == ((0, len(held)) if rewinds else (row["max_after"], 0))
    assert (row["skips"], row["lag"]) == (0, 0)
    assert mqtool("recover", root, "--clamp-offsets", "--yes").code == 1
    row = rows_of(root, "--broker", broker)[place]
    assert (row["committed"], row["again"], row["skips"]) == (facts["max"], 0, 0)


def test_an_offset_below_the_first_message_left_goes_on_there(store: Callable[[str], Path]) -> None:
    root = store("clean-manyfiles-5.3.3")
    facts = damage("consumer-offset-below-min", root, 5).facts
    row = rows_of(root, "--group", facts["group"], "--topic", facts["topic"])[
        facts["group"], facts["topic"], facts["queue_id"]]
    assert row["committed"] < row["min"] == row["min_after"] == row["resumes"]
    assert (row["skips"], row["again"]) == (0, 0)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_a_start_cuts_off_is_skipped(seed: int, store: Callable[[str], Path]) -> None:
    root = store("killed-5.5.0")
    before = records(root)
    damage("page-zeroed", root, seed)
    files = plain.log_files(root)
    left = [record for record in before for base, file in files.items()
            if base <= record.phy_offset < base + len(file)
            and file.startswith(record.content, record.phy_offset - base)]
    prediction = mqtool("predict", root, "--broker", "5.3.3", "--json").document
    with assert_unchanged(root):
        result = mqtool("groups", root, "--broker", "5.3.3", "--json")
    skipped = 0
    for row in result.document["groups"]:
        topic, queue, offset = row["topic"], row["queue"], row["committed"]
        if topic.startswith("%LMQ%"):
            continue
        mine = [record for record in left if (record.topic, record.queue_id) == (topic, queue)]
        due = sum(record.queue_offset >= offset and record.phy_offset >= prediction["max_phy"] for record in mine)
        assert row["skips"] == due
        assert [row["min_after"], row["max_after"]] == prediction["queues"].get(f"{topic}/{queue}", [0, 0])
        skipped += due
    assert skipped > 0 or prediction["lost_messages"] == 0
    if prediction["lowered_queues"]:
        assert result.code & 4


def test_offsets_that_cannot_be_read_are_said_to_be(store: Callable[[str], Path]) -> None:
    root = store("clean-5.3.3")
    for file in (root / "config").glob("*onsumerOffset.json*"):
        file.write_bytes(file.read_bytes()[:20])
    result = mqtool("groups", root, "--json")
    assert result.code != 0
    assert result.document["complete"] is False
    assert {found["code"] for found in result.document["findings"]} & {"config-lost", "start-refused"}


@pytest.mark.parametrize("recipe", [None, "page-zeroed", "consumer-offset-above-max"])
def test_predict_and_recover_list_the_same_rows(
    recipe: str | None, store: Callable[[str], Path], tmp_path: Path,
) -> None:
    root = store("killed-5.5.0")
    if recipe is not None:
        damage(recipe, root, 2)
    rows = mqtool("groups", root, "--broker", "5.3.3", "--json").document["groups"]
    assert rows
    assert mqtool("predict", root, "--broker", "5.3.3", "--json").document["groups"] == rows
    planned = mqtool("recover", root, "--broker", "5.3.3", "--dry-run", "--json").document
    assert (planned["groups"], planned["groups_after"]) == (rows, None)
    document = mqtool("recover", root, "--broker", "5.3.3", "--yes", "--json").document
    assert document["groups"] == rows
    assert document["groups_after"] == mqtool("groups", root, "--broker", "5.3.3", "--json").document["groups"]
    if recipe == "page-zeroed":
        skipped = sum(row["skips"] for row in rows)
        assert sum(row["skips"] for row in document["groups_after"]) <= skipped


def test_without_the_log_nothing_is_known_of_messages(tmp_path: Path) -> None:
    root = real_store("clean-5.3.3", tmp_path)
    for file in (root / "commitlog").iterdir():
        file.unlink()
    done = mqtool("groups", root, "--json")
    assert done.code & exits.MESSAGES and "commitlog-empty-queues-left" in done.document["finding_counts"]
    assert {(row["lag"], row["skips"], row["again"]) for row in done.document["groups"]} == {(None, None, None)}
    assert "not known" in done.document["summary"] and "disk" in done.document["next"][0]["command"]
    page = tmp_path / "page.md"
    mqtool("report", root, "-o", page)
    assert "No message is lost" not in page.read_text() and "not known: the log" in page.read_text()
