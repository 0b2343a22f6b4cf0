"""The files in config/: their text, their backups, and the offsets in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from formats.config import BACKUP_SUFFIX
from recover.files.config_files import STATE_TEXT, ConfigPair, ConfigText
from recover.files.store import CONFIG, Store
from recover.findings import Finding, finding
from recover.verify.consumer_offsets import AboveMax, check_offsets
from recover.verify.guess_topics import guess_topics

if TYPE_CHECKING:
    from recover.verify.survey import Survey

TOPICS_FILE = "topics.json"
_ROCKSDB = {"topics", "rdb"}
_NAMED = 20


class ConfigReport(Struct):
    """All known config files. `above` are the offsets behind the end of their queues."""

    pairs: list[ConfigPair]
    above: list[AboveMax] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def json(self) -> list[dict[str, Any]]:
        """Each file that is there: its state and length, those of its backup, how many members each has."""
        return [
            {"name": pair.name, "main": pair.main.facts(), "backup": pair.backup.facts()}
            for pair in self.pairs if pair.present
        ]


def check_config(store: Store, look: Survey) -> ConfigReport:
    """Judge every config file, its backup, and the offsets against the queues."""
    report = ConfigReport(look.topics.pairs)
    for pair in report.pairs:
        report.findings.extend(judge_config(store, look, pair))
    offsets = check_offsets(store, look, report.pairs)
    report.above = offsets.above
    report.findings.extend(offsets.findings)
    return report


def topics_needed(store: Store, pair: ConfigPair) -> bool:
    """True when topics.json and its backup are missing although config/ holds something, and no RocksDB has them."""
    if pair.name != TOPICS_FILE or pair.present:
        return False
    try:
        names = set(os.listdir(store.config_dir))
    except OSError:
        return False
    return bool(names) and not names & _ROCKSDB


def judge_config(store: Store, look: Survey | None, pair: ConfigPair) -> Iterator[Finding]:
    """What is wrong with one config file and its backup. `look` None: the log was not read, and no topic is guessed."""
    main, backup = pair.main, pair.backup
    file = f"{CONFIG}/{pair.name}"
    unreadable = [copy for copy in (main, backup) if copy.state == "unreadable"]
    for copy in unreadable:
        yield finding("config-unreadable", f"{CONFIG}/{copy.path.name}", name=copy.path.name, error=copy.error)
    if unreadable:
        return
    facts: dict[str, Any] = {"name": pair.name, "problem": STATE_TEXT[main.state], "lost": pair.known.lost}
    if main.state == "sound":
        if backup.state not in ("sound", "missing"):
            yield finding("config-backup-broken", file + BACKUP_SUFFIX, backup.broken_at, name=pair.name,
                          problem=STATE_TEXT[backup.state], **pair.difference())
    elif not pair.present:
        if topics_needed(store, pair):
            yield _guessed(store, look, pair, facts)
    elif pair.chosen is not None:
        code = "config-missing" if main.missing else "config-broken"
        yield finding(code, file, main.broken_at, **facts, outcome=_outcome(pair, pair.chosen),
                      chosen=pair.chosen.path.name, **pair.difference())
    elif pair.name == TOPICS_FILE:
        yield _guessed(store, look, pair, facts)
    else:
        readable = len(main.table) or len(backup.table)
        start = "a broker starts without it" if pair.starts else "no broker starts with the two as they are"
        left = f"; {readable} of its members can still be read" if readable else ""
        yield finding("config-lost", file, main.broken_at, **facts, backup_problem=STATE_TEXT[backup.state],
                      start=start + left, readable=readable, starts=pair.starts, **pair.difference())


def _outcome(pair: ConfigPair, chosen: ConfigText) -> str:
    members = len(chosen.table)
    if chosen is pair.main and chosen.flipped is not None:
        at, bit = chosen.flipped
        return f"with bit {bit} of byte {at} turned back it is whole ({members} members)"
    if chosen is pair.main:
        return f"its own text ends at byte {chosen.parsed.end} and is whole ({members} members)"
    return f"its backup is whole ({members} members, {len(pair.main.table)} can be read in the file itself)"


def _guessed(store: Store, look: Survey | None, pair: ConfigPair, facts: dict[str, Any]) -> Finding:
    if look is None:
        return finding("config-lost", f"{CONFIG}/{pair.name}", pair.main.broken_at, **facts,
                       backup_problem=STATE_TEXT[pair.backup.state], start="verify says which topics can be guessed",
                       remedy="mqtool recover {store}")
    guess = guess_topics(store, look, pair)
    names = ", ".join(sorted(guess.topics)[:_NAMED]) or "none"
    return finding("config-topics-guessed", f"{CONFIG}/{pair.name}", pair.main.broken_at, **facts, guess=True,
                   topics=len(guess.topics), names=names, read=sorted(guess.read)[:_NAMED], **pair.difference())
