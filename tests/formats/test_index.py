"""Index files: what a header and units say, and where they stand."""

from __future__ import annotations

from formats import index
from formats.javahash import index_key_hash

SMALL = index.IndexGeometry(100, 400)


def test_sizes_and_places_of_the_small_and_the_default_geometry() -> None:
    assert SMALL.size == 8440
    assert SMALL.capacity == 399
    assert index.DEFAULT_GEOMETRY.size == 420_000_040
    assert SMALL.slot_of(index_key_hash("A#K0")) == 23


def test_the_hash_of_a_key_is_the_brokers() -> None:
    assert index_key_hash("A#K0") == 1972423


def test_time_differences_are_whole_seconds_and_never_negative() -> None:
    assert index.time_diff(1000, 4999) == 3
    assert index.time_diff(5000, 4999) == 0
    assert index.time_diff(0, 10**15) == 0
    assert index.time_diff(1, 2**62) == index.MAX_TIME_DIFF
