"""Why verify may say nothing of a damage: no reader uses the byte, or nothing in the store tells it from a sound one.

Every excuse is proved on the bytes at hand, by reading them before and after with the plain reader: nothing here asks
the code under test. Where a message, its place in a queue, or what a filter or a key finds has changed, there is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from tests.support import plain_reader as plain
from tests.support.plain_reader import Geometry, Record, Unit
from tests.torture.anatomy import LOG_FOLDERS, Anatomy, Place
from tests.torture.strikes import Strike

NO_READER = "no reader uses it"
NO_WITNESS = "no checksum and no second copy"
OLDER = "what a healthy broker leaves, too"

# Nothing derived from a record depends on these, and a record without a property CRC has no checksum over them.
_UNWITNESSED = {"flag", "born_timestamp", "born_ip", "born_port", "store_ip", "store_port", "reconsume_times",
                "prepared_transaction_offset"}
_DERIVED = {"TAGS", "KEYS", "UNIQ_KEY", "DELAY", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"}
_FREE = {
    "blank.padding": "after the header of a blank",
    "checkpoint.padding": "after the fields of the checkpoint",
    "checkpoint.master_flushed_offset": "asked for by brokers with a controller only",
    "checkpoint.confirm_phy_offset": "asked for by brokers with a controller only",
    "index-header.hash_slot_count": "a statistic",
    "index-unit.number-0": "number 0 means none",
    "ext-unit.bit_map": "a filter that consumers' brokers check again",
    "ext-unit.behind-the-end": "after the last ext unit",
    "other.lock": "a broker locks it and reads nothing of it",
    "other.rocksdbstore": "holds no entries here",
    "other.compaction": "holds no entries here",
}
#: Config texts that brokers read at a start; of others nothing can be said.
_JUDGED = {
    "topics.json", "consumerOffset.json", "lmqConsumerOffset.json", "delayOffset.json", "subscriptionGroup.json",
    "consumerFilter.json", "consumerOrderInfo.json", "messageRequestMode.json", "topicQueueMapping.json",
    "timermetrics", "transactionMetrics", "tieredStoreMetadata.json",
}
_LARGEST_HASH_BELOW = -(1 << 31)
"""A tags code below it is no hash: an address in consumequeue_ext."""


def excuse(anatomy: Anatomy, strike: Strike, root: Path, newest: int) -> str | None:
    """Why it is no miss that verify found nothing; None if it is one. The store must be struck as this is called.

    `newest` is the store timestamp (ms) of the newest record.
    """
    if strike.fate:
        return _of_file(anatomy, strike)
    now = (root / strike.file).read_bytes()
    reasons = {_of_place(anatomy, place, now, newest) for place in _hit(anatomy, strike, now)}
    return None if None in reasons else " + ".join(sorted(filter(None, reasons))) or "the bytes stayed the same"


def _hit(anatomy: Anatomy, strike: Strike, now: bytes) -> Iterator[Place]:
    """The places whose bytes the strike changed."""
    stop = strike.start + len(strike.content)
    old = (anatomy.root / strike.file).read_bytes()
    for place in anatomy.of_file(strike.file):
        first, last = max(place.start, strike.start), min(place.stop, stop)
        if first < last and now[first:last] != old[first:last]:
            yield place


def _of_place(anatomy: Anatomy, place: Place, now: bytes, newest: int) -> str | None:
    part, _, field = place.kind.partition(".")
    if place.kind in _FREE:
        return f"{NO_READER}: {_FREE[place.kind]}"
    if part == "record":
        return _of_record(place.owner, place, now)
    if part == "unit":
        return _of_unit(anatomy, place, field, now)
    if part in ("index-unit", "index-slot"):
        return _of_index(anatomy, place, now)
    if part == "index-header" and field.startswith("begin") and anatomy.min_offset:
        return f"{OLDER}: its first message has expired"
    if part == "checkpoint":
        return _of_checkpoint(anatomy, field, now, newest)
    if part in ("config", "config-backup"):
        return _of_config(place, now)
    if place.kind in ("other.timerlog", "other.timerwheel"):
        return f"{NO_WITNESS}: times and links of the timer"
    if place.kind == "ext-unit.bit_map_size" and int.from_bytes(now[place.start : place.stop], "big", signed=True) <= 0:
        return f"{NO_READER}: the size of no bit map"
    return None


# --- records ------------------------------------------------------------------------------------------------------


def _of_record(old: Record, place: Place, now: bytes) -> str | None:
    base = int(place.file.rsplit("/", 1)[1])
    new = plain.record_at(now, old.phy_offset - base, base)
    if new is None:
        return None
    before, after = old.raw(), new.raw()
    changed = {name for name in before if before[name] != after[name]}
    if changed == {"body_crc"} and not old.body:
        return f"{NO_READER}: the checksum of an empty body"
    if old.has_property_crc and changed != {"properties"}:
        return None
    left = changed - _UNWITNESSED - {"store_timestamp"}
    if _belies_its_body(new) or _cannot_be_served(new):
        return None
    # which of two hosts is the long one can be swapped: what is between them then moves, and nothing else
    if "sys_flag" in left and len({(each.sys_flag & 0x30).bit_count() for each in (old, new)}) == 1:
        left.remove("sys_flag")
    if "properties" in left and not _derived_changed(old, new):
        left.remove("properties")
    return None if left else f"{NO_WITNESS}: record " + ", ".join(sorted(changed))


def _derived_changed(old: Record, new: Record) -> bool:
    return any(
        read(old).get(name, "") != read(new).get(name, "")
        for read in (lambda record: record.properties, plain.old_properties) for name in _DERIVED
    )


def _belies_its_body(record: Record) -> bool:
    """Whether clients see by the first bytes of the body that the sysFlag names no or another compression."""
    kind, body = record.sys_flag & 0x700, record.body
    zlib = len(body) > 1 and body[0] & 0x8F == 8 and int.from_bytes(body[:2], "big") % 31 == 0
    like = {0, 0x300} if zlib else set()
    if len(body) > 3 and body[0] & 0xF0 == 0x50 and body[1:4] == b"\x2a\x4d\x18":
        like = {0x100, 0x200}
    elif body[:4] in (b"\x04\x22\x4d\x18", b"\x28\xb5\x2f\xfd"):
        like = {0x100 if body[0] == 4 else 0x200}
    if record.sys_flag & 1:
        return bool(body) and kind not in like
    return kind != 0 and bool(like)


def _cannot_be_served(record: Record) -> bool:
    """Whether a service of brokers that keeps a message for later lacks some, and not all, of what it needs."""
    needed = {"REAL_TOPIC": plain.TOPIC.pattern.decode(), "REAL_QID": "[0-9]{1,9}"}
    if record.topic == "rmq_sys_wheel_timer":
        needed["TIMER_OUT_MS"] = "[0-9]{1,18}"
    elif record.topic not in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"):
        return False
    wrong = [name for name, value in needed.items() if not re.fullmatch(value, record.properties.get(name, ""))]
    return not record.has_property_crc and 0 < len(wrong) < len(needed)


# --- queues and index ---------------------------------------------------------------------------------------------


def _of_unit(anatomy: Anatomy, place: Place, field: str, now: bytes) -> str | None:
    start = place.start // plain.UNIT.size * plain.UNIT.size
    cell = Unit(*plain.UNIT.unpack_from(now, start))
    if field == "next" and cell.size > 0 and place.owner == "expired" and 0 <= cell.phy_offset < anatomy.min_offset:
        return f"{NO_WITNESS}: one more unit after those of expired messages"
    if field == "next":
        ended = any(unit.size <= 0 for unit in _cells(now[:start]))
        return f"{NO_READER}: no size after the last unit" if ended or cell.size <= 0 else None
    if field == "behind-the-end":
        return f"{NO_READER}: after the first cell without a size"
    old: Unit = place.owner
    if old.phy_offset < anatomy.min_offset and 0 <= cell.phy_offset < anatomy.min_offset and cell.size > 0:
        return f"{NO_READER}: the unit of an expired message"
    if old.phy_offset < anatomy.min_offset and _nothing_left(anatomy, place, now):
        return f"{NO_WITNESS}: the last units of a queue whose messages have all expired"
    record = anatomy.records.get(old.phy_offset)
    if record is not None and old.tags_code < _LARGEST_HASH_BELOW:
        tags = plain.java_hash(record.properties.get("TAGS", ""))
        if cell == old._replace(tags_code=tags):
            return f"{OLDER}: the code of the tags itself, where no ext unit could be written"
    return None


def _cells(content: bytes) -> list[Unit]:
    whole = len(content) // plain.UNIT.size * plain.UNIT.size
    return [Unit(*each) for each in plain.UNIT.iter_unpack(content[:whole])]


def _nothing_left(anatomy: Anatomy, place: Place, now: bytes) -> bool:
    """Whether no unit that was there is left from this place on, up to the end of the file."""
    start = place.start // plain.UNIT.size * plain.UNIT.size
    before = (anatomy.root / place.file).read_bytes()
    pairs = zip(_cells(before[start:]), _cells(now[start:]), strict=True)
    return not any(old == new and old.size > 0 for old, new in pairs)


def _of_index(anatomy: Anatomy, place: Place, now: bytes) -> str | None:
    before = (anatomy.root / place.file).read_bytes()
    assert anatomy.geometry is not None
    same = _lookups(before, anatomy.geometry, anatomy.min_offset) == _lookups(now, anatomy.geometry, anatomy.min_offset)
    return f"{NO_READER}: every key finds the same live messages" if same else None


@lru_cache(maxsize=4)
def _lookups(content: bytes, geometry: Geometry, min_offset: int) -> list[list[tuple[int, int, int]]]:
    """For each slot what a query can find there: hash, phy offset and time of entries of live messages."""
    file = plain.index_file(content, geometry)
    return [[entry[:3] for entry in file.chain(slot) if entry.phy_offset >= min_offset]
            for slot in range(geometry.slots)]


# --- small and whole files ----------------------------------------------------------------------------------------


def _of_checkpoint(anatomy: Anatomy, field: str, now: bytes, newest: int) -> str | None:
    fields = plain.checkpoint(now)
    if field.endswith("timestamp") and 0 <= fields[field] <= newest:
        return f"{OLDER}: an older time makes a start read more"
    offset = fields["logics_physical_offset"]
    if field == "logics_physical_offset" and (offset in anatomy.records or 0 <= offset < anatomy.min_offset):
        return f"{OLDER}: an older offset makes a start read more"
    return None


def _of_config(place: Place, now: bytes) -> str | None:
    if not _is_judged(place.file):
        return f"{NO_WITNESS}: {place.file} is no text that is judged"
    readable = plain.config(now) is not None
    return f"{NO_WITNESS}: a value or a key of a config text that can still be read" if readable else None


def _of_file(anatomy: Anatomy, strike: Strike) -> str | None:
    part, content = strike.file.split("/")[0], (anatomy.root / strike.file).read_bytes()
    part, zeros = "commitlog" if part in LOG_FOLDERS else part, not any(content)
    if part == "commitlog" and strike.fate == "lost its last byte" and len(list((anatomy.root / part).iterdir())) == 1:
        return f"{NO_WITNESS}: the size of the only log file"
    if part == "commitlog" and zeros and strike.fate in ("is gone", "is zeros"):
        return f"{NO_READER}: a file that was allocated ahead"
    if part == "commitlog" and strike.fate == "is gone" and int(strike.file.split("/")[1]) == anatomy.min_offset:
        return f"{OLDER}: the first file goes when it expires"
    if part in ("lock", "rocksdbstore", "compaction"):
        return f"{NO_READER}: {_FREE['other.' + part]}"
    if part == "abort":
        return f"{OLDER}: a clean stop removes it"
    if part == "checkpoint" and strike.fate == "is longer":
        return f"{NO_READER}: after the fields of the checkpoint"
    if part == "checkpoint" and strike.fate == "is zeros" and (zeros or (anatomy.root / "rocksdbstore").is_dir()):
        return f"{OLDER}: 5.5 leaves zeros"
    if part == "config":
        backup, judged = strike.file.endswith(".bak"), _is_judged(strike.file)
        lonely = not (anatomy.root / f"{strike.file}.bak").exists() and not strike.file.endswith("/topics.json")
        if not judged or (strike.fate == "is gone" and (backup or lonely)):
            return f"{NO_WITNESS}: a broker that never wrote it leaves it out"
    if part == "index" and strike.fate == "is gone" and _index_time(anatomy) == 0:
        return f"{OLDER}: the only index file, and a checkpoint that knows of none"
    if part == "index" and strike.fate == "is cut in half" and not any(content[len(content) // 2 // 20 * 20 :]):
        return f"{NO_READER}: no unit was behind the cut"
    if part in ("timerlog", "timerwheel"):
        return f"{NO_WITNESS}: the timer of delivered messages"
    return _of_queue_file(anatomy, strike, content) if part == "consumequeue" else None


def _of_queue_file(anatomy: Anatomy, strike: Strike, content: bytes) -> str | None:
    if any(unit.size > 0 and unit.phy_offset >= anatomy.min_offset for unit in _cells(content)):
        return None
    siblings = sorted(path.name for path in (anatomy.root / strike.file).parent.iterdir())
    if strike.fate == "is gone" and siblings[0] in strike.file:
        return f"{OLDER}: the first file of a queue goes when it expires"
    if siblings[-1] in strike.file and strike.fate in ("is gone", "is zeros"):
        return f"{NO_WITNESS}: the last units of a queue whose messages have all expired"
    return None


def _index_time(anatomy: Anatomy) -> int:
    return plain.checkpoint((anatomy.root / "checkpoint").read_bytes())["index_msg_timestamp"]


def _is_judged(file: str) -> bool:
    return file.removeprefix("config/").removesuffix(".bak") in _JUDGED
