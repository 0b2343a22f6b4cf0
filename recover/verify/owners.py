"""Files of another owner or mode than their neighbours: brokers make all files alike, and may not get into others."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from recover.files.store import Store
from recover.findings import Finding, finding

_NAMED = 3


class _Rights(NamedTuple):
    uid: int
    gid: int
    mode: int


def check_owners(store: Store) -> Iterator[Finding]:
    """One finding for each part in which files differ from what most there have, or most of the store."""
    parts = [*store.commitlog_dirs, store.consumequeue_dir, store.index_dir, store.config_dir]
    found = {part: dict(_files(part)) for part in parts}
    in_all = _usual([rights for files in found.values() for rights in files.values()])
    for part, files in found.items():
        usual = _usual([*files.values()]) or in_all
        odd = sorted(path for path, rights in files.items() if usual is not None and rights != usual)
        if usual is None or not odd:
            continue
        first = files[odd[0]]
        more = f" and {len(odd) - _NAMED} more" if len(odd) > _NAMED else ""
        yield finding(
            "file-owner-or-mode", store.relative(part), None, count=len(odd), first=store.relative(odd[0]),
            names=", ".join(store.relative(path) for path in odd[:_NAMED]) + more, has=_text(first),
            usual=_text(usual), owner=f"{usual.uid}:{usual.gid}", mode=f"{usual.mode:o}",
        )


def _files(part: Path) -> Iterator[tuple[Path, _Rights]]:
    for folder, _, names in os.walk(part):
        for name in names:
            try:
                status = os.lstat(path := Path(folder, name))
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                yield path, _Rights(status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode))


def _usual(rights: list[_Rights]) -> _Rights | None:
    """What more than half of them have; None where nothing is usual."""
    for most, count in Counter(rights).most_common(1):
        return most if 2 * count > len(rights) else None
    return None


def _text(rights: _Rights) -> str:
    return f"owner {rights.uid}:{rights.gid}, mode {rights.mode:o}"
