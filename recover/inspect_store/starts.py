"""The log's files as the choice of a start file wants them."""

from __future__ import annotations

from collections.abc import Sequence

from formats.layout import Buffer
from recover.broker.record_check import ReadAt
from recover.files.mapped_files import MappedFile
from recover.files.reader import FileReader
from recover.files.store import Store


class LogFiles:
    """The `recover.broker.recovery.LoadedFiles` of a store."""

    def __init__(self, store: Store) -> None:
        self.files: Sequence[MappedFile] = store.commitlog.files
        self.file_size = store.mapped_file_size

    def read_at(self, index: int) -> ReadAt:
        """Reads from file `index`."""
        path = self.files[index].path

        def read(position: int, length: int) -> Buffer:
            with FileReader(path) as reader:
                return reader.read(position, length)

        return read
