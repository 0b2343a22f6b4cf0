"""The rebuild commands: in place only what is wrong, elsewhere everything anew."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.runner import mqtool
from tests.support.stores import real_store, unpacked
from tests.support.trees import assert_same_tree, assert_unchanged, tree_digest


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return real_store("clean-4.5.1", tmp_path)


def test_healthy_store_is_left_alone(store: Path) -> None:
    with assert_unchanged(store):
        for name in ("rebuild", "rebuild-consumequeue", "rebuild-index"):
            result = mqtool(name, store, "--yes", "--json")
            assert result.code == 0
            assert result.document["applied"] is False
            assert result.document["verify"]["exit_code"] == 0


def test_missing_queues_of_a_topic_come_back_byte_for_byte(store: Path) -> None:
    original = tree_digest(unpacked("clean-4.5.1") / "consumequeue")
    shutil.rmtree(store / "consumequeue" / "TopicA")
    broken = tree_digest(store)
    one = mqtool("rebuild-consumequeue", store, "--topic", "TopicA", "--queue", "1", "--yes", "--json")
    assert one.code == 1 | 2, "the other queues of the topic are still missing"
    assert [step["file"] for step in one.document["plan"]["steps"]] == ["consumequeue/TopicA/1/00000000000000000000"]
    assert mqtool("rebuild-consumequeue", store, "--topic", "TopicA", "--yes").code == 1
    rebuilt = tree_digest(store / "consumequeue")
    assert {path: node.sha256 for path, node in rebuilt.items()} == {
        path: node.sha256 for path, node in original.items()
    }
    assert mqtool("undo", store, "--yes").code == 0
    assert mqtool("undo", store, "--yes").code == 0
    assert_same_tree(broken, tree_digest(store))


def test_wrong_index_file_is_put_right(store: Path) -> None:
    path = min((store / "index").iterdir())
    original = path.read_bytes()
    content = bytearray(original)
    content[3000] ^= 0xFF
    path.write_bytes(content)
    assert mqtool("verify", store, "--only", "index").code == 2
    assert mqtool("rebuild-index", store, "--yes").code == 1
    assert path.read_bytes() == original


def test_everything_is_rebuilt_elsewhere(store: Path, tmp_path: Path) -> None:
    target = tmp_path / "derived"
    with assert_unchanged(store):
        result = mqtool("rebuild", store, "--output", target, "--yes", "--json")
    assert result.code == 0, result.stderr
    assert {path.name for path in target.iterdir()} == {"consumequeue", "index", "checkpoint"}
    ours, theirs = tree_digest(target / "consumequeue"), tree_digest(store / "consumequeue")
    assert {path: node.sha256 for path, node in ours.items()} == {path: node.sha256 for path, node in theirs.items()}
    # a broker names an index file by its clock when it makes one, which nothing tells afterwards
    ours, theirs = tree_digest(target / "index"), tree_digest(store / "index")
    assert [ours[path].sha256 for path in sorted(ours)] == [theirs[path].sha256 for path in sorted(theirs)]
    assert result.document["files"]
    assert mqtool("rebuild", store, "--output", target, "--yes").code & 8, "the folder is no longer empty"


def test_dry_run_writes_nothing(store: Path, tmp_path: Path) -> None:
    shutil.rmtree(store / "index")
    with assert_unchanged(store):
        assert mqtool("rebuild", store, "--dry-run").code == 2
        assert mqtool("rebuild", store, "--dry-run", "--output", tmp_path / "derived").code & 8 == 0
    assert not (tmp_path / "derived").exists()


@pytest.mark.parametrize("line", [("--queue", "1"), ("--topic", "NoSuchTopic"), ("--topic", "TopicA", "--queue", "99")])
def test_queues_that_nobody_knows_are_16(store: Path, line: tuple[str, ...]) -> None:
    with assert_unchanged(store):
        assert mqtool("rebuild-consumequeue", store, *line, "--yes").code == 16
