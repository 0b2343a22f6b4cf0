"""Where the stores of a measurement lie, and what is put there; all of it goes when the measurement ends."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.broker import write_store
from benchmarks.shapes import Shape


@dataclass(frozen=True, slots=True)
class Stage:
    """One store at `root`, written by a broker, and room beside it."""

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

    def beside(self, name: str) -> Path:
        """The folder of one party."""
        return self.root.with_name(f"{self.root.name}-{name}")

    def bare(self, name: str) -> Path:
        """A party's store folder without log and derived files, as after a crash that left nothing else.

        What its last turn left is emptied and put aside, not removed: for minutes ext4 looks at each inode that was
        deleted before it gives one out, and whoever makes many files next would wait for that (0.1 s of a rebuild).
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

    def remove(self) -> None:
        """Everything that this stage and its parties wrote."""
        for folder in self.root.parent.glob(f"{self.root.name}*"):
            shutil.rmtree(folder)


def set_up(shape: Shape, folder: Path, name: str) -> Stage:
    """Have the store written. OSError when the disk has too little room for it and what the parties will write."""
    free = shutil.disk_usage(folder).free
    if free < shape.disk_bytes:
        raise OSError(f"{shape.name}: {shape.disk_bytes / 1e9:.1f} GB of disk are needed in {folder}, "
                      f"{free / 1e9:.1f} are free (choose another place with --folder)")
    root = folder / name
    stage = Stage(shape, root, write_store(shape, root))
    # else the disk is busy with it while the first party runs
    for path in root.rglob("*"):
        if path.is_file():
            _sync(path)
    return stage


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def first_files(stage: Stage, count: int) -> Stage:
    """A store of the first files of a log, by links, without derived files."""
    root = stage.beside(f"first{count}")
    (root / "commitlog").mkdir(parents=True)
    (root / "config").mkdir()
    for path in stage.log_files[:count]:
        (root / "commitlog" / path.name).hardlink_to(path)
    return Stage(stage.shape, root, 0)
