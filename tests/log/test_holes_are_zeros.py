"""A hole of a sparse file is nothing but zeros: stores of equal bytes get the same documents and plans."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.synth import synth_store
from formats.record import encode
from formats.record.codec import make_record
from recover.store.reader import FileReader
from tests.cli.runner import mqtool
from tests.log.test_scan import _scans
from tests.support.stores import copy_store, real_store

_BLOCK = 4096
Keep = Callable[[Path, int], bool]


def _with_holes(source: Path, target: Path, keep: Keep) -> Path:
    """A copy in which blocks of zeros are holes, but those of log, queues and index that are to be kept."""
    copy_store(source, target)
    for part in ("commitlog", "consumequeue", "index"):
        for path in (source / part).rglob("*"):
            if path.is_file():
                _copy(path, target / path.relative_to(source), keep)
    return target


def _copy(source: Path, target: Path, keep: Keep) -> None:
    content = source.read_bytes()
    with open(target, "wb") as file:
        for at in range(0, len(content), _BLOCK):
            block = content[at : at + _BLOCK]
            if any(block) or keep(source, at):
                file.seek(at)
                file.write(block)
        file.truncate(len(content))
    shutil.copystat(source, target)


def _documents(root: Path) -> list[Any]:
    found = []
    for command in (["verify"], ["recover", "--dry-run"], ["predict"]):
        document = mqtool(command[0], root, *command[1:], "--json").document
        found.append(json.loads(json.dumps(document).replace(str(root), "STORE")))
    return [_plain(document) for document in found]


def _is_log(path: Path) -> bool:
    return path.parent.name == "commitlog"


def _plain(value: Any) -> Any:
    """Without what each run has of its own."""
    if isinstance(value, dict):
        own = ("seconds", "summary", "id", "created", "time")
        return {key: _plain(item) for key, item in value.items() if key not in own}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _strike(root: Path, seed: int) -> None:
    """Flip bits in the log and have pages of all files be zeros, as pages are that never reached the disk."""
    rng = random.Random(seed)
    logs = sorted((root / "commitlog").iterdir())
    files = [path for part in ("consumequeue", "index") for path in sorted((root / part).rglob("*")) if path.is_file()]
    for path in [*logs, rng.choice(files)]:
        content = bytearray(path.read_bytes())
        end = len(bytes(content).rstrip(b"\0"))
        for _ in range(3):
            at = rng.randrange(max(1, end))
            content[at] ^= 0x40
            page = min(at + rng.choice([100, 5000, 20_000]), end) // _BLOCK * _BLOCK
            size = min(rng.choice([1, 3]) * _BLOCK, len(content) - page)
            content[page : page + size] = bytes(size)
        path.write_bytes(content)


def test_equal_stores_get_equal_verdicts_and_plans(tmp_path: Path) -> None:
    _strike(struck := real_store("clean-5.3.3", tmp_path), seed=1)
    rng = random.Random(1)
    wanted = _documents(_with_holes(struck, tmp_path / "dense", lambda path, at: True))
    assert _documents(_with_holes(struck, tmp_path / "sparse", lambda path, at: False)) == wanted
    some = _with_holes(struck, tmp_path / "some", lambda path, at: _is_log(path) and rng.random() < 0.5)
    assert _documents(some) == wanted


def test_records_are_found_behind_a_hole_behind_damage(tmp_path: Path) -> None:
    """In the last MiB of a file the search took the end of its buffer for that of the file."""
    synth_store(tmp_path / "s", messages=2000, mapped_file_size=1 << 20)
    path = sorted((tmp_path / "s" / "commitlog").iterdir())[0]
    content = bytearray(path.read_bytes())
    content[10_000] ^= 1
    content[3 * _BLOCK : 4 * _BLOCK] = bytes(_BLOCK)
    path.write_bytes(content)
    (dense, *_) = _scans(tmp_path / "s")
    (sparse, *_) = _scans(_with_holes(tmp_path / "s", tmp_path / "sparse", lambda path, at: False))
    assert sparse.holes == dense.holes and sparse.record_count == dense.record_count > 1000
    assert dense.end == sparse.end


@pytest.mark.parametrize("shift", range(5))
def test_a_record_is_found_whose_size_begins_in_a_hole(tmp_path: Path, shift: int) -> None:
    """The first bytes of a size are zeros, and may be the last ones of a hole."""
    size, at = 64 * _BLOCK, 8 * _BLOCK - shift
    content = bytearray(size)
    content[0:4] = b"\1\1\1\1"
    record = encode(make_record(b"T", b"x" * 50, phy_offset=at, store_timestamp=1, born_timestamp=1))
    content[at : at + len(record)] = record
    folder = tmp_path / "s" / "commitlog"
    folder.mkdir(parents=True)
    (folder / "00000000000000000000").write_bytes(content)
    sparse = _with_holes(tmp_path / "s", tmp_path / "sparse", lambda path, at: False)
    for root in (tmp_path / "s", sparse):
        (scan,) = _scans(root)
        assert scan.holes[0].stop == at and scan.record_count == 1


def test_a_file_of_many_holes_is_not_read_once_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 512 * _BLOCK
    (folder := tmp_path / "s" / "commitlog").mkdir(parents=True)
    content = b"".join((b"\1" if number % 2 else b"\0") * _BLOCK for number in range(size // _BLOCK))
    (folder / "00000000000000000000").write_bytes(content)
    sparse = _with_holes(tmp_path / "s", tmp_path / "sparse", lambda path, at: False)
    assert os.stat(sparse / "commitlog" / "00000000000000000000").st_blocks * 512 <= size // 2 + _BLOCK
    read = 0
    into = FileReader.read_into

    def counted(self: FileReader, buffer: memoryview, offset: int) -> int:
        nonlocal read
        read += len(buffer)
        return into(self, buffer, offset)

    monkeypatch.setattr(FileReader, "read_into", counted)
    _scans(sparse)
    assert read <= 4 * size
