"""The files in config/: their text, their backups, and the offsets in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from formats.config import BACKUP_SUFFIX
from recover.files.config_files import STATE_TEXT, ConfigPair, ConfigText
from recover.files.store import CONFIG, Store
from recover.files.topics import Topics
from recover.findings import Finding, finding
from recover.scan.log import LogView
from recover.verify.config_evidence import TOPICS_FILE, is_gone, judged_pairs
from recover.verify.consumer_offsets import AboveMax, check_offsets
from recover.verify.guess_topics import guess_topics

if TYPE_CHECKING:
    from recover.verify.survey import Survey

_NAMED = 20
_NOT_MADE_UP = (
    "Copy it from the source of this copy, a file backup or the other broker of the group. mqtool never makes it up: "
    "to go on without it, start the broker and set what it held by hand (`mqadmin resetOffsetByTime` for offsets)."
)


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
    report = ConfigReport(judged_pairs(store, look.topics, look.log))
    report.findings += pair_findings(store, look.topics, look.log, report.pairs)
    offsets = check_offsets(store, look, report.pairs)
    report.above = offsets.above
    report.findings.extend(offsets.findings)
    return report


def pair_findings(store: Store, topics: Topics, log: LogView | None, pairs: list[ConfigPair]) -> list[Finding]:
    """What is wrong with the files and their backups; `log` None: it was not read."""
    if is_gone(pairs):
        return [_all_gone(store, topics, log, pairs)]
    return [found for pair in pairs for found in _judge(store, topics, log, pair)]


def _all_gone(store: Store, topics: Topics, log: LogView | None, pairs: list[ConfigPair]) -> Finding:
    pair = next(pair for pair in pairs if pair.name == TOPICS_FILE)
    guess = guess_topics(store, topics, log, pair)
    return finding(
        "config-missing", CONFIG, None, name=f"{CONFIG}/", problem=STATE_TEXT["missing"],
        outcome=f"{pair.shown}, and their settings, the consumer groups and consumer offsets are not here",
        topics=len(guess.topics), names=", ".join(sorted(guess.topics)[:_NAMED]),
        remedy="Find it first: the source of this copy, a file backup, the other broker of the group. mqtool recover "
        "{store} makes a topics.json from queues and log, marked as a guess; it cannot make consumer offsets.",
    )


def _judge(store: Store, topics: Topics, log: LogView | None, pair: ConfigPair) -> Iterator[Finding]:
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
    elif pair.chosen is not None:
        code = "config-missing" if main.missing or main.emptied else "config-broken"
        yield finding(code, file, main.broken_at, **facts, outcome=_outcome(pair, pair.chosen),
                      chosen=pair.chosen.path.name, **pair.difference())
    elif pair.name == TOPICS_FILE and (pair.present or pair.shown):
        yield _guessed(store, topics, log, pair, facts)
    elif not pair.present or (main.emptied and pair.backup.state in ("missing", "emptied")):
        if pair.shown:
            yield finding("config-missing", file, None, **facts, shown=pair.shown, outcome=f"{pair.shown}; lost is "
                          f"{pair.known.lost}", remedy=_NOT_MADE_UP, **pair.difference())
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


def _guessed(
    store: Store, topics: Topics, log: LogView | None, pair: ConfigPair, facts: dict[str, Any]
) -> Finding:
    guess = guess_topics(store, topics, log, pair)
    names = ", ".join(sorted(guess.topics)[:_NAMED]) or "none"
    return finding("config-topics-guessed", f"{CONFIG}/{pair.name}", pair.main.broken_at, **facts, guess=True,
                   topics=len(guess.topics), names=names, read=sorted(guess.read)[:_NAMED], **pair.difference())
