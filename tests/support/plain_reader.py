"""A reader of log, queues and index that shares no code with mqtool: the oracle of hunts, fuzz and mutation.

Written from the format reference to be read, not to be fast: whole files in memory, one record at a time.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

V1, V2, BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
HEAD = struct.Struct(">iIiiiqqi")
UNIT = struct.Struct(">qiq")
PROPERTY_CRC = b"__CRC32#\x01"
TOPIC = re.compile(rb"[%|a-zA-Z0-9_-]+")


class Record(NamedTuple):
    """One record of the log; `content` is all of its bytes."""

    phy_offset: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_time: int
    body: bytes
    properties: dict[str, str]
    content: bytes

    @property
    def size(self) -> int:
        """Length in bytes."""
        return len(self.content)

    @property
    def has_unit(self) -> bool:
        """Whether brokers give it a place in a queue: types none and commit; half messages of 4.3+ are type none."""
        return self.sys_flag & 0x0C in (0, 8)

    @property
    def stands_in(self) -> bool:
        """Whether mqtool wrote it in place of damage: filler or marker."""
        return self.topic == "MQTOOL_FILLER" or "MQTOOL_LOST" in self.properties


def crc31(content: bytes) -> int:
    """The checksum of bodies: CRC-32 without its sign bit."""
    return zlib.crc32(content) & 0x7FFFFFFF


def record_at(file: bytes, position: int, base: int) -> Record | None:
    """The intact record at `position` of a log file that starts at offset `base`; None if there is none."""
    if position + 91 > len(file):
        return None
    size, magic, body_crc, queue_id, _, queue_offset, phy_offset, sys_flag = HEAD.unpack_from(file, position)
    if magic not in (V1, V2) or not 91 <= size <= len(file) - position - 8 or phy_offset != base + position:
        return None
    content, at = file[position:position + size], 40
    born_time, = struct.unpack_from(">q", content, at)
    at += 8 + (16 if sys_flag & 0x10 else 4)
    born_port, store_time = struct.unpack_from(">iq", content, at)
    at += 12 + (16 if sys_flag & 0x20 else 4)
    store_port, _, _, body_length = struct.unpack_from(">iiqi", content, at)
    at += 20
    if body_length < 0 or at + body_length + 4 > size:
        return None
    body = content[at:at + body_length]
    at += body_length
    width = 2 if magic == V2 else 1
    topic_length = int.from_bytes(content[at:at + width], "big", signed=True)
    topic = content[at + width:at + width + max(0, topic_length)]
    at += width + max(0, topic_length)
    if topic_length < 1 or at + 2 > size or not TOPIC.fullmatch(topic):
        return None
    length = int.from_bytes(content[at:at + 2], "big", signed=True)
    text = content[at + 2:]
    if length < 0 or length != len(text) or (body and crc31(body) != body_crc):
        return None
    if queue_id < 0 or queue_offset < 0 or born_time <= 0 or store_time <= 0:
        return None
    if not (0 <= born_port <= 65535 and 0 <= store_port <= 65535):
        return None
    if text[-20:-11] == PROPERTY_CRC:
        digits = text[-11:-1]
        if digits != f"{crc31(content[:-20]):010d}"[::-1].encode():
            return None
    try:
        decoded = text.decode()
    except UnicodeDecodeError:
        return None
    pairs = (item.partition("\x01") for item in decoded.split("\x02"))
    properties = {name: value for name, _, value in pairs if name}
    return Record(phy_offset, topic.decode(), queue_id, queue_offset, sys_flag, store_time, body, properties, content)


def chain(file: bytes, base: int, position: int = 0) -> Iterator[Record]:
    """Intact records one after another, from `position` up to whatever is no record."""
    while (record := record_at(file, position, base)) is not None:
        yield record
        position += record.size


def all_records(file: bytes, base: int) -> Iterator[Record]:
    """Every intact record of a file, those after damage included: each chain, then the next place with a magic."""
    position = 0
    while True:
        for record in chain(file, base, position):
            yield record
            position = record.phy_offset - base + record.size
        hits = [file.find(magic.to_bytes(4, "big"), position + 5) for magic in (V1, V2)]
        position = min((hit - 4 for hit in hits if hit >= 0), default=-1)
        if position < 0:
            return


def numbered(folder: Path) -> dict[int, bytes]:
    """The files of a folder that are named after an offset, by that offset."""
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return {int(path.name): path.read_bytes() for path in found if path.name.isdecimal() and path.is_file()}


def log_folders(root: Path) -> list[Path]:
    """The folders of the log: one, or several of a multi-path store."""
    several = sorted(root.glob("commitlog-*"))
    return several or [root / "commitlog"]


def log_files(root: Path) -> dict[int, bytes]:
    """The log's files by the offset in their name."""
    return {base: file for folder in log_folders(root) for base, file in numbered(folder).items()}


class Unit(NamedTuple):
    """A place in a queue: which bytes of the log, and the tags code."""

    phy_offset: int
    size: int
    tags_code: int


def units(root: Path) -> dict[tuple[str, int, int], Unit]:
    """(topic, queue id, queue offset) -> unit, of every queue up to its first cell without a size."""
    found = {}
    for folder in sorted((root / "consumequeue").glob("*/*")):
        if not folder.name.isdecimal():
            continue
        for base, file in numbered(folder).items():
            for at in range(0, len(file) - UNIT.size + 1, UNIT.size):
                unit = Unit(*UNIT.unpack_from(file, at))
                if unit.size <= 0:
                    break
                found[folder.parent.name, int(folder.name), (base + at) // UNIT.size] = unit
    return found


def delivered(root: Path) -> dict[tuple[str, int, int], bytes]:
    """(topic, queue id, queue offset) -> the bytes of the intact record that a pull there reads."""
    log = log_files(root)
    bases = sorted(log)
    found = {}
    for place, unit in units(root).items():
        base = max((each for each in bases if each <= unit.phy_offset), default=None)
        if base is None:
            continue
        record = record_at(log[base], unit.phy_offset - base, base)
        if record is not None and record.size == unit.size:
            found[place] = record.content
    return found
