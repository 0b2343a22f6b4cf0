"""T26 and T27: index files that lie or loop, and checkpoints that would make a start read too much or too little."""

from __future__ import annotations

from pathlib import Path

import pytest

from formats import checkpoint as checkpoints
from formats.index import INDEX_HEADER, IndexHeader, infer_geometry
from tests.scenarios.conftest import Start
from tests.scenarios.drill import Drill
from tests.support.sampling import sampled
from tests.support.trees import assert_unchanged

MANY_FILES = "clean-manyfiles-5.3.3"

Answers = dict[tuple[str, str], list[int]]


def answers(store: Drill) -> Answers:
    """What queries by key find, for keys from all over the log: phy offsets of the hits."""
    records = [hit.record for hit in store.records() if hit.record.keys]
    found = {}
    for record in records[:: max(1, len(records) // 4)]:
        asked = (record.topic_name, str(record.keys).split()[0])
        document = store.run("query", "--topic", asked[0], "--key", asked[1]).document
        assert document["complete"]
        found[asked] = [item["phy_offset"] for item in document["messages"]]
        assert record.phy_offset in found[asked]
    return found


CODES = {
    "index-count-too-large": "index-count-wrong",
    "index-count-too-small": "index-count-wrong",
    "index-torn": "index-count-wrong",
    "index-chain-cycle": "index-chain-loop",
    "index-slot-out-of-range": "index-slot-out-of-range",
    "index-slot-zeroed": "index-wrong-slot",
    "index-slot-count": "index-header-wrong",
    "index-times-swapped": "index-header-wrong",
    "index-unit-elsewhere": "index-wrong-units",
    "index-unit-hash": "index-wrong-units",
    "index-short": "index-file-length",
    "index-empty": "index-file-length",
}
IN_HEADER = {"index-count-wrong": INDEX_HEADER.offset("index_count"), "index-header-wrong": 0}


WITH_TAGS = ("index-count-too-small", "index-chain-cycle", "index-unit-hash")


@pytest.mark.parametrize(("name", "recipe"), [
    *((MANY_FILES, recipe) for recipe in CODES), *(("killed-5.5.0", recipe) for recipe in WITH_TAGS),
])
def test_t26_damaged_index_file_is_found_and_answers_again(drill: Start, name: str, recipe: str) -> None:
    store = drill(name)
    before = answers(store)
    done = store.strike(recipe)
    found = store.finds(CODES[recipe], done.changes[0].file, IN_HEADER.get(CODES[recipe], done.changes[0].offset),
                        exit_code=2)
    assert found["severity"] == "warning"
    with store.recovered():
        assert answers(store) == before


@pytest.mark.parametrize(("name", "recipe"), [
    (MANY_FILES, "index-last-missing"), ("killed-5.5.0", "index-last-missing"), ("clean-5.3.3", "index-middle-missing"),
    (MANY_FILES, "index-all-missing"), (MANY_FILES, "index-page-zeroed"), (MANY_FILES, "index-all-zero"),
])
def test_t26_index_files_that_are_gone_are_made_again(drill: Start, name: str, recipe: str) -> None:
    store = drill(name)
    before, units = answers(store), store.verify().document["index"]["expected"]
    store.strike(recipe)
    missing = store.found("index-missing-units")
    index = store.verify().document["index"]
    assert 0 < index["missing"] == sum(item["facts"]["count"] for item in missing) <= units
    # All index files gone: only the configuration says how large they were.
    options = ("--index-slots", 500, "--index-entries", 2000) if recipe == "index-all-missing" else ()
    with store.recovered(0, *options):
        assert answers(store) == before


def near_empty_files(root: Path, count: int) -> list[Path]:
    """Index files with a header and nothing else, before the sound ones, as a broker that fails to write makes."""
    content = min((root / "index").iterdir()).read_bytes()
    assert infer_geometry(content) is not None
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
        index = store.verify().document["index"]
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


@pytest.mark.parametrize(("recipe", "name"), sampled(CHECKPOINTS, (MANY_FILES, "clean-4.5.1"), quick=9))
def test_t27_bad_checkpoint_is_found_and_recomputed(drill: Start, recipe: str, name: str) -> None:
    store = drill(name)
    log = store.verify().document["commitlog"]
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
        assert store.verify().code == store.run("recover", "--yes").code == 0
