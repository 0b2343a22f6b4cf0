"""The records of the real stores, found by walking their logs once per process."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

from formats import record as commitlog, sysflag
from formats.basics import FormatError
from formats.record import BLANK_SIZE, HEADS, Record, check_strict
from tests.support.stores import unpacked


class Placed(NamedTuple):
    """A record and where it stands: its mapped file, the position in it, and its bytes."""

    content: bytes
    file_from_offset: int
    offset: int
    record: Record

    @property
    def phy_offset(self) -> int:
        """Position in the log."""
        return self.file_from_offset + self.offset

    @property
    def raw(self) -> bytes:
        """The bytes of the record."""
        return self.content[self.offset:self.offset + self.record.total_size]


@functools.cache
def placed_records(name: str) -> tuple[Placed, ...]:
    """Every record of a real store, in the order of the log."""
    paths = sorted((unpacked(name) / "commitlog").iterdir())
    return tuple(placed for path in paths for placed in _walk(path.read_bytes(), int(path.name)))


def kinds(name: str) -> list[Placed]:
    """One record of each topic, sysFlag and version of a real store."""
    found: dict[tuple[str, int, int], Placed] = {}
    for it in placed_records(name):
        found.setdefault((it.record.topic_name, it.record.sys_flag, it.record.version), it)
    return list(found.values())


def is_intact(content: bytes, phy_offset: int) -> bool:
    """Whether verify takes these bytes for a record that stands at that offset."""
    try:
        check_strict(content, 0, len(content) + BLANK_SIZE, phy_offset)
    except FormatError:
        return False
    return True


def uncovered(record: Record) -> list[int]:
    """The positions of all bytes but the body's, which its checksum covers."""
    body = HEADS[record.sys_flag & sysflag.HOSTS_V6].size
    return [*range(body), *range(body + len(record.body), record.total_size)]


def _walk(content: bytes, file_from_offset: int) -> Iterator[Placed]:
    offset = 0
    while True:
        try:
            record = commitlog.decode(content, offset)
        except FormatError as error:
            # A blank or the zeros that no record has reached yet; anything else is a failed test.
            assert error.reason == "blank" or not any(content[offset:]), error
            return
        yield Placed(content, file_from_offset, offset, record)
        offset += record.total_size
