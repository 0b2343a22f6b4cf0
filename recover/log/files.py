"""The place of each log file: files under a wrong name, and two files of one name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
from msgspec import structs

from formats.record import HEAD, MAGICS, MIN_RECORD_SIZE
from recover.log.file_scan import heads_in, scan_file
from recover.log.judge import Claim, most_claimed
from recover.store.mapped_files import MappedFile, MappedFileQueue, OddName
from recover.store.reading import FILE
from recover.store.source import open_file
from recover.store.store import named_by_record

_CHUNK = 4 << 20


def place_misnamed_files(queue: MappedFileQueue) -> tuple[MappedFileQueue, list[tuple[MappedFile, int]]]:
    """Return the queue with misnamed files where their records belong, and these files with the offset of their right
    name.

    The offsets that a file's records state are weighed against its name and the names around it. A file is examined if
    its first record disagrees with the name, or if no log file can have the name. A file that keeps its name takes
    precedence over one that would move there, unless it is empty: then it is left out. A duplicate that belongs
    elsewhere is not one. A whole file whose name is not an offset is misnamed if its first record is that of a missing
    one.
    """
    size, every = queue.file_size, (*queue.files, *queue.duplicates, *_without_name(queue))
    doubted = [mapped_file for mapped_file in every if _is_doubted(mapped_file, size)]
    taken = _offsets(mapped_file for mapped_file in queue.files if mapped_file not in doubted)
    moving = [mapped_file for mapped_file in doubted
              if _right_place(mapped_file, size, taken) != mapped_file.file_from_offset]
    taken |= _offsets(mapped_file for mapped_file in doubted if mapped_file not in moving)
    wanted = {_right_place(mapped_file, size, taken) for mapped_file in moving} & taken
    empty = [mapped_file for mapped_file in queue.files
             if mapped_file.file_from_offset in wanted and mapped_file not in moving and _is_empty(mapped_file)]
    taken -= _offsets(empty)
    wrong = dict[MappedFile, int]()
    for mapped_file in moving:
        right = _right_place(mapped_file, size, taken)  # those that moved are neighbours, too
        if right != mapped_file.file_from_offset and right not in taken:
            wrong[mapped_file] = right
        if mapped_file in wrong or mapped_file not in queue.duplicates:
            taken.add(wrong.get(mapped_file, mapped_file.file_from_offset))
    return _with_moved(queue, wrong, empty), [*wrong.items()]


def _without_name(queue: MappedFileQueue) -> Iterator[MappedFile]:
    """Yield the odd files that may be missing log files, at offset -1: their name says nothing of their place."""
    size, end = queue.file_size, queue.max_offset
    whole = [odd.path for odd in queue.odd if odd.kind == FILE and odd.length == size]
    places = ((named_by_record(path), path) for path in whole)
    for place, path in sorted((place, path) for place, path in places if place is not None):
        if place == end or queue.lacks(place):
            yield MappedFile(path, -1, size)
            end = max(end, place + size)


def _with_moved(
    queue: MappedFileQueue, wrong: Mapping[MappedFile, int], empty: Collection[MappedFile]
) -> MappedFileQueue:
    """The queue with these files at another offset, without `empty` ones; files that keep a name that no log file can
    have count as odd."""
    size, moved = queue.file_size, {mapped_file.path for mapped_file in wrong}
    stay = [mapped_file for mapped_file in queue.files if mapped_file not in wrong and mapped_file not in empty]
    odd = [mapped_file for mapped_file in stay if size > 0 and mapped_file.file_from_offset % size]
    if not wrong and not odd:
        return queue
    files = [mapped_file for mapped_file in stay if mapped_file not in odd]
    files += [structs.replace(mapped_file, file_from_offset=right) for mapped_file, right in wrong.items()]
    return MappedFileQueue(
        queue.directories, size, sorted(files, key=lambda mapped_file: mapped_file.file_from_offset),
        [*(odd for odd in queue.odd if odd.path not in moved),
         *(OddName(mapped_file.path, FILE, mapped_file.length) for mapped_file in odd)],
        [mapped_file for mapped_file in queue.duplicates if mapped_file not in wrong])


def _offsets(files: Iterable[MappedFile]) -> set[int]:
    return {mapped_file.file_from_offset for mapped_file in files}


def _right_place(mapped_file: MappedFile, file_size: int, taken: Collection[int]) -> int:
    return most_claimed([*_claims_of_place(mapped_file, file_size, taken)], mapped_file.file_from_offset)


def live_copies(queue: MappedFileQueue) -> MappedFileQueue:
    """Return the queue with the better file of two with one name; the other is the duplicate.

    The better one has more intact records; then fewer that break the numbering of their queue, or stand later than they
    were stored: a copy with a flipped bit that no checksum covers.
    """
    if not queue.duplicates:
        return queue
    files = {mapped_file.file_from_offset: mapped_file for mapped_file in queue.files}
    duplicates = []
    for twin in queue.duplicates:
        kept = files[twin.file_from_offset]
        if _merit(twin, queue.file_size) > _merit(kept, queue.file_size):
            files[twin.file_from_offset], twin = twin, kept
        duplicates.append(twin)
    placed = [files[offset] for offset in sorted(files)]
    return MappedFileQueue(queue.directories, queue.file_size, placed, queue.odd, duplicates)


def _merit(mapped_file: MappedFile, file_size: int) -> tuple[int, int, int]:
    try:
        rows = scan_file(mapped_file, file_size).records()
    except OSError:
        return -1, 0, 0
    times = rows["store_timestamp"]
    by_queue = rows[np.argsort(rows["queue"], kind="stable")]
    breaks = (np.diff(by_queue["queue"]) == 0) & (np.diff(by_queue["queue_offset"]) != 1)
    return rows.size, -int(breaks.sum()), -int((np.diff(times) < 0).sum())


def _is_doubted(mapped_file: MappedFile, file_size: int) -> bool:
    """Whether a file's first record states another place than its name, or no log file can have that name."""
    if file_size <= 0:
        return False
    if mapped_file.file_from_offset % file_size:
        return True
    try:
        with open_file(mapped_file.path) as reader:
            content = reader.read(0, HEAD.size)
    except OSError:
        return False
    if len(content) < HEAD.size or not any(content):
        return False
    head = HEAD.decode(content)
    return head.magic not in MAGICS or head.phy_offset != mapped_file.file_from_offset


def _is_empty(mapped_file: MappedFile) -> bool:
    """Whether a file was created but never written to: it has nothing but zeros."""
    try:
        with open_file(mapped_file.path) as reader:
            return not any(
                any(reader.read(at, min(_CHUNK, stop - at)))
                for start, stop in reader.data_ranges(0, mapped_file.length) for at in range(start, stop, _CHUNK))
    except OSError:
        return False


def _claims_of_place(mapped_file: MappedFile, file_size: int, taken: Collection[int]) -> Iterator[Claim[int]]:
    """Yield the claims for each place of a file in the log; `taken`: places of files that are not in doubt."""
    name = mapped_file.file_from_offset
    bases = _bases(mapped_file, file_size)
    for base, count in bases.items():
        yield Claim("records", base, count)
    for base in {*bases, name}:
        if base % file_size == 0:
            yield Claim("name", base, base == name)
            beside = {base - file_size, base + file_size}
            yield Claim("sequence", base, base not in taken and not beside.isdisjoint(taken))


def _bases(mapped_file: MappedFile, file_size: int) -> Counter[int]:
    """Return the offsets at which the file begins by its record heads, and their number; bytes inside records are
    skipped."""
    found: Counter[int] = Counter()
    try:
        with open_file(mapped_file.path) as reader:
            asked_to = 0
            for start in range(0, min(mapped_file.length, file_size), _CHUNK):
                content = reader.read(start, _CHUNK + HEAD.size)
                for at in heads_in(np.frombuffer(content, dtype=np.uint8)).tolist():
                    position = start + at
                    if position < asked_to:
                        continue
                    head = HEAD.decode(content, at)
                    base = head.phy_offset - position
                    fits = MIN_RECORD_SIZE <= head.total_size <= file_size - position
                    if fits and base >= 0 and base % file_size == 0:
                        found[base] += 1
                        asked_to = position + head.total_size
    except OSError:
        return Counter()
    return found
