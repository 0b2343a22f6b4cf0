"""One record, unit, name or mark against all that speaks of the same bytes: the log is not rewritten to fit it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.damage import walk
from fixtures.damage.patch import flip_bit
from formats.consumequeue import CQ_UNIT
from formats.record import OFFSET_SYS_FLAG
from mqtool import exits
from tests.scenarios.conftest import Start
from tests.scenarios.drill import Drill, file_name, messages, queue_bytes
from tests.support import plain_reader as plain
from tests.support.sampling import sampled
from tests.support.stores import write_at
from tests.torture.hunt import early_end_mark, older_records_at_the_end

UNIT = CQ_UNIT.size
SECTOR = 512
SEEDS = (0, 1, 2)
WITHOUT_CRC = ("clean-plain-4.9.7", "clean-5.3.3", "clean-v2-5.5.0", "killed-5.5.0")
STORES = ("clean-plain-4.9.7", "clean-5.3.3", "killed-v2-ipv6-5.3.3", "clean-v2-5.5.0", "killed-multipath-5.3.3")


def log_bytes(root: Path) -> dict[str, bytes]:
    """The log, file by file."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.glob("commitlog*/0*"))}


def queues_of(store: Drill, least: int, most: int = 1 << 30) -> list[walk.Queue]:
    """Ordinary queues with so many units."""
    return [
        queue for queue in walk.queues(store.root)
        if least <= len([*walk.units(queue)]) <= most and not queue.topic.startswith(("%LMQ%", "SCHEDULE_TOPIC"))
    ]


def swapped(store: Drill, dice: random.Random) -> None:
    """Two neighbouring units of a queue change places."""
    units = [*walk.units(dice.choice(queues_of(store, 3)))]
    at = dice.choice([n for n in range(len(units) - 1) if units[n].file == units[n + 1].file])
    content = units[at].file.read()
    one, other = (content[unit.position : unit.position + UNIT] for unit in units[at : at + 2])
    write_at(units[at].file.path, units[at].position, other + one)


def moved_up(store: Drill, dice: random.Random) -> None:
    """The last unit of a queue stands where the one before it was."""
    units = [*walk.units(dice.choice(queues_of(store, 2)))]
    before, last = units[-2:]
    content = last.file.read()[last.position : last.position + UNIT]
    write_at(before.file.path, before.position, content)
    write_at(last.file.path, last.position, bytes(UNIT))


def misnamed(store: Drill, dice: random.Random) -> None:
    """The file of a queue with one message has another name."""
    (file, *_) = dice.choice(queues_of(store, 1, 1)).files
    file.path.rename(file.path.with_name(file_name(file.path.stat().st_size * dice.randint(1, 9))))


def sector(store: Drill, dice: random.Random) -> None:
    """A sector of a queue is written to the same place of another queue's file, too."""
    one, other = dice.sample(queues_of(store, 3), 2)
    write_at(other.files[0].path, 0, one.files[0].read()[:SECTOR])


DAMAGES: dict[str, Callable[[Drill, random.Random], None]] = {
    damage.__name__: damage for damage in (swapped, moved_up, misnamed, sector)
}


@pytest.mark.parametrize(("name", "damage", "seed"), sampled(STORES, DAMAGES, SEEDS, quick=12))
def test_units_are_repaired_from_the_log_and_no_record_is_rewritten(
    drill: Start, name: str, damage: str, seed: int
) -> None:
    store = drill(name)
    if damage == "misnamed" and not queues_of(store, 1, 1):
        pytest.skip("no queue with one message")
    before, log = queue_bytes(store.root), log_bytes(store.root)
    DAMAGES[damage](store, random.Random(seed))
    assert store.found("commitlog-contradicted-field") == []
    if queue_bytes(store.root) == before:
        return
    with store.recovered():
        assert log_bytes(store.root) == log
        assert queue_bytes(store.root) == before


@pytest.mark.parametrize(("name", "seed"), sampled(WITHOUT_CRC, SEEDS, quick=4))
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
    assert store.verify().code == exits.MESSAGES
    mended = store.run("recover", "--yes", "--mend-bits")
    assert (mended.code, store.verify().code) == (exits.CORRECTED, 0)
    (item,) = mended.document["bridged"]
    assert (item["field"], int(item["before"], 16) ^ int(item["after"], 16)) == ("sys_flag", 4)


# a file stands where most of its records say, and an early end mark hides nothing
@pytest.mark.parametrize(("recipe", "name", "seed"), sampled(
    ("log-first-offset-bit", "log-name-off", "log-early-end-mark"),
    ("clean-plain-4.9.7", "clean-5.3.3", "clean-manyfiles-5.3.3", "killed-manyfiles-5.5.0"), SEEDS, quick=9,
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
        path.write_bytes(content[:end] + b"\xaa" * 36 + content[end + 36:])
    store.struck()
    assert store.found("commitlog-old-end")
    delivered = plain.delivered(store.root)
    with store.recovered() as done:
        assert done["plan"]["loss"] == []
        assert plain.delivered(store.root) == delivered


def test_two_generations_of_old_records_after_a_break_are_cut_in_one_run(drill: Start) -> None:
    store = drill("killed-lmq-4.9.7")
    delivered = plain.delivered(store.root)
    older_records_at_the_end(store.root, random.Random(1), back=1000)
    older_records_at_the_end(store.root, random.Random(7), back=0)
    early_end_mark(store.root, random.Random(0))
    store.struck()
    with store.recovered():
        assert store.verify().code == 0
        assert plain.delivered(store.root).items() >= delivered.items()


@pytest.mark.parametrize(("name", "seed"), sampled(("clean-plain-4.9.7", "clean-5.3.3"), SEEDS, quick=3))
def test_old_records_in_line_with_the_end_displace_nothing(drill: Start, name: str, seed: int) -> None:
    store = drill(name)
    done = store.strike("log-old-lap-at-end", seed)
    log = log_bytes(store.root)
    with store.recovered():
        assert store.messages <= messages(store.root)
        assert log_bytes(store.root) == log
        assert store.verify().document["commitlog"]["superseded"] <= done.facts["records"]
