"""A reader of log, queues and index that shares no code with mqtool: the oracle of hunts, fuzz and mutation.

Written from the format reference to be read, not to be fast: whole files in memory, one record at a time.
"""

from __future__ import annotations

import functools
import json
import re
import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

V1, V2, BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
HEAD = struct.Struct(">iIiiiqqi")
UNIT = struct.Struct(">qiq")
INDEX_HEAD = struct.Struct(">qqqqii")
INDEX_ENTRY = struct.Struct(">iqii")
PROPERTY_CRC = b"__CRC32#\x01"
TOPIC = re.compile(rb"[%|a-zA-Z0-9_-]+|(?:%RETRY%|%DLQ%|rmq_sys_)[!-~]+|[!-~]+_REPLY_TOPIC")
#: Bytes of a file whose records are kept: tests ask for those of one store again and again.
_KEPT = 4 << 20
CHECKPOINT = ("physic_msg_timestamp", "logics_msg_timestamp", "index_msg_timestamp", "master_flushed_offset",
              "confirm_phy_offset", "logics_physical_offset")
#: Fields of a record with their bytes; None where another field says how many.
FIELDS = (
    ("total_size", 4), ("magic", 4), ("body_crc", 4), ("queue_id", 4), ("flag", 4), ("queue_offset", 8),
    ("phy_offset", 8), ("sys_flag", 4), ("born_timestamp", 8), ("born_ip", None), ("born_port", 4),
    ("store_timestamp", 8), ("store_ip", None), ("store_port", 4), ("reconsume_times", 4),
    ("prepared_transaction_offset", 8), ("body_length", 4), ("body", None), ("topic_length", None), ("topic", None),
    ("properties_length", 2), ("properties", None),
)


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
    def has_property_crc(self) -> bool:
        """Whether the properties end with a checksum over all bytes before it."""
        return self.content[-20:-11] == PROPERTY_CRC

    def fields(self) -> dict[str, tuple[int, int]]:
        """Start and stop in `content` of each field, in order."""
        lengths = {"born_ip": 16 if self.sys_flag & 0x10 else 4, "store_ip": 16 if self.sys_flag & 0x20 else 4,
                   "body": len(self.body), "topic": len(self.topic),
                   "topic_length": 2 if self.content[4:8] == V2.to_bytes(4, "big") else 1}
        found, at = {}, 0
        for name, size in FIELDS:
            stop = at + (lengths.get(name, len(self.content) - at) if size is None else size)
            found[name] = at, stop
            at = stop
        return found

    def raw(self) -> dict[str, bytes]:
        """The bytes of each field."""
        return {name: self.content[start:stop] for name, (start, stop) in self.fields().items()}

    @property
    def stands_in(self) -> bool:
        """Whether mqtool wrote it in place of damage: filler (a small one has a part of its topic) or marker."""
        filler = not self.body and not self.properties and bool(self.topic) and "MQTOOL_FILLER".startswith(self.topic)
        return filler or self.topic == "MQTOOL_FILLER" or "MQTOOL_LOST" in self.properties


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
    if size < 91 + (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0):
        return None
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
    if queue_id < 0 or queue_offset < 0:
        return None
    if not (0 <= born_port <= 65535 and 0 <= store_port <= 65535):
        return None
    if text[-20:-11] == PROPERTY_CRC:
        digits = text[-11:-1]
        if digits != f"{crc31(content[:-20]):010d}"[::-1].encode():
            return None
    items = [item.partition(b"\x01") for item in text.split(b"\x02")]
    if text and (text.endswith(b"\0") or not any(name and mark for name, mark, _ in items)
                 or any(b"\0" in name for name, _, _ in items)):
        return None
    pairs = (item.partition("\x01") for item in text.decode("utf-8", "replace").split("\x02"))
    properties = {name: value for name, _, value in pairs if name}
    numbers = ("DELAY",) if topic == b"SCHEDULE_TOPIC_XXXX" else ()
    if "INNER_NUM" in properties and "INNER_BASE" in properties:
        numbers = (*numbers, "INNER_NUM", "INNER_BASE")
    if not all(re.fullmatch(r"[+-]?\d{1,19}", properties.get(name) or "0") for name in numbers):
        return None
    return Record(phy_offset, topic.decode(), queue_id, queue_offset, sys_flag, store_time, body, properties, content)


def chain(file: bytes, base: int, position: int = 0) -> Iterator[Record]:
    """Intact records one after another, from `position` up to whatever is no record."""
    return iter(_first_chain(file, base)) if not position and len(file) <= _KEPT else _chain(file, base, position)


def all_records(file: bytes, base: int) -> Iterator[Record]:
    """Every intact record of a file, those after damage included: each chain, then the next place with a magic."""
    return iter(_whole_file(file, base)) if len(file) <= _KEPT else _chains(file, base)


@functools.lru_cache(16)
def _first_chain(file: bytes, base: int) -> tuple[Record, ...]:
    return tuple(_chain(file, base, 0))


@functools.lru_cache(16)
def _whole_file(file: bytes, base: int) -> tuple[Record, ...]:
    return tuple(_chains(file, base))


def _chain(file: bytes, base: int, position: int) -> Iterator[Record]:
    while (record := record_at(file, position, base)) is not None:
        yield record
        position += record.size


def _chains(file: bytes, base: int) -> Iterator[Record]:
    position = 0
    while True:
        for record in _chain(file, base, position):
            yield record
            position = record.phy_offset - base + record.size
        hits = [file.find(magic.to_bytes(4, "big"), position + 5) for magic in (V1, V2)]
        position = min((hit - 4 for hit in hits if hit >= 0), default=-1)
        if position < 0:
            return


def old_properties(record: Record) -> dict[str, str]:
    """A record's properties as brokers up to 4.9.0 read them: an item with a second 0x01 is none."""
    text = record.raw()["properties"].decode("utf-8", "replace")
    parts = (item.rstrip("\x01").split("\x01") for item in text.split("\x02"))
    return {each[0]: each[1] for each in parts if len(each) == 2}


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


def records(root: Path) -> list[Record]:
    """Every record of a sound log, in order."""
    return [record for base, file in log_files(root).items() for record in chain(file, base)]


def records_by_place(root: Path) -> dict[int, Record]:
    """The same by their physical offset."""
    return {record.phy_offset: record for record in records(root)}


class Unit(NamedTuple):
    """A place in a queue: which bytes of the log, and the tags code."""

    phy_offset: int
    size: int
    tags_code: int


def has_blank(file: bytes, position: int) -> bool:
    """Whether the end mark of a log file stands there, which reaches up to the file's end."""
    size, magic = struct.unpack_from(">iI", file, position) if position + 8 <= len(file) else (0, 0)
    return magic == BLANK and size == len(file) - position


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


# --- index files --------------------------------------------------------------------------------------------------


class Geometry(NamedTuple):
    """Hash slots of an index file, and numbers of entries; number 0 is never used."""

    slots: int
    entries: int

    def slot_at(self, slot: int) -> int:
        """Where a slot lies in the file."""
        return INDEX_HEAD.size + 4 * slot

    def entry_at(self, number: int) -> int:
        """Where an entry lies in the file."""
        return INDEX_HEAD.size + 4 * self.slots + INDEX_ENTRY.size * number


class Entry(NamedTuple):
    """One key of one message: `before` is the number of the next older entry of its slot, 0 if there is none."""

    key_hash: int
    phy_offset: int
    seconds: int
    before: int


class IndexFile(NamedTuple):
    """An index file as a whole: what it covers, the newest number of each slot, entries by number from 1 on."""

    begin_time: int
    end_time: int
    begin_offset: int
    end_offset: int
    slots: tuple[int, ...]
    entries: tuple[Entry, ...]
    geometry: Geometry

    def chain(self, slot: int) -> Iterator[Entry]:
        """The entries of a slot as a query walks them, newest first; a time below 0 and a loop end the walk."""
        number = self.slots[slot]
        for _ in self.entries:
            if not 0 < number <= len(self.entries):
                return
            entry = self.entries[number - 1]
            yield entry
            if entry.seconds < 0:
                return
            number = entry.before

    def offsets(self, text: str) -> list[int]:
        """Where messages with the key `topic#key` start, newest first, those of equal hashes among them."""
        key = key_hash(text)
        return [entry.phy_offset for entry in self.chain(key % self.geometry.slots) if entry.key_hash == key]


def java_hash(text: str) -> int:
    """`String.hashCode`: a sum over UTF-16 units in 32 bits with a sign."""
    units, value = text.encode("utf-16-be", "surrogatepass"), 0
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at:at + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def key_hash(text: str) -> int:
    """The hash of an index entry: Java's `Math.abs`, and 0 where that is below 0."""
    value = abs(java_hash(text))
    return 0 if value == 1 << 31 else value


def index_keys(record: Record, tags: bool) -> list[str]:
    """What the index hashes of a record, in order: its unique key, each key, and since 5.4.0 (`tags`) its tags."""
    if record.sys_flag & 0x0C == 0x0C:
        return []
    topic, values = record.topic, record.properties
    words = [values.get("UNIQ_KEY", ""), *values.get("KEYS", "").split(" ")]
    return [f"{topic}#{word}" for word in words if word] + (
        [f"{topic}#T#{values['TAGS']}"] if tags and values.get("TAGS") else [])


def index_file(content: bytes, geometry: Geometry) -> IndexFile:
    """An index file read with a known geometry; ValueError if its length is another."""
    if len(content) != geometry.entry_at(geometry.entries):
        raise ValueError(f"{len(content)} bytes are not those of {geometry}")
    *covered, _, count = INDEX_HEAD.unpack_from(content)
    slots = struct.unpack_from(f">{geometry.slots}i", content, INDEX_HEAD.size)
    entries = tuple(
        Entry(*INDEX_ENTRY.unpack_from(content, geometry.entry_at(number)))
        for number in range(1, min(count, geometry.entries))
    )
    return IndexFile(*covered, slots, entries, geometry)


def geometry_of(content: bytes) -> Geometry | None:
    """The one split of a sound index file at which every entry hangs in the chain of its hash; None if none does."""
    room = len(content) - INDEX_HEAD.size
    for entries in range(room // INDEX_ENTRY.size, 1, -1):
        geometry = Geometry((room - entries * INDEX_ENTRY.size) // 4, entries)
        if geometry.slots and geometry.entry_at(entries) == len(content) and _hangs_together(content, geometry):
            return geometry
    return None


def _hangs_together(content: bytes, geometry: Geometry) -> bool:
    count = INDEX_HEAD.unpack_from(content)[5]
    if not 1 < count <= geometry.entries or any(content[geometry.entry_at(0):geometry.entry_at(1)]):
        return False
    newest: dict[int, int] = {}
    for number in range(1, count):
        entry = Entry(*INDEX_ENTRY.unpack_from(content, geometry.entry_at(number)))
        slot = entry.key_hash % geometry.slots
        if entry.key_hash < 0 or entry.before != newest.get(slot, 0):
            return False
        newest[slot] = number
    slots = struct.unpack_from(f">{geometry.slots}i", content, INDEX_HEAD.size)
    return {slot: number for slot, number in enumerate(slots) if number} == newest


# --- small files --------------------------------------------------------------------------------------------------


def checkpoint(content: bytes) -> dict[str, int]:
    """The fields of a checkpoint; what a short one lacks is 0."""
    return dict(zip(CHECKPOINT, struct.unpack(">6q", content[:48].ljust(48, b"\0")), strict=True))


def config(content: bytes) -> dict[str, object] | None:
    """The table of a config text in the brokers' dialect; None if it cannot be read to its end.

    Beyond JSON: keys without quotes, single quotes, comments, a comma before a closing bracket, a byte order mark.
    """
    tokens = [token for token in _tokens(content.decode("utf-8-sig", "replace")) if token[0] != "space"]
    tokens.append(("end", ""))
    proper = []
    for (kind, text), (_, after) in pairwise(tokens):
        if text == "," and after in ("}", "]"):
            continue
        if kind == "single":
            text = json.dumps(text[1:-1])
        proper.append(f'"{text}"' if kind in ("word", "number") and after == ":" else text)
    try:
        value = json.loads("".join(proper), strict=False)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


_TOKEN = re.compile(
    r"(?P<space>[ \t\n\r\f\x08]+|//[^\n]*|/\*.*?\*/)"
    r"|(?P<string>\"(?:[^\"\\]|\\.)*\")|(?P<single>'(?:[^'\\]|\\.)*')"
    r"|(?P<number>-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)|(?P<word>[A-Za-z_$][A-Za-z0-9_$]*)|(?P<other>.)",
    re.DOTALL,
)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    return ((str(match.lastgroup), match.group()) for match in _TOKEN.finditer(text))
