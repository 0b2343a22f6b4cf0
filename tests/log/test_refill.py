"""Compiled code that fills its own buffer: it finds what a scan finds that is handed every buffer, or asks for help."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage import NotApplicable, damage, of_area
from fixtures.synth import synth_store
from recover.log import file_scan as window
from recover.log.file_scan import FileScan, Window, scan_file
from recover.log.scan import assemble
from recover.log.split_scan import one_split, scan_split, splits_of
from recover.store import reader
from recover.store.columns import ColumnStore
from recover.store.reader import BLOCK, FileReader, Pace, ReadAhead
from recover.store.store import Store
from tests.support.looks import opened
from tests.support.stores import STORES, unpacked
from tests.torture.trouble import PAGE, lacking_pages, short_reads

_SIZE = 4096
_LOADS = 33  # one by the interpreter, and as many as it allows after that


def _scans(root: Path, size: int = _SIZE) -> list[FileScan]:
    queue = opened(root).commitlog
    return [scan_file(each, queue.file_size, ColumnStore(), window=size) for each in queue.files]


def _told(scans: list[FileScan]) -> list[Any]:
    rows = [one_split(scan.splits) for scan in scans]
    return [
        (own.records.tolist(), own.hashes.tolist(), scan.queues, scan.holes, scan.blank, scan.end)
        for own, scan in zip(rows, scans, strict=True)
    ]


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Every buffer is filled by the interpreter, as where the system has no such call."""
    with monkeypatch.context() as patch:
        patch.setattr(window, "preadv2_address", lambda: 0)
        yield patch


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where in a file the interpreter filled a buffer."""
    at: list[int] = []
    known = Window.load

    def load(self: Window, position: int, needed: int = 0) -> None:
        at.append(position)
        known(self, position, needed)

    monkeypatch.setattr(Window, "load", load)
    return at


@pytest.mark.parametrize("name", STORES)
def test_every_store_reads_the_same_in_either_way(name: str, handed: pytest.MonkeyPatch) -> None:
    root = unpacked(name)
    expected = _told(_scans(root))
    handed.undo()
    for size in (700, _SIZE, 1 << 20):
        assert _told(_scans(root, size)) == expected


@pytest.mark.parametrize("recipe", sorted(of_area("log", "crash", "files")))
def test_every_damage_reads_the_same_in_either_way(recipe: str, tmp_path: Path, handed: pytest.MonkeyPatch) -> None:
    root = tmp_path / "s"
    synth_store(root, messages=400, mapped_file_size=32 * 1024)
    try:
        damage(recipe, root, seed=1)
    except NotApplicable:
        pytest.skip("not in this store")
    expected = _told(_scans(root))
    handed.undo()
    assert _told(_scans(root)) == expected


def test_a_log_in_the_page_cache_hardly_needs_the_interpreter(disk: Path, loads: list[int]) -> None:
    synth_store(disk / "s", messages=3000, mapped_file_size=4 << 20)
    (scan,) = _scans(disk / "s")
    assert scan.record_count == 3000
    assert len(loads) <= (scan.end - scan.mapped_file.file_from_offset) // ((_SIZE - 600) * _LOADS) + 2


def test_without_such_a_call_the_interpreter_fills_every_buffer(
    disk: Path, handed: pytest.MonkeyPatch, loads: list[int]
) -> None:
    synth_store(disk / "s", messages=300, mapped_file_size=4 << 20)
    (scan,) = _scans(disk / "s")
    assert scan.record_count == 300 and len(loads) >= scan.end // _SIZE


def test_what_does_not_come_at_once_is_left_to_the_interpreter(disk: Path, loads: list[int]) -> None:
    synth_store(disk / "s", messages=3000, mapped_file_size=4 << 20)
    expected = _told(_scans(disk / "s"))
    loads.clear()
    for seed in range(3):
        with short_reads(random.Random(seed)):
            assert _told(_scans(disk / "s")) == expected
    # what failed once is not tried again at once: all in all it would take twice as many reads
    assert len(loads) > 3 * expected[0][-1] // _SIZE


def test_a_page_that_lacks_costs_one_buffer_of_the_interpreter(disk: Path, loads: list[int]) -> None:
    synth_store(disk / "s", messages=9000, mapped_file_size=4 << 20)
    expected = _told(_scans(disk / "s"))
    before = len(loads)
    loads.clear()
    lacking = {PAGE * number for number in range(40, 560, 104)}
    with lacking_pages(lacking):
        assert _told(_scans(disk / "s")) == expected
    assert not lacking and len(loads) <= before + 2 * 5


def test_where_every_buffer_lacks_a_page_compiled_code_seldom_tries(disk: Path, loads: list[int]) -> None:
    synth_store(disk / "s", messages=9000, mapped_file_size=4 << 20)
    expected = _told(_scans(disk / "s"))
    loads.clear()
    lacking = set(range(0, 4 << 20, PAGE)) - set(range(0, 4 << 20, BLOCK))  # so that no block looks cold
    with lacking_pages(lacking, brought=False) as tried:
        assert _told(_scans(disk / "s")) == expected
    assert len(tried) < len(loads) / 8


def test_compiled_code_fills_its_buffer_up_to_a_block_that_lacks(
    disk: Path, monkeypatch: pytest.MonkeyPatch, loads: list[int]
) -> None:
    synth_store(disk / "s", messages=9000, mapped_file_size=4 << 20)
    expected = _told(_scans(disk / "s"))
    whole = len(loads)
    loads.clear()
    monkeypatch.setattr(ReadAhead, "holds", lambda self, at: at // BLOCK != 1)
    assert _told(_scans(disk / "s")) == expected
    inside = [at for at in loads if BLOCK - _SIZE < at < 2 * BLOCK]
    assert len(inside) >= BLOCK // _SIZE - 1
    assert len(loads) - len(inside) <= whole + 2


def test_a_limited_rate_counts_every_byte(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synth_store(disk / "s", messages=3000, mapped_file_size=4 << 20)
    limited, spent = Pace(1 << 50), []
    monkeypatch.setattr(limited, "spend", spent.append)
    monkeypatch.setattr(reader, "_pace", limited)
    (scan,) = _scans(disk / "s")
    assert sum(spent) >= scan.end


def test_progress_is_told_of_every_byte_and_record_once(disk: Path) -> None:
    synth_store(disk / "s", messages=3000, mapped_file_size=4 << 20)
    queue = Store.open(disk / "s").commitlog
    told: list[tuple[int, int]] = []
    scan_file(queue.files[0], queue.file_size, ColumnStore(), window=_SIZE, progress=lambda *it: told.append(it))
    assert sum(size for size, _ in told) == queue.files[0].length
    assert sum(records for _, records in told) == 3000


def test_a_split_is_not_left_for_what_lies_behind_it(disk: Path) -> None:
    synth_store(disk / "s", messages=3000, mapped_file_size=4 << 20)
    queue = Store.open(disk / "s").commitlog
    expected = assemble(queue, _scans(disk / "s")).messages
    scans = [scan_split(part, window=_SIZE) for part in splits_of(queue.files[0], queue.file_size, 100_000)]
    assert sum(each.scan.record_count for each in scans) == expected


def test_a_file_that_shrinks_under_the_scan_ends_where_it_ends_now(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synth_store(disk / "s", messages=3000, mapped_file_size=4 << 20)
    queue = Store.open(disk / "s").commitlog
    cut = queue.files[0].length // 64
    known = Window.lent
    monkeypatch.setattr(Window, "lent", lambda self: (os.truncate(self.reader.path, cut), known(self))[1])
    scan = scan_file(queue.files[0], queue.file_size, ColumnStore(), window=_SIZE)
    assert 0 < scan.end <= cut and scan.holes[-1].stop == scan.file_end
    with FileReader(queue.files[0].path) as reader:
        assert reader.length == cut
