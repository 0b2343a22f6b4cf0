"""What stands after a break is taken for an older life of the log only where more than one record before says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.damage.patch import overwrite
from formats.record import HEADS
from formats.sysflag import HOSTS_V6
from recover.store.store import Store
from tests.cli.runner import mqtool
from tests.support.commitlog import Placed, placed_records
from tests.support.sampling import sampled
from tests.support.stores import unpacked

STORES = ("clean-4.5.1", "clean-5.3.3", "killed-5.5.0", "killed-v2-ipv6-5.3.3")


def put(root: Path, offset: int, content: bytes) -> None:
    """Write at a physical offset of the log."""
    mapped_file = Store.open(root).commitlog.find(offset)
    assert mapped_file is not None
    overwrite(root, mapped_file.path, offset - mapped_file.file_from_offset, content, "a field")


def raised(placed: Placed, field: str, more: int) -> bytes:
    """The field's bytes with `more` added to its value."""
    layout = HEADS[placed.record.sys_flag & HOSTS_V6].field(field)
    return int(getattr(placed.record, field) + more).to_bytes(layout.size, "big")


@pytest.mark.parametrize(("name", "field", "more"), sampled(
    STORES, ("queue_offset", "store_timestamp"), (3, 50, 1 << 27, 1 << 40, 1 << 61), quick=10,
))
def test_a_wrong_number_or_time_right_before_damage_makes_no_stale_records(
    store: Callable[[str], Path], name: str, field: str, more: int
) -> None:
    root = store(name)
    placed = placed_records(name)
    before, damaged = placed[len(placed) // 4], placed[len(placed) // 4 + 1]
    at = HEADS[before.record.sys_flag & HOSTS_V6].offset(field)
    put(root, before.phy_offset + at, raised(before, field, more))
    put(root, damaged.phy_offset + 4, bytes(4))
    log = mqtool("verify", root, "--json").document["commitlog"]
    assert (log["ghosts"], len(log["damaged"])) == (0, 1)
    result = mqtool("recover", root, "--yes", "--mend-bits", "--json")
    assert (result.code, result.document["plan"]["loss"]) == (1, [])
    after = mqtool("verify", root, "--json")
    assert after.code == 0
    # the one whose magic was gone was put back, too
    assert after.document["commitlog"]["messages"] == log["messages"] + 1
    content = {file.name: file.read_bytes() for file in (root / "commitlog").iterdir()}
    for file in (unpacked(name) / "commitlog").iterdir():
        own = [p for p in placed if 0 <= p.phy_offset - int(file.name) < len(content[file.name])]
        for each in own:
            if each is not before:
                start = each.phy_offset - int(file.name)
                assert content[file.name][start : start + len(each.raw)] == each.raw
