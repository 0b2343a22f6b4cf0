"""Whole records that stand elsewhere than they say, and whole files under another name: a record is where its own
words and its witnesses put it."""

from __future__ import annotations

import functools
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from fixtures.damage import NotApplicable, damage, of_area
from fixtures.damage.displaced import SPOILT, shift, spoilt_copy_first
from mqtool import exits
from tests.cli.runner import Result, mqtool
from tests.scenarios.drill import log_options
from tests.support import plain_reader as plain
from tests.support.pairs import part_at
from tests.support.sampling import few, sampled
from tests.support.stores import copy_store, unpacked, write_at
from tests.support.trees import assert_same_tree, assert_unchanged, tree_digest
from tests.torture.hunt import STORES

PLAIN, MANY = "clean-plain-4.9.7", "clean-manyfiles-5.3.3"
DISPLACED = "commitlog-displaced-records"


def run(command: str, root: Path, *arguments: object) -> Result:
    return mqtool(command, root, *log_options(root), *arguments, "--json")


class Whole(NamedTuple):
    """The records of a sound store that a damaged copy still holds somewhere, and those of them at their place."""

    anywhere: dict[int, bytes]
    in_place: set[int]


def whole(name: str, root: Path) -> Whole:
    """By the bytes alone: a record counts wherever its content is found in a file of the log's folders."""
    files = [path.read_bytes() for folder in plain.log_folders(root) for path in folder.iterdir() if path.is_file()]
    records, log = plain.records_by_place(unpacked(name)), plain.log_files(root)
    in_place = {at for at, record in records.items() if _at(log, at, record.size) == record.content}
    # a search through all files takes long, and few are not in their place
    return Whole({at: record.content for at, record in records.items()
                  if at in in_place or any(record.content in file for file in files)}, in_place)


@functools.cache
def delivered_of(name: str) -> dict[tuple[str, int, int], bytes]:
    """What the sound store delivers."""
    return plain.delivered(unpacked(name))


def _at(log: dict[int, bytes], offset: int, size: int) -> bytes:
    base = max((each for each in log if each <= offset), default=0)
    return log.get(base, b"")[offset - base : offset - base + size]


def assert_placed(name: str, root: Path) -> Result:
    """Recover puts every whole record to its place, tells verify's number, has nothing to do again, and is undone."""
    left, before = whole(name, root), tree_digest(root)
    first = run("verify", root)
    assert_same_tree(before, tree_digest(root))
    done = run("recover", root, "--yes")
    assert not done.code & (exits.OPERATIONAL | exits.BUG), done.stderr
    assert whole(name, root).in_place >= left.anywhere.keys()
    delivered = plain.delivered(root)
    for place, content in delivered_of(name).items():
        if int.from_bytes(content[28:36], "big") in left.anywhere:
            assert delivered.get(place) == content, place
    assert not run("verify", root).code & ~done.code
    assert not run("recover", root, "--yes").document["applied"]
    assert run("undo", root, "--yes").document["restored"]
    assert_same_tree(before, tree_digest(root))
    return first


@pytest.mark.parametrize(
    ("recipe", "name", "seed"), sampled(of_area("displaced"), STORES, range(6), quick=4, one_in=240))
def test_whole_records_come_back_to_where_they_say(recipe: str, name: str, seed: int, tmp_path: Path) -> None:
    root = copy_store(unpacked(name), tmp_path / "store")
    try:
        damage(recipe, root, seed)
    except NotApplicable as reason:
        pytest.skip(str(reason))
    assert_placed(name, root)


@pytest.fixture
def shifted(tmp_path: Path) -> Callable[..., Path]:
    """A copy of a store of which a log file lost or got some bytes."""

    def made(name: str = MANY, by: int = -1, seed: int = 1, *, keep_length: bool = True) -> Path:
        root = copy_store(unpacked(name), tmp_path / "store")
        shift(root, random.Random(seed), by, keep_length=keep_length)
        return root

    return made


@few("by", [-512, -20, -1, 1, 3, 4, 20, 4096], quick=(1, 5))
@pytest.mark.parametrize("keep_length", [True, False])
def test_verify_counts_the_displaced_as_messages_with_a_finding_of_their_own(
    by: int, keep_length: bool, shifted: Callable[..., Path]
) -> None:
    root = shifted(by=by, keep_length=keep_length)
    found = whole(MANY, root)
    seen = run("verify", root)
    (item,) = seen.found(DISPLACED)
    assert item["severity"] == "error"
    assert item["facts"]["count"] == len(found.anywhere.keys() - found.in_place)
    assert item["facts"]["shift"] == by
    assert seen.document["commitlog"]["messages"] == len(found.anywhere)
    assert seen.document["commitlog"]["displaced"] == item["facts"]["count"]
    assert seen.code & exits.MESSAGES


def test_predict_says_what_a_broker_makes_of_the_records_where_they_stand(shifted: Callable[..., Path]) -> None:
    root = shifted()
    found = whole(MANY, root)
    said = run("predict", root, "--broker", "5.3.3")
    assert said.code & exits.MESSAGES
    document = said.document
    lost = document["lost_messages"] + document["unreachable_messages"]
    assert lost >= len(found.anywhere.keys() - found.in_place)


def test_plan_tells_where_each_run_comes_from(shifted: Callable[..., Path]) -> None:
    root = shifted(by=3)
    planned = run("recover", root, "--dry-run").document
    assert sum(run["records"] for run in planned["placed"]) == run("verify", root).document["commitlog"]["displaced"]
    for each in planned["placed"]:
        content = (root / each["source"]).read_bytes()[each["position"]:]
        assert plain.record_at(content + bytes(8), 0, each["start"]) is not None


@pytest.mark.parametrize("by", [-1, 4])
def test_without_queues_and_index_the_file_and_the_neighbours_are_witnesses(
    by: int, shifted: Callable[..., Path]
) -> None:
    root = shifted(by=by)
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    left = whole(MANY, root)
    assert not run("recover", root, "--yes").code & exits.OPERATIONAL
    assert whole(MANY, root).in_place >= left.anywhere.keys()


@pytest.mark.parametrize(("name", "seed"), [(MANY, 1), (MANY, 2), ("killed-5.5.0", 3)])
def test_without_queues_and_index_pages_of_two_files_are_exchanged_again(name: str, seed: int, tmp_path: Path) -> None:
    """They stand at the position in the one file that they had in the other, and their queues lack them there."""
    root = copy_store(unpacked(name), tmp_path / "store")
    damage("log-page-of-other-file", root, seed)
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    assert_placed(name, root)


def test_restored_log_of_a_copy_is_the_same_and_leaves_the_source_alone(
    shifted: Callable[..., Path], tmp_path: Path
) -> None:
    root = shifted()
    with assert_unchanged(root):
        mqtool("recover", root, "--output", tmp_path / "copy", "--yes", "--json")
    assert whole(MANY, tmp_path / "copy").in_place >= whole(MANY, root).anywhere.keys()


@pytest.mark.parametrize("command", [("truncate", "--to", "0", "--max-loss", "all"), ("rebuild",)])
def test_commands_that_do_not_move_records_take_them_where_they_stand(
    command: tuple[str, ...], shifted: Callable[..., Path]
) -> None:
    root = shifted()
    planned = run(command[0], root, *command[1:], "--dry-run").document
    assert "commitlog-displaced-records" not in planned["finding_counts"]
    assert not any(step["kind"] == "write-range" and "commitlog" in step["file"] for step in planned["plan"]["steps"])


def test_export_hands_out_displaced_messages(shifted: Callable[..., Path], tmp_path: Path) -> None:
    root, target = shifted(by=3), tmp_path / "out.ndjson"
    mqtool("export", root, "-o", target, "--include", "system")
    found = {json.loads(line)["phy_offset"] for line in target.read_text("utf-8").splitlines()}
    assert found == whole(MANY, root).anywhere.keys()


def test_export_marks_the_topic_that_the_queues_contradict(tmp_path: Path) -> None:
    root, target = copy_store(unpacked(PLAIN), tmp_path / "store"), tmp_path / "out.ndjson"
    struck = damage("bit-in-topic-legal", root).facts["phy_offset"]
    assert run("verify", root).found("commitlog-contradicted-field")
    mqtool("export", root, "-o", target)
    messages = [json.loads(line) for line in target.read_text("utf-8").splitlines()]
    assert {each["phy_offset"]: each["doubtful"] for each in messages if each["doubtful"]} == {
        struck: ["topic", "stored_topic"]}


@pytest.mark.parametrize(("how", "name", "seed"), sampled(
    SPOILT, (PLAIN, MANY, "killed-5.5.0", "killed-lmq-4.9.7"), range(6), quick=3, one_in=24))
def test_better_of_two_files_with_one_name_is_kept(how: str, name: str, seed: int, tmp_path: Path) -> None:
    root = copy_store(unpacked(name), tmp_path / "store")
    spoilt_copy_first(root, random.Random(seed), how)
    assert_placed(name, root)


def test_empty_file_gives_its_name_to_the_log_file_that_has_it(tmp_path: Path) -> None:
    root = copy_store(unpacked(MANY), tmp_path / "store")
    damage("log-names-swapped-with-empty", root)
    seen = run("verify", root)
    (item,) = seen.found("commitlog-misnamed-file")
    assert (root / item["file"]).read_bytes().startswith(
        plain.records_by_place(unpacked(MANY))[int(item["facts"]["right"])].content)
    assert seen.document["commitlog"]["messages"] == len(plain.records(unpacked(MANY)))


# --- What is not placed.


def _two(root: Path) -> tuple[Path, list[plain.Record]]:
    """The first log file, and its records from the middle on."""
    (base, file), *_ = sorted(plain.log_files(root).items())
    records = list(plain.chain(file, base))
    return root / "commitlog" / f"{base:020d}", records[len(records) // 2:]


def test_copy_of_a_record_that_is_in_its_place_changes_nothing_there(tmp_path: Path) -> None:
    root = copy_store(unpacked(PLAIN), tmp_path / "store")
    path, (one, *others) = _two(root)
    big = max(others, key=lambda record: record.size)
    write_at(path, big.phy_offset, one.content[:big.size].ljust(big.size, b"\0"))
    assert not run("verify", root).found(DISPLACED)


def _instead(record: plain.Record, at: int, body: bytes) -> bytes:
    """A record like this one that says another place and has another body of the same length."""
    start, stop = record.fields()["body"]
    content = bytearray(record.content)
    content[28:36], content[start:stop] = at.to_bytes(8, "big"), body
    content[8:12] = plain.crc31(body).to_bytes(4, "big")
    return bytes(content)


def _claims(root: Path, count: int) -> tuple[plain.Record, list[bytes]]:
    """Destroy a record, and put `count` different ones that say its place and number into damage after it."""
    path, records = _two(root)
    victim, *others = records
    rivals = [_instead(victim, victim.phy_offset, random.Random(number).randbytes(len(victim.body)))
              for number in range(count)]
    write_at(path, victim.phy_offset, bytes(victim.size))
    room = sum(record.size for record in others[10:10 + 4 * count])
    assert room > sum(map(len, rivals))
    at = others[10].phy_offset
    write_at(path, at, b"".join(rivals).ljust(room, b"\0"))
    return victim, rivals


def test_one_claim_for_a_free_place_that_a_unit_bears_out_is_placed(tmp_path: Path) -> None:
    root = copy_store(unpacked(PLAIN), tmp_path / "store")
    victim, (claim,) = _claims(root, 1)
    assert run("verify", root).document["commitlog"]["displaced"] == 1
    run("recover", root, "--yes")
    assert plain.records_by_place(root)[victim.phy_offset].content == claim


def test_two_claims_with_equal_witnesses_leave_the_place_to_a_bridge(tmp_path: Path) -> None:
    root = copy_store(unpacked(PLAIN), tmp_path / "store")
    victim, rivals = _claims(root, 2)
    assert not run("verify", root).found(DISPLACED)
    run("recover", root, "--yes")
    assert plain.records_by_place(root)[victim.phy_offset].content not in rivals


def test_claim_that_a_unit_contradicts_is_not_placed(tmp_path: Path) -> None:
    root = copy_store(unpacked(PLAIN), tmp_path / "store")
    path, records = _two(root)
    victim, behind, *others = records
    wrong = others[0]._replace(content=others[0].content)
    claim = _instead(wrong, victim.phy_offset + 8, wrong.body)
    write_at(path, victim.phy_offset, bytes(victim.size + behind.size))
    write_at(path, others[10].phy_offset, claim.ljust(others[10].size + others[11].size, b"\0")[
        :others[10].size + others[11].size])
    assert not run("verify", root).found(DISPLACED)


@pytest.mark.parametrize("index", [True, False])
def test_index_is_a_witness_for_the_only_message_of_a_queue(index: bool, tmp_path: Path) -> None:
    """Its file alone is none, the queues are gone, and around its place all is damage."""
    root = copy_store(unpacked(PLAIN), tmp_path / "store")
    shutil.rmtree(root / "consumequeue")
    if not index:
        shutil.rmtree(root / "index")
    path, (first, *others) = _two(root)
    victim = next(record for record in others if record.properties.get("KEYS"))
    every = plain.records_by_place(root)
    alike = [record for record in every.values() if (record.topic, record.queue_id) == (victim.topic, victim.queue_id)]
    for record in (*alike, first, *others):
        base = max(base for base in plain.log_files(root) if base <= record.phy_offset)
        write_at(path.with_name(f"{base:020d}"), record.phy_offset - base, b"\xa5" * record.size)
    write_at(path, victim.phy_offset - int(path.name) + victim.size + 77, victim.content)
    assert bool(run("verify", root).found(DISPLACED)) is index


def test_record_in_the_body_of_a_damaged_one_needs_a_witness(tmp_path: Path) -> None:
    """A producer may send a record as a message: it must not become one because the log is damaged elsewhere."""
    root = copy_store(unpacked(PLAIN), tmp_path / "store")
    path, records = _two(root)
    victim, *others = records
    forged = _instead(others[0], victim.phy_offset, b"x" * len(others[0].body))
    holder = max(others[20:], key=lambda record: record.size - len(forged))
    write_at(path, victim.phy_offset, bytes(victim.size))
    write_at(path, holder.phy_offset + 100, forged[:holder.size - 110])
    found = run("verify", root)
    assert not found.found(DISPLACED)


def test_many_heads_of_records_that_are_none_cost_little(tmp_path: Path) -> None:
    root = copy_store(unpacked(PLAIN), tmp_path / "store")
    path, records = _two(root)
    start, stop = records[0].phy_offset, records[-1].phy_offset
    heads = b"".join(
        record.content[:28] + (start + 1000 + number).to_bytes(8, "big") + record.content[36:48]
        for number, record in enumerate(records * 60))
    write_at(path, start, heads[:stop - start])
    assert not run("verify", root).found(DISPLACED)


# --- Files of another name in the log's folders: what their records say counts, not their name.


@pytest.fixture
def with_copy(tmp_path: Path) -> Callable[[str, Path], tuple[Path, Path]]:
    """A store with noise in a log file, and beside that file one of another name, a copy of a sound file."""
    def made(name: str, source: Path) -> tuple[Path, Path]:
        root = copy_store(unpacked(MANY), tmp_path / "store")
        file = sorted((root / "commitlog").iterdir())[2]
        beside = file.with_name(name.format(file.name))
        shutil.copyfile(source / "commitlog" / file.name, beside)
        write_at(file, 20_000, b"\xa5" * 5000)
        return root, beside
    return made


@pytest.mark.parametrize(("has_queues", "name"), sampled([True, False], ["{}.bak", "old-{}"], quick=2))
def test_damaged_messages_come_back_from_a_file_of_another_name(
    with_copy: Callable[[str, Path], tuple[Path, Path]], name: str, *, has_queues: bool
) -> None:
    root, beside = with_copy(name, unpacked(MANY))
    if not has_queues:
        shutil.rmtree(root / "consumequeue")
    before, lost = tree_digest(root), len(whole(MANY, root).anywhere.keys() - whole(MANY, root).in_place)
    (told,) = run("verify", root).found("commitlog-odd-name")
    assert told["facts"]["copies"] == lost > 0
    assert f"still holds {lost} of the messages" in told["message"]
    done = run("recover", root, "--yes")
    assert (done.code, done.document["damaged_messages"]) == (exits.CORRECTED, 0)
    assert plain.log_files(root) == plain.log_files(unpacked(MANY))
    assert plain.delivered(root) == plain.delivered(unpacked(MANY))
    assert not beside.exists()
    assert not run("recover", root, "--yes").document["applied"]
    run("undo", root, "--yes")
    assert_same_tree(before, tree_digest(root))


def test_file_of_another_name_and_another_log_gives_nothing(
    with_copy: Callable[[str, Path], tuple[Path, Path]], tmp_path: Path
) -> None:
    other = copy_store(unpacked(MANY), tmp_path / "other")
    part_at(other, 0)
    root, _ = with_copy("{}.bak", other)
    shutil.rmtree(root / "consumequeue")
    records = plain.records_by_place(unpacked(MANY))
    done = run("recover", root, "--yes", "--max-loss", "all")
    assert done.code & exits.MESSAGES
    assert all(records[at].content == record.content for at, record in plain.records_by_place(root).items()
               if not record.stands_in)


def test_record_that_begins_in_the_properties_of_another_one_comes_back(tmp_path: Path) -> None:
    """The first record of the log stands in the middle of the properties of an intact one, where two chunks meet."""
    root = copy_store(unpacked(PLAIN), tmp_path / "store")
    damage("log-chunks-reordered", root, 55_308)
    assert_placed(PLAIN, root)


@pytest.mark.parametrize("field", [0, 8], ids=["offset", "size"])
@pytest.mark.parametrize("share", [0, 0.5])
def test_one_wrong_entry_does_not_keep_a_record_from_its_place_among_others(
    share: float, field: int, shifted: Callable[..., Path]
) -> None:
    """What follows it in the file, as in the log, entries name: a log that parted there would not go on alike."""
    root = shifted(by=-512)
    found = whole(MANY, root)
    displaced = sorted(found.anywhere.keys() - found.in_place)
    at = displaced[int(share * len(displaced))]
    named = at.to_bytes(8, "big") + len(found.anywhere[at]).to_bytes(4, "big")
    (path,) = (path for path in root.glob("consumequeue/*/*/*") if named in path.read_bytes())
    content = bytearray(path.read_bytes())
    content[content.index(named) + field + (7 if field == 0 else 3)] ^= 1
    path.write_bytes(content)
    assert_placed(MANY, root)


def test_chunks_are_reordered_in_a_file_of_several_only(tmp_path: Path) -> None:
    """Files of 64 KiB: some seeds choose chunks of that length."""
    refused = 0
    for seed in range(8):
        root = copy_store(unpacked(MANY), tmp_path / str(seed))
        before = plain.log_files(root)
        try:
            damage("log-chunks-reordered", root, seed)
        except NotApplicable:
            refused += 1
            continue
        assert plain.log_files(root) != before
    assert 0 < refused < 8
