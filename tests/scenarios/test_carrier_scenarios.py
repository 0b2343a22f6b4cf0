"""Records that fill LMQ queues and say it in their properties, which no checksum covers."""

from __future__ import annotations

import pytest

from fixtures.damage.walk import Located
from mqtool import exits
from recover.derived.expected import lmq_targets
from tests.scenarios.conftest import Start
from tests.scenarios.drill import Drill, messages, queue_bytes

LMQ = "killed-lmq-4.9.7"
#: What is changed (bytes before the place, XOR) and the property that verify names.
BITS = {
    "a queue's name": (b"INNER_MULTI_DISPATCH\x01%LMQ%", 0x04, "INNER_MULTI_DISPATCH"),
    "the sign between two names": (b"%LMQ%one", 0x01, "INNER_MULTI_DISPATCH"),
    "the name of the property": (b"INNER_MULTI_DI", 0x20, "INNER_MULTI_DISPATCH"),
    "what ends the name": (b"INNER_MULTI_DISPATCH", 0x40, "INNER_MULTI_DISPATCH"),
    "an offset, now another message's": (b"INNER_MULTI_QUEUE_OFFSET\x01", 0x02, "INNER_MULTI_QUEUE_OFFSET"),
    "an offset, now no number": (b"INNER_MULTI_QUEUE_OFFSET\x01", 0x10, "INNER_MULTI_QUEUE_OFFSET"),
}


def carrier(store: Drill) -> Located:
    hits = [hit for hit in store.records() if len(lmq_targets(hit.record)) == 2]
    return hits[len(hits) // 2]


def change(store: Drill, hit: Located, behind: bytes, mask: int) -> None:
    """Change the byte after these bytes in the record's properties."""
    file, position = store.place(hit.record.phy_offset)
    path = store.root / file
    content = bytearray(path.read_bytes())
    at = content.index(behind, position, position + hit.record.total_size) + len(behind)
    content[at] ^= mask
    path.write_bytes(content)
    store.struck()


@pytest.mark.parametrize("what", BITS)
def test_carrier_is_put_back_by_the_units_that_name_it(drill: Start, what: str) -> None:
    store = drill(LMQ)
    before, hit = queue_bytes(store.root), carrier(store)
    behind, mask, name = BITS[what]
    change(store, hit, behind, mask)
    found = store.finds("commitlog-contradicted-field", *store.place(hit.record.phy_offset),
                        exit_code=exits.MESSAGES)
    assert found["facts"]["field"] == name
    with store.recovered(0, "--mend-bits") as done:
        assert [(piece["kind"], piece["field"]) for piece in done["bridged"]] == [("restored", name)]
        assert done["plan"]["loss"] == []
        assert messages(store.root) == store.messages
        assert queue_bytes(store.root) == before


def test_swapped_units_of_an_lmq_queue_move_no_message(drill: Start) -> None:
    store = drill(LMQ)
    before = queue_bytes(store.root)
    path = store.root / "consumequeue/%LMQ%two/0/00000000000000004000"
    content = bytearray(path.read_bytes())
    content[:20], content[160:180] = content[160:180], content[:20]  # 200 and 208: a bit apart in every record
    path.write_bytes(content)
    store.struck()
    assert store.found("commitlog-contradicted-field") == []
    with store.recovered():
        assert queue_bytes(store.root) == before


def test_two_changed_bytes_leave_the_carrier_as_it_is_and_the_finding_with_the_queue(drill: Start) -> None:
    store = drill(LMQ)
    hit = carrier(store)
    change(store, hit, b"INNER_MULTI_DISPATCH\x01%LMQ%", 0x04)
    change(store, hit, b"INNER_MULTI_QUEUE_OFFSET\x01", 0x02)
    assert store.found("commitlog-contradicted-field") == []
    assert {item["facts"]["topic"] for item in store.found("consumequeue-wrong-units")} == {"%LMQ%one"}
