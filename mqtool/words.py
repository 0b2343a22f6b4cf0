"""The language of what a person reads: a gettext catalogue over the English in the code.

1. English is the source: a text without a translation stays English, so no screen is ever empty.
2. The language is that of `--lang`, else of the locale (LC_ALL, LC_MESSAGES, LANG). Documents (`--json`), journals and
   plans are always English: scripts read them.
3. A finding is told from its row and its facts, so a stored one can be told in any language. A message that is not that
   of its row stays as it is.
4. Assumptions and reasons are put together where they are found out, in English. One that is no finding's message is
   told by the phrase of `PHRASES` that it fits, and its parts likewise.

Names of commands, options, files, codes and settings are not translated.
"""

from __future__ import annotations

import gettext
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from recover.findings.model import CODES, Finding, rendered

LANGUAGES = ("en", "zh_CN")
DOMAIN = "mqtool"
COUNTED = "after a number"
"""The context of nouns that follow a number."""
FOLDER = Path(__file__).with_name("locale")
_VARIABLES = ("LC_ALL", "LC_MESSAGES", "LANG")


class _Spoken:
    """The language of this process."""

    catalogue: gettext.NullTranslations = gettext.NullTranslations()
    name = "en"


@cache
def _catalogue(language: str) -> gettext.NullTranslations:
    return gettext.translation(DOMAIN, FOLDER, [language], fallback=True)


def language_of(environment: Mapping[str, str] = os.environ) -> str:
    """Return the language of the locale: `zh_CN` for any Chinese one, else `en`."""
    said = next((environment[name] for name in _VARIABLES if environment.get(name)), "")
    return "zh_CN" if said.lower().startswith("zh") else "en"


@contextmanager
def speaking(language: str | None) -> Iterator[None]:
    """Tell everything within in this language; None: that of the locale. A process that runs several command lines
    takes nothing of one into the next."""
    before = _Spoken.name, _Spoken.catalogue
    _Spoken.name = language or language_of()
    _Spoken.catalogue = _catalogue(_Spoken.name) if _Spoken.name != "en" else gettext.NullTranslations()
    try:
        yield
    finally:
        _Spoken.name, _Spoken.catalogue = before


def language() -> str:
    return _Spoken.name


def _(text: str) -> str:
    """Return the text in the language that is spoken; itself if there is no translation."""
    return _Spoken.catalogue.gettext(text) if text else text


def C_(noun: str) -> str:  # noqa: N802
    """Mark a noun that is shown after a number."""
    return noun


def counted(noun: str) -> str | None:
    """Return a noun as it stands after a number, with its measure word; None where it is as in English."""
    found = _Spoken.catalogue.pgettext(COUNTED, noun)
    return None if found == noun else found


def listed(parts: Iterable[str]) -> str:
    """Return parts of a sentence with commas between them."""
    return _(", ").join(parts)


def N_(text: str) -> str:  # noqa: N802 - gettext's own name
    """Mark a text that is translated where it is shown."""
    return text


def told(item: Finding) -> tuple[str, str]:
    """Return message and remedy of a finding in the language that is spoken, before `{store}` is filled in."""
    if _Spoken.name == "en":
        return item.message, item.remedy
    kind = CODES[item.code]
    return (_again(item.message, kind.messages(item.facts), item), _again(item.remedy, (kind.remedy,), item))


PHRASES = (
    N_("broker {broker}: the store fits all of the releases {releases}; --broker sets another"),
    N_("broker {broker}: of the releases {releases} its recovery starts earliest; --broker sets another"),
    N_("from {first} to before {next} ({why})"), N_("from {first} on ({why})"),
    N_("broker {broker} ({why}); --broker sets another"),
    N_("no rocksdbstore, which every start creates from {release} on"), N_("abort holds a process id"),
    N_("neither abort.bak nor timerwheel, which 5.x starts create"), N_("there are LMQ queues"),
    N_("the log is in several folders"), N_("consumequeue/ holds a RocksDB"), N_("records with {what}"),
    N_("properties without the trailing separator, as 4.9.1 to 5.1 write them"),
    N_("the newest index file counts each of its entries as a slot in use"), N_("the checkpoint has a {what}"),
    N_("{name} exists"),
    N_("{setting}: the log files of {source} have that length, and nothing in this store tells it"),
    N_("{setting}, from the files (the default {default} would refuse them)"),
    N_("messageDelayLevel: the default gives {n} entries their deliver times"),
    N_("{setting}: {n} messages are not dispatched to LMQ queues"),
    N_("{setting}: {n} entries of LMQ queues go to the queue number of their topic instead of 0"),
    N_("{setting}: log files unchanged for so many hours go"), N_("{setting}: {n} older files are not read"),
    N_("{setting}, because {part} exists"), N_("{setting}, because entries refer to {part}"),
    N_("the broker runs as user {user}, the owner of most files"),
    N_("{setting}: {part} is not here, and no setting says whether it was: with {other}, {lost} would be lost"),
    N_("a broker with {setting} does not read {file}"),
    N_("queues point to {n} message after {offset}, where its recovery cuts the log"),
    N_("queues point to {n} messages after {offset}, where its recovery cuts the log"),
    N_("queues point to {n} message after {offset}, where the log ends: its end is missing"),
    N_("queues point to {n} messages after {offset}, where the log ends: its end is missing"),
    N_("{file} has {n} bytes, the broker's setting is {size}"),
    N_("it does not find the folders of the log"), N_("dispatch waits for ever for the log at {offset}"),
    N_("a record at {offset} needs more memory than any heap has"),
    N_("brokers read neither {file} nor its backup"), N_("{file} is a folder among mapped files"),
    N_("{file} is a folder among index files"), N_("{file} is not a mapped file (its name is not an offset)"),
    N_("the log file {name} is missing"), N_("the log file {name} is missing; one intact message lies after"),
    N_("the log file {name} is missing; {n} intact messages lie after"),
    N_("its backup is complete ({members} members, {n} are readable in the file itself)"),
    N_("its own text ends at byte {at} and is complete ({members} members)"),
    N_("with bit {bit} of byte {at} flipped back it is complete ({members} members)"),
    N_("queues and log hold {names}, but their settings, the consumer groups and consumer offsets are missing"),
    N_("queues and log hold {names}; lost: {lost}"), N_("there were groups: {names}; lost: {lost}"),
    N_("nothing in it is readable, so it is moved to quarantine: lost: {lost}"),
    N_("nothing in it is readable, so it is moved to quarantine: {what}"), N_("{what}; lost: {lost}"),
    N_("queues and log hold {names}"), N_("{n} topics from queues and log; review it before the start"),
    N_("queue {queue} ends at {end}, the offset is {offset}"),
    N_("queue {queue} begins at {end}, the offset is {offset}"),
    N_("the broker (process {pid}) did not stop cleanly"), N_("the broker did not stop cleanly"),
    N_("the broker (process {pid}) is running, so this is normal"), N_("the broker is running, so this is normal"),
    N_("entries of several queues"), N_("the name is not 20 digits"), N_("the name is not 17 digits"),
    N_("A broker starts without it"), N_("No broker starts with these two files"),
    N_("no data in it"), N_("{n} files with data"), N_("{n} file with data"), N_("{n} files"), N_("{n} members"),
    N_("{tables} tables, {bytes} bytes in its write-ahead log"),
    N_("its messages"), N_("its queues"), N_("its keys"), N_("the checkpoint"), N_("its settings and offsets"),
    N_("the checkpoint, its messages, its queues and its keys"),
    N_("broker configuration in RocksDB"), N_("users in RocksDB"), N_("access rules in RocksDB"),
    N_("consume queues in RocksDB"), N_("RocksDB of index, timer and transactions"), N_("batch consume queues"),
    N_("logs of compacted topics"), N_("transaction states of 3.x"), N_("log of a controller, not checked"),
    N_("timer messages, judged against the log"), N_("list of segments in tiered storage"),
    N_("log of a DLedger group"), N_("the acknowledgement state of popped messages"),
    N_("Find them: another path (mqtool verify {{store}} --commitlog LOG --commitlog DIR), the source of this copy, a "
       "replica, a backup. Only deletion by hand or a full disk explains that they are missing."),
    N_("Find it first: the source of this copy, a file backup, the other broker of the group. Otherwise mqtool recover "
       "{{store}} creates a topics.json from queues and log, marked as a guess; it cannot recreate consumer offsets."),
    N_("restored from its backup, with the offsets that can be read in the file itself"),
    N_("restored from its backup, with {n} members"), N_("from {file}: {tally}"),
    N_("{n} offsets raised"), N_("{n} offset raised"), N_("{n} of them only to the end of their queue"),
    N_("{n} not ahead of this store's"), N_("{n} delayed"), N_("{n} delay"), N_("{n} timer"), N_("{n} half"),
    N_("{n} popped"), N_("{n} revive"), N_("{n} for queues that this store does not have"),
    N_("restored"), N_("name-restored"), N_("clamped"), N_("guessed"), N_("raised"),
    N_("log files are missing ({range}): they held at least {n} messages, and --max-loss allows {most}"),
    N_("Find them: another path ({options}), the source of this copy, a replica, a backup. If they are lost for good: "
       "`{command}` continues without them."),
    N_("process {pid} holds the store's lock"), N_("not a terminal: add --yes to confirm"),
    N_("another mqtool, or a process of another host, holds the store's lock"),
    N_("not confirmed; nothing was changed"), N_("{file} could not be read"), N_("{what}cannot be read"),
    N_("{file} is incomplete: the offsets come from its backup, which may be older"),
    N_("no trace of a younger one"), N_("Do not start it. Read first: mqtool explain {code}"),
    N_("{n} queues without the entries of the newest messages: their lag is unknown"),
    N_("{n} queue without the entries of the newest messages: their lag is unknown"),
    N_("Look for the whole file first: the source of this copy, a replica, a backup. Without it: mqtool recover "
       "{{store}} --dry-run"),
    N_("config/ holds no offset although there were groups: their committed offsets are unknown"),
    N_("config/ holds no file that a broker wrote"),
    N_("normal"), N_("abnormal"), N_("{part}: {what}"),
)
"""Of assumptions and reasons that recover/ puts together; the first that fits counts."""


@cache
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    """The phrases as patterns; `{n}` is a number, anything else any text."""
    found = []
    for phrase in PHRASES:
        pattern = re.escape(phrase.replace("{{store}}", "\0")).replace("\0", r"\{store\}")
        pattern = pattern.replace(r"\{n\}", r"(?P<n>[\d,]+)")
        found.append((phrase, re.compile(re.sub(r"\\\{(?!store)(\w+)\\\}", r"(?P<\1>.+)", pattern), re.DOTALL)))
    return found


def retold(text: str, findings: Iterable[Finding] = ()) -> str:
    """Return a reason or an assumption in the language that is spoken: the message of one of these findings, a text of
    the catalogue, or a phrase."""
    if _Spoken.name == "en":
        return text
    whole = next((told(item)[0] for item in findings if item.message == text), _(text))
    if whole != text:
        return whole
    for phrase, pattern in _patterns():
        if found := pattern.fullmatch(text):
            return _(phrase).format(**{name: retold(part) for name, part in found.groupdict().items()})
    several = [(part, retold(part)) for part in text.split(", ")] if ", " in text else []
    if several and all(part != told_part for part, told_part in several):
        return listed(told_part for _part, told_part in several)
    return _("; ").join(map(retold, text.split("; "))) if "; " in text else text


def _again(text: str, templates: Iterable[str], item: Finding) -> str:
    facts: dict[str, Any] = {**item.facts, "file": item.file, "offset": item.offset}
    for template in filter(None, templates):
        if rendered(template, facts) == text:
            return rendered(_(template), {name: retold(value) if isinstance(value, str) else value
                                          for name, value in facts.items()})
    return retold(text)
