"""Which log file stands where: files under a wrong name, and two files of one name."""

from __future__ import annotations

from msgspec import structs

from formats.commitlog import HEAD
from formats.errors import FormatError
from recover.files.mapped_files import MappedFile, MappedFileQueue
from recover.files.reader import FileReader
from recover.memory.columns import ColumnStore
from recover.scan.file_scan import scan_file
from recover.scan.judge import judge


def rightly_placed(queue: MappedFileQueue) -> tuple[MappedFileQueue, list[tuple[MappedFile, int]]]:
    """The queue with misnamed files where their records belong, and those files with the offset of their right name.

    A file counts as misnamed when its first record is intact at another file's beginning, and no file of that
    name is there.
    """
    taken = {mapped_file.file_from_offset for mapped_file in queue.files}
    wrong: list[tuple[MappedFile, int]] = []
    files: list[MappedFile] = []
    for mapped_file in queue.files:
        right = _own_offset(mapped_file, queue.file_size)
        if right is None or right in taken:
            files.append(mapped_file)
            continue
        taken.add(right)
        wrong.append((mapped_file, right))
        files.append(structs.replace(mapped_file, file_from_offset=right))
    if not wrong:
        return queue, []
    files.sort(key=lambda f: f.file_from_offset)
    return MappedFileQueue(queue.directories, queue.file_size, files, queue.odd, queue.duplicates), wrong


def live_copies(queue: MappedFileQueue) -> MappedFileQueue:
    """The queue with, of two files of one name, the one that holds more intact records; the other is the duplicate."""
    if not queue.duplicates:
        return queue
    files = {mapped_file.file_from_offset: mapped_file for mapped_file in queue.files}
    duplicates = []
    for twin in queue.duplicates:
        kept = files[twin.file_from_offset]
        if _records(twin, queue.file_size) > _records(kept, queue.file_size):
            files[twin.file_from_offset], twin = twin, kept
        duplicates.append(twin)
    placed = [files[offset] for offset in sorted(files)]
    return MappedFileQueue(queue.directories, queue.file_size, placed, queue.odd, duplicates)


def _records(mapped_file: MappedFile, file_size: int) -> int:
    try:
        return scan_file(mapped_file, file_size, ColumnStore()).record_count
    except OSError:
        return -1


def _own_offset(mapped_file: MappedFile, file_size: int) -> int | None:
    """Where the file's first record says that it begins, if that is another whole file's beginning."""
    try:
        with FileReader(mapped_file.path) as reader:
            head = reader.read(0, HEAD.size)
            if len(head) < HEAD.size:
                return None
            right = HEAD.decode(head).phy_offset
            distance = right - mapped_file.file_from_offset
            if right < 0 or distance == 0 or file_size <= 0 or distance % file_size:
                return None
            judge(reader.read, 0, right, right + file_size)
    except (OSError, FormatError):
        return None
    return right
