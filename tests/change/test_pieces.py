"""New files written piece by piece, in whatever order the pieces come: the same bytes, length and checksum."""

from __future__ import annotations

import random
from array import array
from ctypes import c_int64
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recover.change import disk
from recover.change import disk as disk_content
from recover.change.content import BytesContent, LazyContent, padded, pieces_of
from recover.change.disk import CHUNK
from recover.store.reading import BLANK, crc32c, crc_joined, file_crc, in_order


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_the_checksum_of_two_parts_joined_is_that_of_the_whole(one: bytes, other: bytes) -> None:
    assert crc_joined(crc32c(one), crc32c(other), len(other)) == crc32c(one + other)


@given(st.lists(st.binary(max_size=200_000) | st.integers(0, 200_000).map(bytes), max_size=6), st.randoms())
def test_pieces_in_any_order_make_the_file_that_they_make_in_order(chunks: list[bytes], order: random.Random) -> None:
    pieces = list(in_order(chunks))
    order.shuffle(pieces)
    with TemporaryDirectory() as folder:
        path, other = Path(folder, "one"), Path(folder, "other")
        made = disk.create_from_pieces(path, pieces, sync=False)
        assert path.read_bytes() == b"".join(chunks)
        assert made == file_crc(path) == disk.create_file(other, chunks, sync=False)


def test_zeros_between_pieces_are_not_written(tmp_path: Path) -> None:
    pieces = [(len(BLANK) + 1, b"end"), (1, BLANK), (0, b"b")]
    size, crc = disk.create_from_pieces(tmp_path / "f", pieces)
    assert (tmp_path / "f").read_bytes() == b"b" + BLANK + b"end"
    assert (size, crc) == (len(BLANK) + 4, crc32c(b"b" + BLANK + b"end"))
    assert (tmp_path / "f").stat().st_blocks * 512 < len(BLANK)


@pytest.mark.parametrize("offered", [True, False])
def test_the_disk_is_given_large_pieces_at_once(
    offered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []

    def begin(fd: int, start: c_int64, size: c_int64, flags: int) -> int:
        begun.append((start.value, size.value, flags))
        return -1

    monkeypatch.setattr(disk_content, "_libc", lambda name: begin if offered and name == "sync_file_range" else None)
    large, small = random.Random(3).randbytes(CHUNK), b"small"
    disk.create_from_pieces(tmp_path / "f", [(CHUNK, large), (2 * CHUNK, small), (0, large)])
    assert begun == ([(CHUNK, CHUNK, 2), (0, CHUNK, 2)] if offered else [])
    assert (tmp_path / "f").read_bytes() == large + large + small


def test_the_library_takes_what_it_is_given(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * CHUNK)
    call = disk_content._libc("sync_file_range")
    assert disk_content._libc("no_such_function") is None
    with path.open("rb+") as file:
        assert call is not None and call(file.fileno(), c_int64(0), c_int64(CHUNK), 2) == 0


@pytest.mark.parametrize("pieces", [
    pytest.param([(1, b"x")], id="nothing-in-front"), pytest.param([(0, b"xy"), (1, b"z")], id="overlap"),
    pytest.param([(0, b"x"), (2, b"y")], id="gap"), pytest.param([(0, b"x"), (0, b"x")], id="twice"),
])
def test_pieces_that_do_not_hold_each_byte_once_are_refused(pieces: list[tuple[int, bytes]], tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="not as announced"):
        disk.create_from_pieces(tmp_path / "f", pieces)


def test_content_without_an_order_of_its_own_comes_in_order() -> None:
    assert list(pieces_of(BytesContent(b"abc"))) == [(0, b"abc")]
    assert list(pieces_of(LazyContent(3, lambda: [b"a", b"bc"]))) == [(0, b"a"), (1, b"bc")]


def test_content_comes_in_its_own_order_and_as_long_as_announced() -> None:
    def content(size: int) -> LazyContent:
        return LazyContent(size, lambda: [b"abc"], pieces=lambda: [(1, b"bc"), (0, b"a")])

    assert list(pieces_of(content(3))) == [(1, b"bc"), (0, b"a")]
    with pytest.raises(RuntimeError, match="3 bytes instead of 4"):
        list(pieces_of(content(4)))


def test_content_with_an_announced_sum_comes_in_order_and_is_checked() -> None:
    def content(crc: int) -> LazyContent:
        return LazyContent(3, lambda: [b"a", b"bc"], crc32c=crc, pieces=lambda: [(1, b"bc"), (0, b"a")])

    assert list(pieces_of(content(crc32c(b"abc")))) == [(0, b"a"), (1, b"bc")]
    with pytest.raises(RuntimeError, match="not as announced"):
        list(pieces_of(content(1)))


def test_a_piece_of_words_is_as_long_as_its_bytes(tmp_path: Path) -> None:
    words = memoryview(array("q", [1, 2, 3]))
    assert disk.create_from_pieces(tmp_path / "f", [(0, words)]) == (24, crc32c(words.tobytes()))
    assert (tmp_path / "f").read_bytes() == words.tobytes()


def test_content_is_padded_without_a_copy_of_it() -> None:
    view = memoryview(bytearray(b"abc"))
    chunks = list(padded(view, 5))
    assert chunks == [b"abc", bytes(2)]
    assert chunks[0] is view
