"""The books balance: what any byte of a store witnesses is delivered, stated lost, or proven gone."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from fixtures.damage import damage
from fixtures.synth import StoreWriter
from formats import checkpoint as checkpoints
from formats.index import INDEX_HEADER
from mqtool import exits
from recover.change.model import InPlace, Install, Plan, Step, WriteRange, ZeroRange
from recover.repair.planned import planned_store
from recover.repair.rounds import merged
from recover.store.source import open_file
from recover.store.store import Store
from tests.cli.runner import Result, mqtool
from tests.scenarios.conftest import Start
from tests.support import plain_reader as plain
from tests.support.sampling import few
from tests.support.stores import unpacked, write_at
from tests.support.trees import assert_unchanged
from tests.torture.hunt import bit_rot

# --- The end of the log is missing -------------------------------------------------------------------------------


def records(root: Path) -> set[int]:
    """Places of the records that a plain reader finds."""
    return {record.phy_offset for base, file in plain.log_files(root).items() for record in plain.chain(file, base)}


def is_start(step: dict[str, str]) -> bool:
    return "mqtool" not in step["command"]


@pytest.mark.parametrize("recipe", [
    "snapshot-log-older", "snapshot-log-and-queues-older", "snapshot-only-progress-later",
])
@few(("name", "seed"), [("clean-5.3.3", 2), ("clean-4.5.1", 4), ("killed-5.5.0", 3)], quick=(1,))
def test_a_log_older_than_the_rest_is_not_started_and_its_messages_are_stated(
    drill: Start, recipe: str, name: str, seed: int
) -> None:
    store = drill(name)
    damage(recipe, store.root, seed)
    lacks = len(records(unpacked(name)) - records(store.root))
    found = store.run("verify")
    assert found.code & exits.MESSAGES
    played = store.run("predict")
    assert played.code & exits.MESSAGES
    assert not any(map(is_start, played.document["next"]))
    done = store.run("recover", "--yes", "--max-loss", "all")
    assert done.code & exits.MESSAGES
    # progress names at most what consumers have read, the other parts name all; LMQ queues name messages of others
    stated = sum(entry["messages"] for entry in done.document["plan"]["loss"]
                 if not (entry["topic"] or "").startswith("%LMQ%"))
    assert 0 < stated <= lacks
    assert recipe == "snapshot-only-progress-later" or stated >= 0.9 * lacks


def with_progress(root: Path, **offsets: int) -> Path:
    """A store with ten messages of one queue, and committed offsets by group; `delay` is a delay level's."""
    writer = StoreWriter(root)
    for number in range(10):
        writer.put("T", b"%d" % number)
    writer.put("SCHEDULE_TOPIC_XXXX", b"later", {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "0"})
    writer.close()
    delay = offsets.pop("delay", 0)
    table = {f"T@{group}": {"0": offset} for group, offset in offsets.items()}
    (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    (root / "config" / "delayOffset.json").write_text(json.dumps({"offsetTable": {"1": delay}}))
    return root


def claimed(root: Path) -> tuple[Result, dict[str, list[int]] | None]:
    said = mqtool("verify", root, "--json")
    found = said.found("commitlog-end-missing")
    assert bool(said.code & exits.MESSAGES) == bool(found)
    assert bool(mqtool("predict", root, "--json").found("commitlog-end-missing")) == bool(found)
    return said, found[0]["facts"]["queues"] if found else None


@pytest.mark.parametrize(("offsets", "queues"), [
    ({"one": 14}, None),  # can be set by hand
    ({"one": 14, "other": 9}, None),
    ({"one": 14, "other": 12}, {"T/0": [10, 12]}),
    ({"one": 14, "delay": 3}, {"T/0": [10, 14]}),
    ({"delay": 3}, None),
])
def test_an_offset_above_its_queue_is_evidence_only_with_a_second_witness(
    offsets: dict[str, int], queues: dict[str, list[int]] | None, tmp_path: Path
) -> None:
    root = with_progress(tmp_path / "s", **offsets)
    said, found = claimed(root)
    assert found == queues
    assert said.code & exits.DERIVED, "above the end of its queue, as before"
    stated = mqtool("recover", root, "--clamp-offsets", "--yes", "--json")
    loss = stated.document["plan"]["loss"]
    assert [entry["messages"] for entry in loss] == [last - first for first, last in (queues or {}).values()]
    assert claimed(root)[1] is None, "the offsets are lowered"


def test_a_checkpoint_with_a_later_time_supports_one_offset(tmp_path: Path) -> None:
    root = with_progress(tmp_path / "s", one=14)
    path = root / "checkpoint"
    said = checkpoints.decode(path.read_bytes(), extend=True)
    later = said._replace(physic_msg_timestamp=said.physic_msg_timestamp + 60_000)
    path.write_bytes(checkpoints.CHECKPOINT.encode(later).ljust(path.stat().st_size, b"\0"))
    assert claimed(root)[1] == {"T/0": [10, 14]}


def test_groups_of_a_topic_that_was_created_again_are_no_evidence(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s")
    for _ in range(10):
        writer.put("T", b"older")
    writer.delete_topic("T")
    for _ in range(4):
        writer.put("T", b"newer")
    root = writer.close().root
    table = {f"T@{group}": {"0": 9} for group in ("one", "other")}
    (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    assert claimed(root)[1] is None


# --- The index names messages that nothing else does --------------------------------------------------------------


def lose_a_page(content: bytes) -> bytes:
    return content[4096:] + bytes(4096)


def put_in_a_page(content: bytes) -> bytes:
    return bytes(4096) + content[:-4096]


def keep_one_page(content: bytes) -> bytes:
    return content[:4096].ljust(len(content), b"\0")


@pytest.mark.parametrize(("name", "struck"), [
    ("clean-plain-4.9.7", put_in_a_page), ("clean-propcrc-5.3.3", lose_a_page), ("clean-plain-4.9.7", keep_one_page),
    ("clean-restarts-5.5.0", keep_one_page), ("killed-lmq-4.9.7", keep_one_page),
    pytest.param("clean-manyfiles-5.3.3", keep_one_page, marks=pytest.mark.deep),
])
def test_messages_that_only_entries_of_headless_index_files_name_are_stated(
    drill: Start, name: str, struck: Callable[[bytes], bytes]
) -> None:
    store = drill(name)
    had = records(store.root)
    for folder in plain.log_folders(store.root):
        for path in folder.iterdir():
            path.write_bytes(struck(path.read_bytes()))
    shutil.rmtree(store.root / "consumequeue")
    for path in (store.root / "index").iterdir():
        write_at(path, 0, bytes(INDEX_HEADER.size))
    assert store.run("verify").code & exits.MESSAGES
    done = store.run("recover", "--yes", "--max-loss", "all")
    left = {record.phy_offset for record in plain.records(store.root) if not record.stands_in}
    assert done.document["damaged_messages"] == len(had - left)


# --- A second recover has nothing to do --------------------------------------------------------------------------


@few(("name", "seed"), [("killed-lmq-4.9.7", 5), ("clean-v2-5.5.0", 0)], quick=1)
def test_a_second_recover_has_nothing_to_do_after_bit_rot(drill: Start, name: str, seed: int) -> None:
    store = drill(name)
    bit_rot(store.root, random.Random(f"{name}{seed}"), 8e-4)
    done = store.run("recover", "--yes", "--max-loss", "all")
    assert done.document["applied"]
    with assert_unchanged(store.root):
        assert not store.run("recover", "--yes", "--max-loss", "all").document.get("applied")


@given(st.data())
def test_the_steps_of_two_rounds_leave_what_one_after_the_other_leaves(data: st.DataObject) -> None:
    store = Store.open(unpacked("clean-plain-4.9.7"))
    path, name = store.commitlog.files[0].path, store.relative(store.commitlog.files[0].path)
    size = path.stat().st_size

    def steps(replaces: bool) -> list[Step]:
        found: list[Step] = []
        if replaces and data.draw(st.booleans()):
            return [Install(name, data.draw(st.binary(max_size=200)).ljust(size, b"\1"))]
        ends = sorted(data.draw(st.lists(st.integers(0, 2_000), min_size=2, max_size=8, unique=True)))
        for start, stop in zip(ends[::2], ends[1::2], strict=False):
            new = b"n" * (stop - start)
            found.append(ZeroRange(name, start, stop) if data.draw(st.booleans()) else WriteRange(name, start, new))
        return found

    first, then = steps(replaces=True), steps(replaces=True)
    wanted = path.read_bytes()
    for step in [*first, *then]:
        content = b"".join(step.new_bytes()) if isinstance(step, InPlace) else b"".join(step.content.chunks())
        wanted = wanted[:step.start] + content + wanted[step.stop:] if isinstance(step, InPlace) else content
    joined = merged(store, first, then)
    Plan("recover", joined)  # no step touches what another one wrote
    with planned_store(store, joined) as (_, planned), open_file(planned(path)) as reader:
        assert reader.read(0, reader.length) == wanted
