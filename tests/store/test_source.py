"""Files that are not of this machine: read, listed and judged as those that are, and never opened by mistake."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage import damage
from recover.check.report import verify
from recover.store.reader import FileReader
from recover.store.source import (
    entries,
    expect,
    files_below,
    open_source,
    remote_root,
)
from recover.store.store import Store
from tests.support.stores import real_store, unpacked

MIB = 1 << 20


def _there(root: Path) -> Path:
    """The same files behind an address."""
    return remote_root(root.absolute().as_uri())


def _plain(value: Any, root: Path) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item, root) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, root) for item in value]
    return value.replace(str(root), "STORE") if isinstance(value, str) else value


@pytest.mark.parametrize(("name", "recipes"), [
    ("clean-5.3.3", []), ("killed-lmq-4.9.7", ["page-random", "queue-behind"]), ("killed-5.5.0", ["checkpoint-zero"]),
])
def test_a_store_behind_an_address_is_judged_like_the_one_on_the_disk(
    name: str, recipes: list[str], tmp_path: Path
) -> None:
    root = real_store(name, tmp_path)
    for recipe in recipes:
        damage(recipe, root, 5)
    here, there = (_plain(verify(Store.open(place)).json(), place) | {"seconds": 0} for place in (root, _there(root)))
    assert there == here


def test_no_call_of_the_system_takes_a_path_that_is_not_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    path = _there(tmp_path) / "file"
    for call in (os.stat, os.listdir, os.scandir, os.remove, lambda it: os.open(it, os.O_RDONLY), open):
        with pytest.raises(TypeError, match="no file of this machine"):
            call(path)  # type: ignore[operator]
    assert path.exists() and path.is_file() and not path.is_dir() and path.stat().st_size == 1


def test_a_folder_lists_the_same_wherever_it_is() -> None:
    root = unpacked("clean-5.3.3")
    there = _there(root)

    def listed(place: Path) -> dict[str, int]:
        return {path.relative_to(place).as_posix(): status.st_size for path, status in files_below(place)}

    assert listed(there) == listed(root) != {}
    for folder in ("", "consumequeue", "commitlog"):
        here, far = ([(item.name, item.is_folder, item.is_file and item.length) for item in entries(place / folder)]
                     for place in (root, there))
        assert far == here
    assert sorted(path.name for path in there.glob("c*")) == sorted(path.name for path in root.glob("c*"))
    with pytest.raises(FileNotFoundError):
        entries(there / "nowhere")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(random.Random(1).randbytes(40 * MIB + 17))
    return path


@pytest.mark.parametrize("seed", range(3))
def test_what_comes_ahead_reads_as_what_is_there(large: Path, seed: int) -> None:
    content, rng = large.read_bytes(), random.Random(seed)
    with FileReader(_there(large.parent) / "large") as reader:
        assert reader.length == len(content)
        for _ in range(30):
            start = rng.randrange(len(content))
            if rng.random() < 0.4:
                reader.come_to(start, rng.randrange(start, len(content) + MIB))
            offset = max(0, start + rng.randrange(-MIB, MIB))
            length = rng.choice([0, 1, 4096, MIB, 17 * MIB])
            assert reader.read(offset, length) == content[offset : offset + length]


def test_files_that_are_expected_come_whole_and_others_all_the_same(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / str(number)).write_bytes(bytes([number]) * number)
    there = _there(tmp_path)
    expect(there / str(number) for number in range(0, 30, 2))
    for number in range(30):
        source = open_source(there / str(number))
        assert source.read(0, 100) == bytes([number]) * number
        source.close()
    expect(iter(()))
    expect([tmp_path / "1"])
