"""Reads single records back from the commitlog, for what the columns do not keep."""

from __future__ import annotations

import threading
from types import TracebackType

from formats.commitlog import OFFSET_PHY_OFFSET, PROPERTY_CRC_SIZE, Record, decode
from formats.commitlog.record import PROPERTY_CRC_START
from formats.errors import FormatError
from recover.files.mapped_files import MappedFileQueue
from recover.files.reader import FileReader


class LogReader:
    """Bytes and records of a commitlog by physical offset. Opens each file once; use in a with block."""

    def __init__(self, queue: MappedFileQueue) -> None:
        self._queue = queue
        self._readers: dict[int, FileReader] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> LogReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for reader in self._readers.values():
            reader.__exit__(kind, error, trace)
        self._readers.clear()

    def read(self, phy_offset: int, length: int) -> bytes:
        """Up to `length` bytes at `phy_offset`, none beyond the end of its file; empty in a gap."""
        mapped_file = self._queue.find(phy_offset)
        if mapped_file is None:
            return b""
        with self._lock:
            reader = self._readers.get(mapped_file.file_from_offset)
            if reader is None:
                reader = self._readers[mapped_file.file_from_offset] = FileReader(mapped_file.path)
        return reader.read(phy_offset - mapped_file.file_from_offset, length)

    def record(self, phy_offset: int, size: int) -> Record:
        """The record at `phy_offset`, whose size is known from a scan. `FormatError` if it is not there any more."""
        content = self.read(phy_offset, size)
        if len(content) < size:
            raise FormatError("short", 0, "the log ends before the record does", needed=size, available=len(content))
        return decode(content, check_crc=False)


def without_place(content: bytes) -> bytes:
    """A record without its own offset and the checksum over that: the same bytes wherever in the log it stands."""
    covered = len(content) - PROPERTY_CRC_SIZE
    end = covered if content.startswith(PROPERTY_CRC_START, max(0, covered)) else len(content)
    return content[:OFFSET_PHY_OFFSET] + content[OFFSET_PHY_OFFSET + 8 : end]
