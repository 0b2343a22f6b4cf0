"""The units of a long queue as they are read, window by window: what the file system stores, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from formats.consumequeue import CQ_UNIT
from recover.files.queue_files import QueueBytes
from recover.files.reader import FileReader
from recover.verify.sound_queues import _Stream

SIZE = 6_000_000
STORED = 4096


def queue_file(folder: Path, number: int, stored: int) -> tuple[int, str, int]:
    """A file of a queue of which the beginning is stored, as a stream takes it."""
    path = folder / f"{number * SIZE:020}"
    path.write_bytes(b"x" * stored)
    os.truncate(path, SIZE)
    return number * SIZE, path.name, SIZE


def test_the_hole_behind_the_units_is_not_read_and_a_unit_half_in_it_ends_in_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, plainly = [], FileReader.read_into

    def noted(self: FileReader, buffer: memoryview, offset: int) -> int:
        ends.append(offset + len(buffer))
        return plainly(self, buffer, offset)

    stream = _Stream(QueueBytes(), str(tmp_path), [queue_file(tmp_path, 0, STORED)])
    monkeypatch.setattr(FileReader, "read_into", noted)
    room, content = bytearray(3 * CQ_UNIT.size), b""
    while (got := stream.fill(memoryview(room))) > 0:
        content += room[:got]
    assert STORED % CQ_UNIT.size and max(ends) == STORED
    assert content == (b"x" * STORED).ljust(-(-STORED // CQ_UNIT.size) * CQ_UNIT.size, b"\0")


def test_of_files_that_others_follow_every_byte_counts(tmp_path: Path) -> None:
    files = [queue_file(tmp_path, 0, STORED), queue_file(tmp_path, 1, STORED)]
    stream = _Stream(QueueBytes(), str(tmp_path), files)
    room, content = bytearray(1 << 20), b""
    while (got := stream.fill(memoryview(room))) > 0:
        content += room[:got]
    assert content == (b"x" * STORED).ljust(SIZE, b"\0") + (b"x" * STORED).ljust(4100, b"\0")


@pytest.mark.parametrize("cut", [0, 40, STORED - 1])
def test_a_file_that_is_cut_meanwhile_cannot_be_read(tmp_path: Path, cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = _Stream(QueueBytes(), str(tmp_path), [queue_file(tmp_path, 0, STORED)])
    assert stream.fill(memoryview(bytearray(20))) == 20
    os.truncate(tmp_path / f"{0:020}", cut)
    room, got = bytearray(1 << 20), 1
    while got > 0:
        got = stream.fill(memoryview(room))
    assert got == -1
