"""What stands in a store's root, and which of it this version reads."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from recover.files.store import Store

READ, LISTED, NOT_READ, OWN, UNKNOWN = "read", "listed", "not-read", "own", "unknown"

_KNOWN: dict[str, tuple[str, str]] = {
    "commitlog": ("messages of all topics", READ),
    "consumequeue": ("where the messages of each queue are", READ),
    "consumequeue_ext": ("filter bit maps of queues", READ),
    "batchconsumequeue": ("queues of batch topics", LISTED),
    "index": ("keys of messages", READ),
    "config": ("topics, groups, consumer offsets", READ),
    "checkpoint": ("how far things were flushed", READ),
    "abort": ("there while a broker runs, or after a crash", READ),
    "abort.bak": ("the abort file that the last start found", READ),
    "lock": ("lock file, held by a broker while it runs", READ),
    "timerlog": ("timer messages", LISTED),
    "timerwheel": ("timer messages by due time", LISTED),
    "compaction": ("compacted topics", LISTED),
    "transaction": ("transactions of 3.x", LISTED),
    "epochFileCheckpoint": ("terms of a controller's masters", LISTED),
    "epochFileCheckpoint.bak": ("terms of a controller's masters", LISTED),
    "brokerIdentity": ("id from a controller", LISTED),
    "rocksdbstore": ("RocksDB, made by every 5.4 and later", LISTED),
    "kvStore": ("RocksDB of pop consumers", LISTED),
    "consumequeue_rocksdb": ("queues in RocksDB", NOT_READ),
    "tieredstore": ("segments in tiered storage", NOT_READ),
    ".mqtool": ("journal, preimages and quarantine of mqtool", OWN),
}
_DLEDGER = re.compile(r"dledger-.*")
_COUNTED = 200_000


class Part(Struct, frozen=True):
    """One name of the root: what it is, whether this version reads it, how many files and bytes (file lengths)."""

    name: str
    what: str
    state: str
    files: int
    size: int
    path: str

    def json(self) -> dict[str, object]:
        """The keys of the document."""
        return {"name": self.name, "what": self.what, "state": self.state, "files": self.files, "bytes": self.size,
                "path": self.path}


def list_parts(store: Store) -> list[Part]:
    """All parts: the known ones first, then whatever else stands in the root. `OSError` from the root itself."""
    names = set(os.listdir(store.root))
    elsewhere: dict[str, Iterable[Path]] = {
        "commitlog": store.commitlog_dirs, "consumequeue": (store.consumequeue_dir,), "index": (store.index_dir,),
    }
    names |= set(elsewhere)
    order = {name: number for number, name in enumerate(_KNOWN)}
    parts = []
    for name in sorted(names, key=lambda name: (order.get(name, len(order)), name)):
        paths = list(elsewhere.get(name, (store.root / name,)))
        what, state = _describe(name, paths[0])
        counted = [item for path in paths if path.exists() for item in _files(path)]
        missing = not any(path.exists() for path in paths)
        parts.append(Part(name, what, "missing" if missing else state, len(counted), sum(counted),
                          ", ".join(store.relative(path) for path in paths)))
    return parts


def _describe(name: str, path: Path) -> tuple[str, str]:
    if name in _KNOWN:
        if name == "consumequeue" and (path / "CURRENT").exists():
            return "queues in RocksDB", NOT_READ
        return _KNOWN[name]
    if _DLEDGER.fullmatch(name):
        return "log of a DLedger group", NOT_READ
    if name.startswith("timerwheel."):
        return "snapshot of the timerwheel", LISTED
    return "not known to us", UNKNOWN


def _files(path: Path) -> Iterator[int]:
    """Lengths of the files below; a folder that may not be listed counts as empty."""
    if not path.is_dir():
        yield path.stat().st_size
        return
    seen = 0
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                yield os.stat(os.path.join(folder, name), follow_symlinks=False).st_size
            except OSError:
                continue
            seen += 1
            if seen >= _COUNTED:
                return
