"""T26, T27 and timers: files beside the queues that lie, loop, or would make a start read too much or too little."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from formats import checkpoint as checkpoints
from formats.index import INDEX_HEADER, IndexHeader
from formats.timer import MAGIC_ROLL, TIMER_CHECK, TIMER_LOG_UNIT, TimerCheck, TimerLogUnit
from mqtool import exits
from tests.cli.runner import Result, mqtool
from tests.scenarios.conftest import Start
from tests.scenarios.drill import MANY_FILES, Drill, index_bytes
from tests.support.harm import Harm, changed, cut, gone, zeroed
from tests.support.sampling import few, sampled
from tests.support.stores import real_store
from tests.support.trees import assert_unchanged, tree_digest

# --- T26 and T27: index files that lie or loop, and checkpoints that would make a start read too much or too little.


Answers = dict[tuple[str, str], list[int]]


def answers(store: Drill) -> Answers:
    """What queries by key find, for a key of the first and one of the last messages: phy offsets of the hits."""
    records = [hit.record for hit in store.records() if hit.record.keys]
    found = {}
    for record in records[0], records[-1]:
        asked = (record.topic_name, str(record.keys).split()[0])
        document = store.run("query", "--topic", asked[0], "--key", asked[1]).document
        assert document["complete"]
        found[asked] = [item["phy_offset"] for item in document["messages"]]
        assert record.phy_offset in found[asked]
    return found


@few(("name", "recipe"), [
    ("killed-5.5.0", "index-last-missing"), ("killed-v2-ipv6-5.3.3", "index-middle-missing"),
    (MANY_FILES, "index-all-missing"), (MANY_FILES, "index-page-zeroed"), (MANY_FILES, "index-all-zero"),
], quick=(2, 3))
def test_t26_index_files_that_are_gone_are_made_again(drill: Start, name: str, recipe: str) -> None:
    """Under a name of their time: that of the moment at which a broker dispatches, not stores, the first message."""
    store = drill(name)
    before, units, files = answers(store), store.look().document["index"]["expected"], index_bytes(store.root)
    store.strike(recipe)
    missing = store.found("index-missing-units")
    index = store.look().document["index"]
    assert 0 < index["missing"] == sum(item["facts"]["count"] for item in missing) <= units
    # All index files gone: only the configuration says how large they were.
    options = ("--index-slots", 500, "--index-entries", 2000) if recipe == "index-all-missing" else ()
    with store.recovered(0, *options):
        assert answers(store) == before
        made = index_bytes(store.root)
        assert [*made.values()] == [*files.values()]
        assert all(abs(int(own) - int(first)) < 100 for own, first in zip(made, files, strict=True))


def near_empty_files(root: Path, count: int) -> list[Path]:
    """Index files with a header and nothing else, before the sound ones, as a broker that fails to write makes."""
    content = min((root / "index").iterdir()).read_bytes()
    header = INDEX_HEADER.decode(content)
    empty = INDEX_HEADER.encode(IndexHeader(header.begin_timestamp, header.begin_timestamp, 0, 0, 0, 1))
    made = []
    for number in range(count):
        path = root / "index" / f"2020010100{number:07d}"
        path.write_bytes(empty.ljust(len(content), b"\0"))
        made.append(path)
    return made


def test_t26_near_empty_files_by_the_hundred_are_named_as_safe_to_delete(drill: Start) -> None:
    store = drill(MANY_FILES)
    before = answers(store)
    made = near_empty_files(store.root, 120)
    found = store.finds("index-near-empty-files", f"index/{made[0].name}", None, exit_code=0)
    assert found["severity"] == "info"
    assert (found["facts"]["count"], found["facts"]["bytes"]) == (120, 120 * made[0].stat().st_size)
    with assert_unchanged(store.root):
        assert store.run("recover", "--yes").code == 0
        assert answers(store) == before


# --- T27 ------------------------------------------------------------------------------------------------


def test_t26_index_files_cut_so_short_that_no_size_can_be_told_give_way_to_new_ones(drill: Start) -> None:
    store = drill(MANY_FILES)
    cut = sorted((store.root / "index").iterdir())
    for path in cut:
        path.write_bytes(path.read_bytes()[:128])
    store.struck()
    assert store.finds("index-sizes-unknown", exit_code=2)
    with store.recovered():
        assert all(path.stat().st_size > 128 for path in (store.root / "index").iterdir())
        index = store.look().document["index"]
        assert (index["missing"], index["wrong"]) == (0, 0) and index["entries"] >= index["expected"] > 0


LATER = [("checkpoint-later-than-log", offset) for offset in (0, 8, 16)]
CHECKPOINTS: dict[str, list[tuple[str, int | None]]] = {
    "checkpoint-missing": [("checkpoint-missing", None)],
    "checkpoint-zero": [("checkpoint-all-zero", 0)],
    "checkpoint-short": [("checkpoint-short", 20)],
    "checkpoint-empty": [("checkpoint-all-zero", 0), ("checkpoint-short", 0)],
    "checkpoint-future": [*LATER],
    "checkpoint-garbage": [("checkpoint-offset-no-record", 40)],
    "checkpoint-offset-inside-record": [("checkpoint-offset-no-record", 40)],
    "checkpoint-offset-behind-log": [("checkpoint-offset-no-record", 40)],
}


@pytest.mark.parametrize(("recipe", "name"), sampled(CHECKPOINTS, (MANY_FILES, "clean-4.5.1"), quick=3))
def test_t27_bad_checkpoint_is_found_and_recomputed(drill: Start, recipe: str, name: str) -> None:
    store = drill(name)
    log = store.look().document["commitlog"]
    store.strike(recipe)
    for code, offset in CHECKPOINTS[recipe]:
        found = store.finds(code, "checkpoint", offset, exit_code=2)
        if code in ("checkpoint-missing", "checkpoint-all-zero"):
            assert found["facts"]["log_bytes"] == log["log_end"] - log["min_offset"]
            assert str(found["facts"]["log_bytes"]) in found["message"]
    newest = max(hit.record.store_timestamp for hit in store.records())
    starts = {hit.record.phy_offset for hit in store.records()}
    with store.recovered():
        made = checkpoints.decode((store.root / "checkpoint").read_bytes())
        assert 0 < made.physic_msg_timestamp <= newest
        assert 0 <= made.logics_msg_timestamp <= newest
        assert 0 <= made.index_msg_timestamp <= newest
        assert made.logics_physical_offset in starts | {0}
        assert (store.root / "checkpoint").stat().st_size == checkpoints.FILE_SIZE


def test_t27_old_checkpoint_costs_time_and_is_no_damage(drill: Start) -> None:
    store = drill(MANY_FILES)
    store.strike("checkpoint-old")
    with assert_unchanged(store.root):
        assert store.look().code == store.run("recover", "--yes").code == 0


# --- Pending timer messages that a broker would not deliver, or deliver twice: found, and never predicted away.
#
# With the timerlog gone real brokers delivered 0 of 40, with timercheck gone 80, with a timercheck a day ahead 0, with
# five rotten units 35; with a master offset of -1 80, of 20 60, with a time of -1 again the 40 that had come before.


TIMERS, PENDING = "kinds/clean-timers-5.5.0", 40
FIRST, CHECK = "timerlog/" + "0" * 20, "config/timercheck"
SIZE = TIMER_LOG_UNIT.size
UNUSED = 8


def verify(root: Path) -> Result:
    with assert_unchanged(root):
        return mqtool("verify", root, "--json")


def change(root: Path, unit: int, **fields: int) -> None:
    """Another unit in the place of the n-th; fields that are given are XORed."""
    with (root / FIRST).open("r+b") as file:
        file.seek(unit * SIZE)
        stored = TIMER_LOG_UNIT.decode(file.read(SIZE))
        file.seek(unit * SIZE)
        values = {name: getattr(stored, name) ^ value for name, value in fields.items()}
        file.write(TIMER_LOG_UNIT.encode(stored._replace(**values)))


def later(check: TimerCheck) -> TimerCheck:
    return check._replace(last_read_timestamp=check.last_read_timestamp + 24 * 3600 * 1000)


def with_check(change: Callable[[TimerCheck], TimerCheck]) -> Harm:
    """Other fields in timercheck."""
    return changed(CHECK, lambda content: TIMER_CHECK.encode(change(TIMER_CHECK.decode(content)))
                   + content[TIMER_CHECK.size:])


def five_units_rotten(root: Path) -> None:
    for unit in (3, 9, 17, 30, 39):
        change(root, unit, phy_offset=1 << 9)


@few(("harm", "code", "count"), [
    (gone("timerlog"), "timer-units-missing", PENDING), (zeroed(FIRST), "timer-units-missing", PENDING),
    (gone("timer[lw]*"), "timer-units-missing", PENDING), (gone(CHECK), "timer-check-wrong", None),
    (cut(CHECK, 0), "timer-check-wrong", None), (with_check(later), "timer-check-wrong", None),
    (with_check(lambda check: check._replace(last_read_timestamp=-1)), "timer-check-wrong", None),
    (with_check(lambda check: check._replace(master_timer_queue_offset=-1)), "timer-check-wrong", None),
    (with_check(lambda check: check._replace(master_timer_queue_offset=20)), "timer-check-wrong", None),
    (five_units_rotten, "timer-units-missing", 5),
], quick=(0, 3, 7, 9))
def test_what_is_wrong_with_a_timer_is_found_and_no_start_is_recommended(
    harm: Harm, code: str, count: int | None, folder: Path,
) -> None:
    root = real_store(TIMERS, folder)
    harm(root)
    verified = verify(root)
    assert code in verified.codes and all(name.startswith("timer-") for name in verified.notable - {"abort-present"})
    assert count is None or verified.found(code)[0]["facts"]["count"] == count
    assert verified.code == exits.DERIVED
    assert_no_start_is_recommended(root)


@few("ms", [5 * 60_000, 10 * 24 * 3_600_000], quick=1)
def test_a_timercheck_from_before_messages_that_the_log_has_as_delivered_is_found(ms: int, folder: Path) -> None:
    """5.3.3 delivered 40 messages a second time with a time before they were due, whether 10 days or 56 years."""
    root = real_store("clean-5.3.3", folder)
    assert verify(root).notable <= {"abort-present"}
    with_check(lambda check: check._replace(last_read_timestamp=check.last_read_timestamp - ms))(root)
    assert verify(root).notable - {"abort-present"} == {"timer-check-wrong"}
    assert_no_start_is_recommended(root)


def assert_no_start_is_recommended(root: Path) -> None:
    """Before recover has made the timer's files again; undo brings the wrong ones back."""
    said = mqtool("predict", root, "--broker", "5.5.0", "--json")
    assert said.code & exits.UNSUPPORTED and "timer" in str(said.document["unsupported"])
    assert "lose nothing" not in mqtool("predict", root, "--broker", "5.5.0", "--quiet").stdout
    before = tree_digest(root)
    assert mqtool("recover", root, "--yes", "--json").code & ~exits.DERIVED == exits.CORRECTED
    assert not {code for code in verify(root).codes if code.startswith("timer-")}
    assert mqtool("undo", root, "--yes").code == exits.CLEAN
    after = tree_digest(root)
    assert [path for path in before if path != "." and after[path] != before[path]] == []


@few("name", [name for name in TimerLogUnit._fields if name not in ("topic_hash", "reserved")], quick=(0, 3))
def test_every_bit_of_a_pending_unit_that_matters_is_missed(name: str, folder: Path) -> None:
    """Not those that only statistics read, or nobody, nor a roll: the message comes back to its instant."""
    root = real_store(TIMERS, folder)
    content = (root / FIRST).read_bytes()
    field = TIMER_LOG_UNIT.field(name)
    for bit in range(random.randrange(3), field.size * 8, 3):  # the others another time
        if name == "magic" and 1 << bit in (MAGIC_ROLL, UNUSED):
            continue
        unit = random.choice((0, 7, PENDING - 1))
        changed = bytearray(content)
        changed[unit * SIZE + field.offset + field.size - 1 - bit // 8] ^= 1 << bit % 8
        (root / FIRST).write_bytes(changed)
        found = mqtool("verify", root, "--json").document["findings"]
        assert any(item["code"].startswith("timer-") and item["severity"] != "info" for item in found), (unit, bit)
