"""One record, unit, name or mark against all that speaks of the same bytes: the log is not rewritten to fit it."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.damage import damage, walk
from fixtures.damage.patch import flip_bit
from fixtures.damage.walk import Located
from formats.record import BLANK_SIZE, OFFSET_SYS_FLAG, encode_blank
from mqtool import exits
from recover.derived.expected import lmq_targets
from tests.cli.runner import mqtool
from tests.scenarios.conftest import Start
from tests.scenarios.drill import Drill, file_name, messages, queue_bytes
from tests.support import plain_reader as plain
from tests.support.sampling import few, sampled
from tests.support.stores import flip, write_at
from tests.support.trees import assert_unchanged
from tests.torture.hunt import older_records_at_the_end

# --- One record, unit, name or mark against all that speaks of the same bytes: the log is not rewritten to fit it.


DAMAGES = ("queue-units-swapped", "queue-unit-lost", "queue-single-misnamed", "queue-sector-elsewhere")
SEEDS = (0, 1, 2)
WITHOUT_CRC = ("clean-plain-4.9.7", "clean-5.3.3", "clean-v2-5.5.0", "killed-5.5.0")
STORES = ("clean-plain-4.9.7", "clean-5.3.3", "killed-v2-ipv6-5.3.3", "clean-v2-5.5.0", "killed-multipath-5.3.3")


def log_bytes(root: Path) -> dict[str, bytes]:
    """The log, file by file."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.glob("commitlog*/0*"))}


def queues_of(store: Drill, least: int) -> list[walk.Queue]:
    """Ordinary queues with so many units or more."""
    return [queue for queue in walk.queues(store.root)
            if len(walk.units(queue)) >= least and not queue.topic.startswith(("%LMQ%", "SCHEDULE_TOPIC"))]


@pytest.mark.parametrize(("name", "recipe", "seed"), sampled(STORES, DAMAGES, SEEDS, quick=3))
def test_units_are_repaired_from_the_log_and_no_record_is_rewritten(
    drill: Start, name: str, recipe: str, seed: int
) -> None:
    store = drill(name)
    before, log = queue_bytes(store.root), log_bytes(store.root)
    store.strike(recipe, seed)
    assert store.found("commitlog-contradicted-field") == []
    with store.recovered():
        assert log_bytes(store.root) == log
        assert queue_bytes(store.root) == before


@pytest.mark.parametrize(("name", "seed"), sampled(WITHOUT_CRC, SEEDS, quick=1))
def test_a_message_that_became_a_half_one_keeps_its_unit(drill: Start, name: str, seed: int) -> None:
    store = drill(name)
    before = queue_bytes(store.root)
    queue = random.Random(seed).choice(queues_of(store, 5))
    places = {unit.unit.phy_offset for unit in [*walk.units(queue)][1:-1]}
    hits = [hit for hit in store.records() if hit.record.phy_offset in places and hit.record.property_crc is None]
    hit = random.Random(seed).choice(hits)
    flip_bit(store.root, hit.file.path, hit.position + OFFSET_SYS_FLAG + 3, 2)
    found = store.finds("commitlog-contradicted-field", exit_code=exits.MESSAGES)
    assert (found["facts"]["field"], found["facts"]["start"]) == ("sys_flag", hit.record.phy_offset)
    log = log_bytes(store.root)
    killed = (store.root / "abort").exists()
    done = store.run("recover", "--yes")
    assert done.code == exits.MESSAGES | (exits.CORRECTED if killed else 0)
    assert "1 damaged message left" in done.document["summary"]
    assert (log_bytes(store.root), queue_bytes(store.root)) == (log, before)
    assert store.look().code == exits.MESSAGES
    mended = store.run("recover", "--yes", "--mend-bits")
    assert (mended.code, store.look().code) == (exits.CORRECTED, 0)
    (item,) = mended.document["bridged"]
    assert (item["field"], int(item["before"], 16) ^ int(item["after"], 16)) == ("sys_flag", 4)


def test_the_queues_of_a_topic_under_another_name_move_no_message(drill: Start) -> None:
    store = drill("clean-manyfiles-5.3.3")
    topics = store.root / "config" / "topics.json"
    table = json.loads(topics.read_text())
    del table["topicConfigTable"]["Payments"]
    topics.write_text(json.dumps(table))
    (store.root / "consumequeue" / "Payments").rename(store.root / "consumequeue" / "payments")
    assert not store.found("commitlog-contradicted-field")
    store.finds("consumequeue-wrong-units", "consumequeue/payments/0/00000000000000000000", 0, exit_code=exits.DERIVED)


@pytest.mark.parametrize("name", ["clean-5.3.3", "clean-plain-4.9.7"])
def test_the_only_message_of_a_topic_keeps_it_if_its_folder_has_another_name(drill: Start, name: str) -> None:
    store, topic = drill(name), "RMQ_SYS_TRANS_OP_HALF_TOPIC"
    if name == "clean-plain-4.9.7":
        first, second = store.records()[:2]
        topic = first.record.topic_name
        assert store.run("truncate", "--to", second.record.phy_offset, "--max-loss", "all", "--yes").code & 8 == 0
        shutil.rmtree(store.root / ".mqtool")
        store = Drill.of(store.root)
    before = queue_bytes(store.root)
    (store.root / "consumequeue" / topic).rename(store.root / "consumequeue" / topic.swapcase())
    assert not store.found("commitlog-contradicted-field")
    with store.recovered():
        assert queue_bytes(store.root) == before


# a file stands where most of its records say, and an early end mark hides nothing
@pytest.mark.parametrize(("recipe", "name", "seed"), sampled(
    ("log-first-offset-bit", "log-name-off", "log-early-end-mark"),
    ("clean-plain-4.9.7", "clean-5.3.3", "clean-manyfiles-5.3.3", "killed-manyfiles-5.5.0"), SEEDS, quick=3,
))
def test_what_one_record_name_or_mark_claims_against_all_others_is_taken_back(
    drill: Start, name: str, recipe: str, seed: int
) -> None:
    store = drill(name)
    before, log = queue_bytes(store.root), log_bytes(store.root)
    store.strike(recipe, seed)
    with store.recovered():
        assert log_bytes(store.root) == log
        assert queue_bytes(store.root) == before


@pytest.mark.parametrize("torn", [False, True])
def test_old_records_after_a_full_queue_file_let_every_reader_start(drill: Start, *, torn: bool) -> None:
    store = drill("killed-lmq-4.9.7")  # its queues end with full files: 5.3.3 would make empty ones, and fail on them
    older_records_at_the_end(store.root, random.Random(2), back=1000)
    if torn:
        path = store.root / "commitlog" / file_name(131072)
        content = path.read_bytes()
        end = len(content.rstrip(b"\0"))
        write_at(path, end, b"\xaa" * 36)
    store.struck()
    assert store.found("commitlog-old-end")
    delivered = plain.delivered(store.root)
    with store.recovered() as done:
        assert done["plan"]["loss"] == []
        assert plain.delivered(store.root) == delivered


def test_damage_among_old_records_does_not_keep_them_at_the_end(drill: Start) -> None:
    store = drill("killed-lmq-4.9.7")
    path, delivered = store.root / "commitlog" / file_name(131072), plain.delivered(store.root)
    before = path.read_bytes()
    older_records_at_the_end(store.root, random.Random(2), back=1000)
    content = path.read_bytes()
    added = range(len(before.rstrip(b"\0")), len(content.rstrip(b"\0")))
    flip_bit(store.root, path, added[len(added) // 3], 0)
    store.struck()
    assert not store.found("commitlog-old-end")
    with store.recovered():
        assert path.read_bytes() == before
        assert plain.delivered(store.root) == delivered


def test_two_generations_of_old_records_after_a_break_are_cut_in_one_run(drill: Start) -> None:
    store = drill("killed-lmq-4.9.7")
    delivered = plain.delivered(store.root)
    older_records_at_the_end(store.root, random.Random(1), back=1000)
    older_records_at_the_end(store.root, random.Random(7), back=0)
    damage("log-early-end-mark", store.root)
    store.struck()
    with store.recovered():
        assert store.look().code == 0
        assert plain.delivered(store.root).items() >= delivered.items()


@pytest.mark.parametrize("name", ["clean-plain-4.9.7", "clean-manyfiles-5.3.3"])
def test_messages_after_an_end_mark_that_ends_a_page_of_zeros_are_no_end_of_the_file(drill: Start, name: str) -> None:
    store = drill(name)
    hits = store.records(0)
    hit = hits[len(hits) // 2]
    page = encode_blank(hit.file.path.stat().st_size - hit.position) + bytes(4096 - BLANK_SIZE)
    write_at(hit.file.path, hit.position, page)
    store.struck()
    store.finds("commitlog-damaged-range", *store.place(hit.record.phy_offset), exit_code=exits.MESSAGES)
    with store.recovered():
        assert messages(store.root) == store.intact


@pytest.mark.parametrize(("name", "seed"), sampled(("clean-plain-4.9.7", "clean-5.3.3"), SEEDS, quick=2))
def test_old_records_in_line_with_the_end_displace_nothing(drill: Start, name: str, seed: int) -> None:
    store = drill(name)
    done = store.strike("log-old-lap-at-end", seed)
    log = log_bytes(store.root)
    with store.recovered():
        assert store.messages <= messages(store.root)
        assert log_bytes(store.root) == log
        assert store.look().document["commitlog"]["superseded"] <= done.facts["records"]


# --- Folders, pipes and dead links where only data files belong: which are put aside, and which nobody may pass
# over.


PLAIN, KILLED = "clean-plain-4.9.7", "killed-plain-4.5.1"


def stray(store: Drill, where: str) -> Path:
    """A folder with a file and a folder in it."""
    path = store.root / where
    (path / "2024").mkdir(parents=True)
    (path / "2024" / "notes.txt").write_text("kept")
    return path


@pytest.mark.parametrize("name", [PLAIN, "killed-manyfiles-5.5.0"])
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


def renamed(path: Path, name: str) -> None:
    path.rename(path.with_name(name))


@few(("name", "where", "make"), [
    (PLAIN, f"consumequeue/Audit/0/{file_name(2000)}", stray), (PLAIN, "consumequeue/Audit/0/backup", stray),
    (PLAIN, "index/20270101000000000", stray),
    (PLAIN, f"commitlog/{file_name((50 << 20) + 4096)}", lambda store, where: (store.root / where).touch()),
    (PLAIN, f"consumequeue/Audit/0/{file_name(7)}",
     lambda store, where: renamed(next((store.root / where).parent.iterdir()), file_name(7))),
    ("clean-expired-4.5.1", "consumequeue/Old/0/odd.swp",
     lambda store, where: renamed(next((store.root / where).parent.iterdir()), "odd.swp")),
], quick=(0, 3, 4))
def test_what_does_not_belong_among_files_of_a_part_is_put_aside(
    drill: Start, name: str, where: str, make: Callable[[Drill, str], object]
) -> None:
    store = drill(name)
    before = queue_bytes(store.root)
    make(store, where)
    store.struck()
    assert store.finds(f"{where.partition('/')[0]}-odd-name", exit_code=2)["file"] == where
    with store.recovered():
        assert not (store.root / where).exists()
        assert name != PLAIN or queue_bytes(store.root) == before


@pytest.mark.parametrize("what", ["a folder", "a link to nothing", "a pipe"])
@pytest.mark.parametrize("offset", [0, 196608])
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
    result = store.look()
    assert result.code & exits.OPERATIONAL
    (found,) = result.found("commitlog-not-a-file")
    assert (found["file"], found["severity"]) == (f"commitlog/{path.name}", "error")
    assert what in found["message"]
    for command in (["recover"], ["recover", "--max-loss", "all"], ["rebuild"], ["truncate", "--to", "0"]):
        with assert_unchanged(store.root):
            refused = store.run(command[0], *command[1:], "--yes")
        assert refused.code & (exits.OPERATIONAL | exits.CORRECTED) == exits.OPERATIONAL
        assert path.name in refused.stderr or "no commitlog" in refused.stderr


@pytest.mark.parametrize(("name", "offset", "length"), [
    ("{}.bak", 0, 65536), ("{}.gz", 131072, 20_000), (".{}.x8RtzP", 131072, 40_000),
])
def test_the_only_copy_of_a_log_file_is_no_stray_however_it_is_called(
    drill: Start, name: str, offset: int, length: int, tmp_path: Path
) -> None:
    """The first file may have expired, and of another one only a part is there."""
    store = drill("clean-manyfiles-5.3.3")
    path = store.root / "commitlog" / file_name(offset)
    shutil.copy2(path, tmp_path / "whole")
    other = path.rename(path.with_name(name.format(path.name)))
    os.truncate(other, length)
    for command in (["verify"], ["predict", "--broker", "5.3.3"], ["recover", "--max-loss", "all", "--yes"]):
        with assert_unchanged(store.root):
            result = store.run(*command)
        assert result.code & exits.OPERATIONAL
        assert "Put the log file back" in result.document["next"][0]["command"], command
    shutil.copy2(tmp_path / "whole", path)
    store.finds("commitlog-odd-name", f"commitlog/{other.name}", None, exit_code=2)


@pytest.mark.parametrize(("name", "numbers", "new"), [
    ("clean-manyfiles-5.3.3", (3,), "{}.bak"), ("killed-manyfiles-5.5.0", (3, 4, -2), "segment-{}"),
    ("clean-manyfiles-5.3.3", (-2, -1), "old.{}"), ("clean-5.3.3", (1,), "{}.bak"),
])
def test_whole_log_files_under_names_that_are_none_get_theirs(
    drill: Start, name: str, numbers: tuple[int, ...], new: str
) -> None:
    store = drill(name)
    before = plain.log_files(store.root)
    paths = sorted((store.root / "commitlog").iterdir())
    for number in numbers:
        renamed(paths[number], new.format(paths[number].name))
    store.struck()
    for command in (["inspect"], ["verify"], ["predict", "--broker", "5.3.3"]):
        found = store.run(*command)
        assert not found.codes & {"commitlog-missing-file", "commitlog-not-a-file", "commitlog-odd-name"}
        assert {item["facts"]["right"] for item in found.found("commitlog-misnamed-file")} == {
            paths[number].name for number in numbers}
    assert found.document["next"][0]["command"].startswith("mqtool recover")
    assert found.document["starts"] is False
    with store.recovered():
        assert plain.log_files(store.root) == before
        assert sorted((store.root / "commitlog").iterdir()) == paths


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


def test_a_part_of_a_log_file_under_a_name_that_is_none_is_named_with_its_right_one_and_stays(drill: Start) -> None:
    store = drill("killed-manyfiles-5.5.0")
    path = sorted((store.root / "commitlog").iterdir())[3]
    other = path.rename(path.with_name("196608"))
    os.truncate(other, 50_000)
    result = store.look()
    (found,) = result.found("commitlog-not-a-file")
    assert result.code & exits.OPERATIONAL and path.name in found["remedy"]
    with assert_unchanged(store.root):
        assert store.run("recover", "--max-loss", "all", "--yes").code & exits.OPERATIONAL
    other.rename(path)
    assert not store.look().code & exits.OPERATIONAL


def test_folders_of_the_log_that_nobody_named_are_in_the_hint(drill: Start) -> None:
    store = drill("killed-multipath-5.3.3")
    result = mqtool("verify", store.root, "--json")
    assert result.code & exits.MESSAGES
    line = result.document["next"][0]["command"].partition("mqtool ")[2]
    whole = mqtool(*shlex.split(line), "--json")
    assert not whole.code & exits.MESSAGES
    assert whole.document["commitlog"]["messages"] == store.look().document["commitlog"]["messages"] > 0


def test_from_a_piece_of_a_log_every_hint_leads_to_its_messages(drill: Start, tmp_path: Path) -> None:
    piece = tmp_path / "piece"
    content = next((drill("killed-5.5.0").root / "commitlog").iterdir()).read_bytes()
    piece.write_bytes(content[137_000:437_000])
    for command in ("verify", "inspect"):
        refused = mqtool(command, piece)
        assert refused.code == exits.USAGE
        assert f"`mqtool export {piece}`" in refused.stderr
    assert mqtool("export", piece, "-o", tmp_path / "out", "--json").document["messages"] > 100


# --- Records that fill LMQ queues and say it in their properties, which no checksum covers.


LMQ = "killed-lmq-4.9.7"
#: What is changed (bytes before the place, XOR) and the property that verify names.
BITS = {
    "a queue's name": (b"INNER_MULTI_DISPATCH\x01%LMQ%", 0x04, "INNER_MULTI_DISPATCH"),
    "the sign between two names": (b"%LMQ%one", 0x01, "INNER_MULTI_DISPATCH"),
    "the name of the property": (b"INNER_MULTI_DI", 0x20, "INNER_MULTI_DISPATCH"),
    "what ends the name": (b"INNER_MULTI_DISPATCH", 0x40, "INNER_MULTI_DISPATCH"),
    "an offset, now another message's": (b"INNER_MULTI_QUEUE_OFFSET\x01", 0x02, "INNER_MULTI_QUEUE_OFFSET"),
    "an offset, now no number": (b"INNER_MULTI_QUEUE_OFFSET\x01", 0x10, "INNER_MULTI_QUEUE_OFFSET"),
}


def carrier(store: Drill) -> Located:
    hits = [hit for hit in store.records() if len(lmq_targets(hit.record)) == 2]
    return hits[len(hits) // 2]


def change(store: Drill, hit: Located, behind: bytes, mask: int) -> None:
    """Change the byte after these bytes in the record's properties."""
    file, position = store.place(hit.record.phy_offset)
    path = store.root / file
    flip(path, path.read_bytes().index(behind, position, position + hit.record.total_size) + len(behind), mask)
    store.struck()


@few("what", BITS, quick=2)
def test_carrier_is_put_back_by_the_units_that_name_it(drill: Start, what: str) -> None:
    store = drill(LMQ)
    before, hit = queue_bytes(store.root), carrier(store)
    behind, mask, name = BITS[what]
    change(store, hit, behind, mask)
    found = store.finds("commitlog-contradicted-field", *store.place(hit.record.phy_offset), exit_code=exits.MESSAGES)
    assert found["facts"]["field"] == name
    with store.recovered(0, "--mend-bits") as done:
        assert [(piece["kind"], piece["field"]) for piece in done["bridged"]] == [("restored", name)]
        assert done["plan"]["loss"] == []
        assert messages(store.root) == store.messages
        assert queue_bytes(store.root) == before


def test_swapped_units_of_an_lmq_queue_move_no_message(drill: Start) -> None:
    store = drill(LMQ)
    before = queue_bytes(store.root)
    path = store.root / "consumequeue/%LMQ%two/0/00000000000000004000"
    content = path.read_bytes()
    write_at(path, 0, content[160:180])  # 200 and 208: a bit apart in every record
    write_at(path, 160, content[:20])
    store.struck()
    assert store.found("commitlog-contradicted-field") == []
    with store.recovered():
        assert queue_bytes(store.root) == before


def test_two_changed_bytes_leave_the_carrier_as_it_is_and_the_finding_with_the_queue(drill: Start) -> None:
    store = drill(LMQ)
    hit = carrier(store)
    change(store, hit, b"INNER_MULTI_DISPATCH\x01%LMQ%", 0x04)
    change(store, hit, b"INNER_MULTI_QUEUE_OFFSET\x01", 0x02)
    assert store.found("commitlog-contradicted-field") == []
    assert {item["facts"]["topic"] for item in store.found("consumequeue-wrong-units")} == {"%LMQ%one"}
