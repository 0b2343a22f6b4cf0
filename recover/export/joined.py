"""One log out of many pieces: an image of a disk, parts of log files, copies. Each record says where it belongs.

1. The file size: as given; else the one that all end marks after pieces, and the ends of whole log files, are multiples
   of; else that of a broker's default.
2. Every record of every piece is a candidate for its place. Several with the same bytes count once; of different ones
   the one that more pieces have is taken, or none.
3. They are laid over files that are not there, as displaced records are over files with damage.

Not protected: pieces of two logs of which no two claim the same place. Those that do are refused, if there are many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from formats.basics import FormatError
from formats.record import BLANK_SIZE, decode_blank
from recover.export.sources import Scanned, Source
from recover.findings.code import Refusal, UsageRefusal
from recover.findings.model import Phrase
from recover.log.scan import LogView, assemble
from recover.reading.candidates import CANDIDATE, Candidates, Dead, Source as From
from recover.reading.contested import winners
from recover.reading.further import Further, with_further
from recover.reading.placed import runs_in, with_placed
from recover.store.columns import ColumnStore, Rows
from recover.store.mapped_files import MappedFileQueue
from recover.store.source import Tree, missing, mount, open_file, origin_of

_DEFAULT = 1 << 30
"""`mappedFileSizeCommitLog` unless it is set."""
_FEW = 10
"""One in so many records may claim a place that another one has: more are of another log."""


class _Nowhere(Tree):
    """A folder without anything in it."""

    def status(self, name: str) -> Any:
        raise missing(name)


def joined(pieces: Sequence[Scanned], size: int = 0, *, memory: int) -> tuple[Scanned, bool, int]:
    """Return the log that the pieces make, whether its file size is a guess, and the records that are left out.

    `size`: of its files, 0 if not known. `UsageRefusal` (16) if a record would cross the end of a file, `Refusal` (8)
    for pieces of several logs, or without a record.
    """
    name = ", ".join(dict.fromkeys(piece.source.name.partition(" from ")[0] for piece in pieces))
    logs, unread = [piece.log for piece in pieces], tuple(line for piece in pieces for line in piece.unread)
    marks = [mark for log in logs for mark in _marks(log)]
    whole = [scan.file_end for piece in pieces if not piece.source.in_pieces for scan in piece.log.files]
    size, is_guess = (size, False) if size else _file_size([place + length for place, length, *_ in marks] + whole)
    found = _candidates(logs, [mark for mark in marks if (mark[0] + mark[1]) % size == 0], size)
    if not (found.rows["queue"] >= 0).any():
        raise Refusal(Phrase("no record was found in {name}", name=name), "Name a source that holds messages.")
    crossing = found.rows["phy_offset"] // size != (found.rows["phy_offset"] + found.rows["size"] - 1) // size
    if crossing.any():
        at = found.rows["phy_offset"][crossing][0]
        raise UsageRefusal(Phrase("the record at {at} would cross the end of a log file of {size} bytes", at=at,
                                  size=size), "Give the length of the broker's log files: --mapped-file-size SIZE.")
    rows, left = _placed(found)
    if left * _FEW > rows.size:
        raise Refusal(Phrase("{name} holds several logs: {left:record} claim places that others claim, too", name=name,
                             left=left),
                      "Name the pieces of one log: cut them out of the image, or export each to a file of its own.")
    queue = MappedFileQueue((mount(_Nowhere()),), size)
    log = with_placed(assemble(queue, []), [*runs_in(assemble(queue, []), found, rows)], ColumnStore(memory))
    return Scanned(Source(name, log.queue, None, unread), log, unread, log), is_guess, left


def _marks(log: LogView) -> list[tuple[int, int, Path, int]]:
    """Place, length, file and position of what follows the last record of each file, where it is an end mark."""
    found = []
    for scan in log.files:
        last = next((split for split in reversed(scan.splits) if split.size), None)
        if last is not None:
            row = last.records[-1]
            start, end = int(row["phy_offset"]), int(row["phy_offset"] + row["size"])
            path, position = origin_of(scan.mapped_file.path, start - scan.mapped_file.file_from_offset)
            with suppress(OSError, FormatError), open_file(path) as reader:
                length = decode_blank(reader.read(position + end - start, BLANK_SIZE))
                found.append((end, length, path, position + end - start))
    return found


def _file_size(ends: Sequence[int]) -> tuple[int, bool]:
    """The file size that the ends of log files imply, and whether it is a guess."""
    size = math.gcd(*ends)
    if not size or (len({*ends}) == 1 and size % _DEFAULT == 0):
        return _DEFAULT, True
    return size, len({*ends}) == 1


def _candidates(logs: Sequence[LogView], marks: Sequence[tuple[int, int, Path, int]], size: int) -> Candidates:
    """All records of the pieces as candidates, and the end marks after them."""
    first = min((scan.mapped_file.file_from_offset for log in logs for scan in log.files), default=0) // size * size
    further = Further(tuple(logs))
    everything = Dead(np.array([first]), np.array([further.reach]))
    # no record is in its place yet, so nothing is compared with the ones around
    empty = assemble(MappedFileQueue((), size), [])
    found = with_further(Candidates([], np.empty(0, dtype=CANDIDATE), []), further, empty, everything)
    rows = np.zeros(len(marks), dtype=CANDIDATE)
    for row, (place, _, path, position) in zip(rows, marks, strict=True):
        row["phy_offset"], row["size"], row["position"], row["queue"] = place, BLANK_SIZE, position, -1
        row["source"] = len(found.sources)
        found.sources = [*found.sources, From(path, 0, ())]
    found.rows = np.concatenate([found.rows, rows])
    return found


def _placed(found: Candidates) -> tuple[Rows, int]:
    """The candidates that have their place, ascending, and the number of records that have not: copies count once."""
    rows = found.rows[np.argsort(found.rows["phy_offset"], kind="stable")]
    keys = rows[["phy_offset", "size", "queue_offset", "store_timestamp", "queue"]]
    _, copies, weights = np.unique(keys, return_inverse=True, return_counts=True)
    wins = winners(found, rows, weights[copies])
    held = np.isin(keys, keys[wins])
    return rows[wins], int((~held & (rows["queue"] >= 0)).sum())
