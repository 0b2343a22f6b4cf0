"""What verify takes for intact released clients can unpack: with each bit turned over, and noise, but in the body."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from itertools import product
from typing import NamedTuple

import pytest

from fixtures.lab.client import taken
from formats import sysflag
from formats.basics import FormatError, crc31
from formats.record import BLANK_SIZE, check_strict
from formats.record.message import ZSTD, decompress, encode, make_record
from tests.support.brokers import VERSIONS, oracle
from tests.support.commitlog import Placed, is_intact, kinds, placed_records, uncovered
from tests.support.stores import STORES

pytestmark = pytest.mark.broker

_NOISE = 1000
_DEEP = {("clean-4.5.1", "4.9.7")}
_PAIRS = [
    pytest.param(store, version, marks=pytest.mark.deep if (store, version) in _DEEP else [])
    for store, version in product(STORES, VERSIONS) if not ("v2" in store and version.startswith("4."))
]


class Struck(NamedTuple):
    """A record that is not what it was, and that verify would take for intact."""

    old: Placed
    content: bytes
    what: tuple[int, ...]


def _is_legible(content: bytes, phy_offset: int) -> bool:
    if not is_intact(content, phy_offset):
        return False
    record = check_strict(content, 0, len(content) + BLANK_SIZE, phy_offset)
    return record.property_crc is not None or not sysflag.contradicted_by(record.sys_flag, record.body)


def _struck(it: Placed, rng: random.Random) -> Iterator[Struck]:
    places = uncovered(it.record)
    changes = [(at, bytes([it.raw[at] ^ 1 << bit])) for at in places for bit in range(8)]
    changes += [(at, rng.randbytes(rng.randint(1, 8))) for at in rng.choices(places, k=_NOISE)]
    for at, change in changes:
        content = (it.raw[:at] + change + it.raw[at + len(change) :])[: len(it.raw)]
        if content != it.raw and _is_legible(content, it.phy_offset):
            yield Struck(it, content, (at, *change))


def _may_differ(struck: Struck) -> bool:
    """Whether nothing tells any more that the body is compressed: clients are given it as it is."""
    record = check_strict(struck.content, 0, len(struck.content) + BLANK_SIZE, struck.old.phy_offset)
    was = bool(struck.old.record.sys_flag & sysflag.COMPRESSED)
    return was and not record.sys_flag & (sysflag.COMPRESSED | sysflag.COMPRESSION_TYPE)


@pytest.mark.parametrize(("store", "version"), _PAIRS)
def test_clients_unpack_whatever_verify_takes_for_intact(store: str, version: str) -> None:
    """And what stands after it in the same answer."""
    toolchain, rng = oracle(version).toolchain, random.Random(f"{store} {version}")
    some, behind = kinds(store), placed_records(store)[0].raw
    usual = dict(zip(some, taken(toolchain, [it.raw + behind for it in some]), strict=True))
    assert {one.messages for one in usual.values()} == {2}
    struck = [one for it in some for one in _struck(it, rng)]
    assert len(struck) > 1000
    found = taken(toolchain, [one.content + behind for one in struck])
    for one, seen in zip(struck, found, strict=True):
        told = (one.old.phy_offset, one.old.record.topic_name, one.what, seen)
        assert seen.messages == 2, told
        assert seen == usual[one.old] or _may_differ(one), told


def test_compressed_bodies_are_unpacked_as_by_clients() -> None:
    """Whole, cut, with something after them, and with a bit turned over."""
    rng = random.Random(5)
    body = b"a body that is worth it " * 50 + rng.randbytes(300)
    lz4, zstd = import_module("lz4.frame"), import_module(ZSTD)
    bodies: list[tuple[int, bytes]] = []
    for flag, content in ((0x001, zlib.compress(body)), (0x301, zlib.compress(body, 0)), (0x101, lz4.compress(body)),
                          (0x201, zstd.compress(body))):
        skipped = b"\x50\x2a\x4d\x18\3\0\0\0abc"
        tails = (b"", b"x", b"xxx", b"xxxx", b"xxxxx", bytes(20), content[:4], content[:-3], content, skipped)
        bodies += [(flag, content + tail) for tail in tails] + [(flag, skipped + content), (flag, skipped)]
        bodies += [(flag, content[:length]) for length in (*range(1, 12), *range(len(content) - 12, len(content)))]
        for at in rng.sample(range(len(content)), 100):
            bodies.append((flag, content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]))

    def record(content: bytes, flag: int = 0) -> bytes:
        return encode(make_record("T", content, store_timestamp=1_700_000_000_000, sys_flag=flag))

    found = taken(oracle("5.3.3").toolchain, [record(content, flag) + record(b"next") for flag, content in bodies])
    for (flag, content), seen in zip(bodies, found, strict=True):
        crc = None
        with suppress(FormatError):
            crc = crc31(decompress(content, flag))
        assert crc == (seen.body_crc if seen.messages == 2 else None), (flag, content)
