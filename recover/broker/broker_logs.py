"""Evidence in a broker's own log: one row for each relevant line that brokers write, with its meaning and remedy.

Rows are tested against logs of real brokers (`fixtures/logs`). A log of any length is read line by line.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from msgspec import Struct, field

from recover.broker.log_lines import PATH, RANKS, ROWS, Row
from recover.findings.code import Refusal
from recover.findings.model import Phrase

_LONGEST = 1 << 12
_TEXT = 400
_STORES = 16
"""Stores that one log can tell apart; further ones count as the last of these."""
_GZIP = b"\x1f\x8b"
_TIME = re.compile(rb"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
_LEVEL = re.compile(rb"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S* )?(?:\[[^\]]*\] ?)?(?:TRACE|DEBUG|INFO|WARN|ERROR) ")
_ROOT = PATH.encode()
_PLACE = re.compile(rb"(?<!\S)(" + _ROOT + rb"*?)[\\/](?:commitlog|consumequeue|index|config)[\\/]|"
                    rb"store path root dir: (\S+)")
_LOG_FILE = re.compile(rb"(?:recover physics file end|physics file over, last mapp?ed file),? (" + _ROOT
                       + rb"*[\\/]\d{20})")


_SIGNS = re.compile(b"|".join(re.escape(row.sign.encode()) for row in ROWS))
_COMPILED = [re.compile(row.pattern) for row in ROWS]


class Occurrence(Struct):
    """A row and its lines in a log about one store: their number, the last one, and the file and offset that it refers
    to. `store`: the one that the lines name, or that was named last before them."""

    row: Row
    count: int
    first_line: int
    last_line: int
    first_time: str | None
    last_time: str | None
    text: str
    file: str | None = None
    offset: int | None = None
    open: bool = True
    store: str | None = None


class LogSummary(Struct):
    """The content of a log: rows that were seen, the worst first; the store of the worst, or the first that is named;
    lines and bytes read; whether a line has the form of a broker's (time, level)."""

    seen: list[Occurrence] = field(default_factory=list)
    store: str | None = None
    lines: int = 0
    size: int = 0
    recognized: bool = False


def read_log(path: Path) -> LogSummary:
    """Read a log, also a gzipped one. `Refusal` (8) if it cannot be unpacked."""
    reader = _LogReader()
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            stream = cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if packed else raw
            for number, line in _lines(stream):
                reader.take(number, line)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise Refusal(Phrase("{path} cannot be decompressed: {error}", path=path, error=error),
                      "Decompress what can be, and use that.") from error
    return reader.ended()


class _LogReader:
    """Reads a log line by line. Several brokers may write to one log: each line is about the store that it names, else
    about the one that was named last before it."""

    def __init__(self) -> None:
        self.summary = LogSummary()
        self.found: list[Occurrence] = []
        self.stores: set[str] = set()
        self.store: str | None = None
        self.end = ""

    def take(self, number: int, line: bytes) -> None:
        summary = self.summary
        summary.lines = number
        summary.size += len(line)
        summary.recognized = summary.recognized or _LEVEL.match(line) is not None
        if b"physics file" in line and (named := _LOG_FILE.search(line)):
            self.end = _text(named[1])
            _assign_end(self.found, self.end)
        root = _store_in(line)
        if root is not None and (root in self.stores or len(self.stores) < _STORES):
            self.stores.add(root)
            self.store = root
        summary.store = summary.store or self.store
        if _SIGNS.search(line) is None:
            return
        for row, pattern in zip(ROWS, _COMPILED, strict=True):
            if row.sign.encode() in line and (match := pattern.search(line)) and _applies(row, match):
                _note(self.found, row, match, number, line, self.end, self.store)
                return

    def ended(self) -> LogSummary:
        """The summary, the worst row first. Lines before the first name are about the store that is named first."""
        summary = self.summary
        merged: dict[tuple[str, str | None], Occurrence] = {}
        for item in self.found:
            item.store = item.store or summary.store
            known = merged.setdefault((item.row.name, item.store), item)
            if known is not item:
                item.count += known.count
                item.first_line, item.first_time = known.first_line, known.first_time
                item.file, item.offset = item.file or known.file, known.offset if item.offset is None else item.offset
                merged[item.row.name, item.store] = item
        order = {row.name: number for number, row in enumerate(ROWS)}
        summary.seen = sorted(merged.values(), key=lambda item: (RANKS.index(item.row.rank), order[item.row.name]))
        summary.store = summary.seen[0].store if summary.seen else summary.store
        return summary


def _store_in(line: bytes) -> str | None:
    """The root of the store that a line names."""
    place = _PLACE.search(line)
    return None if place is None else _text(place[1] or place[2])


def _lines(stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield each line with its number; lines longer than 4 KiB are cut."""
    number, whole = 0, True
    while line := stream.readline(_LONGEST):
        if whole:
            number += 1
            yield number, line
        whole = line.endswith(b"\n")


def _applies(row: Row, match: re.Match[bytes]) -> bool:
    values = match.groupdict()
    if row.part and row.part.encode() not in values["file"].replace(b"\\", b"/"):
        return False
    return "before" not in values or int(values["before"]) > int(values["offset"])


def _assign_end(found: list[Occurrence], file: str) -> None:
    """Assign this file, in which a recovery ended, to the log-ending rows seen since the last recovery."""
    for seen in found:
        if seen.row.ends_log and seen.open:
            seen.file, seen.open, seen.store = file, False, _store_in(file.encode()) or seen.store


def _note(found: list[Occurrence], row: Row, match: re.Match[bytes], number: int, line: bytes, ended: str,
          store: str | None) -> None:
    values = match.groupdict()
    time = _TIME.match(line)
    when = _text(time[1]) if time else None
    # what a recovery ended is about its store, and later lines are perhaps about another one
    seen = next((item for item in reversed(found) if item.row is row and item.store == store), None)
    if seen is None:
        found.append(seen := Occurrence(row, 0, number, number, when, when, "", store=store))
    seen.count += 1
    seen.last_line, seen.last_time = number, when
    seen.text = _text(line.strip())[:_TEXT]
    seen.offset = int(values["offset"]) if values.get("offset") else seen.offset
    seen.file = _text(values["file"]) if values.get("file") else seen.file
    seen.open = True
    if "before" in values and seen.offset is not None and ended and int(ended[-20:]) <= seen.offset:
        seen.file = ended


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")
