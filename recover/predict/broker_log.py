"""The commitlog as a broker loads it, over what a strict scan found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from formats.layout import Buffer
from formats.record_columns import RECORD
from recover.broker.record_check import ReadAt
from recover.files.mapped_files import MappedFile
from recover.files.reader import FileReader
from recover.memory.columns import Rows
from recover.scan.log import LogView


class BrokerLog:
    """Implements `recover.broker.recovery.LogSource`; use it in a with block, it keeps the file last read open."""

    def __init__(self, files: Sequence[MappedFile], file_size: int, view: LogView) -> None:
        self.files = list(files)
        self.file_size = file_size
        self.view = view
        self._scans = {scan.mapped_file.file_from_offset: scan for scan in view.files}
        self._reader: FileReader | None = None

    def __enter__(self) -> BrokerLog:
        return self

    def __exit__(self, *error: object) -> None:
        if self._reader is not None:
            self._reader.__exit__(None, None, None)
            self._reader = None

    @property
    def min_offset(self) -> int:
        """What CommitLog.getMinOffset gives: -1 without files."""
        return self.files[0].file_from_offset if self.files else -1

    def index_of(self, offset: int) -> int | None:
        """The file that holds physical `offset`, None in a gap or outside."""
        starts = [mapped_file.file_from_offset for mapped_file in self.files]
        index = int(np.searchsorted(starts, offset, side="right")) - 1
        return index if index >= 0 and offset < starts[index] + self.file_size else None

    def read_at(self, index: int) -> ReadAt:
        mapped_file = self.files[index]

        def read(position: int, length: int) -> Buffer:
            return self._open(mapped_file).read(position, max(0, length))

        return read

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes at physical `offset`, fewer at the end of its file."""
        index = self.index_of(offset)
        if index is None:
            return b""
        return bytes(self.read_at(index)(offset - self.files[index].file_from_offset, length))

    def rows(self, index: int) -> Rows:
        mapped_file = self.files[index]
        scan = self._scans.get(mapped_file.file_from_offset)
        # a scan puts a misnamed file where its records belong; a broker goes by names
        if scan is None or scan.mapped_file.path.name != mapped_file.path.name:
            return np.empty(0, dtype=RECORD)
        parts = [split.records for split in scan.splits]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, dtype=RECORD)

    def _open(self, mapped_file: MappedFile) -> FileReader:
        if self._reader is None or self._reader.path != mapped_file.path:
            self.__exit__()
            self._reader = FileReader(mapped_file.path)
        return self._reader


