"""T13: log files of a wrong length or name that are damaged within as well are written anew, with all changes."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.damage.patch import flip_bit
from recover.change.model import InPlace, WriteRange, ZeroRange, changed_file
from tests.scenarios.conftest import Start
from tests.scenarios.drill import body_at, file_name, messages

STORE, SIZE = "clean-manyfiles-5.3.3", 64 << 10


@pytest.mark.parametrize("what", ["length", "name"])
def test_t13_file_that_is_damaged_as_well_is_written_anew(drill: Start, what: str) -> None:
    store = drill(STORE)
    hits = store.records(-1)
    lost, start = hits[len(hits) // 2], hits[0].file.file_from_offset
    flip_bit(store.root, lost.file.path, body_at(lost), 3)
    store.struck()
    if what == "length":
        os.truncate(lost.file.path, SIZE + 4096)
    else:
        lost.file.path.rename(lost.file.path.with_name(file_name(start + SIZE)))
    with store.recovered() as done:
        assert [(row["messages"], row["cause"]) for row in done["plan"]["loss"]] == [(1, "bad-body-crc")]
        assert ("install", f"commitlog/{file_name(start)}") in {(s["kind"], s["file"]) for s in done["plan"]["steps"]}
        assert messages(store.root) == store.intact


@given(
    data=st.binary(max_size=300), size=st.integers(0, 300), cuts=st.lists(st.integers(0, 400), max_size=8),
    draw=st.data(),
)
def test_changed_file_holds_what_changes_in_place_would_leave(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, size: int, cuts: list[int], draw: st.DataObject,
) -> None:
    path = tmp_path_factory.mktemp("changed") / "file"
    path.write_bytes(data)
    expected = bytearray(data[:size].ljust(size, b"\0"))
    changes: list[InPlace] = []
    places = sorted(set(cuts))
    for start, stop in zip(places[::2], places[1::2], strict=False):
        content = draw.draw(st.binary(min_size=stop - start, max_size=stop - start) | st.just(bytes(stop - start)))
        changes.append(WriteRange("file", start, content) if any(content) else ZeroRange("file", start, stop))
        room = max(0, min(stop, size) - start)
        expected[start : start + room] = content[:room]
    assert b"".join(changed_file(path, size, changes[::-1]).chunks()) == expected


def test_changes_of_the_same_bytes_are_no_file(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("changed") / "file"
    with pytest.raises(ValueError, match="overlap"):
        changed_file(path, 10, [ZeroRange("file", 0, 5), ZeroRange("file", 4, 8)])
