"""Units after the end of a queue that name no message of it: copied cells, noise, another queue's units."""

from __future__ import annotations

import random

import pytest

from fixtures.damage import walk
from formats.consumequeue import CQ_UNIT
from tests.scenarios.conftest import Start
from tests.scenarios.drill import file_name, queue_bytes

UNIT = CQ_UNIT.size


@pytest.mark.parametrize("kind", ["repeated", "of another queue", "into a record", "noise"])
def test_t22_units_behind_the_last_message_that_name_none_go(drill: Start, kind: str) -> None:
    store = drill("clean-plain-4.9.7")
    before = queue_bytes(store.root)
    queues = {(q.topic, q.queue_id): q for q in walk.queues(store.root)}
    units = list(walk.units(queues["Audit", 0]))
    other = walk.units(queues["Orders", 1])[3]
    last = units[-1]
    cell = {
        "repeated": CQ_UNIT.struct.pack(last.unit.phy_offset, last.unit.size, last.unit.tags_code),
        "of another queue": CQ_UNIT.struct.pack(other.unit.phy_offset, other.unit.size, other.unit.tags_code),
        "into a record": CQ_UNIT.struct.pack(last.unit.phy_offset + 5, 100, 0),
        "noise": CQ_UNIT.struct.pack(77, 99, random.Random(4).getrandbits(60)),
    }[kind]
    path = store.root / "consumequeue" / "Audit" / "0" / file_name(0)
    content = bytearray(path.read_bytes())
    content[len(units) * UNIT : (len(units) + 2) * UNIT] = cell * 2
    path.write_bytes(content)
    wrong = store.finds("consumequeue-wrong-units", exit_code=2)["facts"]
    assert (wrong["topic"], wrong["queue"], wrong["first"], wrong["count"]) == ("Audit", 0, len(units), 2)
    with store.recovered():
        assert queue_bytes(store.root) == before
