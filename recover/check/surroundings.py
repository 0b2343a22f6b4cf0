"""What surrounds a start: each thing is asked once, and no release is in the answer; `recover.predict` plays one on it.

1. The log as its names have it: files that a start does not find or finds in a wrong place (`gaps`), and messages that
   witnesses name after its end (`end`).
2. What is beside it: parts that must be there (`needed`), parts that are not read (`unread_parts`), files that this
   user cannot read (`unread`) or the broker's user may not open (`rights`).
3. What is configured: config files with what the store shows of them (`configs`), types of queues, settings that
   contradict the files, offsets in the file that is not read.
4. The timer: its files (`timer_files`), damage in them (`timer_damage`), and the messages that wait in it.
5. What only we know: unfinished runs, and who holds the lock.

It does not protect from what changes after it was asked.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from formats.checkpoint import FILE_SIZE
from formats.index import INDEX_HEADER
from recover.broker.settings import BrokerSettings
from recover.broker.versions import BrokerVersion
from recover.change.lock import holder_of
from recover.check.config import guesses, judged_pairs, other_offsets
from recover.check.log import (
    expiring_files,
    first_file_findings,
    misnamed_findings,
    missing_files,
    possible_copy_findings,
    unknown_size_findings,
    unreadable_findings,
)
from recover.check.parts import (
    MOSTLY_GONE,
    Needed,
    contradicted_settings,
    earlier_runs,
    foreign_findings,
    lock_findings,
    needed_parts,
    queue_types,
    settings_findings,
    too_old_for,
    units_of_older_log,
    unstated_parts,
)
from recover.check.rights import check_owners
from recover.check.timer import TIMERLOG, TIMERWHEEL, check_files, check_timer, has_timer, waiting_timers
from recover.derived.index_files import index_ends, list_index_files
from recover.findings.model import Finding, finding, judged
from recover.log.files import live_copies, place_misnamed_files
from recover.log.scan import MISSING_FILE, LogView
from recover.look.store import log_is_gone
from recover.reading.books import missing_end
from recover.reading.end import file_named_elsewhere
from recover.reading.reading import Reading
from recover.store.config_files import ConfigPair, Topics
from recover.store.source import names_in, read_small
from recover.store.store import ABORT, COMMITLOG, CONFIG, Store
from recover.store.unread import Elsewhere, held_elsewhere, unread_parts

_SNAPSHOT = f"{TIMERWHEEL}."


class Surroundings:
    """The surroundings of every start on a store; `log` is the scan of the whole log, with each file at the offset of
    its name. `OSError` where a folder cannot be listed."""

    def __init__(self, store: Store, log: LogView, topics: Topics | None = None) -> None:
        self.store, self.log, self.topics = store, log, topics or Topics(store)

    @classmethod
    def on(cls, reading: Reading) -> Surroundings:
        """Return those of a reading, which keeps them: a check and a start ask for the same."""
        kept: dict[str, Any] = vars(reading)
        if "surroundings" not in kept:
            kept["surroundings"] = cls(reading.store, reading.by_names, reading.topics)
        found: Surroundings = kept["surroundings"]
        return found

    @cached_property
    def elsewhere(self) -> dict[str, Elsewhere]:
        """What unread parts hold in place of the files that are read, by question."""
        return held_elsewhere(self.store)

    # --- the log

    @cached_property
    def first_file(self) -> list[Finding]:
        """Whether the files before the first one of the log can have expired."""
        return [*first_file_findings(self.store, self.log, self.topics)]

    @cached_property
    def gaps(self) -> list[Finding]:
        """Parts of the log that a start does not find: all of it, files between others, its ends, or misnamed files."""
        return [*self._missing(), *(item for item in self.first_file if item.severity == "error")]

    def _missing(self) -> list[Finding]:
        store, log = self.store, self.log
        if COMMITLOG in self.elsewhere:
            return []
        untold = [*unknown_size_findings(store, log.queue, log.log_end)]
        placed, misnamed = place_misnamed_files(live_copies(store.commitlog))
        gone = [*untold, *self.no_log, *possible_copy_findings(store, placed.odd), *foreign_findings(store, log)]
        if units := units_of_older_log(store, log):
            gone.append(finding(MOSTLY_GONE, COMMITLOG, None, messages=log.tally.messages, lost=0, index_units=units))
        # a start reads such a file at the offset in its name, where none of its messages is found
        named = [judged(item, "start") for item in misnamed_findings(store, misnamed)]
        if untold or (named and not list(placed.missing_ranges())):
            # nothing is known to be missing: the rest of a file may hold it, and recover restores the names of files
            return gone + named
        missing = [damage for damage in log.damaged if damage.reason == MISSING_FILE]
        end = file_named_elsewhere(log.files, log.tally.newest_timestamp, index_ends(store), store.checkpoint())
        if end is not None and not any(damage.stop > end.start for damage in log.damaged):
            missing.append(end)
        return gone + named + [
            missing_files(store, log.queue.file_size, start=damage.start, stop=damage.stop,
                          intact_after=damage.intact_after)
            for damage in missing
        ]

    @cached_property
    def no_log(self) -> list[Finding]:
        """The finding of a store with queues or an index, but no log."""
        return [*log_is_gone(self.store)]

    @cached_property
    def end(self) -> list[Finding]:
        """Messages after the end of the log, of which other witnesses are left."""
        return missing_end(self.store, self.log, self.topics, index_ends(self.store))

    # --- beside it

    @cached_property
    def needed(self) -> list[Needed]:
        return needed_parts(self.store, self.topics, self.log)

    @cached_property
    def unstated(self) -> list[Finding]:
        return [*unstated_parts(self.store, self.topics)]

    @cached_property
    def unread_parts(self) -> list[str]:
        """Parts with data without which verify cannot answer a question, in words."""
        return [*self._unread_parts()]

    def _unread_parts(self) -> Iterator[str]:
        for part in unread_parts(self.store):
            if part.needed_for is None:
                continue
            try:
                held = part.holds(part.path)
            except OSError as error:
                held = str(error.strerror)
            if held:
                yield f"{self.store.relative(part.path)}: {part.what}"

    @cached_property
    def unread(self) -> list[Finding]:
        """Files that a start opens and that this user cannot read, or that are not files: their effect is unknown.
        Without log and queues nothing is predicted at all."""
        of_log = unreadable_findings(self.store, self.log.files)
        return [*self._unreadable(), *(judged(item, "start") for item in of_log)]

    def _unreadable(self) -> Iterator[Finding]:
        store = self.store
        copies = (copy for pair in self.topics.pairs for copy in (pair.main, pair.backup))
        for copy in (copy for copy in copies if copy.state == "unreadable"):
            yield finding("config-unreadable", f"{CONFIG}/{copy.path.name}", name=copy.path.name, error=copy.error)
        small: tuple[tuple[str, Path, dict[str, Any]], ...] = (
            ("checkpoint-unreadable", store.checkpoint_path, {}),
            ("part-unreadable", store.abort_path, {"part": ABORT}),
        )
        for code, path, facts in small:
            try:
                read_small(path, FILE_SIZE)
            except FileNotFoundError:
                pass
            except OSError as error:
                yield finding(code, store.relative(path), error=error.strerror, **facts)
        unread: list[OSError] = []
        for file in list_index_files(store.index_dir).files:
            file.header(unread)
        for problem in unread:
            yield finding("index-unreadable", store.relative(Path(problem.filename)), error=problem.strerror,
                          wanted=INDEX_HEADER.size)

    @cached_property
    def rights(self) -> list[Finding]:
        """Files of another owner or mode: a cost of the start where the broker's user may not open them."""
        return [judged(item, "start") if item.facts["costs"] else item for item in self.owners]

    @cached_property
    def owners(self) -> list[Finding]:
        """Files of another owner or mode than most."""
        return [*check_owners(self.store)]

    # --- what is configured

    @cached_property
    def configs(self) -> list[ConfigPair]:
        return judged_pairs(self.store, self.topics, self.log)

    @cached_property
    def guesses(self) -> list[Finding]:
        return [*guesses(self.topics.pairs)]

    @cached_property
    def queue_types(self) -> list[Finding]:
        return [*queue_types(self.store, self.topics)]

    @cached_property
    def contradicted(self) -> list[Finding]:
        """Settings that the files contradict."""
        return [*contradicted_settings(self.store)]

    @cached_property
    def refused_records(self) -> list[Finding]:
        """Settings that make a recovery refuse records of the log."""
        return [*settings_findings(self.store, self.log)]

    def other_offsets(self, given: Mapping[str, str]) -> Iterator[Finding]:
        """Consumer progress that a broker of these settings does not use: they select the other file of offsets."""
        for item in other_offsets(self.store, self.topics.pairs, given):
            yield judged(item, "start")

    def too_old(self, version: BrokerVersion) -> Iterator[Finding]:
        return too_old_for(self.store, self.log, version)

    def expiring(self, settings: BrokerSettings, now: int) -> list[Finding]:
        """Log files that are old enough to be deleted at once at `now` (ms)."""
        return [*expiring_files(self.store, self.log, settings, now)]

    # --- the timer

    @cached_property
    def timer_files(self) -> list[Finding]:
        """Timer files with which no release that has the service starts. `OSError` (EINVAL) of what is not a file."""
        return [item for item in check_files(self.store)
                if item.severity != "info" and not (item.file or "").startswith(_SNAPSHOT)]

    @cached_property
    def odd_timer(self) -> tuple[str, str] | None:
        """The timer file that is none, and what it is; None if each is one."""
        try:
            _ = self.timer_files
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return self.store.relative(Path(error.filename)), str(error.strerror)
        return None

    @cached_property
    def last_timerlog(self) -> str:
        return f"{TIMERLOG}/{max(names_in(self.store.root / TIMERLOG), default='')}"

    @cached_property
    def timer_damage(self) -> list[str]:
        """Damage of the timer, in words."""
        found = check_timer(self.store, self.log) if has_timer(self.store) else ()
        return [item.message for item in found if item.severity != "info"]

    @cached_property
    def waiting_timers(self) -> int:
        return waiting_timers(self.store, self.log)

    # --- what only we know

    @cached_property
    def runs(self) -> list[Finding]:
        """Runs of ours: a broker knows nothing of one, and would start on a half-changed store."""
        return [judged(item, "start") for item in self.earlier_runs]

    @cached_property
    def earlier_runs(self) -> list[Finding]:
        return earlier_runs(self.store)

    @cached_property
    def lock(self) -> list[Finding]:
        return [*lock_findings(self.store, holder_of(self.store), with_abort=False)]
