"""What a start does to index files (IndexService.load)."""

from __future__ import annotations

import os
from pathlib import Path

from formats.index import INDEX_HEADER
from recover.files.reader import read_small


def deleted_index_files(directory: Path, index_msg_timestamp: int) -> list[tuple[Path, int, int]]:
    """The files that a start after a crash deletes, (path, first and last physical offset): all that end later
    than the checkpoint's index time (ms)."""
    found = []
    for name in sorted(os.listdir(directory)) if directory.is_dir() else []:
        path = directory / name
        if not name.isdecimal() or not path.is_file():
            continue
        header = INDEX_HEADER.decode(read_small(path, INDEX_HEADER.size).ljust(INDEX_HEADER.size, b"\0"))
        if header.end_timestamp > index_msg_timestamp:
            found.append((path, header.begin_phy_offset, header.end_phy_offset))
    return found
