"""The reference codec applied to a file (is there an intact record here, and if not, why?), and the weighing of
claims."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar

from formats.basics import CRC31_MASK, Buffer, FormatError
from formats.record import (
    BLANK,
    BLANK_SIZE,
    HEAD,
    HEAD_SIZE,
    HEADS,
    MAGIC_BLANK,
    MAGICS,
    MIN_RECORD_SIZE,
    PROPERTY_CRC_SIZE,
    Record,
    check_strict,
    decode,
)
from formats.record.grammar import check_ends, valid_topic
from formats.record.layout import IPV6_EXTRA, OFFSET_PHY_OFFSET, PROPERTIES_LENGTH_SIZE, TOPIC_LENGTH_V2_SIZE
from formats.record.message import PROPERTY_CRC_START
from formats.sysflag import HOSTS_V6
from recover.store.columns import Rows
from recover.store.mapped_files import MappedFileQueue
from recover.store.memo import RangeSums
from recover.store.reader import FileReader

LARGEST = 64 << 20
"""Size limit (bytes) of a record that is read whole to explain it."""


class LogReader:
    """Bytes and records of a commitlog by physical offset. Opens each file once; use in a with block."""

    def __init__(self, queue: MappedFileQueue) -> None:
        self._queue = queue
        self._readers: dict[int, FileReader] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, *_: object) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def read(self, phy_offset: int, length: int) -> bytes:
        """Return up to `length` bytes at `phy_offset`, none past the end of its file; empty where no file is."""
        mapped_file = self._queue.find(phy_offset)
        if mapped_file is None:
            return b""
        with self._lock:
            reader = self._readers.get(mapped_file.file_from_offset)
            if reader is None:
                reader = self._readers[mapped_file.file_from_offset] = mapped_file.open()
        return reader.read(phy_offset - mapped_file.file_from_offset, length)

    def record(self, phy_offset: int, size: int) -> Record:
        """Return the record at `phy_offset`, of a size known from a scan. `FormatError` if it is no longer there."""
        content = self.read(phy_offset, size)
        if len(content) < size:
            raise FormatError("short", 0, "the log ends before the record does", needed=size, available=len(content))
        return decode(content, check_crc=False)

    def find(self, phy_offset: int, size: int | None = None) -> Record | None:
        """Return the record of this size (bytes; None: the stored one) at `phy_offset`; None if it cannot be read or is
        larger than 64 MiB."""
        try:
            size = int.from_bytes(self.read(phy_offset, BLANK_SIZE)[:4], "big") if size is None else size
            return self.record(phy_offset, size) if size <= LARGEST else None
        except (FormatError, OSError):
            return None


_COMPARED = 100
"""Records that are compared to learn whether two logs are the same."""


def is_same_log(one: MappedFileQueue, other: MappedFileQueue, starts: Rows, sizes: Rows) -> bool:
    """Whether one of these records of the `other` log (offsets, bytes) stands in the first one, byte for byte. Some of
    them are compared; then both are one log, up to there at least."""
    step = max(1, starts.size // _COMPARED)
    with LogReader(one) as ours, LogReader(other) as theirs, suppress(OSError):
        for start, size in zip(starts[::step].tolist(), sizes[::step].tolist(), strict=True):
            if ours.read(start, size) == theirs.read(start, size):
                return True
    return False


def without_own_offset(content: bytes) -> bytes:
    """Return a record without its own offset and the property CRC that covers it: the same bytes at any place of the
    log."""
    covered = len(content) - PROPERTY_CRC_SIZE
    end = covered if content.startswith(PROPERTY_CRC_START, max(0, covered)) else len(content)
    return content[:OFFSET_PHY_OFFSET] + content[OFFSET_PHY_OFFSET + 8 : end]


ReadAt = Callable[[int, int], Buffer]
"""(position in the file, bytes wanted) -> that many bytes, fewer at the end of the file."""


_LARGE = 4096
_LONGEST_END = TOPIC_LENGTH_V2_SIZE + PROPERTIES_LENGTH_SIZE + 2 * 0x7FFF


def is_intact(read: ReadAt, position: int, base: int, file_end: int, sums: RangeSums | None = None) -> bool:
    """Whether `judge` accepts the record at `position`."""
    try:
        judge(read, position, base, file_end, sums)
    except FormatError:
        return False
    return True


def judge(read: ReadAt, position: int, base: int, file_end: int, sums: RangeSums | None = None) -> Record:
    """Return the intact record at `position` of the file that begins at physical offset `base`; else `FormatError`.

    Bytes after the head are read only if the head states its own place, so that a damaged size alone does not cause a
    read of a gigabyte. With the `sums` of the file, a long body is read only if it is intact, so many heads over the
    same bytes do not cause that either.
    """
    head = read(position, HEAD_SIZE)
    offset = base + position
    room = file_end - offset
    if len(head) < HEAD_SIZE:
        raise FormatError("short", 0, "no room for a record", available=len(head), needed=MIN_RECORD_SIZE)
    fields = HEAD.decode(head)
    size, is_here = fields.total_size, fields.magic in MAGICS and fields.phy_offset == offset
    if is_here and not MIN_RECORD_SIZE <= size <= room - BLANK_SIZE:
        raise FormatError("bad-size", 0, f"size {size}, but {room} bytes left in the file", size=size, room=room)
    if is_here and sums is not None and size > _LARGE:
        if sums.length - position < size:
            raise FormatError(
                "short", 0, f"a record of {size} bytes, {sums.length - position} available",
                needed=size, available=sums.length - position,
            )
        ends, left_out = _ends(sums, position, size)
        check_ends(ends, size, left_out, lambda start, stop: sums.crc(position + start, position + stop) & CRC31_MASK)
    # without room for a blank after it the codec refuses even a whole record, hence 8 bytes more
    content = read(position, size + BLANK_SIZE) if is_here else head
    return check_strict(content, 0, room, offset)


def _ends(sums: RangeSums, position: int, size: int) -> tuple[bytes, int]:
    """Return the record of `size` bytes at `position` without its body, and the number of body bytes left out.

    What follows the body is cut off past the largest possible length.
    """
    head = sums.read(position, HEAD_SIZE + 2 * IPV6_EXTRA)
    layout = HEADS[HEAD.decode(head).sys_flag & HOSTS_V6]
    left_out = min(max(0, layout.decode(head).body_length), max(0, size - layout.size))
    behind = position + layout.size + left_out
    return head[: layout.size] + sums.read(behind, min(position + size - behind, _LONGEST_END)), left_out


def reason_of(
    read: ReadAt, position: int, base: int, file_end: int, sums: RangeSums | None = None
) -> tuple[str, dict[str, Any]]:
    """Return why there is no intact record at `position`: a kebab-case reason and its facts."""
    head = bytes(read(position, HEAD_SIZE))
    if not head.strip(b"\0"):
        return "zeroed", {}
    if len(head) >= BLANK_SIZE and BLANK.decode(head).magic == MAGIC_BLANK:
        return "bad-blank-size", {"size": BLANK.decode(head).size, "room": file_end - base - position}
    try:
        judge(read, position, base, file_end, sums)
    except FormatError as error:
        return error.reason, {name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value
                              for name, value in error.facts.items()}
    return "unread", {}


def frame_size(read: ReadAt, position: int, base: int, file_end: int, sums: RangeSums) -> int:
    """Return the size of the record at `position` if its frame is whole, it states its own place and its topic is
    valid.

    Such bytes were a message: only a checksum or a field is wrong. 0 for anything else.
    """
    head = read(position, HEAD_SIZE)
    if len(head) < HEAD_SIZE:
        return 0
    fields = HEAD.decode(head)
    offset = base + position
    if fields.magic not in MAGICS or fields.phy_offset != offset:
        return 0
    most = min(file_end - offset - BLANK_SIZE, sums.length - position)
    if not MIN_RECORD_SIZE <= fields.total_size <= most:
        return 0
    try:
        ends, left_out = _ends(sums, position, fields.total_size)
        record = check_ends(ends, fields.total_size, left_out, None)
    except FormatError:
        return 0
    return record.total_size if valid_topic(record.topic) else 0


# --- Claims: statements of a store's parts about one place, and which of them is believed. ---------------------------
#
# A record, a queue unit, its neighbours in the queue, the name of a file, an end mark: each makes a statement about the
# same bytes, and each may be wrong. None alone overrides what is stored. An explanation needs two claims of different
# sources, and at least as many as support the bytes as they are.


T = TypeVar("T", bound=Hashable)

LEAST = 2
"""Number of independent claims needed to override what a record or a name states about itself."""


class Claim(NamedTuple, Generic[T]):
    """Statement `says` of a `source` about a place; `weight`: number of independent claims of that source."""

    source: str
    says: T
    weight: int = 1


def most_claimed(claims: Iterable[Claim[T]], stored: T) -> T:
    """Return the value with most claims; `stored` unless one other has at least LEAST, more than any third, and no
    fewer."""
    weights: Counter[T] = Counter()
    for claim in claims:
        weights[claim.says] += claim.weight
    own = weights.pop(stored, 0)
    first, second = ([*weights.most_common(2), (stored, 0), (stored, 0)])[:2]
    return first[0] if first[1] >= max(LEAST, own) and first[1] > second[1] else stored
