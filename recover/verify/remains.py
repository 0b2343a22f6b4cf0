"""Is what stands in place of the log still the log? A disk that was mixed up looks like the worst of damage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from formats.commitlog import BLANK, BLANK_SIZE, MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from recover.evidence.lost import record_count
from recover.files.mapped_files import MappedFile
from recover.files.reader import FileReader
from recover.files.store import COMMITLOG, Store
from recover.findings import Finding, finding
from recover.scan.log import LogView
from recover.verify.survey import Survey

if TYPE_CHECKING:
    from recover.verify.index_report import IndexReport

MOSTLY_GONE = "commitlog-mostly-gone"
FOREIGN = "commitlog-foreign"
OTHER_LOG = "commitlog-other-log"
_LOST_PER_MESSAGE = 10
"""From this many lost messages for each that can be read, what is there is hardly the log of these queues."""


def remains_findings(store: Store, look: Survey, index: IndexReport | None) -> Iterator[Finding]:
    """Of a log that is there: whether hardly anything of it can be read, and whether it looks like a log at all."""
    log, lost = look.log, look.losses.records
    # once damage is bridged, nothing but the bridge may be left of a small log
    units = 0 if lost or log.messages or log.fillers or log.markers else _index_units_behind(index)
    if lost > log.messages * _LOST_PER_MESSAGE or units:
        yield finding(MOSTLY_GONE, COMMITLOG, None, messages=log.messages, lost=lost, index_units=units)
    for item in look.foreign:
        rows = sum(scan.record_count for scan in log.files if scan.mapped_file == item.mapped_file)
        yield finding(OTHER_LOG, store.relative(item.mapped_file.path), 0, messages=rows, lost=record_count(item.lost))
    odd = _without_a_record(log)
    if odd is not None:
        from recover.inspect_file.kinds import foreign

        with FileReader(odd.path) as reader:
            yield finding(FOREIGN, store.relative(odd.path), 0, what=foreign(reader))


def _index_units_behind(index: IndexReport | None) -> int:
    findings = () if index is None else index.findings
    return sum(item.facts["count"] for item in findings if item.code in ("index-beyond-log", "index-lost-units"))


def _without_a_record(log: LogView) -> MappedFile | None:
    """The first file with data, if no file holds a record or a blank and that one does not begin like a log file."""
    if any(scan.record_count or scan.blank is not None for scan in log.files):
        return None
    for scan in log.files:
        # the very first write of a broker can be torn before its magic
        if any(hole.last_data > hole.start + BLANK_SIZE for hole in scan.holes):
            with FileReader(scan.mapped_file.path) as reader:
                head = reader.read(0, BLANK_SIZE)
            return None if BLANK.decode(head).magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK) else scan.mapped_file
    return None
