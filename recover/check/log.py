"""Findings about the commitlog: its files, its damage and its end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, Any

from formats.basics import OFFSET_DIGITS, FormatError, offset_in_name, offset_to_name
from formats.native.rows import BITS, FLAGS
from formats.record import BLANK_SIZE, HEAD, MAGIC_V1, MAGIC_V2
from formats.record.rows import BIT_STALE, BIT_SUPERSEDED, BIT_V2
from formats.sysflag import HOSTS_V6
from recover.broker.settings import BrokerSettings, has_blank_after_log
from recover.broker.versions import IPV6_HOSTS, SEVERAL_LOG_FOLDERS, TRIMMED_TEXT, V2_RECORDS
from recover.findings.code import BY_HAND, N_, Severity, remedy_of
from recover.findings.log_codes import FIND_WHOLE, HALVES, NAMELESS, NO_RETENTION, ONE_MISSING, STANDS_FOR, STILL_HOLDS
from recover.findings.model import Finding, Phrase, few, finding
from recover.log.file_scan import FileScan
from recover.log.judge import LogReader
from recover.log.scan import MISSING_FILE, OTHER_LOG, Damage, LogView
from recover.reading.books import unread_before_begin
from recover.reading.edits import Edit
from recover.reading.facts import HOUR_MS, RETENTION, retention_hours
from recover.reading.placed import Placed
from recover.reading.policy import POLICIES
from recover.reading.restore import copies_beside
from recover.store.config_files import Topics
from recover.store.mapped_files import MappedFile, MappedFileQueue, OddName
from recover.store.reader import ClosedFile, ReadFailure
from recover.store.reading import FILE
from recover.store.source import origin_of
from recover.store.store import COMMITLOG, Store, logs_beside_remedy, named_by_record

if TYPE_CHECKING:
    from recover.reading.reading import Reading

NOT_A_FILE = "commitlog-not-a-file"
SIZE_UNTOLD = "commitlog-size-untold"
FILE_ALONE = "commitlog-file-alone"


def check_commitlog(store: Store, analysis: Reading) -> list[Finding]:
    log = analysis.log
    untold = list(unknown_size_findings(store, log.queue, log.log_end))
    lost = [*map(len, analysis.losses.by_damage)]
    found = [*_file_findings(store, analysis), *untold,
             *bytes_findings(store, log, lost, analysis.end_marks, untold=bool(untold))]
    if not analysis.settled:
        found.append(finding("commitlog-unsettled", "commitlog", accepted=len(analysis.accepted)))
    if count := analysis.facts.search.left:
        found.append(finding("commitlog-unconfirmed-records", "commitlog", count=count))
    for file in analysis.alone:
        name = store.relative(file.mapped_file.path)
        found.append(finding(FILE_ALONE, name, 0, messages=file.messages, indexed=file.indexed))
    found += _old_records(store, log, analysis.old_end)
    if log.tally.has_bridge:
        found.append(finding("commitlog-bridge", "commitlog", fillers=log.tally.fillers, markers=log.tally.markers))
    found += first_file_findings(store, log, analysis.topics)
    found += needs_newer_broker(store, log)
    found += unreadable_findings(store, log.files)
    return found


def bytes_findings(
    store: Store, log: LogView, lost: Sequence[int] = (), end_marks: Collection[int] = (), *, untold: bool = False,
) -> Iterator[Finding]:
    """Yield a finding for each range of the log that holds no record. `lost`: lost positions by range, if known;
    `untold`: messages named after the end may have been in the rest of the last file."""
    for number, damage in enumerate(log.damaged):
        if not untold or damage.reason != MISSING_FILE:
            yield _damage_finding(store, log, damage, lost[number] if lost else 0, number in end_marks)
    if log.tail is not None:
        yield finding(
            "commitlog-torn-tail", *place_in_file(store, log, log.tail.start), start=log.tail.start,
            stop=log.tail.stop, bytes=log.tail.stop - log.tail.start, reason=log.tail.reason,
        )


def unreadable_findings(store: Store, scans: Iterable[FileScan]) -> Iterator[Finding]:
    """Yield a finding for each range of the log that could not be read; that is all of a file that does not open."""
    return failed_reads(store, (failure for scan in scans for failure in scan.unreadable))


def closed_findings(store: Store, files: Iterable[MappedFile]) -> Iterator[Finding]:
    """Yield a finding for each log file that the system does not open, without reading any."""
    for file in files:
        with file.open() as reader:
            if isinstance(reader, ClosedFile):
                yield from failed_reads(store, [reader.failure])


def failed_reads(store: Store, failures: Iterable[ReadFailure]) -> Iterator[Finding]:
    for failure in failures:
        yield finding("commitlog-unreadable", store.relative(failure.path), failure.offset, wanted=failure.wanted,
                      error=failure.strerror, remedy=remedy_of(failure.cause or failure) or None)


def unknown_size_findings(store: Store, queue: MappedFileQueue, end: int) -> Iterator[Finding]:
    """Yield the finding that asks for the log file size, if neither a setting nor a complete file determines it.

    `end`: end of the log's last record; nothing is asked of a log without records.
    """
    if end == queue.min_offset or store.log_file_size_is_told:
        return
    only = queue.files[0]
    if len(queue.files) > 1:
        why = Phrase("no log file has the {size} bytes that their names imply", size=f"{queue.file_size:,}")
    elif _ends_within_a_record(queue, only, end):
        why = Phrase("the log's only file breaks off after {size} bytes", size=f"{only.length:,}")
    else:
        return
    yield finding(SIZE_UNTOLD, store.relative(only.path), 0, length=only.length, why=why)


def _ends_within_a_record(queue: MappedFileQueue, only: MappedFile, end: int) -> bool:
    """Whether the log's only file ends within a record, or leaves less room than an end mark takes."""
    with LogReader(queue) as reader:
        head = reader.read(end, HEAD.size).ljust(HEAD.size, b"\0")
    torn, room = HEAD.decode(head), only.end - end
    # a record leaves room for the end mark of its file; old bytes may follow the end, but none with this offset
    own = torn.magic in (MAGIC_V1, MAGIC_V2) and (room < HEAD.size or torn.phy_offset == end)
    return room < BLANK_SIZE or (own and torn.total_size > room - BLANK_SIZE)


def first_file_findings(store: Store, log: LogView, topics: Topics) -> Iterator[Finding]:
    """Judge whether the files before the first one can have expired: its first message must be as old as retention
    allows. If it is not, the messages that nobody has read yet are missing.

    Only message times count, not the clock of the machine where a copy is checked.
    """
    if log.min_offset == 0 or not log.files or not log.tally.newest_timestamp:
        return
    hours = retention_hours(store)
    first, newest = first_timestamp(log), log.tally.newest_timestamp
    late, age = newest - first < hours * HOUR_MS, max(0, newest - first) // HOUR_MS
    # no broker keeps messages for less than an hour
    remedy = (logs_beside_remedy(store) or (None if age else NO_RETENTION)) if late else None
    if unread := unread_before_begin(store, log, topics) if late else []:
        yield finding(
            "commitlog-begin-missing", COMMITLOG, None, start=log.min_offset, first=first, newest=newest, hours=hours,
            age_hours=age, count=sum(each.messages for each in unread), remedy=remedy,
            by=few(sorted({source for each in unread for source in each.sources})),
            queues={f"{each.key.topic}/{each.key.queue_id}": [each.first, each.stop] for each in unread},
        )
        return
    yield finding(
        "commitlog-begins-late" if late else "commitlog-first-file-not-zero",
        store.relative(log.files[0].mapped_file.path), 0, start=log.min_offset, first=first, newest=newest,
        hours=hours, age_hours=age, remedy=remedy,
    )


def now_ms() -> int:
    """The time at which a start is foretold if none is named."""
    return time.time_ns() // 1_000_000


def expiring_files(store: Store, log: LogView, settings: BrokerSettings, now: int) -> Iterator[Finding]:
    """Yield a finding for log files that this broker deletes once it runs at `now` (ms), as their last change is older
    than `fileReservedTime` (MappedFileQueue.deleteExpiredFileByTime, which spares the last file); an info if that was
    not given.

    Not for a log with a message of the last day: its broker deletes files every day.
    """
    hours = settings.number(RETENTION)
    if not hours or now - log.tally.newest_timestamp < 24 * HOUR_MS:
        return
    files = store.commitlog.files
    ages = [now - file.path.stat().st_mtime_ns // 1_000_000 for file in files[:-1]]
    if count := len([*takewhile(lambda age: age > hours * HOUR_MS, ages)]):
        given = RETENTION in settings.given
        yield finding("start-expires-files", broker=str(settings.version), count=count, of=len(files), hours=hours,
                      default="" if given else ", the default", first=files[0].path.name,
                      last=files[count - 1].path.name, when=settings.given.get("deleteWhen", "04"),
                      keeps=max(ages) // HOUR_MS + 72, severity=None if given else "info")


def first_timestamp(log: LogView) -> int:
    """Store time (ms) of the first record; read from the file, as the scan of a sound log keeps no rows."""
    with LogReader(log.queue) as reader:
        size = int.from_bytes(reader.read(log.min_offset, 4), "big")
        try:
            return reader.record(log.min_offset, size).store_timestamp
        except (FormatError, OSError):
            rows = (split.records for split in log.live())
            return next((int(records["store_timestamp"][0]) for records in rows if records.size), 0)


def odd_log_name(store: Store, odd: OddName, severity: Severity | None = None, copies: int = 0) -> Finding:
    """The finding about an entry among the log files that does not belong there; `severity` None: that of its code.
    `copies`: how many damaged messages it still holds."""
    file, name = store.relative(odd.path), odd.path.name
    # an empty file at an odd offset is not part of the log, whatever it was created for
    if odd.counts_as_file and (odd.length or odd.kind != FILE):
        what = Phrase("{kind} at an offset that is not a multiple of the file size", kind=odd.kind)
        return finding(NOT_A_FILE, file, None, name=name, what=what if odd.kind == FILE else odd.kind)
    if _only_copy(store, odd):
        return finding(NOT_A_FILE, file, None, message=STANDS_FOR, name=name,
                       what=N_("under another name, compressed, or an incomplete copy"))
    place = _place_left_open(store, odd)
    if place is not None:
        return finding(NOT_A_FILE, file, None, message=NAMELESS, name=name, right=offset_to_name(place),
                       remedy=N_("Give the log file its name, {right}; then: mqtool verify {store}"),
                       what=N_("under another name"))
    held: dict[str, Any] = {"message": STILL_HOLDS, "copies": copies} if copies else {}
    return finding("commitlog-odd-name", file, None, severity=severity, name=name, is_directory=odd.is_directory,
                   remedy=BY_HAND if odd.by_hand else None, **held)


def possible_copy_findings(store: Store, odd_names: Iterable[OddName]) -> list[Finding]:
    """Findings about those files that may be the only copy of a missing log file: the name begins (perhaps after a dot)
    like that file's, such as `0...0.gz`, or the first record belongs there."""
    return [odd_log_name(store, odd) for odd in odd_names
            if _only_copy(store, odd) or _place_left_open(store, odd) is not None]


def _only_copy(store: Store, odd: OddName) -> bool:
    offset = offset_in_name(odd.path.name.removeprefix(".")[:OFFSET_DIGITS])
    if odd.kind != FILE or not odd.length or offset is None:
        return False
    there = store.commitlog.find(offset)
    return there is None or there.file_from_offset != offset


def _place_left_open(store: Store, odd: OddName) -> int | None:
    """The log offset where an odd file belongs by its first record, if no file stands there."""
    place = named_by_record(odd.path) if odd.kind == FILE and odd.length else None
    return place if place is not None and store.commitlog.lacks(place) else None


def length_findings(store: Store, queue: MappedFileQueue, lacks: Callable[[int, int], bool]) -> Iterator[Finding]:
    """Yield a finding for each log file of another length; `lacks`: whether messages are missing in a range of the
    log."""
    for wrong in queue.wrong_lengths():
        cut = lacks(wrong.file_from_offset + wrong.length, wrong.file_from_offset + queue.file_size)
        yield finding("commitlog-bad-file-length", store.relative(wrong.path), 0, length=wrong.length,
                      expected=queue.file_size, remedy=FIND_WHOLE if cut else None)


def _file_findings(store: Store, analysis: Reading) -> Iterator[Finding]:
    log, queue = analysis.log, analysis.log.queue
    yield from length_findings(store, queue, lambda start, stop: any(
        damage.start < stop and start < damage.stop for damage in log.damaged))
    missing = {damage.stop for damage in log.damaged if damage.reason == MISSING_FILE}
    for start, stop in queue.missing_ranges():
        far = queue.find(stop)
        if stop not in missing and far is not None:
            yield far_file_finding(store, far, start, log.log_end)
    beside = copies_beside(log, analysis.losses) if queue.odd or queue.duplicates else ()
    copies = Counter(copy.file for own in beside for copy in own)
    for odd in queue.odd:
        # brokers from 5.1.0 on skip folders, and only they read V2 records: harmless there
        skipped = odd.is_directory and bool(log.tally.bits & BIT_V2)
        yield odd_log_name(store, odd, "info" if skipped else None, copies[odd.path])
    for twin in queue.duplicates:
        kept = next(f for f in queue.files if f.file_from_offset == twin.file_from_offset)
        number = copies[twin.path]
        yield finding("commitlog-duplicate-file", store.relative(twin.path), 0, message=HALVES if number else None,
                      name=twin.name, kept=store.relative(kept.path), copies=number)


def far_file_finding(store: Store, far: MappedFile, start: int, log_end: int) -> Finding:
    """The finding about an empty file far after the log, which ends at `log_end`; the room before it begins at
    `start`."""
    return finding("commitlog-far-file", store.relative(far.path), 0, start=start, log_end=log_end)


def missing_files(store: Store, file_size: int, *, start: int, stop: int, **facts: Any) -> Finding:
    """The finding about the missing log files from `start` to `stop`; a single one is called by its name."""
    one = Phrase(ONE_MISSING, name=offset_to_name(start), intact_after=facts.get("intact_after")) \
        if stop - start <= file_size else None
    return finding("commitlog-missing-file", "commitlog", None, message=one, remedy=logs_beside_remedy(store),
                   **{"start": start, "stop": stop, "bytes": stop - start, **facts})


def _damage_finding(store: Store, log: LogView, damage: Damage, lost: int, end_mark: bool) -> Finding:
    facts = {
        "start": damage.start, "stop": damage.stop, "bytes": damage.stop - damage.start, "reason": damage.reason,
        "intact_after": damage.intact_after, "lost_positions": lost,
        **{f"read_{name}": value for name, value in damage.facts.items()},
    }
    if damage.reason == MISSING_FILE:
        return missing_files(store, log.queue.file_size, **facts)
    code = "commitlog-damaged-range"
    if end_mark:
        code = "commitlog-damaged-end-mark"
    elif damage.has_frame and damage.facts.get("size") == damage.stop - damage.start and damage.reason != OTHER_LOG:
        code = "commitlog-damaged-record"
    return finding(code, *place_in_file(store, log, damage.start), **facts)


def _old_records(store: Store, log: LogView, old_end: int | None) -> list[Finding]:
    found = []
    kinds = (
        (log.stale, BIT_STALE, "commitlog-ghosts"), (log.superseded, BIT_SUPERSEDED, "commitlog-superseded"),
    )
    for count, bit, code in kinds:
        for scan in log.files if count else ():
            places = [
                int(row["phy_offset"]) for split in scan.splits if split.has(bit)
                for row in split.records[(split.records["bits"] & bit) != 0]
            ]
            if places:
                found.append(finding(
                    code, *place_in_file(store, log, places[0]), start=places[0], first=places[0],
                    last=places[-1], count=len(places),
                ))
                if bit == BIT_SUPERSEDED and old_end is not None and places[-1] >= old_end:
                    count = sum(place >= old_end for place in places)
                    file, offset = place_in_file(store, log, old_end)
                    found.append(finding("commitlog-old-end", file, offset, start=old_end, count=count))
    return found


_IN_FOLDERS = N_("the log is in {folders} folders: a broker older than {version} takes their names for the name of "
                 "one, finds no log there, and deletes all queues")

_NO_BLANK = N_("Remove the blank at the end of the path in the broker's configuration.")
_BLANK_AFTER = N_("a blank follows the path of the log in the configuration: a broker older than {version} takes it "
                  "for a part of the name, finds no log there, and deletes all queues")


def needs_newer_broker(store: Store, log: LogView) -> Iterator[Finding]:
    """Yield the first record of each form that some release cannot read; such a release would truncate there. Or a log
    that it would not find."""
    if (folders := len(store.commitlog_dirs)) > 1:
        yield finding("commitlog-needs-newer-broker", "commitlog", None, message=_IN_FOLDERS, folders=folders,
                      what=N_("a log in several folders"), start=log.min_offset, version=str(SEVERAL_LOG_FOLDERS.since))
    if has_blank_after_log(store.options.settings):
        yield finding("commitlog-needs-newer-broker", "commitlog", None, message=_BLANK_AFTER, remedy=_NO_BLANK,
                      what=N_("a path with a blank at its end"), start=log.min_offset, version=str(TRIMMED_TEXT.since))
    forms = {
        N_("V2 records"): ("bits", log.tally.bits & BIT_V2, V2_RECORDS),
        N_("records with IPv6 hosts"): ("sys_flag", log.tally.flags & HOSTS_V6, IPV6_HOSTS),
    }
    for what, (column, bits, behaviour) in forms.items():
        for split in (split for split in log.live() if bits and split.has(bits, BITS if column == "bits" else FLAGS)):
            places = split.records["phy_offset"][(split.records[column] & bits) != 0]
            if places.size:
                first = int(places[0])
                yield finding("commitlog-needs-newer-broker", *place_in_file(store, log, first), what=what,
                              start=first, version=str(behaviour.since))
                break


def misnamed_findings(store: Store, misnamed: list[tuple[MappedFile, int]]) -> list[Finding]:
    """A finding for each file whose records belong elsewhere; `misnamed` as in `Reading`."""
    return [
        finding("commitlog-misnamed-file", store.relative(mapped_file.path), 0, right=offset_to_name(right))
        for mapped_file, right in misnamed
    ]


def displaced_findings(store: Store, placed: Sequence[Placed]) -> Iterator[Finding]:
    """A finding for each file to which records belong that stand elsewhere, and for each whose records a further log
    has; `placed` as in `Analysis`."""
    for (mapped_file, further), own in groupby(
        sorted(placed, key=lambda run: (run.mapped_file.file_from_offset, run.further)),
        key=lambda run: (run.mapped_file, run.further),
    ):
        runs = [*own]
        source, position = origin_of(runs[0].source, runs[0].position)
        yield finding(
            "commitlog-held-elsewhere" if further else "commitlog-displaced-records", store.relative(mapped_file.path),
            runs[0].start - mapped_file.file_from_offset, first=runs[0].start, last=runs[-1].stop,
            count=sum(run.records for run in runs), runs=len(runs), source=store.relative(source),
            position=position, shift=position - (runs[0].start - mapped_file.file_from_offset),
        )


def contradiction_findings(store: Store, log: LogView, denied: list[Edit]) -> list[Finding]:
    """A finding for each record with a field that a queue shows to be damaged."""
    found = []
    for edit in denied:
        (topic, queue), queue_offset = edit.place
        found.append(finding(
            POLICIES[edit.kind].finding, *place_in_file(store, log, edit.start), start=edit.start,
            field=edit.field, stored=edit.before, told=edit.after, topic=topic, queue=queue, queue_offset=queue_offset,
        ))
    return found


def place_in_file(store: Store, log: LogView, phy_offset: int) -> tuple[str, int]:
    """Return the file that holds a physical offset, as named in the store, and the position in it."""
    mapped_file = log.queue.find(phy_offset)
    assert mapped_file is not None
    return store.relative(mapped_file.path), phy_offset - mapped_file.file_from_offset
