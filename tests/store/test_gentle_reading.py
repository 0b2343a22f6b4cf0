"""Reading beside a live broker: its page cache is left as it was, and no faster than allowed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fixtures.synth import synth_store
from recover.log.scan import LocalEngine
from recover.store import reader
from recover.store.reader import BLOCK, Pace, ReadAhead
from recover.store.store import Store
from tests.support.stores import unpacked


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


def _pass_over(blocks: int, step: int = BLOCK // 2) -> None:
    ahead = ReadAhead(3, blocks * BLOCK)
    for position in range(0, blocks * BLOCK, step):
        ahead.announce(position, step)
    ahead.close()


@pytest.mark.parametrize("cached", [set(), {0, 3, 4, 29}, set(range(30))])
def test_a_pass_over_a_file_leaves_the_page_cache_as_it_was(monkeypatch: pytest.MonkeyPatch, cached: set[int]) -> None:
    system = _System(monkeypatch, set(cached))
    _pass_over(30)
    assert system.cached == cached
    assert sorted(system.dropped) == sorted(set(range(30)) - cached)


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


def test_a_scan_keeps_to_the_pace_of_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(synth_store(tmp_path / "s", messages=60, mapped_file_size=8192).root)
    spent: list[int] = []
    monkeypatch.setattr(reader._pace, "spend", spent.append)
    log = LocalEngine().scan_log(store.commitlog)
    assert log.tally.messages == 60
    assert sum(spent) >= log.log_end


@pytest.mark.parametrize("name", ["clean-5.3.3", "killed-5.5.0"])
def test_a_verify_opens_no_file_twice(name: str) -> None:
    root = str(unpacked(name))
    _opens_each_once(root)


def test_a_verify_of_many_queues_opens_no_file_twice(tmp_path: Path) -> None:
    synth_store(tmp_path / "s", messages=3000, topics=30, queues=20)
    opened = _opens_each_once(str(tmp_path / "s"))
    assert sum("/consumequeue/" in name for name in opened) == 600


# an audit hook stays for the life of a process
_NOTING_OPENS = """
import os, sys
from mqtool.cli import main
def hook(event, values):
    if event == "open" and isinstance(values[0], (str, bytes, os.PathLike)):
        print(os.fsdecode(values[0]), file=sys.stderr)
sys.addaudithook(hook)
sys.exit(main(["verify", sys.argv[1], "--json"]))
"""


def _opens_each_once(root: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", _NOTING_OPENS, root], capture_output=True, text=True, check=False)
    opened = [name for name in done.stderr.splitlines() if name.startswith(root)]
    assert len(opened) == len(set(opened)) > 0, sorted(opened)
    return set(opened)
