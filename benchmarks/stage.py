"""The stores of a measurement, written by a released broker, and where each party works; all of it goes at the end."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fixtures.lab.toolchain import ensure
from fixtures.synth import write_topics

MEBI = 1 << 20
GIBI = 1 << 30
VERSIONS = ("5.3.3", "4.9.7")
NEWEST = VERSIONS[0]
WRITER = "4.9.7"  # whose stores all later releases read
_HEAP = "1500m"
_NEVER_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Shape:
    """One store: `log_bytes` of log, bodies of `body` bytes, topics x queues filled in turn, `keys` words in KEYS."""

    name: str
    body: int
    log_bytes: int
    topics: int = 20
    queues: int = 8
    keys: int = 2
    queue_file_bytes: int = 6_000_000

    @property
    def disk_bytes(self) -> int:
        """What the store and the derived files that the parties write beside it take, generously."""
        return self.log_bytes * 2 + 4_000 * MEBI

    def sized(self, log_bytes: int) -> Shape:
        """The same messages, more or fewer of them."""
        return replace(self, name=f"{log_bytes / GIBI:g} GiB", log_bytes=log_bytes)


def plain(body: int, log_bytes: int) -> Shape:
    """The usual store with bodies of `body` bytes."""
    return Shape(f"{body} B", body, log_bytes)


def many(topics: int) -> Shape:
    """A small log of so many topics with 100 queues each: brokers take minutes to make queue files of the usual size.
    """
    return Shape(f"{topics * 100:,} queues", 500, 200 * MEBI, topics=topics, queues=100, queue_file_bytes=20_000)


@dataclass(frozen=True, slots=True)
class Stage:
    """One store at `root`, and room beside it."""

    shape: Shape
    root: Path
    messages: int

    @property
    def commitlog(self) -> Path:
        """Its log, which all parties share."""
        return self.root / "commitlog"

    @property
    def log_files(self) -> list[Path]:
        """The mapped files of the log."""
        return sorted(self.commitlog.iterdir())

    @property
    def files(self) -> list[Path]:
        """Those of its log, its queues and its index."""
        derived = (self.root / name for name in ("consumequeue", "index"))
        return self.log_files + sorted(path for folder in derived for path in folder.rglob("*") if path.is_file())

    @property
    def log_bytes(self) -> int:
        """Bytes of its mapped files, without what the file system does not store of the last one."""
        return sum(min(status.st_size, status.st_blocks * 512) for status in map(Path.stat, self.log_files))

    def normal_recovery(self, version: str) -> float:
        """Seconds of a broker's load() of the store as it is: after an orderly stop it reads the last files only."""
        return self._load(version, self.root)

    def abnormal_recovery(self, version: str) -> float:
        """Seconds of a broker's load() of the log alone, which it reads from its first file on, making all queues."""
        return self._load(version, self.bare("broker"))

    def _load(self, version: str, root: Path) -> float:
        """In a JVM of its own, whose start is not counted. RuntimeError if a message has no unit then."""
        seen = run(version, "LoadClock", root, {
            "conf.storePathCommitLog": self.commitlog, "conf.mappedFileSizeConsumeQueue": self.shape.queue_file_bytes,
        })
        if not seen["loaded"]:
            raise RuntimeError(f"broker {version} does not load {root}")
        if self.messages and seen["units"] != self.messages:
            raise RuntimeError(f"{version} has {seen['units']} units of {self.messages} messages")
        return float(seen["load_ns"]) / 1e9

    def beside(self, name: str) -> Path:
        """The folder or file of one party."""
        return self.root.with_name(f"{self.root.name}-{name}")

    def bare(self, name: str) -> Path:
        """A party's store folder without log and derived files, as after a crash that left nothing else.

        What its last turn left is emptied and put aside, not removed: for minutes ext4 looks at each inode that was
        deleted before it gives one out, and the next party to make many files would wait for that (0.1 s of a rebuild).
        """
        folder = self.beside(name)
        if folder.exists():
            for path in folder.rglob("*"):
                if path.is_file():
                    os.truncate(path, 0)
            folder.rename(self.beside(f"{name}-{time.monotonic_ns()}"))
        folder.mkdir()
        shutil.copytree(self.root / "config", folder / "config")
        (folder / "abort").touch()
        return folder

    def first_files(self, count: int) -> Stage:
        """A store of the first files of the log, by links, without derived files."""
        root = self.beside(f"first{count}")
        (root / "commitlog").mkdir(parents=True)
        (root / "config").mkdir()
        for path in self.log_files[:count]:
            (root / "commitlog" / path.name).hardlink_to(path)
        return Stage(self.shape, root, 0)

    def remove(self) -> None:
        """Remove all that this stage and its parties wrote."""
        for path in self.root.parent.glob(f"{self.root.name}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def set_up(shape: Shape, folder: Path) -> Stage:
    """Have the store written. OSError when the disk has too little room for it and what the parties will write."""
    free = shutil.disk_usage(folder).free
    if free < shape.disk_bytes:
        raise OSError(f"{shape.name}: {shape.disk_bytes / 1e9:.1f} GB of disk are needed in {folder}, "
                      f"{free / 1e9:.1f} are free (choose another place with --folder)")
    root = Path(tempfile.mkdtemp(dir=folder)) / "store"  # the part `sql` has two stores at a time
    root.mkdir()
    done = run(WRITER, "BulkWriter", root, {
        "bytes": shape.log_bytes, "body": shape.body, "topics": shape.topics, "queues": shape.queues,
        "keys": shape.keys, "seed": 7, "conf.diskMaxUsedSpaceRatio": 95,
        "conf.mappedFileSizeConsumeQueue": shape.queue_file_bytes,
        # syncing ten thousand queues every second would take longer than filling them
        "conf.flushIntervalConsumeQueue": _NEVER_MS, "conf.flushConsumeQueueThoroughInterval": _NEVER_MS,
    })
    # a whole broker keeps the list of its topics; the message store alone does not
    write_topics(root, {f"Topic{number}": shape.queues for number in range(shape.topics)})
    os.sync()  # else the disk is busy with it while the first party runs
    return Stage(shape, root, int(done["messages"]))


def run(version: str, program: str, root: Path, request: dict[str, Any]) -> dict[str, Any]:
    """The report of one of the lab's Java programs."""
    lines = "".join(f"{name}={value}\n" for name, value in {"root": root, **request}.items())
    report, _ = ensure(version).ask(program, lines, heap=_HEAP, quick=False)
    done: dict[str, Any] = json.loads(report)
    return done
