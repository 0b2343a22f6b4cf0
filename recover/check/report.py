"""verify: all checks over one analysis, in one report."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from formats.record import Record
from formats.record.rows import BITS_REJECTED
from recover.check.bits import altered_findings, flipped_bit_findings, flipped_property_findings, rejected_findings
from recover.check.config import ConfigReport, judged_pairs, pair_findings
from recover.check.log import (
    bytes_findings,
    check_commitlog,
    closed_findings,
    contradiction_findings,
    displaced_findings,
    far_file_finding,
    length_findings,
    misnamed_findings,
    missing_files,
    place_in_file,
    unknown_size_findings,
    unreadable_findings,
)
from recover.check.parts import (
    PARTS,
    check_other_parts,
    check_parts,
    contradicted_settings,
    earlier_runs,
    foreign_findings,
    lock_findings,
    remains_findings,
)
from recover.check.rights import check_owners
from recover.check.surroundings import Surroundings
from recover.derived.checkpoint import CheckpointReport, check_checkpoint, quick_checkpoint_findings
from recover.derived.index_check import IndexReport
from recover.findings.model import Finding, FindingList, finding
from recover.look.store import Pointers, StoreReport, log_is_gone
from recover.reading.bits import Rejected, flipped_properties, rejected, unnamed_checksums
from recover.reading.books import Claimed, claimed_after_end, claimed_findings, left_to_claim
from recover.reading.doubts import read
from recover.reading.edits import Edit
from recover.reading.facts import Facts, ScanOptions, unread_answers
from recover.reading.places import misnumbered
from recover.reading.reading import Reading
from recover.store.config_files import Topics
from recover.store.store import CHECKPOINT, COMMITLOG, CONSUMEQUEUE, INDEX, Store
from recover.store.unread import held_elsewhere


def numbering_findings(store: Store, analysis: Reading) -> Iterator[Finding]:
    """Records that fit nowhere in the queue that they name, and queue positions for which no record is left."""
    known = {edit.start for edit in analysis.contradictions}
    for key, records in misnumbered(analysis.log, analysis.expectation).items():
        for queue_offset, phy_offset, _ in records:
            if phy_offset not in known:
                yield finding(
                    "commitlog-unplaced-record", *place_in_file(store, analysis.log, phy_offset), start=phy_offset,
                    topic=key.topic, queue=key.queue_id, queue_offset=queue_offset,
                )
    # a bridge leaves such positions where it has no markers, or no room for all
    for gap in analysis.losses.unexplained if not analysis.log.tally.has_bridge else ():
        # if a record next to the gap is itself wrong, the gap is not reported
        if known.isdisjoint((gap.before, gap.behind)):
            yield finding(
                "commitlog-number-missing", "commitlog", None, topic=gap.key.topic, queue=gap.key.queue_id,
                first=gap.first, last=gap.last, count=gap.last - gap.first + 1, before=gap.before, behind=gap.behind,
            )


class VerifyReport(Struct):
    """The result of verify. Parts that were not requested are None; sizes in bytes, times in seconds.

    `flipped`: tags and keys that are one flipped bit away from what their units hold. `rejected`: messages that no
    client or no service can read. `altered`: those whose properties both their unit and the index contradict.
    `claimed`: messages after the end of the log of which only consumers' progress is left.
    """

    analysis: Reading
    index: IndexReport | None
    checkpoint: CheckpointReport | None
    config: ConfigReport | None
    findings: FindingList
    seconds: float = 0.0
    flipped: list[Edit] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    altered: list[Record] = field(default_factory=list)
    claimed: list[Claimed] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """The exit bits of all findings."""
        return self.findings.bits

    @property
    def damaged_messages(self) -> int:
        """Messages that damaged ranges held, as far as any evidence is left, plus those with a wrong field."""
        return self.analysis.account.damaged() + len(self.wrong_messages)

    @property
    def unread(self) -> set[str]:
        """Parts that hold the log or the queues in place of the files that mqtool reads."""
        return {held.what for held in self.analysis.elsewhere.values()}

    @property
    def wrong_messages(self) -> dict[int, bool]:
        """Intact messages with a wrong field or that no client or no service can read: physical offset -> whether edits
        explain everything that is wrong with them."""
        found = {edit.start: True for edit in self.analysis.contradictions}
        for item in self.rejected:
            found |= {start: found.get(start, True) and item.edit is not None for start in item.starts}
        return found | {record.phy_offset: False for record in self.altered}

    def json(self) -> dict[str, Any]:
        """The verify document without its common keys (schema, store, exit code, findings)."""
        log = self.analysis.log
        store = self.analysis.store
        document: dict[str, Any] = {
            "engine": self.analysis.options.engine.json(),
            "commitlog": {
                "files": len(store.commitlog.files), "min_offset": log.min_offset,
                "valid_to": self.analysis.as_it_is.valid_to,
                "log_end": log.log_end, "messages": log.tally.messages, "blanks": log.blanks, "ghosts": log.stale,
                "superseded": log.superseded, "damaged": [damage.json() for damage in log.damaged],
                "damaged_messages": self.damaged_messages, "fillers": log.tally.fillers, "markers": log.tally.markers,
            },
        }
        if self.analysis.placed:
            document["commitlog"]["displaced"] = sum(run.records for run in self.analysis.placed)
        if self.analysis.queues is not None:
            document["consumequeue"] = self.analysis.queues.json()
        if self.index is not None:
            document["index"] = self.index.json()
        if self.checkpoint is not None:
            document["checkpoint"] = self.checkpoint.json()
        document["not_checked"] = {name: held.part for name, held in self.analysis.elsewhere.items()}
        document["abort"] = store.has_abort
        document["seconds"] = round(self.seconds, 3)
        document["bytes"] = sum(mapped_file.length for mapped_file in store.commitlog.files)
        return document


def verify(store: Store, options: ScanOptions | None = None, only: Collection[str] = PARTS) -> VerifyReport:
    """Check the parts named by `only`. Read-only.

    `Refusal` (8) if a file cannot be opened; every other problem is a finding.
    """
    began = time.monotonic()
    options = options or ScanOptions()
    wanted = set(only)
    queues_needed = bool(wanted & {"consumequeue", "config"})
    # files here say nothing about what is kept elsewhere
    wanted -= unread_answers(store, with_queues=queues_needed).keys() - {COMMITLOG}
    analysis = read(Facts.of(
        store, options, with_queues=queues_needed, with_keys=not wanted.isdisjoint({"index", "checkpoint"})
    ))
    index = analysis.index if "index" in wanted else None
    findings = FindingList()
    rejected_ones: list[Rejected] = []
    flipped: list[Edit] = []
    altered: list[Record] = []
    if "commitlog" in wanted:
        rejected_ones = rejected(analysis) if analysis.log.tally.bits & BITS_REJECTED else []
        mended = [item.edit for item in rejected_ones if item.edit]
        flipped, altered = flipped_properties(analysis, index, mended)
        flipped += unnamed_checksums(analysis.log, [*mended, *flipped])
        findings.extend(check_commitlog(store, analysis))
        findings.extend(displaced_findings(store, analysis.placed))
        findings.extend(contradiction_findings(store, analysis.log, analysis.contradictions))
        if analysis.queues is not None:
            findings.extend(numbering_findings(store, analysis))
        findings.extend(rejected_findings(analysis, rejected_ones))
        findings.extend(flipped_bit_findings(store, analysis))
        findings.extend(flipped_property_findings(store, analysis.log, flipped))
        findings.extend(altered_findings(store, analysis.log, altered))
        findings.extend(misnamed_findings(store, analysis.misnamed))
        findings.extend(remains_findings(store, analysis, index))
    checkpoint = check_checkpoint(store, analysis.log) if "checkpoint" in wanted else None
    if next(log_is_gone(store), None) is None:
        # without a log every unit would be "after its end": one finding is enough
        for part, name in ((analysis.queues, "consumequeue"), (index, "index"), (checkpoint, "checkpoint")):
            if part is not None and name in wanted:
                findings.extend(part.findings)
    config = ConfigReport(analysis) if "config" in wanted else None
    claimed: list[Claimed] = []
    if config is not None:
        findings.extend(config.findings)
        if "commitlog" in wanted:
            claimed = left_to_claim(claimed_after_end(store, analysis.log, analysis.topics), analysis.account)
            findings.extend(claimed_findings(claimed, analysis.losses.indexed))
    findings.extend(check_parts(store, analysis, only, Surroundings.on(analysis)))
    return VerifyReport(
        analysis, index, checkpoint, config, findings, time.monotonic() - began, flipped, rejected_ones, altered,
        claimed,
    )


# --- Findings of `inspect`: problems of a store's parts that show before its log is read. Same codes as verify's.


def first_findings(store: Store, report: StoreReport) -> list[Finding]:
    """Findings about what `inspect` shows. `OSError` if a folder cannot be listed."""
    found = [*lock_findings(store, report.exit_state.lock_holder), *log_is_gone(store)]
    found += [*earlier_runs(store), *check_owners(store)]
    found += contradicted_settings(store)
    found += _quick_log_findings(store, report.pointers)
    found += _quick_derived_findings(store, report)
    at = report.pointers
    elsewhere = held_elsewhere(store)
    if CHECKPOINT not in elsewhere:
        found += quick_checkpoint_findings(store, at.min_offset, at.log_end, at.last_timestamp)
    topics = Topics(store)
    found += pair_findings(store, topics, None, judged_pairs(store, topics, None, at.last_timestamp))
    others = check_other_parts(store, elsewhere, None)
    return found + [item for item in others if item.severity != "info"]


def _quick_log_findings(store: Store, pointers: Pointers) -> Iterator[Finding]:
    """Files that are missing, far after the log, misnamed or of another length, and an unknown file size. Of the end of
    the log: what cannot be read, and everything if it holds no record."""
    read = {scan.mapped_file for scan in pointers.end.files}
    yield from unreadable_findings(store, pointers.end.files)
    yield from closed_findings(store, (file for file in pointers.log.files if file not in read))
    if not any(scan.record_count for scan in pointers.end.files):
        yield from bytes_findings(store, pointers.end)
        yield from foreign_findings(store, pointers.end)
    yield from misnamed_findings(store, pointers.misnamed)
    yield from (far_file_finding(store, file, start, pointers.log_end) for file, start in pointers.far)
    untold = [*unknown_size_findings(store, pointers.log, pointers.log_end)]
    yield from untold
    if untold:
        return
    yield from length_findings(store, pointers.log, lambda start, stop: start < stop <= pointers.log_end)
    for start, stop in pointers.missing_ranges:
        yield missing_files(store, pointers.log.file_size, start=start, stop=stop, intact_after=None)


def _quick_derived_findings(store: Store, report: StoreReport) -> Iterator[Finding]:
    """Queues or an index that are missing beside a log with messages, and their unreadable files."""
    at, elsewhere = report.pointers, held_elsewhere(store)
    for error in at.unread:
        name = store.relative(Path(error.filename))
        yield finding("part-unreadable", name, part=name, error=error.strerror)
    if at.last_timestamp and not at.queues and CONSUMEQUEUE not in elsewhere:
        yield finding("consumequeue-missing", store.relative(store.consumequeue_dir))
    indexed = at.checkpoint is not None and at.checkpoint.index_msg_timestamp > 0
    if at.last_timestamp and indexed and not at.index_files and INDEX not in elsewhere:
        yield finding("index-missing", store.relative(store.index_dir))
