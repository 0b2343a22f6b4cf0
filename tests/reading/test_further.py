"""`recover --from`: what a replica, a backup, loose files or an image has of a damaged log, and what is never taken."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from mqtool import exits
from tests.cli.runner import Result, mqtool
from tests.scenarios.drill import log_options
from tests.support import plain_reader as plain
from tests.support.pairs import (
    DIVERGED,
    FOREIGN,
    SAME,
    Pair,
    in_place,
    log_file,
    other_body,
    pair,
    part_at,
    without_queues,
)
from tests.support.sampling import sampled
from tests.support.stores import copy_store, unpacked, write_at
from tests.support.trees import assert_same_tree, assert_unchanged, tree_digest

MANY, PLAIN = "clean-manyfiles-5.3.3", "clean-plain-4.9.7"
STORES = (MANY, PLAIN, "killed-manyfiles-5.5.0", "clean-propcrc-5.3.3", "killed-lmq-4.9.7", "clean-5.3.3",
          "killed-v2-ipv6-5.3.3", "clean-restarts-5.5.0")


def run(command: str, root: Path, *arguments: object) -> Result:
    return mqtool(command, root, *log_options(root), *arguments, "--json")


def assert_healed(found: Pair, *options: str) -> Result:
    """What the other log has is in ours, no record that ours had has changed, and undo restores every byte."""
    before = tree_digest(found.ours)
    with assert_unchanged(found.other):
        done = run("recover", found.ours, "--from", found.other, *options, "--yes")
    assert not done.code & (exits.OPERATIONAL | exits.BUG), done.stderr
    after = in_place(found.ours, found.records)
    assert after >= found.kept
    if found.relation == SAME:
        assert after >= found.due
    if done.document["applied"]:
        again = run("recover", found.ours, "--from", found.other, *options, "--yes")
        assert not again.code & exits.OPERATIONAL, again.stderr
        assert not again.document["applied"]
        assert run("undo", found.ours, "--yes").document["restored"]
    assert_same_tree(before, tree_digest(found.ours))
    return done


@pytest.mark.parametrize(("relation", "name", "seed"), sampled(
    (SAME, DIVERGED, FOREIGN), STORES, range(15), quick=4, one_in=40))
def test_random_pair(relation: str, name: str, seed: int, tmp_path: Path) -> None:
    assert_healed(pair(name, seed, relation, tmp_path), "--extend", "--max-loss", "all")


# --- One damage at a time.


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A store of which a log file is missing, and some records in another are noise."""
    root = copy_store(unpacked(MANY), tmp_path / "store")
    base = sorted(plain.log_files(root))[5]
    log_file(root, base).unlink()
    base = sorted(plain.log_files(root))[2]
    write_at(log_file(root, base), 20_000, b"\xa5" * 5_000)
    return root


def log_of(root: Path) -> dict[int, bytes]:
    return plain.log_files(root)


def test_replica_gives_back_damaged_records_and_a_missing_file(damaged: Path) -> None:
    other = unpacked(MANY)
    records = {record.phy_offset: record.content for record in plain.records(other)}
    lost = records.keys() - in_place(damaged, records)
    planned = run("recover", damaged, "--from", other, "--dry-run")
    placed = planned.document["placed"]
    assert sum(each["records"] for each in placed) >= len(lost) > 90
    assert {Path(each["source"]).parent for each in placed} == {other / "commitlog"}
    for each in placed:
        content = Path(each["source"]).read_bytes()[each["position"]:]
        assert plain.record_at(content + bytes(8), 0, each["start"]) is not None
    assert [item["facts"]["count"] for item in planned.found("commitlog-held-elsewhere")]
    done = run("recover", damaged, "--from", other, "--yes")
    assert (done.document["lost_messages"], done.document["damaged_messages"]) == (0, 0)
    assert log_of(damaged) == log_of(other)
    assert not run("verify", damaged).code


def test_what_brokers_deliver_is_that_of_the_other(damaged: Path) -> None:
    run("recover", damaged, "--from", unpacked(MANY), "--yes")
    assert plain.delivered(damaged) == plain.delivered(unpacked(MANY))


@pytest.mark.parametrize("what", ["folder", "file", "image"])
def test_source_may_be_a_folder_a_log_file_or_an_image(what: str, damaged: Path, tmp_path: Path) -> None:
    other = unpacked(MANY)
    missing, = log_of(other).keys() - log_of(damaged).keys()
    source = other / "commitlog"
    if what == "file":
        source = tmp_path / "copy.dat"
        shutil.copy(log_file(other, missing), source)
    elif what == "image":
        source = tmp_path / "disk.img"
        source.write_bytes(bytes(4096) + b"".join(
            content + bytes(4096) for _, content in sorted(log_of(other).items(), reverse=True)))
    done = run("recover", damaged, "--from", source, "--yes")
    assert log_of(damaged)[missing] == log_of(other)[missing]
    if what != "file":
        assert log_of(damaged) == log_of(other)
    assert {Path(each["source"]) for each in done.document["placed"]} <= {source, *source.glob("*")}


def test_two_sources_fill_what_each_of_them_has(damaged: Path, tmp_path: Path) -> None:
    parts = []
    for number, (base, content) in enumerate(sorted(log_of(unpacked(MANY)).items())):
        part = tmp_path / f"part{number % 2}"
        part.mkdir(exist_ok=True)
        (part / f"{base:020d}").write_bytes(content)
        parts = [tmp_path / "part0", tmp_path / "part1"]
    run("recover", damaged, "--from", parts[0], "--from", parts[1], "--yes")
    assert log_of(damaged) == log_of(unpacked(MANY))


@pytest.mark.parametrize("name", [MANY, "killed-manyfiles-5.5.0"])
def test_files_before_the_first_one_come_back_if_retention_cannot_have_deleted_them(name: str, tmp_path: Path) -> None:
    root = copy_store(unpacked(name), tmp_path / "store")
    lost = sorted(log_of(root))[:2]
    for base in lost:
        log_file(root, base).unlink()
    assert "commitlog-begins-late" in run("verify", root).codes
    other = unpacked(name)
    expired = run("recover", root, "--from", other, "--set", "fileReservedTime=0", "--yes")
    assert not expired.document.get("placed")
    done = run("recover", root, "--from", other, "--yes")
    assert {each["start"] for each in done.document["placed"]} == {*lost}
    assert log_of(root) == log_of(other)
    assert not {"commitlog-begins-late", "commitlog-begin-missing"} & run("verify", root).codes
    assert plain.delivered(root) == plain.delivered(other)


def test_files_before_a_hole_that_no_source_fills_stay_away(tmp_path: Path) -> None:
    root, other = (copy_store(unpacked(MANY), tmp_path / name) for name in ("store", "other"))
    first, second, third = sorted(log_of(root))[:3]
    for base in (first, second):
        log_file(root, base).unlink()
    log_file(other, second).unlink()
    assert not run("recover", root, "--from", other, "--yes").document.get("placed")
    assert min(log_of(root)) == third


@pytest.mark.parametrize("part", ["", "commitlog"])
def test_length_of_log_files_is_that_of_the_source_where_the_only_file_is_cut(part: str, tmp_path: Path) -> None:
    root, other = copy_store(unpacked(MANY), tmp_path / "store"), unpacked(MANY)
    first, *rest = sorted(log_of(root))
    for base in rest:
        log_file(root, base).unlink()
    os.truncate(log_file(root, first), 30_000)
    assert run("recover", root, "--yes").code & exits.OPERATIONAL
    assert run("recover", root, "--from", unpacked(PLAIN), "--yes", "--max-loss", "all").code & exits.OPERATIONAL
    done = run("recover", root, "--from", other / part, "--yes")
    assert log_of(root) == log_of(other)
    size = len(log_of(other)[first])
    assert any(line.startswith(f"mappedFileSizeCommitLog={size}: ") and str(other) in line
               for line in done.document["assumptions"])
    assert f"mappedFileSizeCommitLog={size}" in done.document["summary"]


def _without_end(root: Path) -> int:
    """Zero the last 50 records; the offset at which the log ends now."""
    start = [*plain.records(root)][-50].phy_offset
    for base, content in log_of(root).items():
        if base > start:
            log_file(root, base).unlink()
        elif base + len(content) > start:
            write_at(log_file(root, base), start - base, bytes(base + len(content) - start))
    return start


def test_messages_after_the_end_come_back_where_the_queues_name_them(tmp_path: Path) -> None:
    root = copy_store(unpacked(MANY), tmp_path / "store")
    _without_end(root)
    run("recover", root, "--from", unpacked(MANY), "--yes")
    assert plain.records_by_place(root) == plain.records_by_place(unpacked(MANY))


@pytest.mark.parametrize("extend", [True, False])
def test_without_queues_the_log_goes_on_past_its_end_on_demand_only(extend: bool, tmp_path: Path) -> None:
    root = copy_store(unpacked(MANY), tmp_path / "store")
    end = _without_end(root)
    without_queues(root)
    done = run("recover", root, "--from", unpacked(MANY), *["--extend"] * extend, "--yes")
    found = plain.records_by_place(root)
    assert (max(found) >= end) is extend
    assert (found == plain.records_by_place(unpacked(MANY))) is extend
    assert extend or any("--extend" in line for line in done.stderr.splitlines())


# --- What is not taken.


def test_source_without_a_message_gives_nothing(damaged: Path, tmp_path: Path) -> None:
    empty = copy_store(unpacked("clean-empty-5.3.3"), tmp_path / "empty")
    done = run("recover", damaged, "--from", empty, "--max-loss", "all", "--yes")
    assert not done.code & (exits.OPERATIONAL | exits.BUG), done.stderr
    assert "placed" not in done.document


@pytest.mark.parametrize(("name", "at", "field"), [
    ("killed-lmq-4.9.7", 175_883, "queue_offset"), (MANY, 89_822, "born_ip"),
])
def test_whole_record_with_a_changed_field_that_no_checksum_covers_stays(
    name: str, at: int, field: str, tmp_path: Path
) -> None:
    """Which of both logs is right nobody can tell from their records alone."""
    root = copy_store(unpacked(name), tmp_path / "store")
    record = next(record for record in plain.records(root) if record.phy_offset == at)
    _, stop = record.fields()[field]
    base = max(base for base in log_of(root) if base <= at)
    write_at(log_file(root, base), at - base + stop - 1, bytes([record.content[stop - 1] ^ 0x55]))
    run("recover", root, "--from", unpacked(name), "--yes")
    assert at not in in_place(root, {at: record.content})


def test_log_that_parted_before_the_damage_gives_nothing(damaged: Path, tmp_path: Path) -> None:
    other = copy_store(unpacked(MANY), tmp_path / "other")
    part_at(other, 66_000)
    without_queues(damaged)
    records = {record.phy_offset: record.content for record in plain.records(unpacked(MANY))}
    kept = in_place(damaged, records)
    done = run("recover", damaged, "--from", other, "--max-loss", "all", "--yes")
    assert "placed" not in done.document
    assert in_place(damaged, records) == kept


def test_log_that_parted_after_the_damage_gives_what_is_before(damaged: Path, tmp_path: Path) -> None:
    other = copy_store(unpacked(MANY), tmp_path / "other")
    last = [*plain.records(other)][-100].phy_offset
    part_at(other, last)
    run("recover", damaged, "--from", other, "--yes")
    assert log_of(damaged) == log_of(unpacked(MANY))


def test_queue_that_another_record_disagrees_with_does_not_outvote_the_records_around(
    damaged: Path, tmp_path: Path
) -> None:
    """The same place, queue and size: only the records around tell that the log is another one."""
    other = copy_store(unpacked(MANY), tmp_path / "other")
    record = next(record for record in plain.records(other) if record.phy_offset >= 131_072 + 25_000)
    write_at(log_file(other, 131_072), record.phy_offset - 131_072, other_body(record))
    done = run("recover", damaged, "--from", other, "--max-loss", "all", "--yes")
    assert all(each["start"] >= 196_608 for each in done.document["placed"])
    again = copy_store(unpacked(MANY), tmp_path / "again")
    write_at(log_file(again, 131_072), 20_000, b"\xa5" * 5_000)
    run("recover", again, "--from", other, "--from-unanchored", "--yes")
    assert log_of(again) == log_of(unpacked(MANY))


def test_sources_that_contradict_each_other_give_nothing(tmp_path: Path) -> None:
    root = copy_store(unpacked(MANY), tmp_path / "store")
    records = [record for record in plain.records(root) if record.phy_offset > 140_000][:3]
    write_at(log_file(root, 131_072), records[1].phy_offset - 131_072, bytes(records[1].size))
    other = copy_store(unpacked(MANY), tmp_path / "other")
    write_at(log_file(other, 131_072), records[1].phy_offset - 131_072, other_body(records[1]))
    done = run("recover", root, "--from", unpacked(MANY), "--from", other, "--yes")
    assert "placed" not in done.document
    assert done.document["damaged_messages"] == 1
    (item,) = done.document["plan"]["loss"]
    assert item["messages"] == 1


@pytest.mark.parametrize(("options", "why"), [
    (("--extend",), "--extend without --from"),
    (("--from-unanchored",), "--from-unanchored without --from"),
    (("--from", "{root}"), "this is the store itself"),
    (("--from", "{root}-none"), "does not exist"),
    (("--from", "{root}", "--policy", "broker"), "--from with --policy broker"),
])
def test_options_that_say_nothing_are_refused(options: tuple[str, ...], why: str, tmp_path: Path) -> None:
    root = copy_store(unpacked(PLAIN), tmp_path / "store")
    done = run("recover", root, *(word.format(root=root) for word in options), "--yes")
    assert done.code == exits.USAGE
    assert why in done.stderr


def test_plan_and_copy_take_the_records_of_the_source_too(damaged: Path, tmp_path: Path) -> None:
    other, plan = copy_store(unpacked(MANY), tmp_path / "other"), tmp_path / "plan.json"
    with assert_unchanged(damaged):
        run("recover", damaged, "--from", other, "--output", tmp_path / "copy", "--yes")
    assert log_of(tmp_path / "copy") == log_of(other)
    run("recover", damaged, "--from", other, "--dry-run", "--plan-out", plan)
    shutil.rmtree(other)
    assert run("apply", plan, "--yes").document["applied"]
    assert log_of(damaged) == log_of(unpacked(MANY))


def test_file_that_nobody_has_is_made_anew_beside_one_that_a_source_healed(damaged: Path, tmp_path: Path) -> None:
    """The missing file comes right after the healed one, which must not be taken for it."""
    other = copy_store(unpacked(MANY), tmp_path / "other")
    missing, = log_of(other).keys() - log_of(damaged).keys()
    for root in (damaged, other):
        log_file(root, 196_608).unlink()
    log_file(other, missing).unlink()
    done = run("recover", damaged, "--from", other, "--max-loss", "all", "--yes")
    assert not done.code & (exits.OPERATIONAL | exits.BUG), done.stderr
    healed = log_of(unpacked(MANY))
    assert log_of(damaged).keys() == healed.keys()
    assert log_of(damaged)[131_072] == healed[131_072]
