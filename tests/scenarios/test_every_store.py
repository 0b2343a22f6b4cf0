"""Every packed store against the table of its broker, and every odd thing a new user could point the tool at."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fixtures import shapes
from mqtool import exits
from tests.cli.runner import mqtool
from tests.scenarios.conftest import Start
from tests.scenarios.drill import Drill, all_stores, counts, file_name, messages
from tests.support.trees import assert_same_tree, assert_unchanged, tree_digest

KILLED = tuple(name for name in all_stores() if name.startswith("killed-"))
# What the broker's own figures do not say of a store that it was killed in.
BESIDE_ABORT = {"abort-present", "checkpoint-all-zero"}


@pytest.mark.parametrize("name", all_stores())
def test_counts_are_those_of_the_table_and_nothing_is_written(drill: Start, name: str) -> None:
    store, known = drill(name), counts(name)
    with assert_unchanged(store.root):
        result = store.run("verify")
        assert mqtool("verify", store.root, *store.options).code == result.code
    document = result.document
    log, queues, index = document["commitlog"], document["consumequeue"], document["index"]
    assert result.code == (exits.DERIVED if name in KILLED or store.late else exits.CLEAN)
    assert (log["messages"], log["log_end"], log["valid_to"]) == (known["records"], known["log_end"], known["log_end"])
    assert (log["damaged"], log["ghosts"], log["superseded"], log["damaged_messages"]) == ([], 0, 0, 0)
    assert queues["units"] - queues["expired"] == queues["right"] == queues["expected"]
    # Of a queue whose first files have expired, releases before 5.0 count the units of those, too.
    assert queues["units"] == known["units"] or "expired" in name
    assert (queues["missing"], queues["wrong"], queues["beyond_log"], queues["lost"]) == (0, 0, 0, 0)
    assert index["entries"] == known["index_entries"]
    assert (index["missing"], index["wrong"]) == (0, 0)
    alarms = {item["code"] for item in document["findings"] if item["severity"] != "info"}
    assert alarms <= (BESIDE_ABORT if name in KILLED else set()) | ({"commitlog-begins-late"} if store.late else set())


@pytest.mark.parametrize("name", KILLED)
def test_recover_takes_from_a_killed_store_only_what_the_kill_left(drill: Start, name: str) -> None:
    store = drill(name)
    before = tree_digest(store.root)
    with store.recovered():
        assert messages(store.root) == store.messages
        after = tree_digest(store.root)
        changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)} - {"."}
        assert changed <= {"abort", "checkpoint"}


# --- what a new user could try -----------------------------------------------------------------------------


def said(command: str, root: Path, *options: object) -> tuple[int, str]:
    """Exit code and stderr of a command that must neither crash nor write."""
    with assert_unchanged(root):
        result = mqtool(command, root, *options)
    assert result.code & exits.BUG == 0, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout or result.stderr
    return result.code, result.stderr


def test_store_of_a_hundred_files(folder: Path) -> None:
    made = shapes.many_files(folder / "s")
    store = Drill.of(folder / "s")
    document = store.verify().document
    assert (document["commitlog"]["files"], document["commitlog"]["messages"]) == (100, made.records)
    assert said("recover", store.root, "--yes")[0] == 0


def test_empty_stores(folder: Path, drill: Start) -> None:
    shapes.empty(folder / "s")
    for root in (folder / "s", drill("clean-empty-5.3.3").root):
        for command, *options in (["verify"], ["recover", "--yes"], ["rebuild", "--yes"], ["predict"], ["inspect"]):
            code, stderr = said(command, root, *options)
            assert code == 0, (command, stderr)


def test_empty_commitlog_with_queues_left_is_4_and_nothing_is_touched(folder: Path) -> None:
    shapes.queues_without_log(folder / "s")
    assert said("verify", folder / "s")[0] == 4
    for command in ("recover", "rebuild", "rebuild-consumequeue", "rebuild-index"):
        code, stderr = said(command, folder / "s", "--yes")
        assert code == 4 | 8
        assert "mounted" in stderr


@pytest.mark.parametrize("what", ["empty folder", "other files", "missing", "a file", "one level too high"])
def test_folder_that_is_no_store_is_16_with_a_hint(folder: Path, drill: Start, what: str) -> None:
    root = folder / "x"
    if what == "a file":
        root.write_text("hello")
    elif what == "one level too high":
        root = drill("clean-plain-4.9.7").root
        (folder / "up").mkdir()
        root = root.rename(folder / "up" / "store").parent
    elif what != "missing":
        root.mkdir()
        if what == "other files":
            (root / "notes.txt").write_text("hello")
    for command in ("verify", "recover", "inspect", "predict", "rebuild"):
        result = mqtool(command, root, *(["--yes"] if command in ("recover", "rebuild") else []))
        if what != "a file" or command != "inspect":
            assert result.code == 16, (command, result)
        assert str(root) in result.stderr
    if what == "one level too high":
        assert str(root / "store") in result.stderr


DIRECTORIES = ("checkpoint", "abort", "lock")
FILES = ("commitlog", "consumequeue", "index", "config")


@pytest.mark.parametrize("name", DIRECTORIES)
def test_directory_where_a_file_should_be_is_8(drill: Start, name: str) -> None:
    root = drill("clean-plain-4.9.7").root
    (root / name).unlink(missing_ok=True)
    (root / name).mkdir()
    for command, *options in (["verify"], ["recover", "--yes"]):
        code, stderr = said(command, root, *options)
        assert code & exits.OPERATIONAL, (command, code, stderr)
        assert name in stderr


@pytest.mark.parametrize("name", FILES)
def test_file_where_a_directory_should_be_is_8(drill: Start, name: str) -> None:
    root = drill("clean-4.5.1").root
    shutil.rmtree(root / name)
    (root / name).write_text("?")
    for command, *options in (["verify"], ["recover", "--yes"]):
        code, stderr = said(command, root, *options)
        assert code & exits.OPERATIONAL, (command, code, stderr)
        assert name in stderr


def test_directory_named_like_a_queue_or_index_file_is_named(drill: Start) -> None:
    store = drill("clean-plain-4.9.7")
    for path in (f"consumequeue/Audit/0/{file_name(2000)}", "index/20270101000000000"):
        (store.root / path).mkdir()
    result = store.verify()
    assert result.code & exits.BUG == 0
    assert {f"consumequeue/Audit/0/{file_name(2000)}", "index/20270101000000000"} <= {
        item["file"] for item in result.document["findings"]}


def test_a_special_file_in_the_log_does_not_hang(drill: Start) -> None:
    import os

    store = drill("clean-plain-4.9.7")
    os.mkfifo(store.root / "commitlog" / file_name(262144))
    before = tree_digest(store.root)
    for command in ("verify", "inspect", "predict"):
        assert mqtool(command, store.root).code & exits.BUG == 0
    assert mqtool("recover", store.root, "--yes").code & exits.BUG == 0
    mqtool("undo", store.root, "--yes")
    assert_same_tree(before, tree_digest(store.root))
