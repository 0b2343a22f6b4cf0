"""Bytes that mean harm: real files with flips, splices and lengths at their limits, names that lead elsewhere."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

from formats import basics, checkpoint, consumequeue, dledger, index, properties, record as commitlog, timer
from formats.config import json as fastjson, properties_text as javaproperties, tables as config_tables
from formats.record import message

Codec = Callable[[bytes], object]
LIMITS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def mutated(content: bytes, chance: random.Random) -> bytes:
    """The content with one to eight damages: bits, lengths at their limits, splices, cuts, repeats, noise."""
    data = bytearray(content)
    for _ in range(chance.randrange(1, 9)):
        if not data:
            return bytes(data)
        at = chance.randrange(len(data))
        kind = chance.randrange(7)
        if kind == 0:
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            size = chance.choice((1, 2, 4, 8))
            value = chance.choice(LIMITS) % (1 << 8 * size)
            data[at : at + size] = value.to_bytes(size, "big")[: max(0, len(data) - at)]
        elif kind == 2:
            other = chance.randrange(len(data))
            piece = bytes(data[other : other + chance.randrange(1, 200)])
            data[at : at + len(piece)] = piece[: len(data) - at]
        elif kind == 3:
            del data[at : at + chance.randrange(1, 50)]
        elif kind == 4:
            data[at:at] = data[at : at + chance.randrange(1, 50)]
        elif kind == 5:
            data[at : at + 16] = chance.randbytes(min(16, len(data) - at))
        else:
            del data[at:]
    return bytes(data)


def _tables(data: bytes) -> None:
    value = fastjson.salvage(data).value
    for read in (config_tables.read_consumer_offsets, config_tables.read_delay_offsets):
        read(value)


def _text(data: bytes) -> str:
    return data.decode("latin-1")


def _each(find: Callable[[bytes], Iterator[object]]) -> Codec:
    return lambda data: list(find(data))


CODECS: dict[str, Codec] = {
    "record": commitlog.decode,
    "record, strict": lambda data: commitlog.check_strict(data, 0, len(data) + 64, 0),
    "blank": commitlog.decode_blank,
    "unit": consumequeue.CQ_UNIT.decode,
    "ext units": _each(consumequeue.ext_units),
    "batch units": consumequeue.batch_mask,
    "index header": index.INDEX_HEADER.decode,
    "checkpoint": checkpoint.decode,
    "abort": checkpoint.process_id,
    "json": fastjson.loads,
    "json, salvaged": fastjson.salvage,
    "config tables": _tables,
    "timer unit": timer.decode,
    "dledger": lambda data: dledger.decode(data, 0, 0),
    "epoch": dledger.decode_epochs,
    "compaction": consumequeue.decode_positions,
    "properties": properties.parse,
    "properties, structure": properties.structure_problem,
    "java properties": javaproperties.loads,
    "zlib": lambda data: message.decompress(data, 0x1 | 0x300),
    "lz4": lambda data: message.decompress(data, 0x1 | 0x100),
    "zstd": lambda data: message.decompress(data, 0x1 | 0x200),
    "offset id": lambda data: message.parse_offset_id(_text(data)),
    "file name": lambda data: basics.offset_in_name(_text(data)),
}

BOMBS = (
    b"[" * 200_000, b'{"a":' * 100_000, b"1" * 100_000, b"1e" + b"9" * 100_000, b'"' + b"\\u0000" * 50_000,
    b'{"topicConfigTable":' + b"[" * 50_000, b'"' + b"\\" * 99_999, b"-" * 100_000, b"{" + b'"a":1,' * 50_000,
    b"9" * 400 + b"." + b"9" * 5000, b"\xef\xbb\xbf{}", b"\xff" * 1000, b'{"offsetTable":{"a@b":{' + b'"0":1,' * 9000,
)


def pieces(root: Path) -> list[bytes]:
    """Real content for every codec: heads of files, single records, config texts."""
    found = []
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.stat().st_size:
            with path.open("rb") as file:
                content = file.read(70_000)
            found += [content[:300], content[:5000], content]
    return found
