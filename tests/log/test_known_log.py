"""A log that did not change is not read twice; one that did, or that needs its queues to be understood, is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fixtures.synth import synth_store
from recover.log.engine import KnownLog, LocalEngine, stamps_of
from recover.log.scan import LogView
from recover.store.mapped_files import MappedFileQueue
from recover.store.store import Store


class _Watched:
    """The local engine, and how often it was asked."""

    def __init__(self) -> None:
        self.scans = 0

    def scan_log(self, queue: MappedFileQueue, **how: Any) -> LogView:
        self.scans += 1
        return LocalEngine().scan_log(queue, **how)

    def json(self) -> dict[str, Any]:
        return {"name": "watched"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return synth_store(tmp_path / "s", messages=60, mapped_file_size=8192).root


def _known(root: Path) -> tuple[KnownLog, _Watched, MappedFileQueue]:
    queue, watched = Store.open(root).commitlog, _Watched()
    stamps = stamps_of(queue)
    return KnownLog(LocalEngine().scan_log(queue), stamps, watched), watched, queue


def test_a_log_that_did_not_change_is_not_scanned_again(root: Path) -> None:
    known, watched, _ = _known(root)
    seen: list[tuple[int, int]] = []
    log = known.scan_log(Store.open(root).commitlog, progress=lambda size, records: seen.append((size, records)))
    assert log is known.log
    assert watched.scans == 0
    assert seen == [(sum(file.length for file in log.queue.files), 60)]
    assert known.json() == {"name": "watched"}


def test_a_log_with_a_changed_file_is_scanned_again(root: Path) -> None:
    known, watched, queue = _known(root)
    path = queue.files[1].path
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[88] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert known.scan_log(queue).damaged
    assert watched.scans == 1


@pytest.mark.parametrize("change", ["removed", "replaced"])
def test_a_log_with_other_files_is_scanned_again(root: Path, change: str) -> None:
    known, watched, queue = _known(root)
    path = queue.files[-1].path
    if change == "removed":
        path.unlink()
    else:
        status, content = path.stat(), path.read_bytes()
        path.rename(path.with_name("aside"))
        path.write_bytes(content)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    known.scan_log(MappedFileQueue.load((root / "commitlog",)))
    assert watched.scans == 1


def test_a_log_with_damage_is_scanned_again_for_its_meaning_depends_on_the_queues(root: Path) -> None:
    path = Store.open(root).commitlog.files[0].path
    content = bytearray(path.read_bytes())
    content[88] ^= 1
    path.write_bytes(content)
    known, watched, queue = _known(root)
    assert known.scan_log(queue).damaged
    assert watched.scans == 1


def test_a_log_beside_other_names_than_before_is_scanned_again(root: Path) -> None:
    (root / "commitlog" / "lost+found").mkdir()
    known, watched, _ = _known(root)
    (root / "commitlog" / "lost+found").rmdir()
    assert known.scan_log(Store.open(root).commitlog).queue.odd == []
    assert watched.scans == 1


def test_a_log_without_keys_is_scanned_again_for_those_who_need_them(root: Path) -> None:
    queue, watched = Store.open(root).commitlog, _Watched()
    known = KnownLog(LocalEngine().scan_log(queue, with_keys=False), stamps_of(queue), watched)
    assert known.scan_log(queue, with_keys=False) is known.log
    assert watched.scans == 0
    assert known.scan_log(queue).has_keys
    assert watched.scans == 1
