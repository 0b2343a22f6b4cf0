"""A record that is older than what precedes it by its time alone: one bit, which no checksum covers, can cause that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.runner import mqtool
from tests.support import plain_reader as plain
from tests.support.sampling import few
from tests.support.stores import copy_store, flip, log_place, unpacked, write_at

STORE = "clean-5.3.3"


def struck(root: Path, bit: int) -> plain.Record:
    """One bit of a record's store time is 0, the records around it are zeros, and the entry before is wrong."""
    records = plain.records(root)
    at = next(at for at in range(len(records) // 4, len(records) - 40)
              if records[at - 1].has_unit and records[at].has_unit and records[at].store_time >> bit & 1
              and any(_key(one) == _key(records[at]) for one in records[at + 3 : at + 40]))
    victim = records[at]
    start, _ = victim.fields()["store_timestamp"]
    path, position = log_place(root, victim.phy_offset)
    flip(path, position + start + 7 - bit // 8, 1 << bit % 8)
    for other in (records[at - 1], records[at + 1]):
        write_at(*log_place(root, other.phy_offset), bytes(other.size))
    before = records[at - 1]
    folder = root / "consumequeue" / before.topic / str(before.queue_id)
    size = next(folder.iterdir()).stat().st_size
    unit = before.queue_offset * plain.UNIT.size
    flip(folder / f"{unit // size * size:020d}", unit % size + 11)
    return victim


def _key(record: plain.Record) -> tuple[str, int, bool]:
    return record.topic, record.queue_id, record.has_unit


@few("bit", [20, 28, 33, 40], quick=(0, 2))
def test_message_that_its_queue_names_outweighs_a_time_before_its_neighbours(bit: int, tmp_path: Path) -> None:
    root = copy_store(unpacked(STORE), tmp_path / "store")
    try:
        victim = struck(root, bit)
    except StopIteration:
        pytest.skip("no such record has this bit set")
    damaged = plain.log_files(root)
    mqtool("recover", root, "--yes", "--json")
    base = max(each for each in damaged if each <= victim.phy_offset)
    place = victim.topic, victim.queue_id, victim.queue_offset
    left = damaged[base][victim.phy_offset - base:][:victim.size]
    assert plain.delivered(root)[place] == left
    assert not mqtool("recover", root, "--yes", "--json").document["applied"]
