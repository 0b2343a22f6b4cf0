"""Splits looked at on several threads are told in their order, and never many at a time."""

from __future__ import annotations

import threading
import time

import pytest

from recover.log.engine import side_by_side


@pytest.mark.parametrize("threads", [0, 1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 15, 16, 17, 100])
def test_results_come_in_order_whoever_is_first(count: int, threads: int) -> None:
    def look(number: int) -> int:
        time.sleep(0.001 * (number % 3))
        return number * number

    assert list(side_by_side(look, count, threads)) == [number * number for number in range(count)]


def test_two_are_looked_at_at_once() -> None:
    meeting = threading.Barrier(2, timeout=30)
    assert len({*side_by_side(lambda _: (meeting.wait(), threading.get_ident())[1], 2, 2)}) == 2


def test_one_thread_is_the_one_that_asks() -> None:
    assert {*side_by_side(lambda _: threading.get_ident(), 40, 1)} == {threading.get_ident()}


def test_no_more_are_begun_than_may_wait_to_be_told() -> None:
    begun: list[int] = []
    told = side_by_side(begun.append, 1000, 2)
    next(told)
    time.sleep(0.05)
    assert len(begun) == 16
    assert len(list(told)) == 999 and sorted(begun) == list(range(1000))


def test_a_look_that_fails_is_raised_in_its_place() -> None:
    def look(number: int) -> int:
        if number == 3:
            raise OSError("the disk failed")
        return number

    told = side_by_side(look, 10, 2)
    assert [next(told) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="the disk failed"):
        next(told)
