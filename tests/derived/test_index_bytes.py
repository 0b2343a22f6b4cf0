"""Index files made block by block: the same bytes whatever the blocks, and made ahead of who takes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fixtures.damage import damage
from recover.change.content import pieces_of
from recover.derived import index_image
from recover.derived.index_rebuild import ahead, rebuild_index
from recover.store.reading import Piece
from tests.support.indexes import opened
from tests.support.stores import STORES, unpacked


def _put_together(pieces: Iterator[Piece], size: int) -> bytes:
    whole = bytearray(size)
    for at, piece in pieces:
        whole[at : at + len(piece)] = piece
    return bytes(whole)


@pytest.mark.parametrize("units", [1, 2, 7, 1000])
@pytest.mark.parametrize("name", STORES)
def test_blocks_of_every_size_make_the_bytes_of_the_whole_file(
    name: str, units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, log = opened(unpacked(name))
    made = rebuild_index(store, log, fresh=True).files
    monkeypatch.setattr(index_image, "_UNITS", units)
    monkeypatch.setattr(index_image, "CHUNK", 1024)
    for file in made:
        whole = b"".join(file.content.chunks())
        assert _put_together(pieces_of(file.content), file.content.size) == whole
        assert sum(len(piece) for _, piece in pieces_of(file.content)) == len(whole) == file.content.size


def test_pieces_of_a_file_that_keeps_expired_units_make_the_whole_file(store: Callable[[str], Path]) -> None:
    root = store("clean-expired-5.5.0")
    damage("index-slot-zeroed", root, 1)
    (file,) = rebuild_index(*opened(root)).files
    whole = b"".join(file.content.chunks())
    assert whole == (unpacked("clean-expired-5.5.0") / "index" / file.name).read_bytes()
    assert _put_together(pieces_of(file.content), file.content.size) == whole


def test_pieces_are_made_on_another_thread_and_come_in_order() -> None:
    threads = set()

    def pieces() -> Iterator[Piece]:
        for number in range(100):
            threads.add(threading.get_ident())
            yield number, b"%d" % number

    assert list(ahead(pieces())) == [(number, b"%d" % number) for number in range(100)]
    assert len(threads) == 1 and threading.get_ident() not in threads


def test_what_goes_wrong_on_the_thread_comes_to_who_takes_the_pieces() -> None:
    def pieces() -> Iterator[Piece]:
        yield 0, b"one"
        raise OSError(5, "gone")

    taken = []
    with pytest.raises(OSError, match="gone"):
        taken.extend(ahead(pieces()))


def test_who_stops_early_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    made = ahead(iter([(0, b"x")] * 1000))
    assert next(made) == (0, b"x")
    made.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
