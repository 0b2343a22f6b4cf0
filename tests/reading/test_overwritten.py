"""Whole records where other messages stood, and what is an older life of the log only with more than one witness."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.damage import damage
from fixtures.synth import START, StoreWriter
from formats.record import HEADS
from formats.sysflag import HOSTS_V6
from mqtool import exits
from tests.cli.runner import Result, mqtool
from tests.scenarios.drill import log_options
from tests.support import plain_reader as plain
from tests.support.commitlog import Placed, placed_records
from tests.support.sampling import few, sampled
from tests.support.stores import copy_store, log_place, unpacked, write_at
from tests.torture.hunt import BY_CONTRACT, Outcome, judged, older_records_at_the_end

# --- Whole records where other messages stood: older ones of the same log, copies after its end, another log's file.


STORE = "clean-plain-4.9.7"


def run(command: str, root: Path, *arguments: object) -> Result:
    return mqtool(command, root, *arguments, "--json")


def records_of(root: Path) -> list[plain.Record]:
    return [record for record in plain.records(root) if record.has_unit]


def put_over(root: Path, record: plain.Record, *, same_queue: bool) -> plain.Record:
    """An older record of the same size in the place of `record`, with the right own offset."""
    older = next(
        each for each in reversed(records_of(root)) if each.phy_offset < record.phy_offset
        and each.size == record.size and ((each.topic, each.queue_id) == (record.topic, record.queue_id)) == same_queue
    )
    copy = older.content[:28] + record.phy_offset.to_bytes(8, "big") + older.content[36:]
    write_at(*log_place(root, record.phy_offset), copy)
    return older


def victim(root: Path, *, last: bool, same_queue: bool) -> plain.Record:
    records = records_of(root)
    candidates = records[-1:] if last else records[len(records) // 2:-40]
    return next(
        each for each in candidates
        if any(other.phy_offset < each.phy_offset and other.size == each.size and
               ((other.topic, other.queue_id) == (each.topic, each.queue_id)) == same_queue for other in records)
    )


@pytest.mark.parametrize("same_queue", [True, False])
@pytest.mark.parametrize("last", [True, False])
def test_message_under_an_older_record_is_stated_as_lost(tmp_path: Path, *, last: bool, same_queue: bool) -> None:
    root = copy_store(unpacked(STORE), tmp_path / "store")
    delivered = plain.delivered(root)
    lost = victim(root, last=last, same_queue=same_queue)
    put_over(root, lost, same_queue=same_queue)
    place = lost.topic, lost.queue_id, lost.queue_offset

    found = run("verify", root)
    assert found.code & exits.MESSAGES
    [damage] = found.document["commitlog"]["damaged"]
    assert (damage["start"], damage["stop"]) == (lost.phy_offset, lost.phy_offset + lost.size)
    assert damage["reason"] == "overwritten"
    done = run("recover", root, "--yes")
    assert done.code == exits.CORRECTED | exits.MESSAGES
    [entry] = done.document["plan"]["loss"]
    assert (entry["topic"], entry["queue"], entry["first_offset"], entry["messages"]) == (*place, 1)
    after = plain.delivered(root)
    assert {at: content for at, content in delivered.items() if at != place}.items() <= after.items()
    assert run("verify", root).code == exits.CLEAN
    assert not run("recover", root, "--yes").document["applied"]


def neighbours_of_one_size(root: Path) -> tuple[plain.Record, plain.Record]:
    """A record, and one of another queue and the same size behind it, before the next record of the first one's queue
    and after the middle of the log."""
    records = records_of(root)
    last: dict[int, plain.Record] = {}
    for record in records[len(records) // 2:-40]:
        last = {size: each for size, each in last.items()
                if (each.topic, each.queue_id) != (record.topic, record.queue_id)}
        if record.size in last:
            return last[record.size], record
        last[record.size] = record
    raise LookupError("no such pair")


def test_copy_of_the_message_before_it_in_its_queue_gives_way_if_it_is_an_hour_older(tmp_path: Path) -> None:
    root = copy_store(unpacked(STORE), tmp_path / "store")
    due = plain.delivered(root)
    message, lost = neighbours_of_one_size(root)
    copy = bytearray(message.content)
    copy[28:36] = lost.phy_offset.to_bytes(8, "big")
    at, _ = message.fields()["store_timestamp"]
    copy[at:at + 8] = (message.store_time - 3_600_000).to_bytes(8, "big")
    write_at(*log_place(root, lost.phy_offset), bytes(copy))
    shutil.rmtree(root / "consumequeue")

    done = run("recover", root, "--yes", "--max-loss", "all")
    assert not done.code & (exits.OPERATIONAL | exits.BUG)
    gone = lost.topic, lost.queue_id, lost.queue_offset
    assert {place: content for place, content in due.items() if place != gone}.items() <= plain.delivered(root).items()
    assert not run("recover", root, "--yes").document["applied"]


# the last: one copy alone of a queue looks like a record of the queue that ends at its number
@few(("name", "seed"), [(STORE, 0), (STORE, 1), ("killed-v2-ipv6-5.3.3", 2)], quick=1)
def test_copies_of_records_after_the_end_displace_nothing(tmp_path: Path, name: str, seed: int) -> None:
    root = copy_store(unpacked(name), tmp_path / "store")
    rng = random.Random(seed)
    older_records_at_the_end(root, rng, back=0)
    outcome = Outcome(name, seed)
    judged(outcome, root)
    assert outcome.wrong == []
    assert outcome.end == "recovered"


@pytest.mark.parametrize("has_queues", [True, False])
def test_lmq_number_that_is_cut_short_takes_no_place_of_another_message(tmp_path: Path, *, has_queues: bool) -> None:
    """One byte put into the properties of record 14 moves the last digit out: it claims to be record 1 of its queue."""
    root = copy_store(unpacked("killed-lmq-4.9.7"), tmp_path / "store")
    due = plain.delivered(root)
    record = next(each for each in records_of(root) if each.content.endswith(b"\x0114,14"))
    at = record.content.index(b"UNIQ_KEY") + 12
    write_at(*log_place(root, record.phy_offset), record.content[:at] + b"~" + record.content[at:-1])
    if not has_queues:
        shutil.rmtree(root / "consumequeue")

    assert not run("recover", root, "--yes").code & (exits.OPERATIONAL | exits.BUG)
    after = plain.delivered(root)
    assert {place: content for place, content in due.items() if content != record.content}.items() <= after.items()
    assert not run("recover", root, "--yes").document["applied"]


def test_file_of_another_log_is_refused_with_the_count_of_what_is_lost(tmp_path: Path) -> None:
    root = copy_store(unpacked("clean-4.5.1"), tmp_path / "store")
    name = "00000000000001048576"
    own = [record for record in records_of(root) if record.phy_offset >= int(name)]
    shutil.copyfile(unpacked("clean-5.3.3") / "commitlog" / name, root / "commitlog" / name)

    done = run("recover", root, "--yes")
    assert done.code & (exits.OPERATIONAL | exits.MESSAGES) == exits.OPERATIONAL | exits.MESSAGES
    [told] = run("verify", root).found("commitlog-other-log")
    assert told["file"] == f"commitlog/{name}"
    assert told["facts"]["lost"] == len(own)
    allowed = run("recover", root, "--yes", "--max-loss", len(own))
    assert allowed.code & exits.MESSAGES
    stated = [entry for entry in allowed.document["plan"]["loss"] if entry["cause"] == "other-log"]
    assert sum(entry["messages"] for entry in stated) == len(own)
    assert not run("recover", root, "--yes", "--max-loss", "all").document["applied"]


def test_file_of_another_log_with_repeated_places_is_one_damaged_range(tmp_path: Path) -> None:
    """Some of its records repeat places of records before it, as older ones of this log would."""
    root = copy_store(unpacked("clean-4.5.1"), tmp_path / "store")
    name = "00000000000001048576"
    shutil.copyfile(unpacked("killed-5.5.0") / "commitlog" / name, root / "commitlog" / name)
    (told,) = run("verify", root).document["commitlog"]["damaged"]
    assert told["start"] == int(name) and told["reason"] == "other-log"


@pytest.mark.parametrize("name", ["clean-manyfiles-5.3.3", "clean-expired-4.5.1"])
def test_file_of_another_log_is_told_by_the_index_where_the_queues_are_gone(tmp_path: Path, name: str) -> None:
    root = copy_store(unpacked(name), tmp_path / "store")
    struck = damage("log-file-of-another-store", root, 0)
    shutil.rmtree(root / "consumequeue")

    (told,) = run("verify", root).found("commitlog-other-log")
    assert told["file"] == struck.changes[0].file and "entries of the index" in told["message"]
    assert run("predict", root).code & exits.MESSAGES
    assert run("recover", root, "--yes").code & exits.OPERATIONAL
    allowed = run("recover", root, "--yes", "--max-loss", "all")
    assert allowed.document["applied"] and allowed.code & exits.MESSAGES
    assert not run("recover", root, "--yes", "--max-loss", "all").document["applied"]


def silence(root: Path, file: Path) -> None:
    """No unit names anything in this log file any more: queues that are behind, or of which a file is gone."""
    start, stop = int(file.name), int(file.name) + file.stat().st_size
    for path in (root / "consumequeue").glob("*/*/*"):
        content = path.read_bytes()
        units = (content[at:at + 20] for at in range(0, len(content), 20))
        left = (bytes(20) if start <= int.from_bytes(unit[:8], "big") < stop else unit for unit in units)
        path.write_bytes(b"".join(left))


def test_file_of_another_log_that_no_unit_names_is_told_by_the_index(tmp_path: Path) -> None:
    """Its records are of topics that are in no other file: no queue breaks or goes on there."""
    root = copy_store(unpacked("clean-propcrc-5.3.3"), tmp_path / "store")
    path = sorted((root / "commitlog").iterdir())[1]
    lost = sum(record.has_unit for record in plain.chain(path.read_bytes(), int(path.name)))
    silence(root, path)
    path.write_bytes((unpacked("killed-compressed-5.3.3") / "commitlog" / path.name).read_bytes())

    done = run("recover", root, "--yes")
    assert done.code & (exits.OPERATIONAL | exits.MESSAGES) == exits.OPERATIONAL | exits.MESSAGES
    (told,) = run("verify", root).found("commitlog-other-log")
    assert told["file"] == f"commitlog/{path.name}"
    assert lost * 0.9 < told["facts"]["lost"] <= lost
    allowed = run("recover", root, "--yes", "--max-loss", "all")
    assert sum(entry["messages"] for entry in allowed.document["plan"]["loss"]) == told["facts"]["lost"]
    assert not run("recover", root, "--yes", "--max-loss", "all").document["applied"]


@pytest.mark.parametrize(("name", "index"), sampled(
    ("clean-manyfiles-5.3.3", "killed-5.5.0", "clean-expired-5.5.0"),
    ("whole", "newest gone", "first gone", "another log's"), quick=3,
))
def test_sound_file_that_no_unit_names_stays_this_logs(tmp_path: Path, name: str, index: str) -> None:
    root = copy_store(unpacked(name), tmp_path / "store")
    delivered = plain.delivered(root)
    silence(root, [path for path in sorted((root / "commitlog").iterdir()) if any(path.read_bytes())][-1])
    files = sorted((root / "index").iterdir())
    if index == "another log's":
        shutil.rmtree(root / "index")
        shutil.copytree(unpacked("clean-plain-4.9.7") / "index", root / "index")
    elif index != "whole":
        files[-1 if index == "newest gone" else 0].unlink()
    done = run("recover", root, "--yes")
    assert done.document["applied"] and not done.code & (exits.OPERATIONAL | exits.MESSAGES)
    assert delivered.items() <= plain.delivered(root).items()


def test_file_that_nothing_else_speaks_for_is_an_assumption_of_recover(tmp_path: Path) -> None:
    root = copy_store(unpacked("clean-propcrc-5.3.3"), tmp_path / "store")
    path = sorted((root / "commitlog").iterdir())[1]
    shutil.rmtree(root / "index")
    silence(root, path)
    path.write_bytes((unpacked("clean-plain-4.9.7") / "commitlog" / path.name).read_bytes())
    (told,) = run("verify", root).found("commitlog-file-alone")
    assert told["file"] == f"commitlog/{path.name}"
    done = run("recover", root, "--dry-run")
    assert any(path.name in text for text in done.document["assumptions"])


@few(("name", "other"), [
    ("00000000000000131072", "clean-propcrc-5.3.3"), ("00000000000000000000", "clean-restarts-5.5.0"),
], quick=1)
def test_newer_file_of_another_log_makes_no_other_files_stale(tmp_path: Path, name: str, other: str) -> None:
    """No queue and no index is left: only the files themselves tell which of them is the odd one."""
    store = "clean-multipath-4.9.7"
    root = copy_store(unpacked(store), tmp_path / "store")
    (path,) = root.glob(f"commitlog-*/{name}")
    own = sum(record.has_unit for record in plain.chain(path.read_bytes(), int(name)))
    path.write_bytes((unpacked(other) / "commitlog" / name).read_bytes())
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")

    said = mqtool("verify", root, *log_options(root), "--json")
    (told,) = said.found("commitlog-other-log")
    assert (root / told["file"], told["facts"]["lost"]) == (path, own)
    assert not said.document["commitlog"]["ghosts"]
    refusal = mqtool("recover", root, *log_options(root), "--yes", "--json").document["error"]
    assert "--max-loss all" in refusal["remedy"]
    outcome = Outcome(store, 0)
    judged(outcome, root)
    assert (outcome.end, outcome.wrong) == (BY_CONTRACT, [])


def test_damage_after_a_newer_file_of_another_log_costs_no_file_of_this_one(tmp_path: Path) -> None:
    """The newer records make all after them older by their time, and entries fill the damage among these."""
    name, damaged = "00000000000000000000", "00000000000000131072"
    root = copy_store(unpacked(STORE), tmp_path / "store")
    (root / "commitlog" / name).write_bytes((unpacked("clean-restarts-5.5.0") / "commitlog" / name).read_bytes())
    path = root / "commitlog" / damaged
    record = [*plain.chain(path.read_bytes(), int(damaged))][10]
    write_at(path, record.phy_offset - int(damaged) + record.size // 2, b"damage")
    assert [item["file"] for item in run("verify", root).found("commitlog-other-log")] == [f"commitlog/{name}"]
    outcome = Outcome(STORE, 0)
    judged(outcome, root)
    assert (outcome.end, outcome.wrong) == (BY_CONTRACT, [])


@pytest.mark.parametrize("number", [3, 4])
@pytest.mark.parametrize("whole", [True, False])
def test_no_queue_is_filled_up_to_the_offsets_of_another_log(number: int, tmp_path: Path, *, whole: bool) -> None:
    """Without a unit, queues would leap to its records, over thousands of places that never held a message."""
    def write(root: Path, files: int, **fields: int) -> Path:
        writer = StoreWriter(root, mapped_file_size=1 << 14, **fields)
        while (writer.position >> 14, writer.room > 4000) != (files - 1, False):
            for topic in ("T", "U"):
                writer.put(topic, b"b" * 100)
        return writer.close().root

    root = write(tmp_path / "own", 5)
    other = write(tmp_path / "other", number + 1 + whole, first_queue_offset=5070, start=START + 10**7)
    own, path = plain.delivered(root), root / "commitlog" / f"{number << 14:020d}"
    shutil.copyfile(other / "commitlog" / path.name, path)
    shutil.rmtree(root / "consumequeue")
    (told,) = run("verify", root).found("commitlog-other-log")
    assert root / told["file"] == path
    assert run("recover", root, "--yes").code & exits.OPERATIONAL
    size = ("--set", "mappedFileSizeConsumeQueue=2000")
    assert run("recover", root, "--yes", "--max-loss", "all", *size).document["applied"]
    now = plain.delivered(root)
    left = [place for place, content in own.items()
            if not number << 14 <= int.from_bytes(content[28:36], "big") < number + 1 << 14]
    assert all(now[place] == own[place] for place in left)
    assert now.keys() <= own.keys()


@pytest.mark.parametrize("recipe", ["index-unit-hash", "index-unit-elsewhere", "index-page-zeroed"])
def test_a_wrong_index_alone_makes_no_file_another_logs(tmp_path: Path, recipe: str) -> None:
    root = copy_store(unpacked("clean-manyfiles-5.3.3"), tmp_path / "store")
    damage(recipe, root, 0)
    other = sorted((unpacked("killed-manyfiles-5.5.0") / "index").iterdir())
    own = sorted((root / "index").iterdir())
    shutil.copyfile(other[0], own[0])
    shutil.rmtree(root / "consumequeue")
    assert "commitlog-other-log" not in run("verify", root).document["finding_counts"]


@pytest.mark.parametrize("number", [0, 7])
def test_a_file_of_which_half_is_gone_is_no_other_logs(tmp_path: Path, number: int) -> None:
    root = copy_store(unpacked("clean-manyfiles-5.3.3"), tmp_path / "store")
    path = sorted((root / "commitlog").iterdir())[number]
    os.truncate(path, path.stat().st_size // 2)
    assert "commitlog-other-log" not in run("verify", root).document["finding_counts"]
    before = plain.delivered(root)
    assert run("recover", root, "--yes").document["applied"]
    assert before.items() <= plain.delivered(root).items()


def test_files_under_the_name_after_their_own_go_back(tmp_path: Path) -> None:
    root = copy_store(unpacked("clean-propcrc-5.3.3"), tmp_path / "store")
    log = root / "commitlog"
    first, second = sorted(log.iterdir())
    second.rename(log / f"{int(second.name) + 1024:020d}")
    first.rename(second)
    outcome = Outcome("clean-propcrc-5.3.3", 0)
    judged(outcome, root)
    assert outcome.wrong == []
    assert outcome.end == "recovered"


def test_an_end_mark_that_only_records_of_another_log_bear_out_is_doubted_without_them(tmp_path: Path) -> None:
    """The other log's records made stale ones of all that stands after the mark."""
    root = copy_store(unpacked("killed-lmq-4.9.7"), tmp_path / "store")
    first, second = sorted((root / "commitlog").iterdir())[:2]
    content = second.read_bytes()
    at = [*plain.chain(content, int(second.name))][10].phy_offset - int(second.name)
    write_at(second, at, (len(content) - at).to_bytes(4, "big") + plain.BLANK.to_bytes(4, "big"))
    first.write_bytes((unpacked("clean-restarts-5.5.0") / "commitlog" / first.name).read_bytes())
    outcome = Outcome("killed-lmq-4.9.7", 0)
    judged(outcome, root)
    assert (outcome.end, outcome.wrong) == (BY_CONTRACT, [])


# --- What stands after a break is taken for an older life of the log only where more than one record before says so.


STORES = ("clean-4.5.1", "clean-5.3.3", "killed-5.5.0", "killed-v2-ipv6-5.3.3")


def raised(placed: Placed, field: str, more: int) -> bytes:
    """The field's bytes with `more` added to its value."""
    layout = HEADS[placed.record.sys_flag & HOSTS_V6].field(field)
    return int(getattr(placed.record, field) + more).to_bytes(layout.size, "big")


@pytest.mark.parametrize(("name", "field", "more"), sampled(
    STORES, ("queue_offset", "store_timestamp"), (3, 50, 1 << 27, 1 << 40, 1 << 61), quick=2,
))
def test_a_wrong_number_or_time_right_before_damage_makes_no_stale_records(
    store: Callable[[str], Path], name: str, field: str, more: int
) -> None:
    root = store(name)
    placed = placed_records(name)
    before, damaged = placed[len(placed) // 4], placed[len(placed) // 4 + 1]
    at = HEADS[before.record.sys_flag & HOSTS_V6].offset(field)
    write_at(*log_place(root, before.phy_offset + at), raised(before, field, more))
    write_at(*log_place(root, damaged.phy_offset + 4), bytes(4))
    log = mqtool("verify", root, "--json").document["commitlog"]
    assert (log["ghosts"], len(log["damaged"])) == (0, 1)
    result = mqtool("recover", root, "--yes", "--mend-bits", "--json")
    assert (result.code, result.document["plan"]["loss"]) == (1, [])
    after = mqtool("verify", root, "--json")
    assert after.code == 0
    # the one whose magic was gone was put back, too
    assert after.document["commitlog"]["messages"] == log["messages"] + 1
    content = {file.name: file.read_bytes() for file in (root / "commitlog").iterdir()}
    for file in (unpacked(name) / "commitlog").iterdir():
        own = [p for p in placed if 0 <= p.phy_offset - int(file.name) < len(content[file.name])]
        for each in own:
            if each is not before:
                start = each.phy_offset - int(file.name)
                assert content[file.name][start : start + len(each.raw)] == each.raw
