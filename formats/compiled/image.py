"""Machine code as one piece that runs wherever it is put: made of an object file, and put into this process.

An object file needs a linker, and LLVM's takes longer to load than all else that a kernel needs. Code for x86-64 that
calls nothing outside is linked when it is built: its sections one behind the other, distances between them filled in.
Source: System V ABI, AMD64 supplement; ELF-64 object file format.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_START = struct.Struct("<Q")

_ELF_64_LITTLE = b"\x7fELF\x02\x01"
_OBJECT_FILE, _X86_64 = 1, 62
_BITS, _SYMBOLS, _RELOCATIONS = 1, 2, 4
_ALLOCATED = 2
_WRITABLE = 1
_DISTANCE_32 = (2, 4)  # R_X86_64_PC32, R_X86_64_PLT32

_placed: list[Any] = []


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


def image_of(code: bytes, entry: str) -> bytes | None:
    """One piece with the code of an object file, and in front of it where `entry` begins; None if it cannot be.

    It cannot for another processor than x86-64, with data that is written to, or with calls to other libraries.
    """
    head = _HEADER.unpack_from(code)
    if not head[0].startswith(_ELF_64_LITTLE) or head[1:3] != (_OBJECT_FILE, _X86_64):
        return None
    sections = [_Section(*_SECTION.unpack_from(code, head[6] + number * head[11])) for number in range(head[12])]
    image = bytearray()
    places: dict[int, int] = {}
    for number, section in enumerate(sections):
        # what unwinds the stack for an exception has a kind of its own, and no use here
        if section.flags & _ALLOCATED and section.size and section.kind == _BITS:
            if section.flags & _WRITABLE:
                return None
            image += bytes(-len(image) % max(1, section.alignment))
            places[number] = len(image)
            image += code[section.offset : section.offset + section.size]
        elif section.flags & _ALLOCATED and section.size and section.flags & _WRITABLE:
            return None
    symbols, names = _symbols(code, sections)
    for section in sections:
        if section.kind == _RELOCATIONS and section.info in places:
            for at in range(section.offset, section.offset + section.size, _RELOCATION.size):
                offset, info, addend = _RELOCATION.unpack_from(code, at)
                home, value = symbols[info >> 32]
                if info & 0xFFFFFFFF not in _DISTANCE_32 or home not in places:
                    return None
                place = places[section.info] + offset
                struct.pack_into("<i", image, place, places[home] + value + addend - place)
    home, value = symbols[names[entry]] if entry in names else (0, 0)
    return _START.pack(places[home] + value) + bytes(image) if home in places else None


def _symbols(code: bytes, sections: list[_Section]) -> tuple[list[tuple[int, int]], dict[str, int]]:
    """The section of each symbol and its place there; the number of each by name."""
    places: list[tuple[int, int]] = []
    names: dict[str, int] = {}
    for table in sections:
        if table.kind == _SYMBOLS:
            texts = sections[table.link].offset
            for at in range(table.offset, table.offset + table.size, _SYMBOL.size):
                name, _, _, home, value, _ = _SYMBOL.unpack_from(code, at)
                end = code.index(0, texts + name)
                names[code[texts + name : end].decode()] = len(places)
                places.append((home, value))
    return places, names


@cache
def is_refused() -> bool:
    """Whether this system refuses executable memory (SELinux, MemoryDenyWriteExecute): then no code of ours can run."""
    try:
        memory = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        view = (ctypes.c_char * len(memory)).from_buffer(memory)
        protect = ctypes.CDLL(None).mprotect
        rights = mmap.PROT_READ | mmap.PROT_EXEC
        return bool(protect(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(len(memory)), rights))
    except (OSError, AttributeError):
        return True


def put(image: bytes) -> Callable[[int], int] | None:
    """The function of an image, callable with an address and without the interpreter's lock; None if it may not run.

    Its memory stays until the process ends, and is never writable and executable at once.
    """
    (start,) = _START.unpack_from(image)
    try:
        memory = mmap.mmap(-1, len(image) - _START.size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.write(image[_START.size :])
        view = (ctypes.c_char * len(memory)).from_buffer(memory)
        protect = ctypes.CDLL(None).mprotect
        rights = mmap.PROT_READ | mmap.PROT_EXEC
        if protect(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(len(memory)), rights) != 0:
            return None
    except (OSError, AttributeError):
        return None
    _placed.append(view)
    return ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(ctypes.addressof(view) + start)
