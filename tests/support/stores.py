"""Copies of the stores that real brokers wrote, for tests to read and to damage."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage import Damage, NotApplicable, damage
from fixtures.lab.packed import kinds, settings
from fixtures.unpack import STORES as PACKED, is_made_up, unpack
from tests.support.sparse import data_chunks

EXPECTED: dict[str, dict[str, Any]] = json.loads((PACKED / "expected.json").read_text())

STORES = tuple(EXPECTED)
CLEAN = tuple(name for name in STORES if EXPECTED[name]["exit_state"] == "clean")
KILLED = tuple(name for name in STORES if EXPECTED[name]["exit_state"] == "killed")
#: One of every kind, named with their folder: `kinds/clean-dledger-5.3.3`. No list of them all is among those above.
KINDS = kinds()


@functools.cache
def _unpack_dir() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="mqtool-stores-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def unpacked(name: str) -> Path:
    """The store as unpacked once per process. Look, do not write: every test shares it."""
    return unpack(name, _unpack_dir() / name)


def real_store(name: str, target: Path) -> Path:
    """A private copy of the store at `target/name`, mtimes and modes kept, sparse where the original is.

    `FileExistsError` when that folder is taken; ask with another `target` for a second copy.
    """
    return copy_store(unpacked(name), target / name)


def broker_conf(name: str, root: Path, path: Path) -> Path:
    """A broker.conf for the copy at `root` of a store that the lab made: the settings of its writer."""
    conf = {"storePathRootDir": root, **settings(name)}
    lines = (f"{key}={str(value).lower() if isinstance(value, bool) else value}\n" for key, value in conf.items())
    path.write_text("".join(lines).replace("{root}", str(root)).replace("{spare port}", "40911"), "utf-8")
    return path


def unmount_log(root: Path) -> Path:
    """What holds the log's bytes (the folder of a DLedger member, too) moved aside, empty folders left where they were.

    That is what a disk that is not mounted looks like. The folder beside the store that has the bytes now.
    """
    aside = root.with_name(f"{root.name}-unmounted")
    for log in (root / "commitlog", *root.glob("dledger-*")):
        if log.is_dir():
            aside.mkdir(exist_ok=True)
            log.rename(aside / log.name)
            log.mkdir()
    return aside


def struck_store(name: str, target: Path, recipe: str, seed: int = 0) -> tuple[Path, Damage]:
    """`real_store` with the damage that the real brokers were given: of stores without a config/ none of it."""
    root, aside = real_store(name, target), target / "config-aside"
    config = root / "config"
    made_up = is_made_up(config)
    if made_up:
        config.rename(aside)
    done = damage(recipe, root, seed)
    if made_up:
        aside.rename(config)
    return root, done


def strike(recipe: str, root: Path, seed: int = 0) -> Damage:
    """Damage a store by recipe; one that lacks what the recipe damages skips the test."""
    try:
        return damage(recipe, root, seed)
    except NotApplicable as reason:
        pytest.skip(str(reason))


def copy_store(source: Path, target: Path) -> Path:
    """Copy a store tree to the new folder `target`, mtimes and modes kept and zeros left as holes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source, target, symlinks=True, copy_function=_copy_sparse)
    return target


def _copy_sparse(source: str, target: str, *, follow_symlinks: bool = True) -> str:
    if os.path.islink(source) and not follow_symlinks:
        return str(shutil.copy2(source, target, follow_symlinks=False))
    with open(source, "rb") as reader, open(target, "wb") as writer:
        for offset, chunk in data_chunks(reader.fileno()):
            writer.seek(offset)
            writer.write(chunk)
        writer.truncate(os.fstat(reader.fileno()).st_size)
    shutil.copystat(source, target)
    return target


def log_place(root: Path, phy_offset: int) -> tuple[Path, int]:
    """The mapped file that holds an offset of the log, and the position in it."""
    path = max(path for path in (root / "commitlog").iterdir() if path.name <= f"{phy_offset:020d}")
    return path, phy_offset - int(path.name)


def flip(path: Path, position: int, mask: int = 1) -> None:
    """Turn the bits of `mask` over in one byte of a file."""
    with path.open("rb") as file:
        file.seek(position)
        (byte,) = file.read(1)
    write_at(path, position, bytes([byte ^ mask]))


def write_at(path: Path, position: int, content: bytes) -> None:
    """Overwrite bytes of a file."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)
