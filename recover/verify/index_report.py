"""What a look at all index files found."""

from __future__ import annotations

from msgspec import Struct, field

from formats.index import IndexGeometry
from recover.findings import Finding
from recover.index.files import IndexListing
from recover.index.stream import IndexStream
from recover.verify.index_file import IndexFileVerdict


class IndexReport(Struct):
    """All index files. Counts are units; `stream` knows which keys of the log were found.

    `switched_off`: there is no index and there seems never to have been one; nothing is expected then.
    """

    listing: IndexListing
    geometry: IndexGeometry | None
    stream: IndexStream
    verdicts: list[IndexFileVerdict] = field(default_factory=list)
    expected: int = 0
    missing: int = 0
    switched_off: bool = False
    findings: list[Finding] = field(default_factory=list)
    unreadable: dict[str, int] = field(default_factory=dict)

    @property
    def files(self) -> int:
        """Index files in the folder."""
        return len(self.listing.files)

    @property
    def entries(self) -> int:
        """Units in use, over all files."""
        return sum(verdict.units for verdict in self.verdicts)

    @property
    def wrong(self) -> int:
        """Units that do not say what they should."""
        return sum(verdict.wrong for verdict in self.verdicts)

    @property
    def expired(self) -> int:
        """Units of messages in front of the log's first file."""
        return sum(verdict.expired for verdict in self.verdicts)

    @property
    def lost(self) -> int:
        """Units of messages that are damaged, or that a stand-in record stands for."""
        return sum(verdict.lost for verdict in self.verdicts)

    def json(self) -> dict[str, int]:
        """The `index` object of the verify document."""
        return {
            "files": self.files, "entries": self.entries, "expected": self.expected, "missing": self.missing,
            "wrong": self.wrong, "expired": self.expired, "lost": self.lost,
        }
