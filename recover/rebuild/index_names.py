"""Names of index files: the local time of the broker that made them, and which zone that was."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable

from formats.errors import FormatError
from formats.names import index_name, parse_index_name
from recover.verify.index_file import IndexFileVerdict

_QUARTER_HOUR = 900_000
_WIDEST_ZONE = 4 * 18


class Names:
    """Names for new index files, unique and sorting where they belong."""

    def __init__(self, zone: datetime.tzinfo | None, taken: Iterable[str] = ()) -> None:
        self.zone = zone
        self.taken = set(taken)

    def new(self, timestamp: int, after: str | None, before: str | None) -> str:
        """A name made at `timestamp` (ms), moved by as many ms as it takes to lie between two others in order."""
        name = self._at(timestamp)
        if before is not None and after is not None and after >= before:
            before = None
        if before is not None and name >= before:
            name = self._later(before, -1)
        if after is not None and name <= after:
            name = self._later(after, 1)
        while name in self.taken:
            name = self._later(name, 1)
        self.taken.add(name)
        return name

    def _at(self, timestamp: int) -> str:
        try:
            return index_name(timestamp, self._zone(timestamp))
        except FormatError:
            return index_name(0, datetime.UTC)

    def _zone(self, timestamp: int) -> datetime.tzinfo:
        if self.zone is not None:
            return self.zone
        try:
            local = datetime.datetime.fromtimestamp(timestamp / 1000).astimezone().tzinfo
        except (OverflowError, OSError, ValueError):
            local = None
        return local or datetime.UTC

    @staticmethod
    def _later(name: str, by: int) -> str:
        try:
            return index_name(parse_index_name(name, datetime.UTC) + by, datetime.UTC)
        except FormatError:
            return str(max(0, int(name) + by)).zfill(len(name))


def zone_of(verdicts: Iterable[IndexFileVerdict]) -> datetime.tzinfo | None:
    """The broker's distance from UTC, from the names of its files and the times in them; None if nothing tells."""
    votes: Counter[int] = Counter()
    for verdict in verdicts:
        if verdict.sound and verdict.units and verdict.file.is_time:
            made = parse_index_name(str(int(verdict.file.name)), datetime.UTC)
            distance = round((made - verdict.header.begin_timestamp) / _QUARTER_HOUR)
            if abs(distance) <= _WIDEST_ZONE:
                votes[distance] += 1
    if not votes:
        return None
    return datetime.timezone(datetime.timedelta(milliseconds=votes.most_common(1)[0][0] * _QUARTER_HOUR))
