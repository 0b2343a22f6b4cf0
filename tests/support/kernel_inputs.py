"""Arguments for kernels by name, from a seed: arrays that look like a log, its queues and its index, or nearly so."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from formats.native.rows import new_tally
from formats.record.rows import EXPECTED, RECORD

Inputs = Callable[[random.Random], list[Any]]

_BITS = (0, 0, 0, 1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_FLAGS = (0, 0, 0, 4, 8, 8, 12, 0x100)
_QUEUES = 5


def array(dice: random.Random, kind: Any, size: int, low: int, high: int) -> Any:
    """Numbers [low, high)."""
    return np.array([dice.randrange(low, high) for _ in range(size)], dtype=kind)


def rows_of(dice: random.Random, size: int | None = None) -> Any:
    """Rows of a log, mostly ascending in every queue; some name queues that are not there."""
    rows = np.zeros(dice.randrange(40) if size is None else size, dtype=RECORD)
    phy, stored, due = dice.randrange(1000), 1_600_000_000_000, [dice.randrange(20) for _ in range(_QUEUES)]
    for row in rows:
        queue = dice.randrange(_QUEUES)
        if not dice.randrange(9):
            due[queue] += dice.randrange(-2, 4)
        row["phy_offset"], row["queue_offset"], row["store_timestamp"] = phy, due[queue], stored
        row["tags_code"], row["size"] = dice.choice((0, 5, -7, 1 << 40)), dice.randrange(91, 200)
        row["queue"] = queue if dice.randrange(30) else dice.choice((-1, 7, 2**31 - 1, -(2**31)))
        row["sys_flag"], row["bits"] = dice.choice(_FLAGS), dice.choice(_BITS) | dice.choice(_BITS)
        row["hashes"] = dice.randrange(4)
        due[queue] += 1
        phy += int(row["size"])
        stored += dice.randrange(3000)
    return rows


def hashes_of(dice: random.Random, rows: Any) -> Any:
    """As many as the rows say."""
    return array(dice, np.int32, int(rows["hashes"].sum()), 0, 6)


def _numbers(dice: random.Random, low: int = 0, high: int = 25, size: int = _QUEUES) -> Any:
    return array(dice, np.int64, size, low, high)


def _chained(dice: random.Random, units: Any, slots: int) -> Any:
    heads = np.zeros(slots, dtype=np.int32)
    for number in range(1, len(units)):
        slot = max(int(units[number, 0]), 0) % slots
        units[number, 4] = heads[slot] if dice.randrange(9) else dice.randrange(-1, len(units) + 2)
        heads[slot] = number
    if not dice.randrange(3):
        heads[dice.randrange(slots)] = dice.randrange(-1, len(units) + 2)
    return heads


def _chains(dice: random.Random) -> list[Any]:
    units = array(dice, np.int32, 5 * dice.randrange(1, 30), -1, 8).reshape(-1, 5)
    slots = _chained(dice, units, dice.randrange(1, 7))
    return [units, len(units), slots, array(dice, np.uint8, len(units), 0, 16), np.zeros_like(slots),
            np.zeros(slots.size, np.uint8)]


def _put_keys(dice: random.Random) -> list[Any]:
    rows = rows_of(dice)
    hashes = hashes_of(dice, rows)
    room = dice.randrange(1, 60)
    state = np.zeros(9, np.int64)
    state[0], state[5] = 1, dice.choice((0, 1_599_999_990_000))
    take = array(dice, np.uint8, dice.choice((1, max(rows.size, 1))), 0, 3)
    return [np.zeros((room, 5), np.int32), 1, np.zeros(dice.randrange(1, 9), np.int32), rows, hashes,
            take, dice.randrange(1, room + 2), state]


def _sum_keys(dice: random.Random) -> list[Any]:
    rows = rows_of(dice)
    state = np.zeros(12, np.int64)
    state[0], state[5] = dice.randrange(5), dice.choice((0, 1_599_999_990_000))
    take = array(dice, np.uint8, dice.choice((1, max(rows.size, 1))), 0, 3)
    return [rows, hashes_of(dice, rows), take, dice.randrange(70), dice.choice((-1, 0, 77)),
            dice.randrange(-(1 << 63), 1 << 63), state]


def _wanted(dice: random.Random) -> list[Any]:
    rows = rows_of(dice)
    take = array(dice, np.uint8, dice.choice((1, max(rows.size, 1))), 0, 3)
    return [rows, take, np.zeros(dice.choice((0, 1, rows.size, rows.size + 2)), np.int64)]


def _follow(dice: random.Random) -> list[Any]:
    units = array(dice, np.int32, 5 * dice.randrange(12), -(1 << 31), 1 << 31).reshape(-1, 5)
    return [units, dice.randrange(1, 90), dice.randrange(1 << 63), np.zeros(dice.choice((0, 1, 7)), np.int32)]


def _group(dice: random.Random) -> list[Any]:
    stops = np.cumsum(_numbers(dice, 3, 15))
    return [rows_of(dice), array(dice, np.bool_, _QUEUES, 0, 2), np.concatenate(([0], stops[:-1])), stops,
            np.zeros(int(stops[-1]), EXPECTED)]


def _bits(dice: random.Random) -> list[Any]:
    length = dice.randrange(40)
    text = dice.randbytes(length + 1)
    changed = bytearray(text)
    changed[dice.randrange(length + 1)] ^= 1 << dice.randrange(8)
    change = (zlib.crc32(text) ^ zlib.crc32(changed)) & 0x7FFFFFFF
    return [length + 1, change, np.zeros(dice.randrange(3), np.int64)]


def _fill(dice: random.Random) -> list[Any]:
    names = array(dice, np.uint8, 60, 48, 123)
    table = np.array([(dice.randrange(40), dice.randrange(20), dice.randrange(-2, 9)) for _ in range(9)], np.int64)
    slots = np.full(dice.choice((8, 32)), -1, np.int32)
    return [slots, names, table, dice.randrange(3), dice.randrange(9), dice.randrange(-(1 << 63), 1 << 63)]


INPUTS: dict[str, Inputs] = {
    "note_last": lambda dice: [rows_of(dice), _numbers(dice, -1), _numbers(dice, -1)],
    "group_rows": _group,
    "tally_rows": lambda dice: [rows_of(dice), dice.randrange(1 << 63), new_tally(_QUEUES), _numbers(dice, size=7)],
    "unit_sum": lambda dice: [array(dice, np.uint8, dice.randrange(90), 0, 256), dice.randrange(1 << 40),
                              dice.randrange(1 << 63)],
    "check_chains": _chains,
    "put_keys": _put_keys, "sum_keys": _sum_keys, "count_wanted": _wanted, "follow_units": _follow,
    "bits_that_change": _bits, "fill_slots": _fill,
}
