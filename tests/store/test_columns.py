"""The store of columns: what does not fit into memory, and a disk that has no room for it either."""

from __future__ import annotations

import errno
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from formats.record.rows import RECORD
from mqtool import exits
from recover.store.columns import ColumnStore
from tests.cli.runner import mqtool
from tests.support.stores import unpacked

ROWS = np.zeros(1000, dtype=RECORD)
ROWS["phy_offset"] = np.arange(1000)
HASHES = np.arange(3000, dtype=np.int32)


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder with room for 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("NOT RUN: mounting needs root")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_what_does_not_fit_into_memory_comes_back_from_the_disk() -> None:
    store = ColumnStore(ROWS.nbytes)
    for _ in range(3):
        kept = store.keep(ROWS, HASHES)
        assert kept.records.tolist() == ROWS.tolist()
        assert kept.hashes.tolist() == HASHES.tolist()
        kept.records["bits"] |= 1  # a scan marks stale records in place


def test_a_full_disk_is_an_error_and_not_the_end_of_the_process(small_disk: Path) -> None:
    store = ColumnStore(0)
    store.keep(ROWS, HASHES)
    with pytest.raises(OSError) as full:
        store.keep(ROWS, HASHES)
    assert full.value.errno == errno.ENOSPC


@pytest.fixture
def root() -> Path:
    """A store that is there before the disk is a small one."""
    return unpacked("clean-5.3.3")


def test_a_full_temporary_folder_ends_the_command_with_8(root: Path, small_disk: Path) -> None:
    result = mqtool("verify", root, "--memory", "1K", "--json")
    assert result.code & exits.OPERATIONAL
    assert "No space left" in result.document["error"]["message"]
