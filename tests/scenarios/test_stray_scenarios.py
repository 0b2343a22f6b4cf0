"""Folders, pipes and dead links where only data files belong: which are put aside, and which nobody may pass over."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import pytest

from mqtool import exits
from tests.cli.runner import mqtool
from tests.scenarios.conftest import Start
from tests.scenarios.drill import Drill, file_name, messages, queue_bytes
from tests.support.trees import assert_unchanged

PLAIN, KILLED = "clean-plain-4.9.7", "killed-plain-4.5.1"


def stray(store: Drill, where: str) -> Path:
    """A folder with a file and a folder in it."""
    path = store.root / where
    (path / "2024").mkdir(parents=True)
    (path / "2024" / "notes.txt").write_text("kept")
    return path


@pytest.mark.parametrize("name", [PLAIN, KILLED, "killed-lmq-4.9.7", "killed-manyfiles-5.5.0"])
def test_folder_among_log_files_is_put_aside_so_that_every_version_starts(drill: Start, name: str) -> None:
    store = drill(name)
    path = stray(store, "commitlog/lost+found")
    found = store.finds("commitlog-odd-name", exit_code=2)
    assert (found["file"], found["severity"]) == ("commitlog/lost+found", "warning")
    assert store.run("predict", "--broker", "4.9.7").document["starts"] is False
    with store.recovered() as done:
        assert not path.exists()
        assert not (store.root / "abort").exists()
        assert ("retire-folder", "commitlog/lost+found") in {(s["kind"], s["file"]) for s in done["plan"]["steps"]}
        (kept,) = (store.root / done["journal"] / "retired").rglob("notes.txt")
        assert kept.read_text() == "kept"
        assert messages(store.root) == store.messages
    assert (path / "2024" / "notes.txt").read_text() == "kept"


def test_folder_that_stops_no_broker_of_the_store_is_left_alone(drill: Start) -> None:
    store = drill("clean-v2-5.5.0")
    stray(store, "commitlog/lost+found")
    assert store.finds("commitlog-odd-name", exit_code=0)["severity"] == "info"
    assert store.run("recover", "--yes").document["applied"] is False


@pytest.mark.parametrize(("where", "code"), [
    (f"consumequeue/Audit/0/{file_name(2000)}", "consumequeue-odd-name"),
    ("consumequeue/Audit/0/backup", "consumequeue-odd-name"), ("index/20270101000000000", "index-odd-name"),
])
def test_folder_among_files_of_a_queue_or_of_the_index_is_put_aside(drill: Start, where: str, code: str) -> None:
    store = drill(PLAIN)
    before = queue_bytes(store.root)
    path = stray(store, where)
    assert store.finds(code, exit_code=2)["file"] == where
    with store.recovered():
        assert not path.exists()
        assert queue_bytes(store.root) == before


def test_an_empty_file_at_an_odd_offset_is_put_aside(drill: Start) -> None:
    store = drill("clean-plain-4.9.7")
    path = store.root / "commitlog" / file_name((50 << 20) + 4096)
    path.touch()
    store.struck()
    assert store.finds("commitlog-odd-name", exit_code=2)["file"] == f"commitlog/{path.name}"
    with store.recovered():
        assert not path.exists()


@pytest.mark.parametrize("what", ["a folder", "a link to nothing", "a pipe"])
@pytest.mark.parametrize("offset", [0, 65536, 131072, 196608])
def test_what_has_the_name_of_a_log_file_and_is_none_is_8_and_nothing_is_changed(
    drill: Start, what: str, offset: int
) -> None:
    store = drill(KILLED)
    path = store.root / "commitlog" / file_name(offset)
    path.unlink(missing_ok=True)
    if what == "a folder":
        path.mkdir()
    elif what == "a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/mnt/not-mounted/" + path.name)
    result = store.verify()
    assert result.code & exits.OPERATIONAL
    (found,) = [item for item in result.document["findings"] if item["code"] == "commitlog-not-a-file"]
    assert (found["file"], found["severity"]) == (f"commitlog/{path.name}", "error")
    assert what in found["message"]
    for command in (["recover"], ["recover", "--max-loss", "all"], ["rebuild"], ["truncate", "--to", "0"]):
        with assert_unchanged(store.root):
            refused = store.run(command[0], *command[1:], "--yes")
        assert refused.code & (exits.OPERATIONAL | exits.CORRECTED) == exits.OPERATIONAL
        assert path.name in refused.stderr or "no commitlog" in refused.stderr


@pytest.mark.parametrize("name", ["{}.gz", "{}.bak", ".{}.x8RtzP"])
@pytest.mark.parametrize("offset", [0, 131072])
def test_the_only_copy_of_a_log_file_is_no_stray_however_it_is_called(drill: Start, name: str, offset: int) -> None:
    store = drill("clean-manyfiles-5.3.3")
    path = store.root / "commitlog" / file_name(offset)
    other = path.rename(path.with_name(name.format(path.name)))
    for command in (["verify"], ["predict", "--broker", "5.3.3"], ["recover", "--max-loss", "all", "--yes"]):
        with assert_unchanged(store.root):
            result = store.run(*command)
        assert result.code & exits.OPERATIONAL
        assert "Put the log file back" in result.document["next"][0]["command"], command
    shutil.copy2(other, path)
    store.finds("commitlog-odd-name", f"commitlog/{other.name}", None, exit_code=2)


def test_folder_that_cannot_leave_its_disk_stays_and_so_does_abort(drill: Start, disk: Path) -> None:
    store = drill(KILLED)
    shutil.move(store.root / "commitlog", disk / "log")
    store.options = ("--commitlog", disk / "log")
    (disk / "log" / "lost+found").mkdir()
    planned = store.run("recover", "--dry-run").document["plan"]["steps"]
    assert {("retire-folder", str(disk / "log" / "lost+found")), ("retire", "abort")} <= {
        (step["kind"], step["file"]) for step in planned}
    (disk / "log" / "lost+found" / "file").touch()
    assert store.run("recover", "--yes").code == exits.CORRECTED | exits.DERIVED
    assert store.run("recover", "--yes").document["applied"] is False
    assert (store.root / "abort").exists()
    assert (disk / "log" / "lost+found" / "file").exists()


def test_a_log_file_under_a_name_that_is_none_is_named_with_its_right_one_and_stays(drill: Start) -> None:
    store = drill("killed-manyfiles-5.5.0")
    intact = store.verify().document["commitlog"]["messages"]
    path = sorted((store.root / "commitlog").iterdir())[3]
    path.rename(path.with_name("196608"))
    result = store.verify()
    (found,) = [item for item in result.document["findings"] if item["code"] == "commitlog-not-a-file"]
    assert result.code & exits.OPERATIONAL and path.name in found["remedy"]
    with assert_unchanged(store.root):
        assert store.run("recover", "--max-loss", "all", "--yes").code & exits.OPERATIONAL
    path.with_name("196608").rename(path)
    assert store.verify().document["commitlog"]["messages"] == intact


def test_folders_of_the_log_that_nobody_named_are_in_the_hint(drill: Start) -> None:
    store = drill("killed-multipath-5.3.3")
    result = mqtool("verify", store.root, "--json")
    assert result.code & exits.MESSAGES
    line = result.document["next"][0]["command"].partition("mqtool ")[2]
    whole = mqtool(*shlex.split(line), "--json")
    assert not whole.code & exits.MESSAGES
    assert whole.document["commitlog"]["messages"] == store.verify().document["commitlog"]["messages"] > 0


def test_from_a_piece_of_a_log_every_hint_leads_to_its_messages(drill: Start, tmp_path: Path) -> None:
    piece = tmp_path / "piece"
    content = next((drill("killed-5.5.0").root / "commitlog").iterdir()).read_bytes()
    piece.write_bytes(content[137_000:437_000])
    for command in ("verify", "inspect"):
        refused = mqtool(command, piece)
        assert refused.code == exits.USAGE
        assert f"`mqtool export {piece}`" in refused.stderr
    assert mqtool("export", piece, "-o", tmp_path / "out", "--json").document["messages"] > 100
