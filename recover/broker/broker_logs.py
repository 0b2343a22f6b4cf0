"""Evidence in a broker's own log: one row for each relevant line that brokers write, with its meaning and remedy.

Rows are tested against logs of real brokers (`fixtures/logs`). A log of any length is read line by line.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple, cast

from msgspec import Struct, field

from recover.findings.code import Refusal

FAILURE, LOSS, REPAIR, NOTE = "failure", "loss", "repair", "note"
RANKS = (FAILURE, LOSS, REPAIR, NOTE)
"""The broker does not start · messages are cut, or not delivered · the broker helps itself · nothing is wrong."""
_LONGEST = 1 << 12
_TEXT = 400
_STORES = 16
"""Stores that one log can tell apart; further ones count as the last of these."""
_GZIP = b"\x1f\x8b"
_TIME = re.compile(rb"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
_LEVEL = re.compile(rb"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S* )?(?:\[[^\]]*\] ?)?(?:TRACE|DEBUG|INFO|WARN|ERROR) ")
_PLACE = re.compile(rb"(?<!\S)(/\S*?)/(?:commitlog|consumequeue|index|config)/|store path root dir: (\S+)")
_LOG_FILE = re.compile(rb"(?:recover physics file end|physics file over, last mapp?ed file),? (/\S*/\d{20})")


class Row(NamedTuple):
    """One line that brokers write: it contains `sign`, matches `text`, and the file it names contains `part`.

    `text` may name groups: file, offset, and with it before (a cut from before down to offset; if both are equal the
    line means nothing). `since`, `until`: releases that write it. `code`: the corresponding finding. `then`: commands
    to run.
    """

    name: str
    rank: str
    since: str
    until: str
    sign: str
    text: str
    meaning: str
    code: str | None
    then: tuple[str, ...]
    part: str = ""

    @property
    def ends_log(self) -> bool:
        """Whether a start ends the log at the record that the line reports."""
        return self.text.startswith(("CRC check", "read total", "found a"))


_VERIFY = "mqtool verify {store}"
_LOG = "mqtool verify {store} --only commitlog"
_DRY = "mqtool recover {store} --dry-run"
_AT = "mqtool inspect {file} --offset {offset}"
_FILE = "mqtool inspect {file}"
_PREDICT = "mqtool predict {store}"
_INSPECT = "mqtool inspect {store}"
_EXPORT = "mqtool export {store} -o cut.ndjson --phy-offsets {offset}: --include stale"

ROWS: tuple[Row, ...] = (
    Row("log-file-length", FAILURE, "", "", "length not matched",
        r"(?<!\S)(?P<file>/\S*)\t\d+ length not matched message store config value, please check it manually",
        "A log file does not have the length that the settings name. The broker loads no file after it and does not "
        "start.", "commitlog-bad-file-length", (_DRY, _FILE), part="/commitlog"),
    Row("queue-file-length", FAILURE, "", "", "length not matched",
        r"(?<!\S)(?P<file>/\S*)\t\d+ length not matched message store config value, please check it manually",
        "A queue file does not have the length that the settings name. The broker does not start.",
        "consumequeue-bad-file-length", (_DRY, _FILE), part="/consumequeue"),
    Row("load-failed", FAILURE, "", "", "Failed", r"load (commit log|logics queue|consume queue .{1,400}) Failed",
        "A part of the store cannot be loaded: the broker does not start. The reason is in the lines before.",
        "start-refused", (_PREDICT, _DRY)),
    Row("foreign-file", FAILURE, "", "", "load exception", r"load exception",
        "A file that does not belong there is in a folder of the log or of a queue, or a file cannot be opened: the "
        "broker does not start.", "commitlog-odd-name", (_VERIFY, _DRY)),
    Row("foreign-index-file", NOTE, "", "", "load file", r"load file (?P<file>/\S+) error",
        "A file that is not an index file is in the index folder.", "index-odd-name", (_VERIFY,)),
    Row("files-do-not-adjoin", LOSS, "5.0.0", "", "the adjacent mappedFile's offset",
        r"the adjacent mappedFile's offset don't match\. pre file \S+, cur file (?P<file>\S+)",
        "Between two files of the log (or of a queue) one is missing, or one is misnamed.",
        "commitlog-missing-file", (_LOG, _DRY)),
    Row("store-locked", FAILURE, "", "", "MQ already started", r"Lock failed, ?MQ already started",
        "Another process holds the store's lock: a broker that still runs, or another mqtool.", "broker-running",
        (_INSPECT,)),
    Row("rocksdb-locked", FAILURE, "5.5.0", "", "While lock file", r"While lock file: (?P<file>/\S+/LOCK): ",
        "Another process holds a database of the store: a broker that still runs.", "broker-running", (_INSPECT,)),
    Row("out-of-memory", FAILURE, "", "", "OutOfMemoryError", r"java\.lang\.OutOfMemoryError",
        "The heap is used up. At a start this is mostly a damaged size field of a record, which releases of 4.x "
        "believe.", "commitlog-damaged-record", (_LOG, _DRY)),
    Row("config-lost", LOSS, "", "", " Failed", r"load (?P<file>/\S+\.json(?:\.bak)?) Failed",
        "Neither a config file nor its backup can be read: the broker starts without its content, or does not "
        "start.", "config-lost", (_VERIFY, _DRY)),
    Row("config-broken", REPAIR, "", "", "try to load backup file",
        r"load (?P<file>/\S+\.json) failed, and try to load backup file",
        "A config file cannot be read; the broker uses its backup, which is older.", "config-broken", (_VERIFY, _DRY)),
    Row("cut", LOSS, "", "", "maxPhyOffsetOfConsumeQueue",
        r"maxPhyOffsetOfConsumeQueue\((?P<before>\d{1,19})\) >= processOffset\((?P<offset>\d{1,19})\)",
        "The start ended the log at this offset, while queues still point after it: the messages from there on are cut "
        "from the queues. They remain in the file until new messages overwrite them: stop the broker.",
        "start-loses-messages", (_EXPORT, _LOG, _AT)),
    Row("bad-body-crc", LOSS, "", "", "CRC check failed", r"CRC check failed\. bodyCRC=-?\d+, currentCRC=-?\d+",
        "The body of a message does not have its checksum. A start ends the log there.", "commitlog-damaged-record",
        (_LOG, _DRY)),
    Row("lengths-do-not-add-up", LOSS, "", "", "read total count", r"read total count not equals msg total size",
        "The lengths in a record do not add up. A start ends the log there.", "commitlog-damaged-record", (_LOG, _DRY)),
    Row("no-record", LOSS, "", "", "illegal magic code", r"found a illegal magic code 0x(?!0\b)[0-9a-f]+",
        "There is no record where the next one should begin. A start ends the log there.", "commitlog-damaged-range",
        (_LOG, _DRY)),
    Row("half-message", LOSS, "5.0.0", "", "found a half message",
        r"found a half message at (?P<offset>\d{1,19}), it will be truncated",
        "A record is inconsistent, so the start cuts the log here.", "commitlog-torn-tail", (_LOG, _AT)),
    Row("dispatch-stops", LOSS, "5.0.0", "", "checkMessageAndReturnSize failed",
        r"checkMessageAndReturnSize failed, may can not dispatch",
        "A record in the log cannot be read: it gets no place in its queue, and no consumer sees it.",
        "start-leaves-unreachable", (_LOG, _DRY)),
    Row("log-gone", LOSS, "", "", "The commitlog files are deleted",
        r"The commitlog files are deleted, and delete the consume queue files",
        "The broker found no log file and deleted the queues. Most often the disk of the log was not mounted: stop the "
        "broker before it writes a new log.", "commitlog-empty-queues-left", (_INSPECT, _VERIFY)),
    Row("log-file-deleted", LOSS, "", "", "delete file[REF:", r"delete file\[REF:-?\d+\] (?P<file>/\S*) OK",
        "The broker deleted a file of the log: at a start because the log ended before it, otherwise because retention "
        "or a full disk asked for it.", "start-deletes-files", (_LOG,), part="/commitlog"),
    Row("queue-file-deleted", REPAIR, "", "", "destroy a logic mapped file",
        r"on recover, destroy a logic mapped file (?P<file>\S+)",
        "A start removed a queue file that points after the end of the log.", "start-lowers-queues",
        (_PREDICT, "mqtool groups {store}")),
    Row("numbered-twice", LOSS, "", "", "consume queue repeatedly, expectLogicOffset",
        r"Build +consume queue repeatedly, expectLogicOffset: \d+",
        "A record has a queue offset that another record already has: only one of the two is delivered.",
        "commitlog-superseded", (_VERIFY, _DRY)),
    Row("queue-behind", LOSS, "", "", "logic queue order maybe wrong",
        r"logic queue order maybe wrong, expectLogicOffset: \d+",
        "A queue ends before the queue offset of the next message in the log: the messages between are not delivered.",
        "consumequeue-missing-units", (_VERIFY, _DRY)),
    Row("ext-unit-missing", REPAIR, "", "", "can't find consume queue extend file content",
        r"can't find consume queue extend file content! ?addr=-?\d+",
        "A queue unit leads to an extension file that does not hold it, or enableConsumeQueueExt was switched off.",
        "consumequeue-ext-broken", (_VERIFY,)),
    Row("unclean-stop", REPAIR, "", "", "keep abort file", r"the store may be wrong, so shutdown abnormally",
        "The broker stopped before its queues had caught up with the log, and left abort for the next start to check.",
        "abort-present", (_PREDICT,)),
    Row("delay-offset", REPAIR, "4.9.0", "4.9.8", "CQ offset invalid", r"schedule CQ offset invalid\. offset=\d+",
        "The delivered offset of a delay level does not match its queue; the broker corrects it.",
        "delay-offset-above-max", (_VERIFY,)),
    Row("empty-file-deleted", REPAIR, "5.0.0", "", "size is 0, auto delete",
        r"(?<!\S)(?P<file>/\S+) size is 0, auto delete",
        "The last file was empty, as a full disk or a crash leaves it; the broker removed it.", None, (_VERIFY,)),
    Row("checkpoint-missing", REPAIR, "", "", "checkpoint file not exists",
        r"store checkpoint file not exists, (?P<file>\S+)",
        "There was no checkpoint: after a crash the start begins at an earlier file.", "checkpoint-missing",
        (_VERIFY,)),
    Row("killed", NOTE, "", "", "last shutdown abnormally", r"last shutdown abnormally",
        "The broker did not stop cleanly before this start (the file abort was there): it checks the log from the "
        "checkpoint on.", "abort-present", (_PREDICT,)),
    Row("end-of-log", NOTE, "", "", "illegal magic code", r"found a illegal magic code 0x0\b",
        "Zeros after the last record: where the log ends in the middle of a file. Normal, unless intact messages "
        "follow, which verify reports.", None, (_LOG,)),
    Row("dispatched-before", NOTE, "", "", "Maybe try to build", r"Maybe try to build consume queue repeatedly",
        "After a crash the start re-dispatches messages that queues already hold. Normal.", None, ()),
    Row("started", NOTE, "", "", "boot success", r"The broker\[.{1,400}\] boot success", "The broker came up.", None,
        ()),
)
_SIGNS = re.compile(b"|".join(re.escape(row.sign.encode()) for row in ROWS))
_COMPILED = [re.compile(row.text.encode()) for row in ROWS]


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
        raise Refusal(f"{path} cannot be decompressed: {error}", "Decompress what can be, and use that.") from error
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
    if row.part and row.part.encode() not in values["file"]:
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
