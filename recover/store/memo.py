"""The state of a store's files just before they were read, so that a plan or a later run can detect changes."""

from __future__ import annotations

import hashlib
import math
import os
import stat
import zlib
from array import array
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct, structs

from recover.findings.phrase import Phrase
from recover.store.reader import FileReader
from recover.store.reading import power, times
from recover.store.source import open_file
from recover.store.store import JOURNAL_DIR, Store


class Stamp(NamedTuple):
    """The state of one file or folder: size in bytes, mtime in ns, inode, ctime in ns."""

    size: int
    mtime_ns: int
    inode: int
    ctime_ns: int


def stamp_of(path: Path) -> Stamp | None:
    """Return the stamp of a file or folder, or of a link's target; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)


def current_stamps(store: Store) -> dict[str, Stamp]:
    """Return name (as in plans) -> stamp of every file that recover reads and every folder that it lists.

    A folder's stamp shows whether a name was added or removed. Topics and queues that are links are followed.
    """
    queues = store.consumequeue_dir, store.consumequeue_ext_dir
    listed = [each for top in queues for each in _walk(top, links=2)]
    for top in (*store.commitlog_dirs, store.index_dir, store.config_dir):
        listed += _walk(top)
    paths = [path for folder, names in listed for path in (Path(folder), *(Path(folder, name) for name in names))]
    paths += [store.checkpoint_path, store.abort_path]
    return {store.relative(path): stamp for path in paths if (stamp := stamp_of(path)) is not None}


def _walk(top: Path | str, links: int = 0, deep: float = math.inf) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder with its files, down to `deep` levels below the first.

    Links in the top `links` levels are followed, but only that deep, since a link may lead anywhere.
    """
    folders: list[tuple[str, float]] = []
    names: list[str] = []
    try:
        with os.scandir(top) as listed:
            for entry in listed:
                if entry.is_dir(follow_symlinks=False):
                    folders.append((entry.path, deep - 1))
                elif not (entry.is_symlink() and os.path.isdir(entry.path)):
                    names.append(entry.name)
                elif links > 0:
                    folders.append((entry.path, links - 1))
    except OSError:
        return
    yield str(top), names
    for folder, levels in folders if deep > 0 else ():
        yield from _walk(folder, links - 1, levels)


def changed_since(root: Path, when_ns: int) -> str | None:
    """Return the name of a file or folder below a store that was changed since `when_ns` (ns since the epoch), else
    None.

    None as well if mqtool's own journal changed since: the change may then be its own.
    """
    found = None
    try:
        for directory, folders, names in os.walk(root):
            for path in (Path(directory), *(Path(directory, name) for name in names)):
                if os.lstat(path).st_ctime_ns >= when_ns:
                    if JOURNAL_DIR in path.relative_to(root).parts[:1]:
                        return None
                    found = found or path.relative_to(root).as_posix()
            folders.sort()
    except OSError:
        return found
    return found


# --- Evidence: every file of a store with its length and time and, if requested, the SHA-256 of its bytes.


_CHUNK = 1 << 20


class EvidenceFile(Struct):
    """One file: `path` as in reports, `size` in bytes, `mtime` in ms. `problem`: why it has no digest."""

    path: str
    size: int
    mtime: int
    sha256: str | None = None
    problem: str | None = None


class Evidence(Struct):
    """The first files in path order; of all files their number, size in bytes, digest, and how many were not read.

    `sha256` is that of the lines `<sha256>  <path>` of all files in this order, as sha256sum prints them. None if
    digests were not requested, or if a file could not be read completely (counted in `unread`).
    """

    files: list[EvidenceFile]
    count: int = 0
    size: int = 0
    sha256: str | None = None
    unread: int = 0

    def json(self) -> dict[str, Any]:
        """Return the keys of the document."""
        return structs.asdict(self) | {"files": [structs.asdict(item) for item in self.files]}


def evidence(
    store: Store, *, digests: bool, most: int, progress: Callable[[int, int], None] | None = None
) -> Evidence:
    """List every file of the store except mqtool's journal, and read all of them if `digests` are wanted."""
    found = Evidence([])
    all_of_them = hashlib.sha256()
    for path, status in _files(store):
        item = EvidenceFile(store.relative(path), status.st_size, status.st_mtime_ns // 1_000_000)
        if digests:
            _read(path, item, progress)
            found.unread += item.sha256 is None
            all_of_them.update(f"{item.sha256}  {item.path}\n".encode("utf-8", "surrogateescape"))
        if len(found.files) < most:
            found.files.append(item)
        found.count += 1
        found.size += item.size
    found.sha256 = all_of_them.hexdigest() if digests and not found.unread else None
    return found


def _files(store: Store) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield regular files by path; parts kept elsewhere follow the root."""
    for top in (str(store.root), *store.folders_elsewhere):
        for folder, names, files in os.walk(top):
            names[:] = sorted(name for name in names if folder != top or name != JOURNAL_DIR)
            for name in sorted(files):
                path = Path(folder, name)
                try:
                    status = os.stat(path)
                except OSError:
                    continue  # a dangling link, or just deleted: verify reports missing files
                if stat.S_ISREG(status.st_mode):
                    yield path, status


def _read(path: Path, item: EvidenceFile, progress: Callable[[int, int], None] | None) -> None:
    digest, at = hashlib.sha256(), 0
    try:
        with open_file(path) as reader:
            while chunk := reader.read(at, _CHUNK):
                digest.update(chunk)
                at += len(chunk)
                if progress is not None:
                    progress(len(chunk), 0)
    except OSError as error:
        item.problem = str(error.strerror or error)
        return
    if at != item.size:
        item.problem = Phrase("its length changed from {before} to {after} while it was read", before=item.size,
                              after=at)
        return
    item.sha256 = digest.hexdigest()


# --- CRC-32 of any range of a file, without reading the bytes between its ends twice.
#
# Many record heads may claim the same bytes as their bodies; without this, each would sum them up again.


Numbers = np.ndarray[Any, Any]
"""Positions in the file (int64), or sums (uint32)."""

_BLOCK = 4096
_AT_ONCE = 1 << 20
_CRC32 = 0xEDB88320


class RangeSums:
    """CRCs of ranges in the first `length` bytes of a file. Caches the sums up to each block, from the first request
    on."""

    def __init__(self, reader: FileReader, length: int) -> None:
        self.length = length
        self._reader = reader
        self._origin = 0
        self._sums = array("L", [0])

    def read(self, start: int, length: int) -> bytes:
        """Return bytes of the file, fewer at its end; unreadable ones are zeros."""
        content = bytearray(max(0, min(length, self.length - start)))
        filled, _ = self._reader.salvage_into(memoryview(content), start)
        return bytes(memoryview(content)[:filled])

    def crc(self, start: int, stop: int) -> int:
        """Return the CRC-32 of the bytes [start, stop)."""
        self._begin_before(start)
        return self._up_to(stop) ^ times(self._up_to(start), power(stop - start, _CRC32), _CRC32)

    def crcs(self, starts: Numbers, stops: Numbers, at: int, content: Numbers) -> Numbers:
        """Return the CRC-32 of many ranges (uint32) that begin within `content`, the bytes from `at` on (uint8)."""
        self._begin_before(at)
        within = stops <= at + content.size
        ends = np.where(within, stops, at)
        sums = _up_to_each(content, np.concatenate([starts, ends]) - at, self._up_to(at))
        before, behind = sums[: starts.size], sums[starts.size :]
        far, which = np.unique(stops[~within], return_inverse=True)
        behind[~within] = np.array([self._up_to(stop) for stop in far.tolist()], dtype=np.uint32)[which]
        return behind ^ _times_each(before, _powers(stops - starts))

    def _begin_before(self, start: int) -> None:
        if start < self._origin or start > self._end + _AT_ONCE:
            # start a block earlier: the sum of a whole record may be requested after that of its body
            self._origin, self._sums = max(0, start // _BLOCK - 1) * _BLOCK, array("L", [0])

    @property
    def _end(self) -> int:
        return self._origin + (len(self._sums) - 1) * _BLOCK

    def _up_to(self, position: int) -> int:
        """Return the sum of the bytes between the origin and `position`."""
        block = position // _BLOCK * _BLOCK
        while self._end < block:
            length = min(_AT_ONCE, block - self._end)
            content = memoryview(self.read(self._end, length).ljust(length, b"\0"))
            for at in range(0, len(content), _BLOCK):
                self._sums.append(zlib.crc32(content[at : at + _BLOCK], self._sums[-1]))
        known = self._sums[(block - self._origin) // _BLOCK]
        return zlib.crc32(self.read(block, position - block), known) if position > block else known


def _up_to_each(content: Numbers, positions: Numbers, seed: int) -> Numbers:
    """Return the sums up to each of some positions in the content; `seed` is the sum up to its start."""
    whole, at, sums = memoryview(content.data), 0, []
    places, which = np.unique(positions, return_inverse=True)
    for place in places.tolist():
        seed = zlib.crc32(whole[at:place], seed)
        sums.append(seed)
        at = place
    return np.array(sums, dtype=np.uint32)[which]


def _times_each(a: Numbers, b: Numbers) -> Numbers:
    """Return `times` of each pair (uint32)."""
    a, b = a.copy(), b.copy()
    product = np.zeros_like(a)
    for _ in range(32):
        product ^= b * (a >> 31)
        a <<= 1
        b = (b >> 1) ^ (b & 1) * np.uint32(_CRC32)
    return product


def _powers(counts: Numbers) -> Numbers:
    """Return `power` of each count (uint32)."""
    product: Numbers = _byte_powers(0)[counts & 0xFF]
    for number in range(1, 4):
        digits = (counts >> (8 * number)) & 0xFF
        if digits.any():
            product = _times_each(product, _byte_powers(number)[digits])
    return product


@lru_cache(maxsize=4)
def _byte_powers(number: int) -> Numbers:
    """Return x to the 8 * count * 256^number for each count below 256."""
    return np.array([power(count * 256**number, _CRC32) for count in range(256)], dtype=np.uint32)
