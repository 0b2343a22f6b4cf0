"""A last message whose number became 0 begins no new life of its queue, as long as a unit names it in its old place."""

from __future__ import annotations

import pytest

from fixtures.damage.patch import overwrite
from formats.consumequeue import CQ_UNIT
from formats.record.layout import OFFSET_QUEUE_OFFSET
from mqtool import exits
from tests.scenarios.conftest import Start
from tests.scenarios.drill import Drill, file_name, messages, queue_bytes


def number_last(store: Drill, topic: str, queue_id: int) -> int:
    """Give the last message of a queue the number 0; its own one."""
    hits = [hit for hit in store.records() if (hit.record.topic_name, hit.record.queue_id) == (topic, queue_id)]
    last = hits[-1]
    overwrite(store.root, last.file.path, last.position + OFFSET_QUEUE_OFFSET, bytes(8), "number 0")
    store.struck()
    return last.record.queue_offset


@pytest.mark.parametrize(("name", "topic"), [("clean-plain-4.9.7", "Orders"), ("clean-expired-5.5.0", "Orders")])
def test_last_message_with_the_number_0_is_put_back_and_none_before_it_is_given_up(
    drill: Start, name: str, topic: str
) -> None:
    store = drill(name)
    before, own = queue_bytes(store.root), number_last(store, topic, 0)
    found = store.finds("commitlog-contradicted-field", exit_code=exits.MESSAGES)
    assert (found["facts"]["field"], found["facts"]["queue_offset"]) == ("queue_offset", own)
    assert store.verify().document["commitlog"]["superseded"] == 0
    with store.recovered(0, "--mend-bits") as done:
        assert done["plan"]["loss"] == []
        assert messages(store.root) == store.messages
        assert queue_bytes(store.root) == before


def test_without_the_unit_nothing_tells_it_from_a_topic_made_anew(drill: Start) -> None:
    store = drill("clean-plain-4.9.7")
    own = number_last(store, "Orders", 0)
    folder = store.root / "consumequeue" / "Orders" / "0"
    size = (folder / file_name(0)).stat().st_size
    path = folder / file_name(own * CQ_UNIT.size // size * size)
    overwrite(store.root, path, own * CQ_UNIT.size % size, bytes(CQ_UNIT.size), "the unit gone")
    assert store.found("commitlog-contradicted-field") == []
    assert store.verify().document["commitlog"]["superseded"] == own
