"""Heads of records within each other's bodies, right but for a checksum: judging them costs what their file costs."""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.nested_heads import ENDS, message, nested_heads
from formats.errors import FormatError
from formats.record import HEAD_SIZE, encode
from recover.log.file_scan import scan_file
from recover.log.judge import envelope_size, judge, reason_of
from recover.look.items import log_items
from recover.store.mapped_files import MappedFile
from recover.store.memo import RangeSums
from recover.store.reader import FileReader

SIZE = 1 << 20
STEP = 128


@pytest.mark.parametrize("bad_topic", [False, True])
def test_nested_heads_are_judged_without_their_bodies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad_topic: bool
) -> None:
    path = tmp_path / "00000000000000000000"
    path.write_bytes(nested_heads(SIZE, STEP, bad_topic))
    read = 0
    salvage, plain = FileReader.salvage_into, FileReader.read

    def salvaged(self: FileReader, buffer: memoryview, offset: int) -> object:
        nonlocal read
        read += len(buffer)
        return salvage(self, buffer, offset)

    def counted(self: FileReader, offset: int, length: int) -> bytes:
        nonlocal read
        read += min(length, SIZE)
        return plain(self, offset, length)

    monkeypatch.setattr(FileReader, "salvage_into", salvaged)
    monkeypatch.setattr(FileReader, "read", counted)
    found = scan_file(MappedFile(path, 0, SIZE), SIZE, window=64 << 10)
    (hole,) = found.holes
    assert (hole.start, hole.stop, hole.envelope) == (0, SIZE, not bad_topic)
    assert hole.reason == ("bad-topic" if bad_topic else "bad-body-crc")
    # as many heads as there are, each with its ends and two blocks of sums, is all that is read beside the file
    assert read < 8 * SIZE + SIZE // STEP * 3 * 4096
    read = 0
    with FileReader(path) as reader:
        assert [item.kind for item in log_items(reader, 0, 0)] == ["damage"]
    assert read < 8 * SIZE + SIZE // STEP * 3 * 4096


def test_long_damaged_records_before_intact_ones_are_not_read_whole_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage that claims the rest of the file, an intact record after it, and so on."""
    content, at = bytearray(), 0
    while at < SIZE - 1024:
        head = bytearray(encode(message(at, b"")))[:HEAD_SIZE]
        head[:4] = struct.pack(">i", SIZE - 64 - at)
        head[HEAD_SIZE - 4 :] = struct.pack(">i", SIZE - 64 - at - HEAD_SIZE - ENDS)
        content += head + encode(message(at + HEAD_SIZE, b"x" * 100))
        at = len(content)
    path = tmp_path / "00000000000000000000"
    path.write_bytes(bytes(content).ljust(SIZE, b"\0"))
    summed: list[RangeSums] = []
    start = RangeSums.__init__

    def kept(self: RangeSums, reader: FileReader, length: int) -> None:
        start(self, reader, length)
        summed.append(self)

    monkeypatch.setattr(RangeSums, "__init__", kept)
    found = scan_file(MappedFile(path, 0, SIZE), SIZE, window=16 << 10)
    assert found.record_count == len(found.holes) - 1 > 3000
    assert sum(sums.summed for sums in summed) <= 2 * SIZE


@pytest.mark.parametrize("step", [24, 128])
@pytest.mark.parametrize("window", [8 << 10, 64 << 10])
def test_intact_records_among_nested_heads_are_found(tmp_path: Path, step: int, window: int) -> None:
    size = 96 << 10
    content = bytearray(nested_heads(size, max(step, HEAD_SIZE + ENDS)))
    for at in range(0, size - 400, step if step < HEAD_SIZE else size):
        # heads that overlap have little more than magic and own offset
        content[at + 4 : at + 8], content[at + 28 : at + 36] = encode(message(at, b""))[4:8], struct.pack(">q", at)
    for number in range(40):
        at = 1000 + 2311 * number
        whole = bytearray(encode(message(at, random.Random(number).randbytes(50 * (number % 9)), number % 2 == 0)))
        content[at : at + len(whole)] = whole
        if number % 5 == 4:
            content[at + 90] ^= 1
    path = tmp_path / "00000000000000000000"
    path.write_bytes(content)
    expected, at = [], 0
    while at < size - HEAD_SIZE:
        try:
            expected.append((at, judge(lambda begin, length: bytes(content[begin : begin + length]), at, 0, size)))
            at += expected[-1][1].total_size
        except FormatError:
            at += 1
    found = scan_file(MappedFile(path, 0, size), size, window=window)
    rows = [(int(row["phy_offset"]), int(row["size"])) for split in found.splits for row in split.records]
    assert rows == [(at, record.total_size) for at, record in expected]
    assert len(rows) >= 30


CONTENT = random.Random(2).randbytes(40_000)


@given(st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 40_000)), min_size=1, max_size=8))
def test_sums_of_ranges_are_those_of_zlib(
    tmp_path_factory: pytest.TempPathFactory, ranges: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "summed"
    path.write_bytes(CONTENT)
    with FileReader(path) as reader:
        sums = RangeSums(reader, len(CONTENT))
        for one, other in ranges:
            start, stop = sorted((one, other))
            assert sums.crc(start, stop) == zlib.crc32(CONTENT[start:stop])
        for at in (0, 4097, 30_000):
            piece = CONTENT[at : at + 9000]
            pairs = [(at + min(one, other) % (len(piece) + 1), max(one, other)) for one, other in ranges]
            starts, stops = np.array([(start, max(start, stop)) for start, stop in pairs], dtype=np.int64).T
            found = sums.crcs(starts, stops, at, np.frombuffer(piece, dtype=np.uint8))
            assert found.tolist() == [zlib.crc32(CONTENT[one:other]) for one, other in zip(starts, stops, strict=True)]


@given(
    st.sampled_from([0, 5000, 9000]), st.integers(-200, 200),
    st.lists(st.tuples(st.integers(0, 9300), st.integers(0, 255)), max_size=3), st.sampled_from([0, 0x10, 0x30]),
)
def test_the_verdict_on_ends_is_that_on_the_whole(
    tmp_path_factory: pytest.TempPathFactory, body: int, cut: int, damage: list[tuple[int, int]], hosts: int
) -> None:
    record = message(64, CONTENT[:body], property_crc=True)
    content = bytearray(bytes(64) + encode(record) + bytes(100))
    for at, value in damage:
        # half of them near the ends
        content[min(at if at % 2 else 64 + at % 90, len(content) - 1)] = value
    content[64 + 36 + 3] |= hosts
    content = content[: len(content) - max(0, cut)]
    path = tmp_path_factory.getbasetemp() / "judged"
    path.write_bytes(content)
    verdicts = []
    with FileReader(path) as reader:
        for sums in (None, RangeSums(reader, len(content))):
            try:
                verdicts.append((judge(reader.read, 64, 0, 20_000, sums), reason_of(reader.read, 64, 0, 20_000, sums)))
            except FormatError as error:
                verdicts.append((error.reason, error.facts, reason_of(reader.read, 64, 0, 20_000, sums)))
        assert envelope_size(reader.read, 64, 0, 20_000, sums) in (0, record.total_size)
    assert verdicts[0] == verdicts[1]
