"""T13 to T17, T38: log files that are short, long, missing, foreign or renamed."""

from __future__ import annotations

import gzip
import json
import os
import random
import shlex
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from fixtures.damage import walk
from fixtures.damage.patch import flip_bit
from mqtool import exits
from recover.change.model import InPlace, WriteRange, ZeroRange, changed_file
from tests.cli.runner import mqtool
from tests.scenarios.conftest import Start
from tests.scenarios.drill import BROKERS, MANY_FILES, PLAIN, Broken, body_at, file_name, manifest, messages
from tests.support.sampling import few, sampled
from tests.support.stores import write_at
from tests.support.trees import assert_same_tree, assert_unchanged, tree_digest

# --- T13 to T18 and T38: whole files of the log, folders, sizes, and things that are no store at all.


SIZE = 64 << 10


# --- T13: lengths -------------------------------------------------------------------------------------


def test_t13_length_of_an_only_file_that_breaks_off_is_that_of_the_settings(drill: Start) -> None:
    store = drill("clean-restarts-4.9.7")
    (path,) = (store.root / "commitlog").iterdir()
    size, torn = path.stat().st_size, store.records()[-5]
    os.truncate(path, torn.position + torn.record.total_size // 2)
    store.options = ("--set", f"mappedFileSizeCommitLog={size}")
    counts = store.look().document["finding_counts"]
    assert counts["commitlog-bad-file-length"] == 1
    assert not {"settings-contradict-files", "commitlog-missing-file"} & counts.keys()
    assert store.run("recover", "--yes").document["plan"]["loss"]
    assert path.stat().st_size == size
    assert store.run("predict").document["starts"]


#: How much of a record is left; a head is cut behind bytes of zeros.
@pytest.mark.parametrize(("left", "queues"), sampled(["nothing", "half", "half of the head"], [True, False], quick=3))
def test_t13_length_of_an_only_file_that_breaks_off_is_asked_for(drill: Start, left: str, queues: bool) -> None:
    store = drill("clean-restarts-4.9.7")
    (path,) = (store.root / "commitlog").iterdir()
    size, torn = path.stat().st_size, store.records()[-5]
    queue_size = next(path for path in store.root.glob("consumequeue/*/*/*")).stat().st_size
    os.truncate(path, torn.position + {"nothing": 0, "half": torn.record.total_size // 2}.get(left, 72))
    if not queues:
        for part in ("consumequeue", "index", "checkpoint"):
            shutil.rmtree(store.root / part, ignore_errors=True)
    for command in ("verify", "predict", "recover", "rebuild", "truncate"):
        done = store.run(command, *{"recover": ["--max-loss", "all", "--yes"], "rebuild": ["--yes"],
                                    "truncate": ["--to", "0", "--max-loss", "all", "--yes"]}.get(command, []))
        assert done.code & exits.MESSAGES, command
        said = [step["command"] for step in done.document["next"]]
        assert "--broker-conf FILE" in said[0] and "start the broker" not in said, command
        assert "commitlog-missing-file" not in done.document["finding_counts"]
    conf = store.root / "broker.conf"
    conf.write_text(f"mappedFileSizeCommitLog={size}\nmappedFileSizeConsumeQueue={queue_size}\n")
    store.options = ("--broker-conf", conf)
    assert "commitlog-size-untold" not in store.look().document["finding_counts"]
    store.run("recover", "--max-loss", "all", "--yes")
    assert path.stat().st_size == size
    assert store.run("predict").document["starts"]


def test_t13_a_length_that_only_a_wrong_name_tells_is_asked_for(drill: Start) -> None:
    store = drill("killed-5.5.0")
    first, second, empty = sorted((store.root / "commitlog").iterdir())
    size = first.stat().st_size
    os.truncate(first, size // 2)
    left = {hit.record.phy_offset for hit in store.records()}
    second.rename(empty)
    lines = (("verify",), ("predict",), ("recover", "--yes"), ("recover", "--yes", "--max-loss", "all"))
    for command, *options in lines:
        done = store.run(command, *options)
        assert done.code & (exits.OPERATIONAL if command == "recover" else exits.MESSAGES), command
        assert "commitlog-size-untold" in done.document["finding_counts"], command
        assert "start the broker" not in [step["command"] for step in done.document["next"]]
    store.options = ("--set", f"mappedFileSizeCommitLog={size}")
    store.run("recover", "--yes", "--max-loss", "all")
    assert {hit.record.phy_offset for hit in store.records()} >= left


def test_t13_length_of_an_only_file_that_breaks_off_is_the_default_where_the_configuration_names_none(
    drill: Start
) -> None:
    store = drill("clean-restarts-4.9.7")
    (path,) = (store.root / "commitlog").iterdir()
    os.truncate(path, store.records()[-5].position + 9)
    conf = store.root / "broker.conf"
    conf.write_text("brokerName=a\n")
    store.options = ("--broker-conf", conf)
    store.run("recover", "--max-loss", "all", "--yes")
    assert path.stat().st_size == 1 << 30


@few(("recipe", "seed", "length", "starts"), [
    ("log-last-empty", 0, 0, ("5.3.3", "5.5.0")), ("log-middle-empty", 0, 0, ()), ("log-last-short", 0, None, ()),
    ("log-middle-short", 2, SIZE // 2, ()), ("log-long", 0, SIZE + 4096, ()),
], quick=(0, 1, 4))
def test_t13_log_file_of_another_length_gets_its_own(
    drill: Start, recipe: str, seed: int, length: int | None, starts: tuple[str, ...]
) -> None:
    store = drill(MANY_FILES)
    name = f"commitlog/{file_name(store.strike(recipe, seed).facts['file_from_offset'])}"
    code = 6 if store.lost else 2
    facts = store.finds("commitlog-bad-file-length", name, 0, exit_code=code)["facts"]
    assert facts["expected"] == SIZE and length in (None, facts["length"])
    first = store.look().document["next"][0]["command"]
    assert first.startswith("Look for the whole file first" if store.lost else "mqtool recover")
    if store.lost:
        found = store.finds("commitlog-damaged-range", *store.place(min(store.broken.lost)), exit_code=code)
        assert found["facts"]["lost_positions"] == len(store.lost)
    assert tuple(v for v in BROKERS if store.run("predict", "--broker", v).document["starts"]) == starts
    with store.recovered() as done:
        assert (done["damaged_messages"], messages(store.root)) == (len(store.lost), store.intact)


# --- T14 to T17: sizes, starts, gaps, folders -------------------------------------------------------------


@pytest.mark.parametrize("name", ["clean-4.5.1", PLAIN, MANY_FILES, "clean-expired-5.5.0"])
def test_t14_sizes_are_inferred(drill: Start, name: str) -> None:
    store = drill(name)
    conf = manifest(name).get("conf") or {
        "mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20_000, "maxHashSlotNum": 500,
        "maxIndexNum": 2_000}
    sizes = store.run("inspect").document["sizes"]
    assert sizes == {
        "mapped_file_size": conf["mappedFileSizeCommitLog"], "queue_file_size": conf["mappedFileSizeConsumeQueue"],
        "index_slots": conf["maxHashSlotNum"], "index_entries": conf["maxIndexNum"]}
    assert store.look().code == store.asks
    with assert_unchanged(store.root):
        assert mqtool("verify", store.root, "--mapped-file-size", sizes["mapped_file_size"] * 3).code == 16
        assert mqtool("verify", store.root, "--mapped-file-size", sizes["mapped_file_size"] // 2).code == 16


def test_t15_log_files_left_in_another_folder_of_the_root_are_named(drill: Start) -> None:
    store = drill(MANY_FILES)
    *older, newest = sorted((store.root / "commitlog").iterdir())
    moved = store.root / "moved"
    moved.mkdir()
    newest.rename(moved / newest.name)
    (found,) = mqtool("verify", store.root, "--commitlog", moved, "--json").found("commitlog-begins-late")
    *command, last = shlex.split(found["remedy"].partition("mqtool ")[2])
    assert last == str(older[0].parent)
    assert mqtool(*command, last).code == exits.CLEAN


@pytest.mark.parametrize("name", ["clean-expired-4.5.1", "killed-expired-4.9.7", "clean-expired-5.5.0"])
def test_t15_log_that_begins_at_a_later_file(drill: Start, name: str) -> None:
    store = drill(name)
    start = manifest(name)["min_phy"]
    times = [hit.record.store_timestamp for hit in store.records()]
    found = store.finds("commitlog-begins-late", f"commitlog/{file_name(start)}", 0, exit_code=exits.DERIVED)
    assert (found["severity"], found["facts"]["start"]) == ("warning", start)
    assert (found["facts"]["first"], found["facts"]["newest"]) == (times[0], max(times))
    assert "not copied?" in found["message"] and "--commitlog DIR" in found["remedy"]
    # all of it was stored within seconds, and no broker keeps messages for less than an hour
    assert found["facts"]["age_hours"] == 0 and "fileReservedTime" not in found["remedy"]
    said = store.run("predict")
    assert said.code & exits.MESSAGES == 0
    assert any(found["message"] in text for text in said.document["assumptions"])
    hit = store.records()[40]
    flip_bit(store.root, hit.file.path, hit.position + 90, 1)
    store.struck()
    store.finds("commitlog-damaged-record", *store.place(hit.record.phy_offset), exit_code=4)
    with store.recovered() as done:
        assert done["damaged_messages"] == 1
        assert messages(store.root) == store.intact


@pytest.mark.parametrize(("hours", "late"), [("0", False), ("1", True), ("72", True), (None, True)])
def test_t15_first_message_as_old_as_retention_allows_asks_nothing(
    drill: Start, folder: Path, hours: str | None, late: bool
) -> None:
    store = drill("clean-expired-5.5.0")
    conf = folder / "broker.conf"
    conf.write_text(f"fileReservedTime={hours}\n" if hours else "brokerName=a\n")
    for options in (("--broker-conf", conf), ("--set", f"fileReservedTime={hours or 72}")):
        result = store.verify(*options)
        (found,) = [item for item in result.document["findings"] if item["facts"].get("start") == 262144]
        assert found["code"] == ("commitlog-begins-late" if late else "commitlog-first-file-not-zero")
        assert result.code == (exits.DERIVED if late else 0)
        assert store.run("recover", "--yes", *options).code == result.code


@pytest.mark.today
@pytest.mark.parametrize(("age", "code"), [(71, 0), (73, 4)])
def test_t15_predict_tells_of_log_files_that_retention_deletes_once_the_broker_runs(
    drill: Start, age: int, code: int
) -> None:
    """All of five real brokers deleted all log files but the last within 75 seconds."""
    store = drill(MANY_FILES)
    files = sorted((store.root / "commitlog").iterdir())
    for file in files:
        os.utime(file, (time.time() - age * 3600,) * 2)
    said = store.run("predict", "--broker", "5.3.3", "--set", "fileReservedTime=72")
    assert said.code == code
    assert [item["facts"]["count"] for item in said.found("start-expires-files")] == [len(files) - 1] * (code == 4)
    assert store.run("predict", "--broker", "5.3.3", "--set", "fileReservedTime=74").code == 0
    # the default deletes the same files: told, but no reason against a start
    default = store.run("predict", "--broker", "5.3.3")
    found = default.found("start-expires-files")
    assert default.code == 0 and default.document["starts"] and default.document["reason"] is None
    assert [item["severity"] for item in found] == ["info"] * (code == 4)
    assert [item["facts"]["last"] for item in found] == [files[-2].name] * (code == 4)
    why = default.document["next"][0]["why"]
    assert ("fileReservedTime=145 or more" in why) == (code == 4)
    told = [text for text in default.document["assumptions"] if text.startswith("fileReservedTime=72")]
    assert len(told) == (code == 4)


def test_t16_missing_middle_file_is_a_gap_and_both_sides_stay(drill: Start) -> None:
    store = drill(MANY_FILES)
    facts = store.strike("log-middle-missing").facts
    start = facts["file_from_offset"]
    found = store.finds("commitlog-missing-file", exit_code=4)
    assert (found["facts"]["start"], found["facts"]["stop"]) == (start, start + SIZE)
    assert found["facts"]["intact_after"] == sum(m.phy_offset > start for m in store.intact)
    with assert_unchanged(store.root):
        refused = store.run("recover", "--yes")
    assert refused.code == exits.OPERATIONAL | exits.MESSAGES
    assert "the source of this copy" in refused.stderr and f"--max-loss {len(store.lost)}" in refused.stderr
    assert store.run("recover", "--max-loss", len(store.lost) - 1, "--yes").code & exits.OPERATIONAL


@pytest.mark.parametrize("wrong", [6309820017, 5 << 20])
def test_a_last_file_that_was_cut_and_renamed_does_not_decide_the_file_size(drill: Start, wrong: int) -> None:
    store = drill("clean-4.5.1")
    last = store.root / "commitlog" / file_name(1 << 20)
    os.truncate(last, 258048)
    last.rename(last.with_name(file_name(wrong)))
    store.struck()
    store.finds("commitlog-misnamed-file", f"commitlog/{file_name(wrong)}", 0, exit_code=exits.DERIVED)
    with store.recovered():
        assert [path.stat().st_size for path in (store.root / "commitlog").iterdir()] == [1 << 20, 1 << 20]


def test_copy_of_a_log_file_under_another_name_does_not_take_the_place_of_one_whose_first_record_is_damaged(
    drill: Start,
) -> None:
    store = drill(MANY_FILES)
    first, second = (file.path for file in walk.log_files(store.root)[:2])
    shutil.copyfile(second, first)
    write_at(second, 0, b"?" * 100)
    store.struck()
    with store.recovered():
        assert second.exists() and first.exists()


def test_t16_the_only_log_file_that_is_left_gets_its_name_back(drill: Start) -> None:
    store = drill("clean-propcrc-5.3.3")
    folder = store.root / "commitlog"
    (folder / file_name(0)).unlink()
    (folder / file_name(131072)).rename(folder / file_name(133667))
    store.struck()
    with store.recovered(exits.DERIVED):
        assert [path.name for path in folder.iterdir()] == [file_name(131072)]


@pytest.mark.parametrize("files", [1, 3])
def test_t16_missing_middle_files_are_given_up_when_the_loss_is_allowed(drill: Start, files: int) -> None:
    store = drill(MANY_FILES)
    gone = [file for file in walk.log_files(store.root) if next(walk.records_of(file), None)][4:4 + files]
    for file in gone:
        file.path.unlink()
    store.struck()
    with store.recovered(0, "--max-loss", "all") as done:
        assert done["damaged_messages"] == sum(row["messages"] for row in done["plan"]["loss"]) == len(store.lost)
        assert done["given_up_messages"] == len(store.lost)
        assert messages(store.root) == store.intact
        assert all(file.path.stat().st_size == SIZE for file in gone)
        assert {bridge["start"] for bridge in done["bridged"]} == {file.file_from_offset for file in gone}


MULTI = ["clean-multipath-4.9.7", "killed-multipath-5.3.3"]


@pytest.mark.parametrize("name", MULTI)
def test_t17_log_over_two_paths(drill: Start, name: str) -> None:
    store = drill(name)
    result = store.look()
    assert result.document["commitlog"]["messages"] == manifest(name)["records"]
    assert result.code == (0 if name.startswith("clean") else 2)
    path = store.root / "commitlog-b" / file_name(128 << 10)
    (record, position), *_ = [(hit.record, hit.position) for hit in walk.records_of(walk.MappedFile(path, 128 << 10))]
    flip_bit(store.root, path, position + 90, 1)
    store.broken = Broken(frozenset({record.phy_offset}), frozenset({record.phy_offset}))
    store.finds("commitlog-damaged-record", f"commitlog-b/{path.name}", position, exit_code=4)
    with store.recovered(starts=False):
        assert messages(store.root) == store.intact


def test_a_recovered_copy_joins_the_paths_of_a_damaged_log(drill: Start, folder: Path) -> None:
    """Paths below the store's root, too: none is copied twice, and the plan's steps lead to where the files are."""
    store, copy = drill(MULTI[0]), folder / "copy"
    path = store.root / "commitlog-b" / file_name(128 << 10)
    flip_bit(store.root, path, 90, 1)
    bridge = store.run("recover", "--output", copy, "--yes")
    assert bridge.code & exits.CORRECTED and not bridge.code & exits.OPERATIONAL
    assert [item.name for item in copy.glob("commitlog*")] == ["commitlog"]
    assert mqtool("verify", copy).code == exits.CLEAN


@pytest.mark.parametrize("older", [False, True], ids=["the same", "half of it"])
@pytest.mark.parametrize(("of", "into"), [("commitlog-a", "commitlog-b"), ("commitlog-b", "commitlog-a")])
def test_t17_name_in_two_paths_leaves_the_live_one(drill: Start, of: str, into: str, older: bool) -> None:
    store = drill(MULTI[0])
    live = sorted((store.root / of).iterdir())[1]
    content = live.read_bytes()
    twin = store.root / into / live.name
    twin.write_bytes(content[:len(content) // 2].ljust(len(content), b"\0") if older else content)
    found = store.finds("commitlog-duplicate-file", exit_code=2)
    assert found["file"] in ({f"{into}/{twin.name}"} if older else {f"{into}/{twin.name}", f"{of}/{live.name}"})
    assert store.run("predict").code == exits.UNSUPPORTED, "a recovery walks both, and cuts at the end of either"
    with store.recovered(starts=False):
        assert live.exists() != twin.exists()
        assert not older or live.exists()
        assert messages(store.root) == store.messages


@pytest.mark.parametrize("number", [1, 7], ids=["in mid-log", "the last file"])
@few("kept", ["first", "second"], quick=(1,))
def test_t17_two_halves_of_a_file_in_two_paths_are_put_together(drill: Start, number: int, kept: str) -> None:
    store = drill(MULTI[0])
    start = number * (128 << 10)
    path = store.root / "commitlog-b" / file_name(start)
    twin, content = store.root / "commitlog-a" / path.name, path.read_bytes()
    records = [(hit.position, hit.record) for hit in walk.records_of(walk.MappedFile(path, start))]
    at, across = records[len(records) // 2]
    half = at + across.total_size // 2
    first, second = content[:half].ljust(len(content), b"\0"), bytes(half) + content[half:]
    path.write_bytes(first if kept == "first" else second)
    twin.write_bytes(second if kept == "first" else first)
    broken, copy = tree_digest(store.root), store.root.with_name("copy")
    (found,) = store.look().found("commitlog-duplicate-file")
    damaged = store.look().document["commitlog"]["damaged_messages"]
    assert found["facts"]["copies"] == damaged - 1, "all but the one that is cut in both"
    assert f"still holds {damaged - 1} of the messages" in found["message"]
    assert store.run("recover", "--output", copy, "--yes").code == 5
    assert mqtool("verify", copy).code == 0 and len([*(copy / "commitlog").iterdir()]) == 8
    assert_same_tree(broken, tree_digest(store.root))
    done = store.run("recover", "--yes")
    assert (done.code, done.document["damaged_messages"], store.look().code) == (5, 1, 0)
    assert messages(store.root) == {each for each in store.messages if each.phy_offset != across.phy_offset}
    assert {piece["kind"] for piece in done.document["bridged"]} == {"copied", "bridge"}
    store.run("undo", "--yes")
    assert_same_tree(broken, tree_digest(store.root))


def test_t17_misnamed_file_is_no_duplicate_of_the_file_whose_name_it_has(drill: Start) -> None:
    store = drill(MULTI[0])
    (store.root / "commitlog-a" / file_name(0)).rename(store.root / "commitlog-a" / file_name(384 << 10))
    assert not store.look().found("commitlog-duplicate-file")
    with store.recovered(starts=False):
        assert messages(store.root) == store.messages


# --- T18 and T38: no log, no store --------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["no files", "no folder", "empty file"])
def test_t18_queues_without_a_log_say_do_not_start(drill: Start, how: str) -> None:
    store = drill(PLAIN)
    shutil.rmtree(store.root / "commitlog")
    if how != "no folder":
        (store.root / "commitlog").mkdir()
    if how == "empty file":
        (store.root / "commitlog" / file_name(0)).touch()
    result = store.look()
    (found,) = result.found("commitlog-empty-queues-left")
    assert (result.code, found["file"]) == (4, "commitlog")
    assert "do not start the broker" in found["message"]
    assert "Do not start the broker" in mqtool("inspect", store.root).stdout
    commands = [["recover"], ["rebuild"], ["rebuild-consumequeue"], ["rebuild-index"], ["truncate", "--to", "0"]]
    with assert_unchanged(store.root):
        for command, *options in commands:
            refused = store.run(command, *options, "--yes")
            assert refused.code == 4 | 8, command
            assert "mounted" in refused.stderr


def kafka_segment() -> bytes:
    """Record batches as Kafka writes them: base offset, length, epoch, magic 2, checksum, data."""
    rng = random.Random(3)
    return b"".join(struct.pack(">qiiBI", n, 209, 0, 2, rng.getrandbits(32)) + rng.randbytes(200) for n in range(400))


FOREIGN = {
    "random": random.Random(1).randbytes(100_000), "zeros": bytes(100_000), "kafka": kafka_segment(),
    "gzip": gzip.compress(random.Random(2).randbytes(60_000)), "text": b"not a store\n" * 4000, "empty": b"",
    "json": b'{"a": 1}',
}
#: What inspect calls such a file.
SEEN = {"random": "its content is unknown", "zeros": "nothing but zeros", "kafka": "Kafka", "gzip": "gzip",
        "text": "like text", "empty": "empty", "json": "like text"}
COMMANDS = ["verify", "inspect", "predict", "recover", "rebuild", "undo", "resume", "journal"]


@pytest.mark.parametrize("kind", FOREIGN)
def test_t38_foreign_files_and_folders_are_no_store(folder: Path, kind: str) -> None:
    root = folder / "elsewhere"
    root.mkdir()
    file = root / "00000000000000000000.log"
    file.write_bytes(FOREIGN[kind])
    with assert_unchanged(root):
        for command in COMMANDS if kind == "text" else ("verify", "inspect"):
            for path in (root, file, root / "nowhere"):
                result = mqtool(command, path, *(["--yes"] if command in ("recover", "rebuild", "undo") else []))
                assert result.code == exits.USAGE, (command, path, result.stderr)
        assert SEEN[kind] in mqtool("inspect", file).stderr


@pytest.mark.parametrize("kind", ["random", "zeros", "empty", "json"])
def test_t38_foreign_bytes_as_the_only_log_file_crash_nothing(folder: Path, kind: str) -> None:
    root = folder / "s"
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / file_name(0)).write_bytes(FOREIGN[kind])
    before = tree_digest(root)
    with assert_unchanged(root):
        for command in ("verify", "inspect", "predict", "journal"):
            result = mqtool(command, root, "--json")
            assert result.code & (exits.BUG | exits.USAGE) == 0, result.stderr
            assert result.document["exit_code"] == result.code
    done = mqtool("recover", root, "--yes")
    assert done.code & (exits.BUG | exits.USAGE) == 0
    if done.code & exits.CORRECTED:
        assert mqtool("undo", root, "--yes").code & exits.OPERATIONAL == 0
    assert_same_tree(before, tree_digest(root))


@pytest.mark.parametrize("kind", ["kafka", "text", "zeros"])
def test_t38_foreign_bytes_behind_the_log_do_not_harm_it(drill: Start, kind: str) -> None:
    store = drill(MANY_FILES)
    last = walk.log_files(store.root)[-1]
    path = store.root / "commitlog" / file_name(last.file_from_offset + SIZE)
    path.write_bytes(FOREIGN[kind][:SIZE].ljust(SIZE, b"\0"))
    result = store.look()
    assert result.document["commitlog"]["messages"] == len(store.messages)
    if kind == "zeros":
        assert result.code == 0
        return
    store.finds("commitlog-torn-tail", f"commitlog/{path.name}", 0, exit_code=2)
    with store.recovered():
        assert messages(store.root) == store.messages
        assert os.path.getsize(path) == SIZE


@pytest.mark.parametrize("far", [2, 50])
@pytest.mark.parametrize("zeros", [True, False])
def test_an_empty_file_far_after_the_log_is_settled_at_once(drill: Start, zeros: bool, far: int) -> None:
    store = drill("clean-plain-4.9.7")
    last = max((store.root / "commitlog").iterdir())
    size = last.stat().st_size
    empty = last.with_name(f"{int(last.name) + far * size:020d}")
    empty.write_bytes(bytes(size if zeros else 0))
    store.finds("commitlog-far-file", f"commitlog/{empty.name}", 0, exit_code=exits.DERIVED)
    for version in BROKERS if zeros else ():
        assert store.run("predict", "--broker", version).code == exits.CLEAN, "real ones start and delete it"
    with store.recovered() as done:
        assert not empty.exists() and not done["plan"]["loss"]
        assert [step["file"] for step in done["plan"]["steps"]] == [f"commitlog/{empty.name}"]


@pytest.mark.parametrize("how", ["full", "damaged"])
def test_an_empty_file_far_after_a_log_that_may_have_gone_on_is_a_gap(drill: Start, how: str) -> None:
    store = drill(MANY_FILES)
    used = [file.path for file in walk.log_files(store.root) if next(walk.records_of(file), None)]
    for path in (store.root / "commitlog").iterdir():
        if path > (used[-2] if how == "full" else used[-1]):
            path.unlink()
    if how == "damaged":
        write_at(used[-1], SIZE - 4096, random.Random(1).randbytes(4096))
    far = used[-1].with_name(file_name(int(used[-1].name) + 3 * SIZE))
    far.write_bytes(bytes(SIZE))
    assert "commitlog-missing-file" in store.look().document["finding_counts"]
    assert store.run("recover", "--yes").code & exits.OPERATIONAL, "a file may be missing before it"
    assert store.run("predict").code & exits.MESSAGES


@pytest.mark.parametrize(("part", "change"), [
    ("commitlog", "mode"), ("commitlog", "owner"), ("consumequeue", "mode"), ("index", "owner"), ("config", "mode"),
])
def test_a_file_of_another_owner_or_mode_is_a_warning_with_what_to_do(drill: Start, part: str, change: str) -> None:
    store = drill("clean-5.3.3")
    path = max(path for path in (store.root / part).rglob("*") if path.is_file())
    was = path.stat()
    if change == "mode":
        path.chmod(0o600)
    elif os.geteuid():
        pytest.skip("NOT RUN: another owner needs root")
    else:
        os.chown(path, was.st_uid + 12345, was.st_gid)
    found = store.finds("file-owner-or-mode", part, None, exit_code=exits.DERIVED)
    name = path.relative_to(store.root).as_posix()
    assert name in found["message"]
    assert f"chown {was.st_uid}:{was.st_gid} and chmod {was.st_mode & 0o777:o} on {name}" in found["remedy"]
    assert "file-owner-or-mode" in mqtool("inspect", store.root, "--json").stdout


def test_a_part_whose_files_all_differ_from_the_rest_of_the_store_is_found(drill: Start) -> None:
    store = drill("clean-restarts-5.5.0")
    (path,) = (store.root / "commitlog").iterdir()
    path.chmod(0o400)
    store.finds("file-owner-or-mode", "commitlog", None, exit_code=exits.DERIVED)


@few(("name", "mode", "code", "starts"), [
    (".", 0o755, 4, False), ("commitlog", 0o700, 4, True), ("commitlog", 0o755, 2, True),
    ("commitlog/00000000000001048576", 0o644, 4, False), ("consumequeue/TopicA", 0o700, 4, False),
    ("index/20261121015910758", 0o644, 4, False), ("checkpoint", 0o644, 4, False), ("lock", 0o644, 4, False),
    ("timerwheel", 0o644, 4, False), ("timerlog", 0o700, 4, True), ("config/timercheck", 0o644, 4, False),
    ("config/topics.json", 0o600, 4, True), ("config/topics.json", 0o644, 2, True),
], quick=(2, 3, 11))
def test_a_file_that_the_owner_of_most_files_may_not_open_stops_a_start(
    drill: Start, name: str, mode: int, code: int, starts: bool
) -> None:
    """Each seen on 5.3.3 that ran as another user; it reads the backup of a config file that it may not open. Where it
    cannot list timerlog/ or commitlog/, it starts without timers, or without a log, and deletes all queues."""
    if os.geteuid():
        pytest.skip("NOT RUN: another owner needs root")
    store = drill("clean-5.3.3")
    for path in (store.root, *store.root.rglob("*")):
        os.chown(path, 12345, 12345)
    assert store.run("predict", "--broker", "5.3.3").code == exits.DERIVED  # 20 half messages come again
    os.chown(store.root / name, 0, 0)
    (store.root / name).chmod(mode)
    said = store.run("predict", "--broker", "5.3.3")
    assert (said.code, said.document["starts"]) == (code, starts)
    assert bool(store.run("groups", "--broker", "5.3.3").code & exits.MESSAGES) != starts
    assert store.look().code == exits.DERIVED
    assert "chown 12345:12345" in said.document["next"][0]["command"]


@few(("part", "starts"), [
    ("commitlog", False), ("consumequeue", False), ("index", False), ("config", True),
], quick=(0, 3))
def test_a_part_that_is_mounted_read_only_stops_a_start(drill: Start, part: str, starts: bool) -> None:
    """Each seen on 5.3.3 and 5.5.0. A store that is read-only as a whole is one that nobody starts."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("NOT RUN: mounts need root")
    root = drill("clean-5.3.3").root

    def told(folder: Path, *words: str) -> dict[str, Any]:
        mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
        # the store's timers are due, and a start of today would skip them
        then = ["--at", "2026-11-23T22:00:00Z"] if words[0] == "predict" else []
        line = [sys.executable, "-m", "mqtool", words[0], str(root), *words[1:], *then, "--json"]
        run = subprocess.run(["unshare", "-m", "sh", "-c", mount, folder, *line], capture_output=True, check=False)
        return dict(json.loads(run.stdout))

    said = told(root / part, "predict", "--broker", "5.3.3")
    assert (said["exit_code"], said["starts"]) == (exits.MESSAGES, starts)
    assert said["next"][0]["command"].startswith("Find out why")
    assert told(root / part, "verify")["exit_code"] == exits.DERIVED
    assert told(root / part, "recover", "--yes")["next"][0]["command"].startswith("Find out why")
    assert told(root, "predict", "--broker", "5.3.3")["exit_code"] == exits.DERIVED  # half messages come again


@pytest.mark.parametrize(("name", "broker", "code"), [
    ("config/timercheck", "5.3.3", 4), ("config/timercheck", "4.9.7", 2), ("timerwheel", "5.3.3", 4),
])
def test_a_folder_in_place_of_a_timer_file_stops_a_broker_with_timers(
    drill: Start, name: str, broker: str, code: int
) -> None:
    store = drill("clean-5.3.3")
    (store.root / name).unlink()
    (store.root / name).mkdir()
    said = store.run("predict", "--broker", broker)
    assert (said.code, said.document["starts"]) == (code, not code & exits.MESSAGES)
    assert not code & exits.MESSAGES or said.document["next"][0]["command"].startswith(f"Move {name} out of the store")


@pytest.mark.parametrize("setting", ["mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue"])
def test_no_broker_loads_files_with_a_length_setting_of_0(drill: Start, setting: str) -> None:
    said = drill("clean-plain-4.9.7").run("predict", "--broker", "4.9.7", "--set", f"{setting}=0")
    assert said.document["starts"] is False and said.code & exits.MESSAGES


def test_a_store_whose_files_are_all_alike_has_the_right_owner_whoever_that_is(drill: Start) -> None:
    store = drill("clean-5.3.3")
    for path in store.root.rglob("*"):
        if path.is_file():
            path.chmod(0o600)
    assert store.look().code == 0


# --- T13: log files of a wrong length or name that are damaged within as well are written anew, with all changes.


STORE, SMALL = "clean-manyfiles-5.3.3", 64 << 10


@pytest.mark.parametrize("what", ["length", "name"])
def test_t13_file_that_is_damaged_as_well_is_written_anew(drill: Start, what: str) -> None:
    store = drill(STORE)
    hits = store.records(-1)
    lost, start = hits[len(hits) // 2], hits[0].file.file_from_offset
    flip_bit(store.root, lost.file.path, body_at(lost), 3)
    store.struck()
    if what == "length":
        os.truncate(lost.file.path, SMALL + 4096)
    else:
        lost.file.path.rename(lost.file.path.with_name(file_name(start + SMALL)))
    with store.recovered() as done:
        assert [(row["messages"], row["cause"]) for row in done["plan"]["loss"]] == [(1, "bad-body-crc")]
        assert ("install", f"commitlog/{file_name(start)}") in {(s["kind"], s["file"]) for s in done["plan"]["steps"]}
        assert messages(store.root) == store.intact


@given(
    data=st.binary(max_size=300), size=st.integers(0, 300), cuts=st.lists(st.integers(0, 400), max_size=8),
    draw=st.data(),
)
def test_changed_file_holds_what_changes_in_place_would_leave(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, size: int, cuts: list[int], draw: st.DataObject,
) -> None:
    path = tmp_path_factory.mktemp("changed") / "file"
    path.write_bytes(data)
    expected = bytearray(data[:size].ljust(size, b"\0"))
    changes: list[InPlace] = []
    places = sorted(set(cuts))
    for start, stop in zip(places[::2], places[1::2], strict=False):
        content = draw.draw(st.binary(min_size=stop - start, max_size=stop - start) | st.just(bytes(stop - start)))
        changes.append(WriteRange("file", start, content) if any(content) else ZeroRange("file", start, stop))
        room = max(0, min(stop, size) - start)
        expected[start : start + room] = content[:room]
    assert b"".join(changed_file(path, size, changes[::-1]).chunks()) == expected
