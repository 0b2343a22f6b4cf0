"""Harm to files of a store that are found by a pattern: for tables of tests, a row each."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

Harm = Callable[[Path], None]
"""Given the root of a store."""


def newest(root: Path, pattern: str) -> Path:
    return sorted(root.glob(pattern))[-1]


def gone(*patterns: str) -> Harm:
    """What fits these patterns, files and folders."""
    def harm(root: Path) -> None:
        for path in [path for pattern in patterns for path in root.glob(pattern)]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return harm


def zeroed(pattern: str) -> Harm:
    def harm(root: Path) -> None:
        for path in root.glob(pattern):
            path.write_bytes(bytes(path.stat().st_size))
    return harm


def changed(pattern: str, change: Callable[[bytes], bytes]) -> Harm:
    """Other bytes in the newest file of the pattern."""
    def harm(root: Path) -> None:
        path = newest(root, pattern)
        path.write_bytes(change(path.read_bytes()))
    return harm


def cut(pattern: str, left: float) -> Harm:
    return changed(pattern, lambda content: content[: int(len(content) * left)])


def cut_at(pattern: str, left: int) -> Harm:
    """The manifests are cut between two edits: the database opens, without its tables."""
    return changed(pattern, lambda content: content[:left])


def noise(pattern: str) -> Harm:
    return changed(pattern, lambda content: bytes(byte ^ 0x5A for byte in content))


def bit(pattern: str, at: int) -> Harm:
    return changed(pattern, lambda content: content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
