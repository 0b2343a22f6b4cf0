"""Single damages of a store, made and taken back in place: one bit, one field, one unit, one page, one file."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.torture.anatomy import Anatomy, Place

_PAGE = 4096
_SECTOR = 512


@dataclass(frozen=True)
class Strike:
    """One damage: new bytes for a range of a file, or what became of the whole file (`fate`)."""

    kind: str
    what: str
    file: str
    start: int = 0
    content: bytes = b""
    fate: str = ""

    def __str__(self) -> str:
        if self.fate:
            return f"{self.what}: {self.file} {self.fate}"
        return f"{self.what}: {self.file} @{self.start} becomes {self.content[:24].hex()}"

    @contextmanager
    def struck(self, root: Path) -> Iterator[None]:
        """The store so damaged, for the length of a with block."""
        path = root / self.file
        if self.fate:
            with _fallen(path, self.fate):
                yield
            return
        with path.open("r+b", buffering=0) as file:
            old = os.pread(file.fileno(), len(self.content), self.start)
            os.pwrite(file.fileno(), self.content, self.start)
            try:
                yield
            finally:
                os.pwrite(file.fileno(), old, self.start)


@contextmanager
def _fallen(path: Path, fate: str) -> Iterator[None]:
    aside = path.parent.parent / f".aside-{path.name}"
    status = path.stat()
    if fate == "is gone":
        path.rename(aside)
    else:
        path.rename(aside)
        content = aside.read_bytes()
        half = status.st_size // 2 // 20 * 20
        kept = {"is empty": 0, "is cut in half": half, "lost its last byte": status.st_size - 1}
        if fate == "is zeros":
            path.touch()
            os.truncate(path, status.st_size)
        elif fate == "is longer":
            path.write_bytes(content + b"\x01")
        else:
            path.write_bytes(content[: kept[fate]])
    try:
        yield
    finally:
        aside.rename(path)


FATES = ("is gone", "is empty", "is cut in half", "lost its last byte", "is zeros", "is longer")


def bit(anatomy: Anatomy, chance: random.Random) -> Strike | None:
    """One bit of any kind of byte; each kind is as likely as the next."""
    place = _any_place(anatomy, chance)
    at = chance.randrange(place.start, place.stop)
    (old,) = _read(anatomy, place.file, at, 1)
    return Strike("bit", place.kind, place.file, at, bytes([old ^ 1 << chance.randrange(8)]))


def byte(anatomy: Anatomy, chance: random.Random) -> Strike | None:
    """One byte becomes another."""
    place = _any_place(anatomy, chance)
    at = chance.randrange(place.start, place.stop)
    return _unless_same(anatomy, Strike("byte", place.kind, place.file, at, chance.randbytes(1)))


def number(anatomy: Anatomy, chance: random.Random) -> Strike | None:
    """A field of numbers becomes one that breaks programs: 0, -1, the least, the greatest, one more, one less."""
    place = _any_place(anatomy, chance)
    size = place.stop - place.start
    if size not in (1, 2, 4, 8):
        return None
    old = int.from_bytes(_read(anatomy, place.file, place.start, size), "big")
    top = 1 << size * 8
    near = [old + difference for difference in (1, -1, 2, -2, 20)]
    new = chance.choice([0, top - 1, top >> 1, (top >> 1) - 1, *near, chance.randrange(top)])
    content = (new % top).to_bytes(size, "big")
    return _unless_same(anatomy, Strike("field", place.kind, place.file, place.start, content))


def unit(anatomy: Anatomy, chance: random.Random) -> Strike | None:
    """A whole record or unit is zeroed, becomes noise, or what another of its kind is (a misdirected write)."""
    kind = chance.choice(sorted({whole.kind for whole in anatomy.wholes}))
    wholes = [whole for whole in anatomy.wholes if whole.kind == kind]
    whole, other = chance.choice(wholes), chance.choice(wholes)
    size = whole.stop - whole.start
    content = chance.choice([
        bytes(size), chance.randbytes(size), b"\xff" * size,
        _read(anatomy, other.file, other.start, min(size, other.stop - other.start)),
    ])
    return _unless_same(anatomy, Strike("unit", kind, whole.file, whole.start, content))


def page(anatomy: Anatomy, chance: random.Random) -> Strike | None:
    """A sector or page is zeroed, is noise, or is one of another place."""
    place, other = _any_place(anatomy, chance), _any_place(anatomy, chance)
    size = chance.choice([_SECTOR, _PAGE])
    length = (anatomy.root / place.file).stat().st_size
    start = place.start // size * size
    size = min(size, length - start)
    elsewhere = _read(anatomy, other.file, other.start // size * size, size)
    content = chance.choice([bytes(size), chance.randbytes(size), elsewhere])
    return _unless_same(anatomy, Strike("page", place.kind.split(".")[0], place.file, start, content))


def file(anatomy: Anatomy, chance: random.Random) -> Strike | None:
    """A whole file is gone, empty, cut, longer, or all zeros."""
    names = sorted({place.file for places in anatomy.places.values() for place in places})
    name, fate = chance.choice(names), chance.choice(FATES)
    size = (anatomy.root / name).stat().st_size
    if not size and fate != "is gone":
        return None
    return Strike("file", name.split("/")[0], name, fate=fate)


MAKERS = (bit, byte, number, unit, page, file)


def strikes(anatomy: Anatomy, chance: random.Random, count: int) -> Iterator[Strike]:
    """That many damages, all kinds of them mixed."""
    made = 0
    while made < count:
        strike = chance.choice((bit, bit, byte, number, number, unit, page, file))(anatomy, chance)
        if strike is not None:
            made += 1
            yield strike


def _any_place(anatomy: Anatomy, chance: random.Random) -> Place:
    return chance.choice(anatomy.places[chance.choice(sorted(anatomy.places))])


def _unless_same(anatomy: Anatomy, strike: Strike) -> Strike | None:
    same = _read(anatomy, strike.file, strike.start, len(strike.content)) == strike.content
    return None if same or not strike.content else strike


def _read(anatomy: Anatomy, file: str, start: int, size: int) -> bytes:
    with (anatomy.root / file).open("rb") as stream:
        stream.seek(start)
        return stream.read(size)
