"""The classes that Spark loads, as Java keeps them in a file of its own: a session starts in two thirds of the time.

Java makes such a file when it ends, if it was asked to (class data sharing). That takes some seconds, so only a
command with a large log asks, and only where there is none. Java itself checks that the file fits it and the class
path, and goes on without where it does not.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from formats.compiled.cache import is_trusted_file, trusted_folders
from recover.spark.java import Java

_BASE = Path("lib", "server", "classes.jsa")
_PLAIN = re.compile(r"[\w./+@%=-]+")
_SETS = ("SharedArchiveFile", "ArchiveClassesAtExit", "AutoCreateSharedArchive")


class ClassArchive(Struct, frozen=True):
    """The file at `path`; one that Java is to make is at `made` until it is whole."""

    path: Path
    made: Path | None = None

    @property
    def option(self) -> str:
        """What Java is told of it."""
        if self.made is not None:
            return f"-XX:ArchiveClassesAtExit={self.made}"
        return f"-XX:SharedArchiveFile={self.path}"

    def end(self, *, whole: bool) -> None:
        """Java has ended: what it made is put in place for those that follow if it is `whole`, else removed."""
        if self.made is None:
            return
        if whole:
            with suppress(OSError):
                os.replace(self.made, self.path)
        else:
            self.made.unlink(missing_ok=True)


def archive_for(java: Java, spark: Path, options: str, *, make: bool) -> ClassArchive | None:
    """The archive of this Java and this Spark (its folder), to use, or with `make` to be made; None without one.

    `options` are those that Java is started with: who says something of archives there is not interfered with.
    """
    home = java.program.resolve().parent.parent
    if any(name in options for name in _SETS) or not (home / _BASE).is_file():
        return None
    name = f"spark-{_key(home, spark)}.jsa"
    for folder in trusted_folders(make=make):
        path = Path(folder, name)
        # to Java a colon is the border between two files, to Spark's launcher a space is that between options
        if not _PLAIN.fullmatch(str(path)):
            continue
        if is_trusted_file(path):
            return ClassArchive(path)
        if make:
            _remove_abandoned(path)
            return ClassArchive(path, path.with_suffix(f".{os.getpid()}"))
    return None


def _remove_abandoned(path: Path) -> None:
    """What Java made for commands that were killed before they could put it in place."""
    for made in path.parent.glob(f"{path.stem}.*"):
        with suppress(OSError, ValueError):
            if not Path("/proc", str(int(made.suffix[1:]))).exists():
                made.unlink()


def _key(home: Path, spark: Path) -> str:
    parts = [str(home), str(spark)]
    for path in (home / _BASE, *sorted((spark / "jars").glob("spark-core_*.jar"))):
        status = path.stat()
        parts += [path.name, str(status.st_size), str(status.st_mtime_ns)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
