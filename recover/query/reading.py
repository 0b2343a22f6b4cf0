"""Single records out of the log, judged before they are believed."""

from __future__ import annotations

from formats.commitlog import HEAD, HEAD_SIZE, HEADS, Record
from formats.errors import FormatError
from formats.sysflag import HOSTS_V6
from recover.files.store import Store
from recover.scan.judge import judge
from recover.scan.log_reader import LogReader


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


def store_timestamp_at(reader: LogReader, phy_offset: int) -> int:
    """The store timestamp of the record there, unjudged (CommitLog.pickupStoreTimestamp); -1 behind the log."""
    content = reader.read(phy_offset, HEAD_SIZE)
    if len(content) < HEAD_SIZE:
        return -1
    layout = HEADS[HEAD.decode(content).sys_flag & HOSTS_V6]
    content = reader.read(phy_offset, layout.size)
    return int(layout.decode(content).store_timestamp) if len(content) == layout.size else -1
