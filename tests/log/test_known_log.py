"""A log that did not change is not read twice; one that did, or that needs its queues to be understood, is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fixtures.synth import synth_store
from recover.check.survey import ScanOptions, survey
from recover.log.scan import KnownLog, LocalEngine, stamps_of
from recover.store.mapped_files import MappedFileQueue
from recover.store.store import Store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return synth_store(tmp_path / "s", messages=60, mapped_file_size=8192).root


def _known(root: Path) -> tuple[KnownLog, MappedFileQueue]:
    queue = Store.open(root).commitlog
    stamps = stamps_of(queue)
    return KnownLog(LocalEngine().scan_log(queue), stamps), queue


def test_a_log_that_did_not_change_is_not_scanned_again(root: Path) -> None:
    known, _ = _known(root)
    queue = Store.open(root).commitlog
    assert known.holds(queue)
    look = survey(Store.open(root), ScanOptions(known=known))
    assert look.log is known.log


def test_a_log_with_a_changed_file_is_scanned_again(root: Path) -> None:
    known, queue = _known(root)
    path = queue.files[1].path
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[88] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert not known.holds(queue)


@pytest.mark.parametrize("change", ["removed", "replaced"])
def test_a_log_with_other_files_is_scanned_again(root: Path, change: str) -> None:
    known, queue = _known(root)
    path = queue.files[-1].path
    if change == "removed":
        path.unlink()
    else:
        status, content = path.stat(), path.read_bytes()
        path.rename(path.with_name("aside"))
        path.write_bytes(content)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not known.holds(MappedFileQueue.load((root / "commitlog",)))


def test_a_log_with_damage_is_scanned_again_for_its_meaning_depends_on_the_queues(root: Path) -> None:
    path = Store.open(root).commitlog.files[0].path
    content = bytearray(path.read_bytes())
    content[88] ^= 1
    path.write_bytes(content)
    known, queue = _known(root)
    assert not known.holds(queue)


def test_a_log_beside_other_names_than_before_is_scanned_again(root: Path) -> None:
    (root / "commitlog" / "lost+found").mkdir()
    known, _ = _known(root)
    (root / "commitlog" / "lost+found").rmdir()
    assert not known.holds(Store.open(root).commitlog)


def test_a_log_without_keys_is_scanned_again_for_those_who_need_them(root: Path) -> None:
    queue = Store.open(root).commitlog
    known = KnownLog(LocalEngine().scan_log(queue, with_keys=False), stamps_of(queue))
    assert known.holds(queue, with_keys=False) and not known.holds(queue)
    assert survey(Store.open(root), ScanOptions(known=known)).log.has_keys
