"""What was read of a file, as sums: of the very bytes, however they were read."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from crc32c import crc32c

from recover.store import reading
from recover.store.reading import FileReads, Run, recorded
from recover.store.source import open_file
from tests.support.stores import flip


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PIECE", 4096)
    monkeypatch.setattr(reading, "_FIRST", 100)


def _read(path: Path, dice: random.Random, holes: bool) -> FileReads:
    size = path.stat().st_size
    with recorded() as files, open_file(path) as reader:
        for _ in range(dice.randrange(1, 12)):
            start = dice.randrange(size)
            stop = dice.randrange(start, min(size, start + 20_000) + 1)
            if dice.random() < 0.5 and holes:
                for first, last in reader.data_ranges(start, stop):
                    reader.read(first, last - first)
            else:
                reader.salvage_into(memoryview(bytearray(stop - start)), start)
    return files[str(path)]


@pytest.mark.parametrize("seed", range(6))
def test_each_byte_that_was_read_is_behind_the_sum_of_a_piece(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    path = tmp_path / "f"
    with path.open("wb") as file:
        for at in range(0, 200_000, 50_000):
            file.seek(at)
            file.write(dice.randbytes(dice.randrange(1, 20_000)))
        file.truncate(200_000)
    content = path.read_bytes()
    found = _read(path, random.Random(seed), holes=True)
    wanted = _read(path, random.Random(seed), holes=False)
    assert found.size == len(content) and found == wanted
    for run in found.runs:
        pieces = list(run.pieces())
        assert [pieces[0][0], *(stop for _, stop, _ in pieces)] == [*(start for start, _, _ in pieces), run.stop]
        assert pieces[0][0] == run.start and pieces[0][1] <= run.start + 100
        for start, stop, value in pieces:
            assert stop - start <= 4096 and value == crc32c(content[start:stop])


def test_another_byte_is_another_sum(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(os.urandom(30_000))

    def sums() -> list[Run]:
        with recorded() as files, open_file(tmp_path / "f") as reader:
            reader.read(1_000, 20_000)
        return files[str(tmp_path / "f")].runs

    before = sums()
    for at, same in ((999, True), (1_000, False), (12_345, False), (20_999, False), (21_000, True)):
        flip(tmp_path / "f", at)
        assert (sums() == before) is same
        before = sums()
