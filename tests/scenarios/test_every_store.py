"""Every store, kind and recipe: the promises hold of all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures import shapes
from fixtures.damage import RECIPES, of_area
from fixtures.lab.packed import manifest
from formats.index import INDEX_HEADER
from mqtool import exits
from tests.cli.runner import Result, mqtool
from tests.scenarios.conftest import Start
from tests.scenarios.drill import (
    MANY_FILES,
    PLAIN,
    Broken,
    Drill,
    all_stores,
    bridged,
    counts,
    index_bytes,
    log_options,
    messages,
    position,
    queue_bytes,
)
from tests.support import plain_reader as plain
from tests.support.sampling import chosen, sampled
from tests.support.stores import KINDS, broker_conf, real_store, strike, unmount_log
from tests.support.trees import assert_same_tree, assert_unchanged, tree_digest

# --- Every packed store against the table of its broker, and every odd thing a new user could point the tool at.


KILLED = tuple(name for name in all_stores() if name.startswith("killed-"))
# What the broker's own figures do not say of a store that it was killed in.
BESIDE_ABORT = {"abort-present", "checkpoint-all-zero"}


@pytest.mark.parametrize("name", sampled(all_stores(), quick=8))
def test_counts_are_those_of_the_table_and_recover_takes_only_what_a_kill_left(drill: Start, name: str) -> None:
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
    if name not in KILLED:
        with assert_unchanged(store.root):
            done = store.run("recover", "--yes")
        assert (done.code, done.document["applied"], done.document["plan"]["steps"]) == (store.asks, False, [])
        assert done.document["journal"] is None
        return
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


def test_empty_stores(folder: Path, drill: Start) -> None:
    shapes.empty(folder / "s")
    for root in (folder / "s", drill("clean-empty-5.3.3").root):
        for command, *options in (["verify"], ["recover", "--yes"], ["rebuild", "--yes"], ["predict"], ["inspect"]):
            code, stderr = said(command, root, *options)
            assert code == 0, (command, stderr)


def test_a_folder_one_level_too_high_is_16_with_the_store_as_a_hint(folder: Path, drill: Start) -> None:
    up = folder / "up"
    up.mkdir()
    root = drill("clean-plain-4.9.7").root.rename(up / "store")
    for command in ("verify", "recover", "inspect", "predict", "rebuild"):
        result = mqtool(command, up, *(["--yes"] if command in ("recover", "rebuild") else []))
        assert result.code == exits.USAGE and str(root) in result.stderr, command


DIRECTORIES = ("checkpoint", "abort", "lock")
FILES = ("commitlog", "consumequeue", "index", "config", "consumequeue/TopicA", "consumequeue/TopicA/0")


@pytest.mark.parametrize("name", [*DIRECTORIES, *FILES])
def test_directory_where_a_file_should_be_or_the_other_way_round_is_8(drill: Start, name: str) -> None:
    root = drill("clean-4.5.1").root
    path = root / name
    if name in FILES:
        shutil.rmtree(path)
        path.write_text("?")
    else:
        path.unlink(missing_ok=True)
        path.mkdir()
    for command, *options in (["verify"], ["predict"], ["recover", "--yes"]):
        code, stderr = said(command, root, *options)
        assert code & exits.OPERATIONAL, (command, code, stderr)
        assert name in stderr and "Move it out of the store" in stderr


# --- A store of every kind, as its broker left it and with its log not mounted: what mqtool says of it and does to it.


#: What a kill leaves to correct. In the log nothing.
_AFTER_A_KILL = ("abort", "checkpoint", "consumequeue", "index", "config")
#: Kinds that keep in a part of their own what consumers get: no prediction can be made without it.
_ELSEWHERE = ("dledger", "mixed", "rocksdb", "batch", "compaction", "tiered", "services", "config2", "separate",
              "pop", "acl")

BOTH = "broker.conf", "nothing"


def ready(name: str, folder: Path, settings: str) -> tuple[Path, list[object]]:
    """A copy of the store, and the options that a user gives who has its settings, or has not."""
    root = real_store(name, folder)
    conf = broker_conf(name, root, folder / "broker.conf")
    return root, ["--broker-conf", conf] if settings == "broker.conf" else []


@pytest.mark.parametrize(("name", "settings"), sampled(KINDS, BOTH, quick=8))
def test_a_healthy_store_has_no_damaged_message_and_no_part_missing_and_recover_changes_nothing(
    name: str, settings: str, tmp_path: Path
) -> None:
    """Or it refuses. What a kill left in what derives from the log it may correct; whether rightly real brokers say."""
    root, options = ready(name, tmp_path, settings)
    before = tree_digest(root)
    with assert_unchanged(root):
        verified = mqtool("verify", root, *options, "--json")
        predicted = mqtool("predict", root, *options, "--json")
    found = [item for item in verified.document["findings"] if item["severity"] != "info"]
    assert not [item for item in found if item["severity"] == "error"]
    assert not {item["code"] for item in found} & {"part-missing", "part-damaged"}
    assert verified.code & ~(exits.DERIVED | exits.UNSUPPORTED) == 0
    # a prediction does not promise what an unread part decides
    assert not predicted.code & exits.MESSAGES and predicted.document["starts"] in (True, None)
    assert predicted.code & exits.UNSUPPORTED == verified.code & exits.UNSUPPORTED
    assert predicted.code & exits.UNSUPPORTED or manifest(name)["kind"] not in _ELSEWHERE
    assert len(set(predicted.document["unsupported"])) == len(predicted.document["unsupported"])
    if predicted.code & exits.UNSUPPORTED:
        said = mqtool("predict", root, *options).stdout.lower()
        assert "lose nothing" not in said and "loses nothing" not in said
    result = mqtool("recover", root, "--yes", *options, "--json")
    after = tree_digest(root)
    assert not result.code & exits.MESSAGES
    if manifest(name)["exit_state"] == "killed" and not result.code & exits.OPERATIONAL:
        before, after = ({path: node for path, node in tree.items() if path != "." and not
                          path.startswith(_AFTER_A_KILL)} for tree in (before, after))
        assert before == after
    else:
        assert_same_tree(before, after)


@pytest.mark.parametrize(("name", "settings"), sampled(KINDS, BOTH, quick=3))
def test_log_that_is_not_mounted_is_said_and_nothing_is_written(name: str, settings: str, tmp_path: Path) -> None:
    root, options = ready(name, tmp_path, settings)
    unmount_log(root)
    with assert_unchanged(root):
        assert mqtool("verify", root, *options).code & exits.MESSAGES
        assert mqtool("predict", root, *options).code & (exits.MESSAGES | exits.UNSUPPORTED)
        assert mqtool("recover", root, "--yes", *options).code & exits.OPERATIONAL


# --- Each kind of damage: found where it was done, and after recover nothing is lost but what it took.


LMQ = "killed-lmq-4.9.7"
#: Of the log, of queues and of the index: store, seed, code of the finding, recipes.
DAMAGES = [
    ("killed-plain-4.5.1", 0, "commitlog-damaged-range", ("torn-tail", "torn-tail-in-head")),
    ("killed-plain-4.5.1", 0, "commitlog-damaged-record", ("torn-tail-in-properties",)),
    (PLAIN, 0, "commitlog-damaged-record", ("properties-zeroed",)),
    (PLAIN, 0, "commitlog-damaged-range", ("size-zero", "size-negative", "size-huge", "size-one-less")),
    (MANY_FILES, 3, "commitlog-damaged-range", ("page-zeroed",)),
    (LMQ, 0, "commitlog-damaged-range", ("bit-in-size", "bit-in-properties-length")),
    (MANY_FILES, 0, "commitlog-damaged-end-mark", (
        "blank-zeroed", "blank-bad-magic", "blank-too-large", "blank-too-small")),
    (PLAIN, 0, "consumequeue-missing-units", ("queue-hole", "queue-behind", "queue-file-zeroed")),
    (LMQ, 0, "consumequeue-missing-units", ("queue-unit-zeroed",)),
    (PLAIN, 0, "consumequeue-wrong-units", (
        "queue-unit-duplicate", "queue-unit-elsewhere", "queue-unit-size", "queue-shifted")),
    (LMQ, 0, "consumequeue-wrong-units", ("queue-units-swapped", "queue-unit-inside-record", "queue-unit-tags")),
    (PLAIN, 0, "consumequeue-beyond-log", ("queue-ahead",)),
    (MANY_FILES, 1, "index-count-wrong", ("index-count-too-large", "index-count-too-small", "index-torn")),
    (MANY_FILES, 1, "index-chain-loop", ("index-chain-cycle",)),
    (MANY_FILES, 1, "index-slot-out-of-range", ("index-slot-out-of-range",)),
    (MANY_FILES, 1, "index-wrong-slot", ("index-slot-zeroed",)),
    (MANY_FILES, 1, "index-header-wrong", ("index-slot-count", "index-times-swapped")),
    (MANY_FILES, 1, "index-wrong-units", ("index-unit-elsewhere", "index-unit-hash")),
    ("killed-5.5.0", 1, "index-wrong-units", ("index-unit-hash",)),  # which has tags in its index
    (MANY_FILES, 1, "index-file-length", ("index-short", "index-empty")),
]
FIRST = {code: recipes[0] for _, _, code, recipes in reversed(DAMAGES)}
IN_HEADER = {"index-count-wrong": INDEX_HEADER.offset("index_count"), "index-header-wrong": 0}
COUNTED = {"consumequeue-missing-units": "missing", "consumequeue-wrong-units": "wrong",
           "consumequeue-beyond-log": "beyond_log"}


def broken_ranges(store: Drill) -> list[tuple[int, int]]:
    """Start and stop of each run of records that no reader accepts any more."""
    found: list[tuple[int, int]] = []
    for start in sorted(store.broken.lost):
        stop = start + len(store.contents[start])
        found = [*found[:-1], (found[-1][0], stop)] if found and found[-1][1] == start else [*found, (start, stop)]
    return found


@pytest.mark.parametrize(("name", "seed", "code", "recipe"), [
    pytest.param(name, seed, code, recipe, id=f"{name}-{recipe}",
                 marks=() if recipe == FIRST[code] else pytest.mark.long)
    for name, seed, code, recipes in DAMAGES for recipe in recipes
])
def test_each_damage_is_found_where_it_was_done_and_costs_what_it_took(
    drill: Start, name: str, seed: int, code: str, recipe: str
) -> None:
    store = drill(name)
    derived = queue_bytes(store.root), index_bytes(store.root)
    done = store.strike(recipe, seed)
    for start, stop in broken_ranges(store):
        facts = store.finds(code, *store.place(start), exit_code=exits.MESSAGES)["facts"]
        assert facts.get("stop", stop) == stop
    if not store.lost:
        (change, *_) = done.changes
        place = store.place(done.facts["phy_offset"]) if RECIPES[recipe].area == "log" else (
            change.file, IN_HEADER.get(code, change.offset or 0))
        facts = store.finds(code, *place, exit_code=exits.DERIVED)["facts"]
        if code in COUNTED:
            assert store.look().document["consumequeue"][COUNTED[code]] == facts["count"]
            for ours, theirs in (("topic", "topic"), ("queue", "queue_id"), ("first", "queue_offset")):
                assert facts[ours] == done.facts.get(theirs, facts[ours])
            assert facts["count"] == done.facts.get("missing", facts["count"])
    assert store.look().document["commitlog"]["damaged_messages"] == len(store.lost)
    with store.recovered() as made:
        restored = [item for item in made["bridged"] if item["kind"] == "restored"]
        given_up = store.messages - messages(store.root)
        assert given_up <= store.lost and len(given_up) == len(store.lost) - len(restored)
        loss = [row for row in made["plan"]["loss"] if row["cause"] != "beyond-log"]
        assert made["damaged_messages"] == sum(row["messages"] for row in loss) == len(given_up)
        assert {(row["topic"], row["queue"]) for row in loss} == {(m.topic, m.queue_id) for m in given_up}
        assert all(0 < row["begin"] <= row["end"] for row in loss)
        named = [(row["topic"], row["queue"], row["first_offset"]) for row in loss]
        assert (named if "torn" in recipe else bridged(made)) == sorted(map(position, given_up))
        assert given_up or (queue_bytes(store.root), index_bytes(store.root)) == derived


# --- The promise of recover for every way in which the fixtures can break a store: the same has to hold of all.


STORES = ("clean-plain-4.9.7", "clean-manyfiles-5.3.3", "killed-lmq-4.9.7", "clean-5.3.3", "killed-5.5.0")
WITH_CONFIG = ("clean-4.5.1", "clean-5.3.3", "killed-5.5.0")
CONFIG = of_area("config")
WITNESS = of_area("witness")  # see test_never_worse
SNAPSHOT = of_area("snapshot")  # what is missing shows only where two sources say so: see test_books
SAMPLE = [
    ("clean-manyfiles-5.3.3", "page-random"), ("clean-manyfiles-5.3.3", "log-misnamed"),
    ("killed-lmq-4.9.7", "bit-in-topic-legal"), ("killed-lmq-4.9.7", "lmq-queue-missing"),
    ("killed-lmq-4.9.7", "crash-after-truncation"), ("clean-plain-4.9.7", "crash-power-loss"),
    ("clean-plain-4.9.7", "queue-file-garbage"), ("clean-plain-4.9.7", "log-last-missing"),
    ("clean-plain-4.9.7", "log-all-missing"),
]
# Files that are gone from either end leave a sound log: at the front it begins late, at the back only queues remember.
NOT_DAMAGED = {"log-first-missing", "consumer-offset-below-min", "log-last-missing"}
DERIVED_ONLY = {"queue", "index", "checkpoint", "config", "abort"}


def found_as_it_should(store: Drill, recipe: str) -> Result:
    """What verify finds, held against what the recipe is known to have done."""
    result = store.verify()
    code = result.code
    if store.lost and recipe not in NOT_DAMAGED:
        assert code & exits.MESSAGES, "messages are lost"
        if recipe != "log-all-missing":
            assert result.document["commitlog"]["damaged_messages"] > 0
    if store.lost and recipe != "consumer-offset-below-min":
        assert code != exits.CLEAN
    if RECIPES[recipe].area in DERIVED_ONLY and recipe not in NOT_DAMAGED:
        assert code & exits.MESSAGES == 0, "no message is touched"
        assert result.document["commitlog"]["messages"] == len(store.intact)
    assert store.intact <= messages(store.root)
    return result


def left_over(store: Drill, recipe: str, found: Result, planned: Result) -> int:
    """What recover can do nothing about: offsets, and a topic under no checksum, which only --mend-bits writes."""
    if recipe == "bit-in-topic-legal" and found.found("commitlog-contradicted-field"):
        return exits.MESSAGES
    if found.found("commitlog-begin-missing"):
        return exits.MESSAGES  # the file must be found
    steps = (planned.document.get("plan") or {}).get("steps", ())
    if any(step["kind"] == "retire" and step["file"].endswith("Offset.json") for step in steps):
        return exits.DERIVED  # offsets are never invented
    if recipe.endswith("-offset-above-max"):
        return exits.DERIVED
    if recipe == "log-last-missing" and (store.root / "config" / "subscriptionGroup.json").exists():
        return exits.DERIVED  # groups have read messages that are gone
    return exits.CLEAN


@pytest.mark.parametrize(("name", "recipe"), [
    *chosen(SAMPLE, quick=6),
    *sampled(STORES, [name for name in RECIPES if name not in (*CONFIG, *WITNESS, *SNAPSHOT)], one_in=120),
    *sampled(WITH_CONFIG, CONFIG, one_in=60),
])
def test_whatever_is_broken_anywhere_no_intact_message_is_lost(drill: Start, name: str, recipe: str) -> None:
    store = drill(name)
    store.strike(recipe)
    if recipe == "log-misnamed":
        store.broken = Broken(frozenset(), frozenset())  # the records say themselves where they belong
    found = found_as_it_should(store, recipe)
    before, options = found.code, ()
    if found.found("commitlog-missing-file"):
        with assert_unchanged(store.root):
            assert store.run("recover", "--yes").code == exits.OPERATIONAL | before
        options = ("--max-loss", "all")
    planned = store.run("recover", "--dry-run", *options)
    left = left_over(store, recipe, found, planned)
    assert planned.code & ~exits.OPERATIONAL == before
    if planned.code & exits.OPERATIONAL:
        assert recipe == "log-all-missing"
        with assert_unchanged(store.root):
            assert store.run("recover", "--yes").code == exits.OPERATIONAL | before
    elif planned.document["plan"]["steps"]:
        assert before
        with store.recovered(left, *options) as done:
            assert done["plan"]["steps"] == planned.document["plan"]["steps"]
            assert done["damaged_messages"] == planned.document["damaged_messages"]
    else:
        assert before == left | store.asks, "a warning that recover does nothing about"
        with assert_unchanged(store.root):
            assert store.run("recover", "--yes").code == before


# --- An export holds exactly the intact records, whatever is broken: counted by a reader that shares no code with it.


EXPORTED = [
    *(("clean-manyfiles-5.3.3", recipe) for recipe in (
        "page-random", "log-middle-missing", "log-last-short", "crash-everything-derived", "pages-swapped")),
    ("clean-plain-4.9.7", "bit-in-size"), ("killed-lmq-4.9.7", "log-misnamed"),
    ("killed-5.5.0", "ghosts-behind-tail"), ("clean-5.3.3", "crash-after-truncation"),
]


def by_reader(root: Path) -> dict[int, plain.Record]:
    """Every intact record of a store that is no stand-in, by its own place, whatever its file is called."""
    found: dict[int, plain.Record] = {}
    for folder in plain.log_folders(root):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if not path.is_file() or not path.name.isdecimal():
                continue
            # a broker leaves eight bytes free at the end of a whole file, not before a place where it was cut
            content = path.read_bytes() + bytes(8)
            # the place that most records name: by the file's name, or by its first bytes
            places = {int(path.name), int.from_bytes(content[28:36], "big")}
            for record in max(([*plain.all_records(content, base)] for base in places), key=len):
                found.setdefault(record.phy_offset, record)
    return {at: record for at, record in found.items() if not record.stands_in and not ends_in_zeros(record)}


def ends_in_zeros(record: plain.Record) -> bool:
    """Whether a page was lost before it reached the disk, under properties that no checksum covers (docs/format.md)."""
    return bool(record.properties) and record.content.endswith(b"\0")


@pytest.mark.parametrize(("name", "recipe"), [*chosen(EXPORTED, quick=5), *sampled(all_stores(), RECIPES, one_in=700)])
def test_an_export_holds_exactly_the_intact_records(
    name: str, recipe: str, store: Callable[[str], Path], tmp_path: Path,
) -> None:
    root, out = store(name), tmp_path / "out.ndjson"
    before = by_reader(root)
    strike(recipe, root, 3)
    due = by_reader(root)
    # whole records that stand elsewhere come out, too, as they were stored; the reader looks only where they belong
    elsewhere = before if recipe == "pages-swapped" or RECIPES[recipe].area == "displaced" else {}
    with assert_unchanged(root):
        result = mqtool("export", root, *log_options(root), "-o", out, "--include", "stale,superseded,system", "--json")
    if not due and result.code in (8, 16):
        return  # nothing is left that looks like a store, or its log is missing and that is told
    assert result.code == 0, result.stdout[-2000:]
    lines = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert len(lines) == result.document["messages"]
    got = {line["phy_offset"]: line for line in lines}
    assert len(got) == len(lines)
    # the reader takes no text that is no UTF-8; brokers do, where no checksum speaks against it
    doubtful = {at for at in got.keys() - due.keys() if "\ufffd" in str(got[at]["properties"])}
    moved = {at: record for at, record in elsewhere.items() if at in got and at not in due}
    assert got.keys() - doubtful - moved.keys() == due.keys()
    for at, record in {**moved, **due}.items():
        line = got[at]
        assert (line["stored_topic"], line["stored_queue"], line["queue_offset"], line["store_time"], line["size"]) == (
            record.topic, record.queue_id, record.queue_offset, record.store_time, record.size)
