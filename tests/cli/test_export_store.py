"""`mqtool export --format store`: a store of its own that delivers what was exported at the places that it had."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage import damage
from tests.cli.runner import mqtool
from tests.support import plain_reader as plain
from tests.support.stores import unpacked
from tests.support.trees import assert_unchanged

Place = tuple[str, int, int]


def exported(root: Path, out: Path, *arguments: object) -> dict[str, Any]:
    """The document of an export to a store, which verifies clean."""
    with assert_unchanged(root):
        result = mqtool("export", root, "-o", out, "--format", "store", "--json", *arguments)
    assert result.code == 0, result.stdout
    assert mqtool("verify", out).code == 0
    return result.document


def intact(root: Path) -> dict[int, bytes]:
    """Every intact record of a log that is no stand-in, by its place."""
    return {
        record.phy_offset: record.content for base, file in plain.log_files(root).items()
        for record in plain.all_records(file, base)
        if not record.stands_in and not (record.sys_flag & 12 == 12 and "MQTOOL_FILLER".startswith(record.topic))
    }


@pytest.mark.parametrize("name", ["clean-5.3.3", "killed-5.5.0", "clean-manyfiles-5.3.3", "clean-4.5.1"])
def test_a_sound_store_comes_out_as_it_is(name: str, tmp_path: Path) -> None:
    root, out = unpacked(name), tmp_path / "out"
    document = exported(root, out)
    assert (document["bridged"], document["complete"]) == (0, True)
    assert plain.delivered(out) == plain.delivered(root)
    assert intact(out) == intact(root)
    for path in (root / "config").iterdir():
        assert (out / "config" / path.name).read_bytes() == path.read_bytes()
    assert not (out / ".mqtool").exists()


@pytest.mark.parametrize("recipe", [
    "bit-in-body", "page-zeroed", "page-random", "log-middle-missing", "crash-everything-derived",
    "config-cut-bak-missing",
])
def test_what_is_intact_of_a_damaged_store_keeps_its_places(
    recipe: str, store: Callable[[str], Path], tmp_path: Path,
) -> None:
    root, out = store("clean-manyfiles-5.3.3"), tmp_path / "out"
    before = plain.delivered(root)
    damage(recipe, root, 3)
    result = mqtool("export", root, "-o", out, "--format", "store", "--json")
    assert result.code == 0
    assert mqtool("verify", out).code in (0, 2)
    left = intact(root)
    assert intact(out) == left
    after = plain.delivered(out)
    due = {place: content for place, content in before.items() if content in left.values()}
    assert {place: after.get(place) for place in due} == due
    # a broker that makes its queues anew comes to the same places
    shutil.rmtree(out / "consumequeue")
    (out / "abort").touch()
    document = mqtool("predict", out, "--broker", "5.3.3", "--json").document
    assert (document["starts"], document["lost_messages"]) == (True, 0)
    assert (document["unreachable_messages"], document["misaligned_units"]) == (0, 0)


@pytest.mark.parametrize("filters", [
    ("--topic", "Topic?"), ("--topic", "TopicA", "--queue", 1), ("--tag", "Tag4"), ("--queue-offsets", "5:30"),
    ("--phy-offsets", "400000:"), ("--limit", 100),
])
def test_a_part_of_a_store_keeps_its_places(filters: tuple[object, ...], tmp_path: Path) -> None:
    root, out = unpacked("clean-5.3.3"), tmp_path / "out"
    document = exported(root, out, *filters)
    lines = mqtool("export", root, "-o", tmp_path / "lines", "--include", "system", "--json", *filters).document
    extra = {"RMQ_SYS_TRANS_OP_HALF_TOPIC"} if "--topic" in filters else set()
    assert {topic: n for topic, n in document["topics"].items() if topic not in extra} == {
        topic: n for topic, n in lines["topics"].items() if topic not in extra}
    kept, source = intact(out), intact(root)
    assert len(kept) == document["messages"]
    assert kept.items() <= source.items()
    before, after = plain.delivered(root), plain.delivered(out)
    due = {place: content for place, content in before.items() if content in kept.values()}
    for place, content in due.items():
        if not place[0].startswith("%LMQ%"):
            assert after[place] == content
    # other places have a neighbour of their queue once more, but for half messages, which brokers ask about by place
    ends: dict[tuple[str, int], int] = {}
    for topic, queue, offset in due:
        ends[topic, queue] = max(ends.get((topic, queue), 0), offset)
    for (topic, queue, offset), content in after.items():
        assert content in kept.values() or topic == "RMQ_SYS_TRANS_HALF_TOPIC"
        assert offset <= ends[topic, queue]


def test_log_files_alone_make_a_store(tmp_path: Path) -> None:
    root, out = unpacked("clean-manyfiles-5.3.3"), tmp_path / "out"
    result = mqtool("export", root / "commitlog", "-o", out, "--format", "store", "--json")
    assert result.code == 0
    assert plain.delivered(out) == plain.delivered(root)
    assert mqtool("verify", out).code == 2  # nobody knows what groups consumed
    second = sorted((root / "commitlog").iterdir())[1]
    part = tmp_path / "part"
    assert mqtool("export", second, "-o", part, "--format", "store").code == 0
    assert [path.name for path in (part / "commitlog").iterdir()] == [second.name]
    assert plain.delivered(part).items() <= plain.delivered(root).items()


@pytest.mark.parametrize("arguments", [
    ("--damaged",), ("--unfold",), ("--raw-body",), ("--include", "stale"), ("--resume",),
])
def test_what_no_store_can_hold_is_a_usage_error(arguments: tuple[str, ...], tmp_path: Path) -> None:
    result = mqtool("export", unpacked("clean-5.3.3"), "-o", tmp_path / "out", "--format", "store", *arguments)
    assert result.code == 16
    assert not (tmp_path / "out").exists()


def test_no_message_makes_no_store_and_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    root = unpacked("clean-5.3.3")
    assert mqtool("export", root, "-o", tmp_path / "out", "--format", "store", "--key", "nothing").code == 8
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    assert mqtool("export", root, "-o", tmp_path / "out", "--format", "store").code == 8
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]
    assert mqtool("export", root, "-o", root / "out", "--format", "store").code == 16
