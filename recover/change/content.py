"""Bytes that a plan will write: in memory, in a file, or produced on demand."""

from __future__ import annotations

import base64
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from msgspec import Struct

from formats.basics import Buffer
from formats.native.walk import last_nonzero
from recover.change import disk
from recover.change.owner import oneself
from recover.findings.code import N_, Interrupted, Refusal
from recover.findings.model import Phrase
from recover.store.columns import Scratch
from recover.store.reading import Piece, crc32c, crc_of, crc_with_zeros, in_order, read_chunks, zeros
from recover.store.source import StorePath, list_again, move_objects, remove_below

INLINE_LIMIT = 64 << 10
"""Content up to this many bytes is stored in the plan document; larger content in a file next to it."""


class Content:
    """Bytes of a known length. `crc32c` is None until they have been produced."""

    __slots__ = ()

    @property
    def size(self) -> int:
        raise NotImplementedError

    @property
    def crc32c(self) -> int | None:
        return None

    @property
    def allocated(self) -> int:
        """An upper bound of the bytes outside of long runs of zeros; the space check uses it."""
        return self.size

    def chunks(self) -> Iterator[Buffer]:
        """Yield all bytes in pieces of bounded size; may be called more than once, with equal results."""
        raise NotImplementedError

    def pieces(self) -> Iterator[Piece]:
        """Yield all bytes, in any order, for writing a new file."""
        return in_order(self.chunks())

    def part(self, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop)."""
        return b"".join(self.chunks())[start:stop]


class BytesContent(Content, Struct, frozen=True):
    """Content in memory, which must not change, and `zeros` zero bytes after it."""

    data: Buffer
    zeros: int = 0

    @property
    def size(self) -> int:
        return len(self.data) + self.zeros

    @property
    def crc32c(self) -> int:
        return crc_with_zeros(crc32c(self.data), self.zeros)

    @property
    def allocated(self) -> int:
        return len(self.data)

    def chunks(self) -> Iterator[Buffer]:
        yield self.data
        yield from zeros(self.zeros)


class FileContent(Content, Struct, frozen=True):
    """Content of a file whose size and CRC-32C were recorded when it was written."""

    path: Path
    size: int
    crc32c: int

    @property
    def allocated(self) -> int:
        return self.path.stat().st_blocks * 512 if self.path.exists() else self.size

    def chunks(self) -> Iterator[bytes]:
        """Yield the file's bytes; `Refusal` if they are not those that were recorded."""
        size = crc = 0
        for chunk in read_chunks(self.path):
            size, crc = size + len(chunk), crc32c(chunk, crc)
            if size > self.size:
                break
            yield chunk
        if (size, crc) != (self.size, self.crc32c):
            raise Refusal(Phrase("{path} is not the content saved with the plan", path=self.path),
                          "create the plan again", size=size, expected_size=self.size)


class LazyContent(Content):
    """Content produced chunk by chunk on demand, so that a rebuilt store never sits in memory.

    `produce` is called for each pass and must give the same `size` bytes each time. `pieces` gives them in another
    order, if that takes less work or memory.
    """

    size: int = 0
    allocated: int = 0

    def __init__(
        self, size: int, produce: Callable[[], Iterable[Buffer]], allocated: int | None = None,
        pieces: Callable[[], Iterable[Piece]] | None = None,
    ) -> None:
        self.size = size
        self.allocated = size if allocated is None else allocated
        self._produce, self._pieces = produce, pieces

    def chunks(self) -> Iterator[Buffer]:
        for _, chunk in self._counted(in_order(self._produce())):
            yield chunk

    def pieces(self) -> Iterator[Piece]:
        return self._counted(in_order(self._produce()) if self._pieces is None else self._pieces())

    def _counted(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        size = 0
        for at, piece in pieces:
            size += len(piece)
            yield at, piece
        if size != self.size:
            raise RuntimeError(f"the content is not as announced: {size} bytes instead of {self.size}")


def padded(content: Content, size: int) -> Iterator[Buffer]:
    """The content and zeros after it up to `size` bytes; content that comes up short is not padded further."""
    yield from content.chunks()
    yield from zeros(size - content.size)


def inline_json(content: Content) -> dict[str, Any]:
    """Small content for a JSON document: deflated, in base64, with its size and CRC-32C."""
    data = b"".join(content.chunks())
    packed = base64.b64encode(zlib.compress(data, 9)).decode("ascii")
    return {"size": len(data), "crc32c": crc32c(data), "zlib": packed}


def content_from_json(value: dict[str, Any], sidecar: Path) -> Content:
    """Return inline bytes, or a file in the sidecar directory; `ValueError` if they are inconsistent. Never inflates
    past the stated size."""
    size, crc = int(value["size"]), int(value["crc32c"])
    if "zlib" in value:
        if size > INLINE_LIMIT:
            raise ValueError(f"inline content of {size} bytes, at most {INLINE_LIMIT} are allowed")
        data = zlib.decompressobj().decompress(base64.b64decode(value["zlib"], validate=True), size + 1)
        if crc_of([data]) != (size, crc):
            raise ValueError("inline content does not match its checksum")
        return BytesContent(data)
    name = str(value["file"])
    if "/" in name or name in ("", ".", "..") or "\0" in name:
        raise ValueError(f"content file name {name!r} leaves the plan's directory")
    return FileContent(sidecar / name, size, crc)


IN_MEMORY = 128 << 20


class Spool:
    """Keeps contents in memory up to a limit, the rest on disk, for the lifetime of the plan."""

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self._kept = Scratch(in_memory)

    def padded(self, content: Buffer, size: int) -> BytesContent:
        """The content followed by zeros up to `size` bytes; the zeros take no room."""
        data = np.frombuffer(content, dtype=np.uint8)
        kept = self.keep(data[: last_nonzero(data, 0, data.size) + 1])
        return BytesContent(kept, size - len(kept))

    def keep(self, data: np.ndarray[Any, Any]) -> Buffer:
        """Keep the bytes (uint8) for the lifetime of the plan."""
        return memoryview(self._kept.copied(data))


# --- Content produced by executors: they write it into a local folder, and a manifest lists the results.
#
# A plan holds such content like any other. When it is needed on disk, its producer writes all of it at once into a
# staging folder on the target file system; the files named by the manifest are renamed from there to their places.


def stop_if(interrupted: Callable[[], bool], then: str = N_("stopped before anything was changed")) -> None:
    """Raise `Interrupted` between two pieces of a plan's content or of an output; `then`: the resulting state."""
    if interrupted():
        raise Interrupted(then, "run the command again")


Manifest = dict[str, tuple[str, int, int]]
"""Name -> (name of the file that holds it, length in bytes, CRC-32C)."""


class DeferredContent(Content, Struct, frozen=True, eq=False):
    """Content that `producer` identifies by `key`. `crc32c` is None until it was produced."""

    producer: Writes
    key: Any
    size: int
    allocated: int
    crc32c: int | None = None

    def chunks(self) -> Iterator[Buffer]:
        """Fetch the bytes: for the few readers that need one content by itself."""
        chunks = self.producer.chunks(self)
        while True:
            with oneself():
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield chunk


class Writes(Protocol):
    """A producer of content elsewhere that writes it where it is needed."""

    def write(
        self, folder: Path, contents: Mapping[str, DeferredContent], interrupted: Callable[[], bool]
    ) -> Manifest:
        """Write each content into a file in the folder. `OSError` if a disk fails, `Interrupted`."""

    def read_back(self, files: Mapping[Path, tuple[int, int]], interrupted: Callable[[], bool]) -> None:
        """Have files read elsewhere. `Refusal` (8) if one does not have that (length, CRC-32C); `Interrupted`."""

    def chunks(self, content: DeferredContent) -> Iterator[Buffer]:
        """The bytes of one content."""


def make(
    folder: Path, contents: Mapping[Path, Content | None], *, interrupted: Callable[[], bool],
    like: os.stat_result | None = None,
) -> dict[Path, tuple[int, int]]:
    """Have deferred content written to its paths; return (length, CRC-32C) of each. Other content is left to the
    caller.

    `folder`, new and on the file system of the paths, is where producers write; it is always removed at the end, so
    that a late producer has nowhere to write. Either may be on a server. `Refusal` if the result differs from what was
    announced; `OSError` from the disk.
    """
    wanted = {path: content for path, content in contents.items() if isinstance(content, DeferredContent)}
    if not wanted:
        return {}
    made: dict[Path, tuple[int, int]] = {}
    files: dict[Path, Path] = {}
    try:
        if not isinstance(folder, StorePath):
            disk.mkdir(folder, like)
        for producer in {id(content.producer): content.producer for content in wanted.values()}.values():
            own = {f"{n:06d}": item for n, item in enumerate(wanted.items()) if item[1].producer is producer}
            with oneself():
                manifest = producer.write(folder, {name: content for name, (_, content) in own.items()}, interrupted)
            list_again(folder)
            for name, (path, content) in own.items():
                files[path], made[path] = _checked(folder, content, manifest.get(name))
        if isinstance(folder, StorePath):
            move_objects((StorePath(file), StorePath(path)) for path, file in files.items())
        else:
            for path, file in files.items():
                disk.rename(file, path)
    finally:
        with suppress(OSError):
            if isinstance(folder, StorePath):
                remove_below(folder)
            else:
                disk.remove_tree(folder)
    return made


def _checked(
    folder: Path, content: DeferredContent, said: tuple[str, int, int] | None,
) -> tuple[Path, tuple[int, int]]:
    """Return the file that the manifest names, and its length and CRC-32C, if it is as announced."""
    file, size, crc = said or ("", -1, 0)
    length = (folder / file).stat().st_size if said else -1
    if size != content.size or length != size or content.crc32c not in (None, crc):
        raise Refusal(Phrase("{file} was not produced as announced: {made} instead of {announced}, and {length} bytes "
                             "are there", file=file or N_("a file"), made=str((size, crc)),
                             announced=str((content.size, content.crc32c)), length=length),
                      "Run the command again; with --engine local, if it happens again.")
    return folder / file, (size, crc)
