"""Memory that is asked for ahead: whole blocks of zeros, each for one taker, and no matter if there are none."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ours import anonymous_bytes
from fixtures.synth import synth_store
from recover.memory import columns, fresh_memory
from recover.memory.fresh_memory import BLOCK, ask, take
from recover.scan.log_scan import scan_log
from recover.scan.split_scan import one_split
from tests.support.looks import opened


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    fresh_memory._ready.clear()
    yield
    fresh_memory._ready.clear()


def _asked(size: int) -> int:
    """How many blocks came of it."""
    before = set(threading.enumerate())
    ask(size)
    for thread in set(threading.enumerate()) - before:
        thread.join()
    return len(fresh_memory._ready)


def test_blocks_are_whole_zero_and_given_once() -> None:
    assert _asked(2 * BLOCK + 5) == 2
    first, second = take(), take()
    assert first is not None and second is not None and take() is None
    first[:3] = b"abc"
    assert len(first) == len(second) == BLOCK
    assert second[:3] == bytes(3) and first[3:] == bytes(BLOCK - 3)


def test_blocks_count_as_memory_of_this_process_alone() -> None:
    status = Path("/proc/self/status")
    before = anonymous_bytes(status)
    assert _asked(2 * BLOCK) == 2
    assert anonymous_bytes(status) - before > BLOCK


def test_less_than_a_block_is_not_asked_for() -> None:
    assert _asked(BLOCK - 1) == 0


@pytest.mark.parametrize("answer", [-1, None])
def test_a_system_that_cannot_do_it_gives_none(monkeypatch: pytest.MonkeyPatch, answer: int | None) -> None:
    class _Library:
        def __init__(self) -> None:
            if answer is not None:
                self.madvise = lambda *_: answer

    library: Any = _Library()
    if answer is not None:
        library.madvise = _Function(answer)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    assert _asked(BLOCK) == 0


class _Function:
    argtypes: Any = None

    def __init__(self, answer: int) -> None:
        self.answer = answer

    def __call__(self, *_: Any) -> int:
        return self.answer


def test_rows_are_the_same_in_such_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synth_store(tmp_path / "s", messages=2000, mapped_file_size=64 * 1024)
    queue = opened(tmp_path / "s").commitlog
    expected = one_split(scan_log(queue, threads=2).splits()).records.tolist()
    taken: list[Any] = []
    monkeypatch.setattr(columns, "take", lambda: taken.append(take()) or taken[-1])
    assert _asked(3 * BLOCK) == 3
    assert one_split(scan_log(queue, threads=2).splits()).records.tolist() == expected
    assert taken and taken[0] is not None
