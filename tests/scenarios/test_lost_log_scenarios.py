"""T18, T22 and T38: messages that nothing but queues still names, and logs that are no log any more."""

from __future__ import annotations

import gzip
import io
import random
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

from fixtures.damage import walk
from fixtures.damage.patch import flip_bit
from fixtures.synth import StoreWriter
from formats.basics import offset_to_name
from formats.consumequeue import CQ_UNIT, CqUnit
from mqtool import exits
from mqtool.text import count
from tests.cli.runner import mqtool
from tests.scenarios.conftest import Start
from tests.scenarios.drill import MANY_FILES, PLAIN, Drill, Found, counts, file_name, manifest, messages
from tests.scenarios.test_file_scenarios import FOREIGN
from tests.support.harm import gone
from tests.support.sampling import few
from tests.support.stores import write_at
from tests.support.trees import assert_unchanged

GONE = exits.OPERATIONAL | exits.MESSAGES


def overwrite_log(store: Drill, kind: str, files: slice = slice(None)) -> None:
    """Put zeros or noise in the place of some of the log files."""
    for file in walk.log_files(store.root)[files]:
        size = file.path.stat().st_size
        file.path.write_bytes(bytes(size) if kind == "zeros" else random.Random(1).randbytes(size))
    store.struck()


def zero_log_from(store: Drill, phy_offset: int) -> None:
    """Zeros from there to the end of the file: what the last pages are when they never reached the disk."""
    path, at = next((hit.file.path, hit.position) for hit in store.records() if hit.record.phy_offset == phy_offset)
    write_at(path, at, bytes(path.stat().st_size - at))
    store.struck()


def leave_units_of(store: Drill, topic: str, queue_id: int) -> None:
    """Zeros for the units of all other queues that name a lost message."""
    lost = {message.phy_offset for message in store.lost}
    for queue in walk.queues(store.root):
        for hit in walk.units(queue) if (queue.topic, queue.queue_id) != (topic, queue_id) else ():
            if hit.unit.phy_offset in lost:
                write_at(hit.file.path, hit.position, bytes(CQ_UNIT.size))


def stated(document: Found) -> list[tuple[str, int, int]]:
    """Topic, queue and number of messages of each row of the loss statement."""
    return [(row["topic"], row["queue"], row["messages"]) for row in document["plan"]["loss"]]


def lost_by_queue(store: Drill) -> list[tuple[str, int, int]]:
    """The same, of the messages that the damage took."""
    queues = [(message.topic, message.queue_id) for message in store.lost]
    return [(*queue, queues.count(queue)) for queue in sorted(set(queues))]


# --- the end of the log is gone -----------------------------------------------------------------------------


@pytest.mark.parametrize("files", [1, 3])
def test_t22_messages_of_missing_last_files_are_lost_and_named(drill: Start, files: int) -> None:
    store = drill(MANY_FILES)
    used = [file for file in walk.log_files(store.root) if next(walk.records_of(file), None)][-files:]
    for file in walk.log_files(store.root):
        if file.path >= used[0].path:
            file.path.unlink()
    store.struck()
    found = store.finds("commitlog-missing-file", exit_code=6)
    start = used[0].file_from_offset
    assert (found["facts"]["start"], found["facts"]["stop"]) == (start, start + files * 65536)
    document = store.look().document
    assert document["commitlog"]["damaged_messages"] == len(store.lost)
    assert document["consumequeue"]["beyond_log"] == len(store.lost)
    with assert_unchanged(store.root):
        refused = store.run("recover", "--yes")
    assert refused.code & GONE == GONE and "the source of this copy" in refused.stderr
    with store.recovered(0, "--max-loss", len(store.lost)) as done:
        assert (done["damaged_messages"], stated(done)) == (len(store.lost), lost_by_queue(store))
        assert f"{len(store.lost)} messages of missing log files given up" in done["summary"]
        assert messages(store.root) == store.intact


@few("witness", ["queues", "index", "checkpoint"], quick=(0, 2))
def test_t22_missing_end_of_the_log_is_no_start(drill: Start, witness: str) -> None:
    store = drill(MANY_FILES)
    used = [file for file in walk.log_files(store.root) if next(walk.records_of(file), None)]
    for file in used[-2:]:
        file.path.unlink()
    if witness != "queues":
        shutil.rmtree(store.root / "consumequeue")
    if witness == "checkpoint":
        shutil.rmtree(store.root / "index")
    else:
        (store.root / "checkpoint").unlink()
    store.struck()
    (found,) = store.found("commitlog-missing-file")
    assert found["facts"]["start"] == used[-2].file_from_offset and "the source of this copy" in found["remedy"]
    assert store.look().code & exits.MESSAGES
    for version in ("4.5.1", "4.9.7", "5.5.0"):
        said = store.run("predict", "--broker", version)
        assert said.code == exits.MESSAGES
        assert "missing" in said.document["reason"] and "missing" in said.document["summary"]
    with assert_unchanged(store.root):
        assert store.run("recover", "--yes").code & GONE == GONE
    with store.recovered(0, "--max-loss", "all"):
        assert messages(store.root) == store.intact
        assert store.run("predict").code == 0


@few(("command", "recipe"), [
    (("rebuild",), "log-last-missing"), (("rebuild-consumequeue",), "log-middle-missing"),
    (("rebuild-index",), "log-last-missing"), (("rebuild", "--output", "made"), "log-middle-missing"),
    (("truncate", "--to", "0"), "log-middle-missing"),
], quick=(0, 1))
def test_t22_no_command_goes_on_without_missing_log_files_unasked(
    drill: Start, tmp_path: Path, recipe: str, command: tuple[str, ...]
) -> None:
    store = drill(MANY_FILES)
    store.strike(recipe)
    intact, gone = len(store.intact), len(store.lost)
    words = [tmp_path / word if word == "made" else word for word in command]
    allowed = intact if command[0] == "truncate" else gone - 1
    for limit in ("0", gone - 1):
        with assert_unchanged(store.root):
            refused = store.run(*words, "--yes", "--max-loss", limit)
        assert refused.code & exits.OPERATIONAL
        assert f"they held at least {count(gone, 'message')}" in refused.document["error"]["message"]
    assert not (tmp_path / "made").exists()
    assert store.run(*words, "--yes", "--max-loss", max(gone, allowed)).code & exits.OPERATIONAL == 0


def test_t22_truncate_states_what_it_gives_up_and_leaves_other_damage(drill: Start) -> None:
    store = drill(MANY_FILES)
    store.strike("log-middle-missing")
    hits, gone = store.records(), len(store.lost)
    found = store.look().document
    assert found["commitlog"]["damaged_messages"] == gone and "damaged messages" not in found["summary"]
    assert f"{gone} messages in missing log files" in found["summary"]
    last = store.run("truncate", "--to", hits[-1].record.phy_offset, "--max-loss", "all", "--dry-run").document
    assert sum(row["messages"] for row in last["plan"]["loss"]) == 1
    assert f"1 intact message dropped, {gone} damaged messages left" in last["summary"]
    first = store.run("truncate", "--to", hits[1].record.phy_offset, "--max-loss", "all", "--dry-run").document
    assert sum(row["messages"] for row in first["plan"]["loss"]) == gone + len(hits) - 1
    assert f"{gone} messages of missing log files given up" in first["summary"]


@pytest.mark.parametrize(("kind", "files"), [("zeros", 1), ("noise", 3)])
def test_t22_messages_of_overwritten_last_files_are_lost_and_named(drill: Start, kind: str, files: int) -> None:
    store = drill(MANY_FILES)
    overwrite_log(store, kind, slice(-files, None))
    result = store.look()
    assert result.code == 6
    assert result.document["commitlog"]["damaged_messages"] == len(store.lost)
    with store.recovered() as done:
        assert (done["damaged_messages"], stated(done)) == (len(store.lost), lost_by_queue(store))
        assert messages(store.root) == store.intact


@pytest.mark.parametrize("witness", ["checkpoint", "other queues"])
def test_t22_zeros_are_lost_messages_when_more_than_one_queue_tells_of_them(drill: Start, witness: str) -> None:
    store = drill(PLAIN)
    first = store.records()[-40].record
    zero_log_from(store, first.phy_offset)
    if witness == "checkpoint":
        leave_units_of(store, "Orders", 1)
    else:
        (store.root / "checkpoint").write_bytes(bytes(4096))
    (found,) = store.found("commitlog-damaged-range")
    assert store.look().code == 6
    lost = [row for row in lost_by_queue(store) if witness == "other queues" or row[:2] == ("Orders", 1)]
    assert (found["facts"]["reason"], found["facts"]["lost_positions"]) == ("zeroed", sum(row[2] for row in lost))
    with store.recovered() as done:
        # the index names those of the other queues
        assert done["damaged_messages"] == len(store.lost) == sum(row[2] for row in stated(done))
        assert set(lost) <= set(stated(done))


@few("witness", ["checkpoint", "index alone"], quick=1)
def test_t22_messages_that_no_queue_names_any_more_are_lost_if_index_and_checkpoint_tell_of_them(
    drill: Start, witness: str
) -> None:
    store = drill("clean-5.3.3")  # each of its last messages has a key
    zero_log_from(store, store.records()[-60].record.phy_offset)
    leave_units_of(store, "", 0)
    if witness == "index alone":
        (store.root / "checkpoint").write_bytes(bytes(4096))
    result, proven = store.look(), witness == "checkpoint"
    assert (result.code, result.document["commitlog"]["damaged_messages"]) == (6, 60 if proven else 0)
    with store.recovered() as done:
        assert (done["damaged_messages"], done["unproven_messages"]) == ((60, 0) if proven else (0, 60))
        assert [row["messages"] for row in done["plan"]["loss"]] == [60]


def test_t22_messages_of_a_missing_file_that_only_the_index_names_are_counted(drill: Start) -> None:
    store = drill(MANY_FILES)
    used = [file for file in walk.log_files(store.root) if next(walk.records_of(file), None)]
    used[-1].path.unlink()
    store.struck()
    leave_units_of(store, "", 0)
    assert store.look().document["commitlog"]["damaged_messages"] == len(store.lost)
    refused = store.run("recover", "--yes")
    assert f"at least {count(len(store.lost), 'message')}" in refused.document["error"]["message"]


def test_t22_what_a_single_queue_claims_is_stated_though_no_message_is_proven_to_be_gone(drill: Start) -> None:
    store = drill(PLAIN)
    zero_log_from(store, store.records()[-40].record.phy_offset)
    leave_units_of(store, "Orders", 1)
    (store.root / "checkpoint").write_bytes(bytes(4096))
    shutil.rmtree(store.root / "index")
    result = store.look()
    assert (result.code, result.document["consumequeue"]["beyond_log"]) == (2, 10)
    with store.recovered() as done:
        assert (done["damaged_messages"], done["unproven_messages"]) == (0, 10)
        assert (stated(done), done["plan"]["loss"][0]["cause"]) == ([("Orders", 1, 10)], "beyond-log")
        assert "10 messages lost that only a queue or the index names" in done["summary"]


@pytest.mark.parametrize("unit", [
    CqUnit(1 << 60, 300, 0), CqUnit(200_000, 40, 0), CqUnit(200_000, 200_000, 0), CqUnit(131_072 - 80, 300, 0),
], ids=["far away", "too small", "too large", "over the end of its file"])
def test_t22_units_that_no_broker_writes_name_no_message(drill: Start, unit: CqUnit) -> None:
    store = drill(PLAIN)
    for file in walk.log_files(store.root)[-1:]:
        file.path.unlink()
    store.struck()
    queue = next(queue for queue in walk.queues(store.root) if len(walk.units(queue)) < 90)
    last = walk.units(queue)[-1]
    write_at(last.file.path, last.position + CQ_UNIT.size, CQ_UNIT.encode(unit))
    document = store.look().document
    assert document["consumequeue"]["beyond_log"] == len(store.lost) + 1
    assert document["commitlog"]["damaged_messages"] == len(store.lost)


# --- hardly anything of the log is left -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["zeros", "noise"])
def test_t18_log_of_zeros_or_noise_with_queues_left_is_refused(drill: Start, kind: str) -> None:
    store = drill(PLAIN)
    overwrite_log(store, kind)
    found = store.finds("commitlog-mostly-gone", exit_code=6)
    assert (found["facts"]["messages"], found["facts"]["lost"]) == (0, len(store.messages))
    said = f"the log is unreadable; the queues list {len(store.messages):,} messages"
    assert found["message"].startswith(said) and "do not start the broker" in found["message"]
    for command, *options in (["recover"], ["rebuild"], ["rebuild-index"], ["truncate", "--to", "0"]):
        with assert_unchanged(store.root):
            refused = store.run(command, *options, "--yes")
        assert refused.code & GONE == GONE, command
        first, then = (step["command"] for step in refused.document["next"])
        assert first.startswith("Look for the log") and then == f"mqtool recover {store.root} --max-loss all --dry-run"
        assert "--max-loss" in refused.stderr


@pytest.mark.parametrize("limit", ["all", "542"])
@pytest.mark.parametrize("kind", ["zeros", "noise"])
def test_t18_log_of_zeros_or_noise_is_given_up_when_the_loss_is_allowed(drill: Start, kind: str, limit: str) -> None:
    store = drill(PLAIN)
    overwrite_log(store, kind)
    if limit == "542" and kind == "noise":
        # nothing but the owner's word makes noise a log
        assert store.run("recover", "--max-loss", limit, "--yes").code & exits.OPERATIONAL
        return
    assert store.run("recover", "--max-loss", 541, "--yes").code & exits.OPERATIONAL
    with store.recovered(0, "--max-loss", limit) as done:
        assert (done["damaged_messages"], stated(done)) == (542, lost_by_queue(store))


@pytest.mark.parametrize("name", ["clean-expired-4.5.1", "killed-expired-5.3.3"])
def test_t18_a_log_that_was_cut_where_it_begins_is_not_gone(drill: Start, name: str) -> None:
    store = drill(name)
    begin = manifest(name)["min_phy"]
    done = store.run("truncate", "--to", begin, "--max-loss", "all", "--yes")
    assert (done.code, done.document["next"][0]["command"]) == (5, "start the broker")
    assert store.look().code == 0
    for version in store.brokers:  # four real ones went on at that offset, with the expired units in their queues
        said = store.run("predict", "--broker", version)
        assert (said.code, said.document["min_phy"], said.document["max_phy"]) == (0, begin, begin)
    (store.root / ".mqtool").rename(store.root.with_name("journal"))
    assert store.found("commitlog-empty-queues-left")


def test_t18_index_alone_shows_that_the_log_is_gone(drill: Start) -> None:
    store = drill(PLAIN)
    overwrite_log(store, "zeros")
    shutil.rmtree(store.root / "consumequeue")
    assert store.finds("commitlog-mostly-gone", exit_code=4)["facts"]["index_units"] > 0
    with assert_unchanged(store.root):
        assert store.run("recover", "--max-loss", 1000, "--yes").code & GONE == GONE


def test_t18_index_of_an_older_log_beside_a_new_one_is_kept(drill: Start) -> None:
    store, older = drill(MANY_FILES), drill(PLAIN)
    store.run("truncate", "--to", store.records()[10].record.phy_offset, "--max-loss", "all", "--yes")
    shutil.rmtree(store.root / "index")
    # brokers that find no log leave it there (observed: 4.9.7, 5.3.3)
    shutil.copytree(older.root / "index", store.root / "index")
    facts = store.finds("commitlog-mostly-gone", exit_code=6)["facts"]
    assert (facts["messages"], facts["lost"], facts["index_units"]) == (10, 0, counts(PLAIN)["index_entries"])
    said = store.run("predict", "--broker", "5.3.3")
    assert (said.code, said.document["next"][0]["command"].split(":")[0]) == (4, "Look for the log")
    for command in ("recover", "rebuild-index"):
        with assert_unchanged(store.root):
            assert store.run(command, "--yes").code & GONE == GONE
    screen = " ".join(mqtool("recover", store.root, "--max-loss", "all", "--dry-run").stdout.split())
    assert f"An unknown number of messages is lost: the index has {facts['index_units']:,} entries" in screen
    assert "known to be lost" not in screen and "0 messages lost" not in screen
    assert store.run("recover", "--max-loss", "all", "--yes").code == 1
    assert store.run("predict", "--broker", "5.3.3").code == 0


def test_t18_checkpoint_alone_shows_that_the_log_is_gone(drill: Start) -> None:
    store = drill(PLAIN)
    for part in ("commitlog", "consumequeue", "index"):
        shutil.rmtree(store.root / part)
    assert store.finds("commitlog-empty-queues-left", exit_code=4)
    for version in store.brokers:
        said = store.run("predict", "--broker", version)
        assert (said.code, len(said.found("commitlog-empty-queues-left"))) == (4, 1)
    with assert_unchanged(store.root):
        assert store.run("recover", "--yes").code & GONE == GONE


# --- T38: no log at all -------------------------------------------------------------------------------------


LOOKS = {"random": "its content is unknown", "kafka": "Kafka"}


def test_committed_offsets_alone_show_that_there_was_a_log(drill: Start) -> None:
    store = drill("clean-5.3.3")
    for path in store.root.iterdir():
        if path.name != "config":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    store.finds("commitlog-empty-queues-left", exit_code=4)
    assert store.run("predict", "--broker", "5.3.3").code == 4
    for path in (store.root / "config").glob("*Offset.json*"):
        path.unlink()
    assert not store.look().found("commitlog-empty-queues-left"), "explain names them as those to move away"


@pytest.mark.parametrize("kind", LOOKS)
def test_t38_foreign_bytes_as_the_only_log_file_are_not_zeroed(folder: Path, kind: str) -> None:
    root = folder / "s"
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / file_name(0)).write_bytes(FOREIGN[kind])
    for command in ("recover", "rebuild"):
        with assert_unchanged(root):
            refused = mqtool(command, root, "--yes")
        assert refused.code & GONE == GONE
        assert LOOKS[kind] in refused.stderr
        assert "move the file out" in refused.stderr
    store = Drill.of(root)
    assert store.look().code == 6
    with store.recovered(0, "--max-loss", "all"):
        assert messages(root) == set()


def other_formats() -> dict[str, bytes]:
    """The beginnings of files that are no log's, as long as a log file of `MANY_FILES`."""
    packed, archive = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(packed, "w") as zipped:
        zipped.writestr("a", b"x")
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("a"))
    noise = random.Random(4).randbytes(1 << 16)
    begin = {"HTML": "<!DOCTYPE html><title>404 é".encode(), "gzip": gzip.compress(noise),
             "zip": packed.getvalue() + noise, "program": b"\x7fELF\2\1\1" + noise, "tar": archive.getvalue() + noise,
             "text": b"no such file\n" * 9000}
    return {kind: content[:1 << 16].ljust(1 << 16, b"\0") for kind, content in begin.items()}


def test_t38_file_of_another_format_among_the_log_is_told_with_its_format(drill: Start) -> None:
    store = drill(MANY_FILES)
    file = [file for file in walk.log_files(store.root) if next(walk.records_of(file), None)][3]
    for kind, content in other_formats().items():
        file.path.write_bytes(content)
        assert kind in store.finds("commitlog-foreign", f"commitlog/{file.path.name}", 0, exit_code=4)["message"]


@few(("kind", "queues"), [("tar", True), ("text", False)], quick=(0,))
def test_t38_file_of_another_format_among_the_log_is_asked_for(drill: Start, kind: str, queues: bool) -> None:
    store = drill(MANY_FILES)
    file = [file for file in walk.log_files(store.root) if next(walk.records_of(file), None)][3]
    file.path.write_bytes(other_formats()[kind])
    store.struck()
    if not queues:
        shutil.rmtree(store.root / "consumequeue")
    found = store.finds("commitlog-foreign", f"commitlog/{file.path.name}", 0, exit_code=4 | 2 * (not queues))
    assert found["facts"]["lost"] == len(store.lost)
    assert store.run("predict").code & exits.MESSAGES
    for command, *options in (["recover", "--max-loss", len(store.lost) - 1], ["rebuild"], ["truncate", "--to", 0]):
        with assert_unchanged(store.root):
            refused = store.run(command, *options, "--yes")
        assert refused.code & GONE == GONE and "Find the log file that belongs here" in refused.stderr, command
        assert not any(step["command"].startswith("mqtool re") for step in refused.document["next"])
    with store.recovered(0, "--max-loss", len(store.lost)) as done:
        assert done["damaged_messages"] == len(store.lost)
        assert messages(store.root) == store.intact


@pytest.mark.parametrize("release", ["5.3.3", pytest.param("4.9.7", marks=pytest.mark.long)])
@few(("name", "right", "wrong"), [
    ("clean-5.3.3", 1 << 20, (1 << 20) + 1), ("clean-plain-4.9.7", 0, 39448), ("clean-plain-4.9.7", 0, 7620),
], quick=(1, 2))
def test_a_renamed_log_file_is_no_missing_one_for_predict_and_report(
    drill: Start, name: str, right: int, wrong: int, release: str
) -> None:
    store = drill(name)
    (store.root / "commitlog" / file_name(right)).rename(store.root / "commitlog" / file_name(wrong))
    played = store.run("predict", "--broker", release)
    assert played.code & exits.MESSAGES and played.document["reason"]
    codes = played.codes
    assert "commitlog-misnamed-file" in codes and "commitlog-missing-file" not in codes
    assert played.document["next"][0]["command"].startswith("mqtool recover")
    page = mqtool("report", store.root, "--broker", release, "--json").document
    assert "DO NOT START" in page["sentence"]
    assert all(start["exit_code"] & exits.MESSAGES for start in page["starts"])


@pytest.mark.parametrize("name", ["killed-plain-4.5.1", "killed-manyfiles-5.5.0"])
def test_a_log_of_which_only_the_file_made_ahead_is_left_is_gone(drill: Start, name: str) -> None:
    store = drill(name)
    for file in walk.log_files(store.root):
        if next(walk.records_of(file), None):
            file.path.unlink()
    with assert_unchanged(store.root):
        said = store.run("verify")
        assert {item["code"] for item in said.document["findings"] if item["severity"] == "error"} == {
            "commitlog-empty-queues-left"}
        assert store.run("predict", "--broker", "5.5.0").code == exits.MESSAGES
        assert store.run("recover", "--yes").code & exits.OPERATIONAL


def test_the_distance_of_a_wrong_name_does_not_say_how_long_log_files_are(drill: Start) -> None:
    store = drill("clean-4.5.1")
    first, last = sorted((store.root / "commitlog").iterdir())
    kept = {message for message in store.messages if message.phy_offset >= int(last.name)}
    first.write_bytes(b"")
    last.rename(last.with_name(file_name(5 << 20)))
    assert store.run("recover", "--yes", "--max-loss", "all").code & exits.MESSAGES
    assert kept <= messages(store.root)


@pytest.mark.parametrize("files", [2, 3])
def test_log_files_that_exchanged_their_names_get_them_back(drill: Start, files: int) -> None:
    store = drill("clean-manyfiles-5.3.3")
    paths = [store.root / "commitlog" / file_name(number << 16) for number in range(1, files + 1)]
    before = [path.read_bytes() for path in paths]
    for path, content in zip(paths, before[1:] + before[:1], strict=True):
        path.write_bytes(content)
    flip_bit(store.root, paths[0], 30_000, 3)
    store.struck()
    assert store.look().document["finding_counts"]["commitlog-misnamed-file"] == files
    with assert_unchanged(store.root):
        as_broker = store.run("recover", "--policy", "broker", "--broker", "5.3.3", "--max-loss", "all", "--yes")
    assert as_broker.code & exits.OPERATIONAL
    with store.recovered():
        assert messages(store.root) >= store.intact
        assert [path.read_bytes() for path in paths if path != paths[1]] == [before[0], *before[2:]]


@pytest.mark.parametrize(("name", "recipe", "leads_to"), [
    ("clean-propcrc-5.3.3", "bit-in-body", "verify"), ("clean-expired-4.5.1", "bit-in-topic-legal", "recover"),
    ("clean-plain-4.9.7", "record-older-whole-at-end", "verify"),
    ("clean-plain-4.9.7", "torn-tail-in-properties", "verify"),
])
def test_a_start_that_costs_nothing_is_not_the_next_step_where_the_log_is_damaged(
    drill: Start, name: str, recipe: str, leads_to: str
) -> None:
    store = drill(name)
    store.strike(recipe)
    played = store.run("predict", "--broker", "5.3.3")
    assert played.code == exits.CLEAN, "a clean stop: the start looks at the last files only"
    assert [step["command"].split()[:2] for step in played.document["next"]] == [["mqtool", leads_to]]


@pytest.mark.parametrize("lost_units", ["repeat", "gap"])
@pytest.mark.parametrize("before", [5, 30])
def test_messages_of_a_topic_that_was_created_again_are_all_stated(
    before: int, lost_units: str, tmp_path: Path
) -> None:
    """Older messages in their places do not hide them: units name them in the damage. Without the markers that replace
    these, a later reader would take the older ones for the topic's."""
    writer = StoreWriter(tmp_path / "s")
    for _ in range(before):
        writer.put("Other", b"o" * 100)
        writer.put("T", b"t" * 100)
    writer.delete_topic("T")
    lost = [writer.put("T", b"n" * 100) for _ in range(20)][:9]
    root = writer.close().root
    start, stop = lost[0].phy_offset, lost[-1].phy_offset + lost[-1].total_size
    write_at(root / "commitlog" / offset_to_name(0), start, b"\xee" * (stop - start))
    done = mqtool("recover", root, "--lost", lost_units, "--yes", "--json").document
    assert (done["damaged_messages"], stated(done)) == (9, [("T", 0, 9)])
    assert done["bridged"][0]["markers"] == (9 if lost_units == "repeat" else min(before, 9))
    assert done["plan"]["loss"][0]["last_offset"] == 8
    units = [*CQ_UNIT.decode_all((root / "consumequeue" / "T" / "0" / offset_to_name(0)).read_bytes())]
    assert {unit.phy_offset for unit in units[:9]} == {stop}, "the new topic delivers no message of the deleted one"
    assert mqtool("verify", root, "--json").document["commitlog"]["superseded"] == before
    assert not mqtool("recover", root, "--yes", "--json").document["applied"]


@pytest.mark.parametrize(("how", "topics"), [("repeat", ["%LMQ%x"]), ("gap", ["T", "%LMQ%x"])])
@pytest.mark.parametrize("queues", [True, False])
def test_lost_first_messages_without_a_marker_have_units_of_the_next(
    how: str, topics: list[str], queues: bool, tmp_path: Path
) -> None:
    """A consumer that meets a pre-blank at the beginning of a log skips the rest of the queue file."""
    writer = StoreWriter(tmp_path / "s")
    records = [writer.put("T", b"body", lmq=["%LMQ%x"]) for _ in range(9)]
    root = writer.close().root
    write_at(root / "commitlog" / offset_to_name(0), 0, b"\xee" * records[2].phy_offset)
    if not queues:
        gone("consumequeue")(root)

    def units_of(store: Path, topic: str) -> list[int]:
        content = (store / "consumequeue" / topic / "0" / offset_to_name(0)).read_bytes()
        return [unit.phy_offset for unit in CQ_UNIT.decode_all(content)][:4]

    wanted, size = [records[at].phy_offset for at in (2, 2, 2, 3)], ("--set", "mappedFileSizeConsumeQueue=2000")
    assert mqtool("export", root, "-o", tmp_path / "out", "--format", "store", *size).code == 0
    assert units_of(tmp_path / "out", "%LMQ%x") == wanted
    paths = [root / "consumequeue" / topic / "0" / offset_to_name(0) for topic in topics]
    for code in (5, 1):
        assert mqtool("recover", root, "--lost", how, "--yes", *size).code == code
        for topic, path in zip(topics, paths, strict=True):
            assert units_of(root, topic) == wanted
            # once bridged, these positions are known by their units alone
            write_at(path, 5 * CQ_UNIT.size, bytes(8))


@pytest.mark.parametrize("anew", [False, True])
def test_messages_of_a_deleted_topic_keep_their_places_in_light_queues(anew: bool, tmp_path: Path) -> None:
    """Unless the light queue began anew, too."""
    writer = StoreWriter(tmp_path / "s")
    older = [writer.put(topic, b"older", lmq=["%LMQ%x"]) for _ in range(4) for topic in ("T", "U")]
    for name in ("T", *(["%LMQ%x"] if anew else [])):
        writer.delete_topic(name)
    newer = [writer.put(topic, b"newer", lmq=["%LMQ%x"]) for _ in range(6) for topic in ("T", "U")]
    root = writer.close().root
    assert mqtool("verify", root).code == 0
    gone("consumequeue/%LMQ%x/0/*")(root)
    assert mqtool("recover", root, "--yes").code == 1
    content = (root / "consumequeue" / "%LMQ%x" / "0" / offset_to_name(0)).read_bytes()
    units = [unit.phy_offset for unit in CQ_UNIT.decode_all(content) if unit.size]
    assert units == [record.phy_offset for record in (newer if anew else [*older, *newer])]


@pytest.mark.parametrize("cells", [slice(1, 2), slice(0, 1), slice(0, 4), None])
def test_a_queue_that_began_again_after_one_message_is_sound(cells: slice | None, tmp_path: Path) -> None:
    """The second message with queue offset 0 leaves the order only if the unit there leads to the first.

    `cells`: of the queue, which are lost; None: all of it is.
    """
    writer = StoreWriter(tmp_path / "s")
    writer.put("O", b"o" * 100)
    older = writer.put("T", b"t" * 100)
    writer.delete_topic("T")
    records = [writer.put("T", b"n" * 100) for _ in range(4)]
    root = writer.close().root
    report = mqtool("verify", root, "--json")
    assert (report.code, report.document["commitlog"]["superseded"]) == (0, 1)
    queue = root / "consumequeue" / "T" / "0" / offset_to_name(0)
    if cells is None:
        gone("consumequeue/T")(root)
    else:
        write_at(queue, cells.start * CQ_UNIT.size, bytes((cells.stop - cells.start) * CQ_UNIT.size))
    assert mqtool("verify", root, "--json").document["commitlog"]["superseded"] == 1
    assert mqtool("recover", root, "--yes", "--set", "mappedFileSizeConsumeQueue=2000").code == 1
    assert [unit.phy_offset for unit in CQ_UNIT.decode_all(queue.read_bytes())][:4] == [
        record.phy_offset for record in records]
    write_at(queue, 0, CQ_UNIT.encode(CqUnit(older.phy_offset, older.total_size, 0)))
    assert mqtool("verify", root, "--json").document["commitlog"]["superseded"] == 0


@pytest.mark.parametrize("generations", [(1, 9, 3), (1, 3, 2), (1, 1, 3), (2, 1, 9)])
def test_of_several_generations_the_newest_is_delivered(generations: tuple[int, ...], tmp_path: Path) -> None:
    """Without a unit, also if one of them has a single message: that is no damaged queue offset."""
    writer = StoreWriter(tmp_path / "s")
    for number in generations:
        writer.delete_topic("T")
        records = [writer.put("T", b"n" * 100) for _ in range(number)]
    root = writer.close().root
    gone("consumequeue")(root)
    said = mqtool("verify", root, "--json")
    assert said.document["commitlog"]["superseded"] == sum(generations[:-1])
    assert not said.found("commitlog-unplaced-record")
    assert mqtool("recover", root, "--yes", "--set", "mappedFileSizeConsumeQueue=2000").code == 1
    units = CQ_UNIT.decode_all((root / "consumequeue" / "T" / "0" / offset_to_name(0)).read_bytes())
    assert [unit.phy_offset for unit in units if unit.size] == [record.phy_offset for record in records]


def test_a_unit_that_leads_into_damage_supersedes_no_message_that_another_unit_leads_to(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s")
    for _ in range(5):
        writer.put("T", b"t" * 100)
    lost = writer.put("U", b"u" * 100)
    writer.put("T", b"t" * 100)
    root = writer.close().root
    write_at(root / "commitlog" / offset_to_name(0), lost.phy_offset, b"\xee" * lost.total_size)
    (root / "consumequeue" / "U" / "0" / offset_to_name(0)).rename(root / "consumequeue" / "T" / "0" / "odd")
    write_at(root / "consumequeue" / "T" / "0" / offset_to_name(0), 0, CQ_UNIT.encode(
        CqUnit(lost.phy_offset, lost.total_size, 0)))
    assert mqtool("verify", root, "--json").document["commitlog"]["superseded"] == 0


@few(("before", "after", "file_size"), [
    *((before, after, size) for before, after in ((2, 2), (0, 2), (2, 0)) for size in (1 << 16, 3900)), (0, 0, 3900),
], quick=(1, 2))
def test_messages_after_damage_over_the_place_where_the_clock_went_back_are_not_stale(
    before: int, after: int, file_size: int, tmp_path: Path
) -> None:
    """Units name every message in the damage and the next one after it: an older life of the log has none there. Files
    of 3900 bytes hold 20 of the messages: the damage includes an end mark."""
    writer = StoreWriter(tmp_path / "s", mapped_file_size=file_size)
    written = [writer.put(f"T{number % 3}", bytes(90 + number), store_timestamp=writer.start + 7 * number - went_back)
               for went_back in (0, 3_600_000) for number in range(20)]
    root = writer.close().root
    lost, last = written[20 - before:20 + after], written[19 - before]
    start, stop = last.phy_offset + last.total_size, written[20 + after].phy_offset
    for base in range(0, stop, file_size):
        at = max(start, base)
        write_at(root / "commitlog" / offset_to_name(base), at - base, b"\xee" * (min(stop, base + file_size) - at))
    log = mqtool("verify", root, "--json").document["commitlog"]
    assert (log["messages"], log["ghosts"], log["damaged_messages"]) == (40 - len(lost), 0, len(lost))
    done = mqtool("recover", root, "--yes", "--json").document
    assert (done["damaged_messages"], done["lost_messages"]) == (len(lost), 0)
    assert done["verify"]["commitlog"]["messages"] == 40 - len(lost)
