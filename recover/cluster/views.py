"""What workers read, compared with what this machine sees: a path may lead them to another store's files.

Nothing of the cluster proves that two hosts see one file: names and lengths are equal in all stores, and time, head or
inode are in a copy. So tasks return checksums of all that they read. Before a plan that changes something is shown,
this machine has read every byte of it as well; a command that only reports compares a sample.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from msgspec import Struct, field

from recover.findings.refusal import Refusal
from recover.log.scan import LogView, dead_ranges
from recover.store.reading import FileReads, file_crc


class Seen(Struct, frozen=True):
    """What one task read of each file, by path, and on which host."""

    files: dict[str, FileReads]
    host: str = field(default_factory=socket.gethostname)

    @property
    def digest(self) -> int:
        """One number for all of it."""
        return hash(tuple(self.files[path].digest for path in sorted(self.files)))


class Views(Struct):
    """What tasks read of the log since the last time that all of it was compared; `began` is before that (s)."""

    began: float
    reads: dict[str, list[tuple[str, FileReads]]] = {}

    def take(self, seen: Seen) -> None:
        """Keep what a task read. `Refusal` (8) if length or first bytes of a file are not what we see."""
        for path, reads in seen.files.items():
            self.reads.setdefault(path, []).append((seen.host, reads))
            if not self._is_written_to(path):
                pieces = next((run.pieces() for run in reads.runs), iter(()))
                _compare(seen.host, path, reads.size, islice(pieces, 1))

    def check_damage(self, log: LogView) -> None:
        """`Refusal` (8) if a worker read something else than we do where it found no intact record."""
        for scan in log.files:
            base, path = scan.mapped_file.file_from_offset, str(scan.mapped_file.path.absolute())
            if path not in self.reads or self._is_written_to(path):
                continue
            for dead in dead_ranges(scan, stale=log.stale > 0):
                start, stop = dead.start - base, dead.last_data - base + 1
                for host, reads in self.reads[path]:
                    _compare(host, path, reads.size, (piece for run in reads.runs for piece in run.pieces()
                                                      if piece[0] < stop and piece[1] > start))

    def confirm(self) -> None:
        """Read all that tasks read; `Refusal` (8) where this machine sees something else."""
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            every = [(path, *read) for path, reads in self.reads.items() for read in reads]
            for _ in pool.map(lambda read: confirm(*read), every):
                pass
        self.reads.clear()

    def _is_written_to(self, path: str) -> bool:
        """Whether a broker writes to the file: what it adds is no other file, and nothing is changed there."""
        return os.stat(path).st_mtime >= int(self.began)


def confirm(path: str, host: str, reads: FileReads) -> None:
    """`Refusal` (8) where this machine sees something else in a file than the host that read this of it."""
    _compare(host, path, reads.size, (piece for run in reads.runs for piece in run.pieces()))


def _compare(host: str, path: str, size: int, pieces: Iterable[tuple[int, int, int]]) -> None:
    own = os.stat(path).st_size
    different = ((start, stop) for start, stop, value in pieces
                 if file_crc(Path(path), start, stop) != (stop - start, value))
    place = (min(own, size), max(own, size)) if own != size else next(different, None)
    if place is not None:
        raise Refusal(
            f"host {host} reads another file as {path} than this machine does",
            "Mount the same store on every worker, or use --engine local.", host=host, file=path, start=place[0],
            stop=place[1],
        )
