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

from fixtures.unpack import STORES as PACKED
from fixtures.unpack import unpack
from tests.support.sparse import data_chunks

EXPECTED: dict[str, dict[str, Any]] = json.loads((PACKED / "expected.json").read_text())

STORES = tuple(EXPECTED)
CLEAN = tuple(name for name in STORES if EXPECTED[name]["exit_state"] == "clean")
KILLED = tuple(name for name in STORES if EXPECTED[name]["exit_state"] == "killed")


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
