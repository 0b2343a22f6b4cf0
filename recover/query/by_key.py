"""Messages by key through the index files, as a broker looks (IndexService.queryOffset, IndexFile.selectPhyOffset)."""

from __future__ import annotations

from collections.abc import Iterator

from formats.errors import FormatError
from formats.index import INDEX_HEADER, INDEX_SLOT, INDEX_UNIT, IndexGeometry, IndexHeader
from formats.javahash import index_key_hash
from recover.errors import Refusal
from recover.files.reader import FileReader
from recover.files.store import Store
from recover.index.files import index_geometry, list_index_files
from recover.query.model import Answer, Found, note_damage, record_at
from recover.scan.judge import LogReader

FOREVER = (1 << 63) - 1


def has_key(record: object, key: str) -> bool:
    """Whether a record carries a key: as its unique key, or as a word of KEYS."""
    uniq_key, keys = getattr(record, "uniq_key", None), getattr(record, "keys", None)
    return key == uniq_key or (bool(keys) and key in str(keys).split(" "))


def query_key(
    store: Store, topics: list[str], key: str, *, begin: int = 0, end: int = FOREVER, limit: int = 0
) -> Answer:
    """Messages of any of `topics` with `key`, stored between `begin` and `end` (ms), newest first in the index.

    The index keeps hashes and seconds only, so each hit is read and compared. `Refusal` (8) when
    there is no index file to look in, or none whose layout can be told.
    """
    answer = Answer("index")
    listing = list_index_files(store.index_dir)
    if not listing.files:
        if not store.commitlog.files:
            return answer
        raise Refusal("there is no index file to look in", "Add --scan to look through the whole log instead.")
    geometry = index_geometry(store, listing)
    if geometry is None:
        raise Refusal("the layout of the index files cannot be told",
                      "Name --index-slots and --index-entries, or --scan.")
    wanted = {index_key_hash(f"{topic}#{key}"): topic for topic in topics}
    seen: set[int] = set()
    with LogReader(store.commitlog) as log:
        for file in reversed(listing.files):
            try:
                with FileReader(file.path) as reader:
                    if file.length < geometry.size:
                        answer.incomplete(f"index file {file.name} is too short to be searched")
                        continue
                    offsets = list(_offsets(reader, geometry, wanted, begin, end, answer, file.name))
                    older = INDEX_HEADER.decode(reader.read(0, INDEX_HEADER.size)).begin_timestamp < begin
            except (OSError, FormatError) as error:
                answer.incomplete(f"index file {file.name} could not be read: {error}")
                continue
            for phy_offset, topic in offsets:
                if phy_offset in seen:
                    continue
                seen.add(phy_offset)
                if limit and len(answer.messages) >= limit:
                    answer.more = True
                    return answer
                _take(store, log, phy_offset, topic, key, answer)
            if older:
                break
    return answer


def _take(store: Store, log: LogReader, phy_offset: int, topic: str, key: str, answer: Answer) -> None:
    try:
        record = record_at(store, log, phy_offset)
    except OSError as error:
        answer.incomplete(f"the log could not be read at {phy_offset}: {error.strerror}")
        return
    if record is None:
        if phy_offset >= store.commitlog.min_offset:
            note_damage(store, log, phy_offset, answer, named=True)
            answer.notes.append(f"the index points to {phy_offset}, where no intact record starts")
        return
    if record.topic_name == topic and has_key(record, key):
        answer.messages.append(Found(record))


def _matches(header: IndexHeader, begin: int, end: int) -> bool:
    """IndexFile.isTimeMatched."""
    first, last = header.begin_timestamp, header.end_timestamp
    return (begin < first and end > last) or first <= begin <= last or first <= end <= last


def _offsets(
    reader: FileReader, geometry: IndexGeometry, wanted: dict[int, str], begin: int, end: int, answer: Answer, name: str
) -> Iterator[tuple[int, str]]:
    """(phy offset, topic) of the units whose hash and time fit, newest first, each chain walked once."""
    header = INDEX_HEADER.decode(reader.read(0, INDEX_HEADER.size))
    if header.index_count <= 1 or not _matches(header, begin, end):
        return
    count = min(header.index_count, geometry.entries)
    for key_hash, topic in wanted.items():
        slot_at = geometry.slot_offset(geometry.slot_of(key_hash))
        number = INDEX_SLOT.decode(reader.read(slot_at, INDEX_SLOT.size)).number
        for _ in range(count):
            if not 0 < number <= count or number >= geometry.entries:
                break
            unit = INDEX_UNIT.decode(reader.read(geometry.unit_offset(number), INDEX_UNIT.size))
            if unit.time_diff < 0:
                break
            stored = header.begin_timestamp + unit.time_diff * 1000
            if unit.key_hash == key_hash and begin <= stored <= end:
                yield unit.phy_offset, topic
            if unit.previous == number or stored < begin:
                break
            number = unit.previous
        else:
            answer.incomplete(f"a chain of index file {name} does not end")
