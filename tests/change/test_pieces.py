"""New files written piece by piece, in whatever order the pieces come: the same bytes, length and checksum."""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recover.change import disk
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


@pytest.mark.parametrize("pieces", [
    pytest.param([(1, b"x")], id="nothing-in-front"), pytest.param([(0, b"xy"), (1, b"z")], id="overlap"),
    pytest.param([(0, b"x"), (2, b"y")], id="gap"), pytest.param([(0, b"x"), (0, b"x")], id="twice"),
])
def test_pieces_that_do_not_hold_each_byte_once_are_refused(pieces: list[tuple[int, bytes]], tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="not as announced"):
        disk.create_from_pieces(tmp_path / "f", pieces)
