"""What verify takes for intact is a message to every release: with bits turned over everywhere but in the body."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.synth import StoreWriter
from formats.errors import FormatError
from formats.record import BLANK_SIZE, Record, check_strict, encode, make_record
from recover.broker.record_check import CheckRules, check_bytes
from recover.broker.settings import BrokerSettings
from recover.broker.versions import BrokerVersion
from tests.cli.runner import mqtool
from tests.support.commitlog import kinds, uncovered
from tests.support.stores import STORES

VERSIONS = ("4.5.1", "4.9.7", "5.0.0", "5.1.4", "5.3.3", "5.5.0")
RULES = [
    CheckRules.of(BrokerSettings(BrokerVersion.parse(version)), recovering=recovering)
    for version in VERSIONS for recovering in (True, False)
]
BATCH = {"INNER_BASE": "1200", "INNER_NUM": "16", "KEYS": "a"}


def _struck(content: bytes, record: Record, bits: int) -> Iterator[bytes]:
    """With each of so many bits of each byte turned over, another one each time."""
    for number, place in enumerate(uncovered(record)):
        for bit in ((number * bits + k) % 8 for k in range(bits)):
            yield content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]


def _is_intact(content: bytes, phy_offset: int) -> bool:
    try:
        check_strict(content, 0, len(content) + BLANK_SIZE, phy_offset)
    except FormatError:
        return False
    return True


def _refused(content: bytes, record: Record, bits: int) -> list[tuple[bytes, str]]:
    """Of all that verify takes for intact, what a broker that takes the record as it was refuses, and why."""
    room = bytes(BLANK_SIZE)
    able = [rules for rules in RULES if check_bytes(content + room, rules).ok]
    assert able
    intact = [some for some in _struck(content, record, bits) if _is_intact(some, record.phy_offset)]
    assert intact
    judged = [(some, check_bytes(some + room, rules)) for some in intact for rules in able]
    return [(some, found.reason) for some, found in judged if not found.ok or found.size != len(content)]


@pytest.mark.parametrize("store", STORES)
def test_no_release_refuses_what_verify_takes_for_intact(store: str) -> None:
    for it in kinds(store):
        assert _refused(it.raw, it.record, 1) == []


def test_nor_a_record_with_a_batch_inside() -> None:
    record = make_record("T", b"body", BATCH, store_timestamp=1_700_000_000_000)
    assert _refused(encode(record), record, 8) == []


@pytest.mark.parametrize(("name", "value"), [
    ("INNER_NUM", "x"), ("INNER_NUM", "32768"), ("INNER_BASE", "1e9"), ("INNER_BASE", "9" * 19),
])
def test_a_batch_inside_without_a_number_is_damage_as_5_x_cuts_the_log_there(
    name: str, value: str, tmp_path: Path
) -> None:
    root = tmp_path / "s"
    writer = StoreWriter(root)
    for number in range(20):
        wrong = {name: value} if number == 7 else {}
        writer.put("T", b"body", {**BATCH, "INNER_BASE": str(number), **wrong})
    writer.close()
    found = mqtool("verify", root, "--json").document
    assert [item["facts"]["reason"] for item in found["findings"] if item["code"] == "commitlog-damaged-record"] == [
        "bad-properties"
    ]
    assert mqtool("predict", root, "--broker", "5.3.3").code == 4
    assert mqtool("recover", root, "--yes").code == 5
    assert mqtool("verify", root).code == mqtool("predict", root, "--broker", "5.3.3").code == 0
