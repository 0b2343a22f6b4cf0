"""What a search found, and whether it looked everywhere it had to."""

from __future__ import annotations

from msgspec import Struct, field

from formats.commitlog import HEAD, HEAD_SIZE, HEADS, Record
from formats.errors import FormatError
from formats.sysflag import HOSTS_V6
from recover.files.store import Store
from recover.scan.judge import LogReader, judge, reason_of


class Found(Struct, frozen=True):
    """One message. `ghost`: old bytes after a break of the log; `superseded`: its queue offset was given out again."""

    record: Record
    ghost: bool = False
    superseded: bool = False


class Answer(Struct):
    """`complete` is false when a part that could hold a hit was not looked at; `notes` say which, and other facts.

    `damaged`: places of the log that were led to, or said themselves to be a message, and hold no intact one, with the
    reason. `way` is how it was looked for: index, queue, id, offset, scan or list. `left_out`: how many more messages a
    list has.
    """

    way: str
    messages: list[Found] = field(default_factory=list)
    complete: bool = True
    notes: list[str] = field(default_factory=list)
    more: bool = False
    left_out: int = 0
    queue_offset: int | None = None
    damaged_ranges: int = 0
    damaged: list[dict[str, object]] = field(default_factory=list)

    def incomplete(self, note: str) -> None:
        """Note a part that could not be looked at."""
        self.complete = False
        self.notes.append(note)


def record_at(store: Store, reader: LogReader, phy_offset: int) -> Record | None:
    """The intact record that starts at `phy_offset`, None when none does. `ReadFailure` from the disk."""
    mapped_file = store.commitlog.find(phy_offset)
    if mapped_file is None:
        return None
    base = mapped_file.file_from_offset

    def read(position: int, length: int) -> bytes:
        return reader.read(base + position, length)

    try:
        return judge(read, phy_offset - base, base, base + store.mapped_file_size)
    except FormatError:
        return None


def note_damage(store: Store, reader: LogReader, phy_offset: int, answer: Answer, *, named: bool) -> bool:
    """Note in `answer` that a damaged message stands at `phy_offset`; whether one does.

    `named`: a unit or an index entry names the place. Otherwise the bytes have to say themselves that it is theirs.
    """
    mapped_file = store.commitlog.find(phy_offset)
    if mapped_file is None:
        return False
    base = mapped_file.file_from_offset

    def read(position: int, length: int) -> bytes:
        return reader.read(base + position, length)

    head = read(phy_offset - base, HEAD_SIZE)
    if not named and (len(head) < HEAD_SIZE or HEAD.decode(head).phy_offset != phy_offset):
        return False
    reason, _ = reason_of(read, phy_offset - base, base, base + store.mapped_file_size)
    answer.damaged.append({"phy_offset": phy_offset, "reason": reason, "file": store.relative(mapped_file.path)})
    return True


def store_timestamp_at(reader: LogReader, phy_offset: int) -> int:
    """The store timestamp of the record there, unjudged (CommitLog.pickupStoreTimestamp); -1 after the log."""
    content = reader.read(phy_offset, HEAD_SIZE)
    if len(content) < HEAD_SIZE:
        return -1
    layout = HEADS[HEAD.decode(content).sys_flag & HOSTS_V6]
    content = reader.read(phy_offset, layout.size)
    return int(layout.decode(content).store_timestamp) if len(content) == layout.size else -1
