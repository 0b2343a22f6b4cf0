"""Reading beside a live broker: its page cache is left as it was, and no faster than allowed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from fixtures.synth import synth_store
from recover.log.scan import LocalEngine
from recover.store import reader
from recover.store.reader import BLOCK, LocalFile, Pace
from recover.store.source import open_file
from recover.store.store import Store


class _System:
    """A file of `blocks` blocks, some of which are in the cache, and what it is asked to do with them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cached: set[int], *, fails: int = 0) -> None:
        self.cached = cached
        self.dropped: list[int] = []
        self.advice: list[int] = []
        self.fails = fails
        monkeypatch.setattr(os, "preadv", self._preadv)
        monkeypatch.setattr(os, "posix_fadvise", self._advise)

    def _preadv(self, descriptor: int, buffers: Any, offset: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT
        if self.fails:
            raise OSError(self.fails, "no")
        if offset // BLOCK not in self.cached:
            raise BlockingIOError
        return 1

    def _advise(self, descriptor: int, offset: int, size: int, advice: int) -> None:
        self.advice.append(advice)
        if advice == os.POSIX_FADV_WILLNEED:
            self.cached.add(offset // BLOCK)
        elif advice == os.POSIX_FADV_DONTNEED:
            self.cached.remove(offset // BLOCK)
            self.dropped.append(offset // BLOCK)


def _pass_over(path: Path, blocks: int, step: int = BLOCK // 2) -> None:
    with LocalFile(path) as reader:
        for position in range(0, blocks * BLOCK, step):
            reader.announce(position, blocks * BLOCK)


@pytest.mark.parametrize("cached", [set(), {0, 3, 4, 29}, set(range(30))])
def test_a_pass_over_a_file_leaves_the_page_cache_as_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cached: set[int]
) -> None:
    (tmp_path / "f").write_bytes(b"x")
    system = _System(monkeypatch, set(cached))
    _pass_over(tmp_path / "f", 30)
    assert system.cached == cached
    assert sorted(system.dropped) == sorted(set(range(30)) - cached)


@pytest.mark.parametrize("error", [OSError(95, "no"), NotImplementedError("flags unavailable on this platform")])
def test_where_the_kernel_or_the_c_library_cannot_tell_what_is_cached_reading_goes_on_with_the_kernels_read_ahead(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Python's `preadv` has no flags if it was built for a glibc before 2.26."""
    def unable(*_: object) -> int:
        raise error

    (tmp_path / "f").write_bytes(b"x")
    system = _System(monkeypatch, set())
    monkeypatch.setattr(os, "preadv", unable)
    _pass_over(tmp_path / "f", 30)
    assert system.advice[-1] == os.POSIX_FADV_NORMAL
    assert not system.dropped and os.POSIX_FADV_WILLNEED not in system.advice


def test_no_more_is_read_than_the_rate_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "sleep", sleep)
    Pace().spend(1 << 40)
    assert now == 100
    limited = Pace(1000)
    for _ in range(50):
        limited.spend(100)
    assert 4.9 <= now - 100 <= 5.0


def test_reads_of_every_kind_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(bytes(10_000))
    spent: list[int] = []
    monkeypatch.setattr(reader._pace, "spend", spent.append)
    with open_file(tmp_path / "f") as file:
        file.read(0, 100)
        file.read(9_990, 100)
        file.read_into(memoryview(bytearray(1_000)), 0)
        file.salvage_into(memoryview(bytearray(300)), 9_900)
    assert spent == [100, 10, 1_000, 100]


def test_a_scan_keeps_to_the_pace_of_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(synth_store(tmp_path / "s", messages=60, mapped_file_size=8192).root)
    spent: list[int] = []
    monkeypatch.setattr(reader._pace, "spend", spent.append)
    log = LocalEngine().scan_log(store.commitlog)
    assert log.tally.messages == 60
    assert sum(spent) >= log.log_end
