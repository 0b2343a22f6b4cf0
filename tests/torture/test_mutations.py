"""Every byte of a store changed in turn, and what such runs have found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from formats.consumequeue import CQ_UNIT
from formats.record import HEAD
from mqtool import exits
from tests.scenarios.drill import Drill, messages, position
from tests.support.counts import Count, Note
from tests.support.stores import write_at
from tests.support.trees import assert_same_tree, tree_digest
from tests.torture.hunt import STORES as HUNT_STORES, Tally as HuntTally, hunt
from tests.torture.mutation import mutated

# --- Trust in the verdict: one damage anywhere in a real store is found, or it is shown why nothing could tell.


STORES = (
    "clean-4.5.1", "clean-expired-4.5.1", "clean-expired-5.5.0", "clean-manyfiles-5.3.3", "clean-multipath-4.9.7",
    "clean-plain-4.9.7", "clean-propcrc-5.3.3", "clean-restarts-4.9.7", "clean-restarts-5.5.0", "clean-v2-5.5.0",
    "killed-5.5.0", "killed-compressed-5.3.3", "killed-expired-4.9.7", "killed-expired-5.3.3", "killed-ext-4.5.1",
    "killed-ext-5.5.0", "killed-lmq-4.9.7", "killed-manyfiles-5.5.0", "killed-multipath-5.3.3", "killed-plain-4.5.1",
    "killed-v2-ipv6-5.3.3",
)
SAMPLE = ("clean-plain-4.9.7", "killed-expired-5.3.3", "killed-ext-5.5.0")


@pytest.mark.parametrize(("name", "seed", "damages"), [
    ("clean-expired-5.5.0", 1, 80), pytest.param("clean-plain-4.9.7", 1, 80, marks=pytest.mark.long),
    *(pytest.param(name, 2, 120, marks=pytest.mark.deep) for name in SAMPLE),
    *(pytest.param(name, seed, 1200, marks=pytest.mark.long) for name in STORES for seed in (3, 4)),
])
def test_each_damage_anywhere_is_found(
    name: str, seed: int, damages: int, folder: Path, count: Count, note: Note
) -> None:
    tally = mutated(name, folder, seed, damages)
    print(*tally.lines(), sep="\n")
    count("damages found", tally.found.total())
    count("damages harmless or without a witness", tally.harmless.total())
    count("damages missed", len(tally.missed))
    for reason, number in tally.harmless.items():
        count(f"damages harmless or without a witness: {reason}", number)
    count("damages understated", len(tally.understated))
    note(f"seed of damages: {seed}")
    for each in tally.missed:
        note(f"MISSED {name} {seed}: {each}")
    for each in tally.understated:
        note(f"UNDERSTATED {name} {seed}: {each}")
    assert not tally.missed, "\n".join(tally.missed)
    assert not tally.understated, "\n".join(tally.understated)


# --- What the mutation test of verify found, each as the one damage that showed it.


QUEUE = "consumequeue/Orders/0/00000000000000000000"


@pytest.mark.parametrize("place", [1, -1])
def test_record_that_repeats_the_number_in_front_of_it_is_the_damaged_one(folder: Path, place: int) -> None:
    store = Drill.start("clean-plain-4.9.7", folder)
    queue = [hit for hit in store.records() if (hit.record.topic_name, hit.record.queue_id) == ("Orders", 0)]
    second = queue[place]
    at = second.position + 20
    assert second.file.read()[at : at + 8] == second.record.queue_offset.to_bytes(8, "big")
    write_at(second.file.path, at, (second.record.queue_offset - 1).to_bytes(8, "big"))
    store.struck()
    file, offset = store.place(second.record.phy_offset)
    found = store.finds("commitlog-contradicted-field", file, offset, exit_code=exits.MESSAGES)
    assert (found["facts"]["field"], found["facts"]["queue_offset"]) == ("queue_offset", second.record.queue_offset)
    with store.recovered(0, "--mend-bits"):
        assert {position(m) for m in messages(store.root)} == {position(m) for m in store.messages}


def test_queue_of_expired_messages_that_was_cut_off_keeps_its_end(folder: Path) -> None:
    store = Drill.start("killed-expired-5.3.3", folder)
    name = "consumequeue/Old/0/00000000000000002000"
    path = store.root / name
    sound = path.read_bytes()
    write_at(path, 200, bytes(20))
    store.struck()
    store.finds("consumequeue-cut-off", name, 200, exit_code=exits.DERIVED)
    before = tree_digest(store.root)
    done = store.run("recover", "--yes")
    assert done.code == exits.CORRECTED | store.asks, done.stderr
    after = path.read_bytes()
    assert (after[:200], after[220:]) == (sound[:200], sound[220:])
    assert CQ_UNIT.decode(after, 200).size == 0x7FFFFFFF, "a blank place, as brokers fill them"
    assert store.verify().code == store.asks
    assert store.run("undo", "--yes").code & exits.OPERATIONAL == 0
    assert_same_tree(before, tree_digest(store.root))


@pytest.mark.parametrize("name", ["clean-plain-4.9.7", "killed-expired-5.3.3"])
def test_last_message_that_became_zeros_is_lost_where_the_index_names_it(folder: Path, name: str) -> None:
    """The message before has the same store timestamp, and no other queue adjoins: only the index tells."""
    store = Drill.start(name, folder)
    last = store.records()[-1]
    assert last.record.store_timestamp == store.records()[-2].record.store_timestamp
    write_at(last.file.path, last.position, bytes(last.record.total_size))
    store.struck()
    said = store.verify().document
    assert said["exit_code"] & exits.MESSAGES, said["findings"]
    assert said["commitlog"]["damaged_messages"] == 1
    lost = store.run("recover", "--dry-run").document["plan"]["loss"]
    assert [(item["topic"], item["messages"]) for item in lost] == [(last.record.topic_name, 1)]
    with store.recovered():
        pass


def test_store_time_of_a_delayed_message_near_the_end_of_time_ends_no_command(folder: Path) -> None:
    """What its unit carries is that time and a delay: more than 64 bits."""
    store = Drill.start("clean-4.5.1", folder)
    delayed = [hit for hit in store.records() if hit.record.topic_name == "SCHEDULE_TOPIC_XXXX"]
    hit = delayed[len(delayed) // 2]
    write_at(hit.file.path, hit.position + HEAD.offset("store_timestamp"), (2**63 - 1).to_bytes(8, "big"))
    store.struck()
    store.finds("consumequeue-wrong-units", exit_code=exits.DERIVED)
    for version in ("4.5.1", "5.5.0"):
        assert store.run("predict", "--broker", version).code in (0, exits.DERIVED, exits.MESSAGES)
    with store.recovered():
        pass


# --- The random hunt: whatever happens to a store, nothing intact is lost or changed without a refusal.


CASES_A_STORE = 320
FIRST = int(os.environ.get("MQTOOL_HUNT_FROM", "0"))
"""The first seed of the long suite: another one hunts where nobody has been."""
BLOCK = 20
HUNTED = range(CASES_A_STORE, CASES_A_STORE + 2)


def holds(
    seeds: range, folder: Path, count: Count, note: Note, stores: tuple[str, ...] = HUNT_STORES, brokers: int = 0,
) -> None:
    tally = HuntTally()
    for outcome in hunt(stores, seeds, folder, brokers):
        tally.add(outcome)
    for end, number in tally.ends.items():
        count(f"hunt: {end}", number)
    count("hunt: starts of real brokers", tally.asked)
    count("hunt: ended badly", len(tally.bad))
    for each in (*tally.refused, *tally.bad):
        note(each)
    assert not tally.bad, "\n".join(tally.bad)


@pytest.mark.parametrize(("name", "seeds"), [
    *(pytest.param(name, HUNTED, id=f"{name}-{HUNTED.start}", marks=pytest.mark.deep) for name in HUNT_STORES[:5]),
    *(pytest.param(name, range(first, first + BLOCK), id=f"{name}-{first}", marks=pytest.mark.long)
      for name in HUNT_STORES for first in range(FIRST, FIRST + CASES_A_STORE, BLOCK)),
])
def test_random_damages_cost_no_intact_message(
    name: str, seeds: range, tmp_path: Path, count: Count, note: Note
) -> None:
    holds(seeds, tmp_path, count, note, (name,))


@pytest.mark.broker
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.deep if name in HUNT_STORES[::2] else ()) for name in HUNT_STORES
])
def test_real_brokers_deliver_what_random_damages_left(name: str, tmp_path: Path, count: Count, note: Note) -> None:
    holds(range(HUNTED.stop, HUNTED.stop + 1), tmp_path, count, note, (name,), brokers=1)
