"""One index file in memory, as words in native byte order: what the compiled loops work on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from msgspec import Struct, field

from formats.index import INDEX_HEADER, INDEX_UNIT, IndexGeometry, IndexHeader
from recover.files.pace import spend
from recover.files.reader import FileReader, ReadFailure
from recover.memory.columns import Rows
from recover.memory.scratch import mapped, scratch_file

_CHUNK = 8 << 20
_LARGE = 64 << 20
_WORD = 4
_HEADER_WORDS = INDEX_HEADER.size // _WORD
_UNIT_WORDS = INDEX_UNIT.size // _WORD


class IndexWords(Struct):
    """Header, slots (int32, one a slot) and units (int32, shape (entries, 5)); views of one buffer of words."""

    geometry: IndexGeometry
    header: IndexHeader
    words: Rows
    failures: list[ReadFailure] = field(default_factory=list)

    @property
    def slots(self) -> Rows:
        """Heads of the chains."""
        return self.words[_HEADER_WORDS : _HEADER_WORDS + self.geometry.slots]

    @property
    def units(self) -> Rows:
        """Key hash, high and low half of the phy offset, time difference, previous; row = number."""
        rows: Rows = self.words[_HEADER_WORDS + self.geometry.slots :].reshape(self.geometry.entries, _UNIT_WORDS)
        return rows


def blank_words(geometry: IndexGeometry) -> IndexWords:
    """An image without a unit. Pages are taken from the system only where something is put."""
    return IndexWords(geometry, IndexHeader(0, 0, 0, 0, 0, 0), np.zeros(geometry.size // _WORD, dtype=np.int32))


def load_words(path: Path, geometry: IndexGeometry) -> IndexWords:
    """Read a file as `read_words` does. `OSError` when it cannot be opened."""
    with FileReader(path) as reader:
        return read_words(reader, geometry)


def read_words(reader: FileReader, geometry: IndexGeometry) -> IndexWords:
    """Read an open file; what it lacks of the geometry's size, and what cannot be read, counts as zeros.

    Bytes behind the geometry's size are left out, as a broker does.
    """
    image = IndexWords(geometry, IndexHeader(0, 0, 0, 0, 0, 0), _room(geometry.size // _WORD))
    raw = image.words.data.cast("B")
    for start, stop in reader.data_ranges(0, min(reader.length, geometry.size)):
        for at in range(start, stop, _CHUNK):
            spend(min(_CHUNK, stop - at))
            try:
                reader.read_into(raw[at : min(at + _CHUNK, stop)], at)
            except ReadFailure as failure:
                image.failures.append(failure)
        if start == 0:
            image.header = INDEX_HEADER.decode(raw)
        # holes are a multiple of 4 bytes wherever they are, so no word is turned twice
        _swap(image.words[start // _WORD : -(-stop // _WORD)])
    return image


def _room(words: int) -> Rows:
    """Zeros (int32): of a large file in a scratch file, where there is room for one, for memory may be short."""
    size = words * _WORD
    if size < _LARGE:
        return np.zeros(words, dtype=np.int32)
    with scratch_file() as file:
        try:
            return mapped(file, 0, size).view(np.int32)
        except OSError:
            return np.zeros(words, dtype=np.int32)


def file_chunks(image: IndexWords) -> Iterator[bytes]:
    """The bytes of the file, in pieces; the image stays as it is, and so do pages that nothing was put in."""
    step = _CHUNK // _WORD
    for at in range(0, image.words.size, step):
        piece = image.words[at : at + step].astype(">i4").tobytes()
        yield INDEX_HEADER.encode(image.header) + piece[INDEX_HEADER.size :] if at == 0 else piece


def _swap(words: Rows) -> None:
    if sys.byteorder == "little":
        words.byteswap(inplace=True)
