"""Exit bits, the kinds of findings with their severity, and refusals: the exceptions that end a command."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from recover.findings.phrase import Phrase

CLEAN = 0
CORRECTED = 1
DERIVED = 2
MESSAGES = 4
OPERATIONAL = 8
USAGE = 16
INTERRUPTED = 32
UNSUPPORTED = 64
BUG = 128
"""The bits of the exit code; `mqtool/exits.py` has the table shown to users."""

OF_SEVERITY = {"info": CLEAN, "warning": DERIVED, "error": MESSAGES}

def N_(text: str) -> str:  # noqa: N802 - gettext's own name
    """Mark a text, or the template of one, that is translated where it is shown."""
    return text


Severity = Literal["info", "warning", "error"]
_OF_BITS: dict[int, Severity] = {CLEAN: "info", DERIVED: "warning", MESSAGES: "error"}
Question = Literal["verify", "start"]
"""What is asked of a store: what is wrong with it, or whether a broker may start on it."""
Leads = Literal["", "find", "setting", "stop"]

RepairedBy = Literal["recover", "mend-bits", "clamp", "rebuild", "resume", "search", "hand"]


class Remedy(str):
    """The text of a remedy, and who carries it out: `recover`, alone or with an option, a rebuild, `resume`; a person
    ("hand"); "search": a person looks for the missing thing first, and recover repairs what nobody finds."""

    by: RepairedBy

    def __new__(cls, by: RepairedBy, text: str) -> Remedy:
        made = super().__new__(cls, text)
        made.by = by
        return made


def by_of(remedy: str) -> RepairedBy:
    """Who carries out a remedy; a plain text is work for a person."""
    return remedy.by if isinstance(remedy, Remedy) else "hand"


RECOVER = Remedy("recover", "mqtool recover {store} --dry-run")
READ_ON = "Copy the store with a tool that reads on past errors, such as ddrescue, and work on the copy."
BAD_DISK = "A failing disk, a lost mount, or missing permission."
"""The cause of a read that the operating system refuses."""
BY_HAND = "Move {file} out of the store by hand, then: mqtool verify {store}"
"""The remedy for a pipe, a socket, a device, or a folder in the place of a file: no plan moves these."""


class Code(Struct, frozen=True):
    """A kind of finding: its name, its severity, and the texts of `explain`.

    `message` and `remedy` are format strings over the finding's facts; `{lost:message}` counts messages (`{store}` is
    the store path, filled in when it is printed). `one` replaces `message` where the fact `count` is 1, and `none`
    where the fact `messages` is 0. `bits`: exit bits by question, where they are not those that the severity implies;
    "start" is that of "verify" unless stated.

    `leads` is the next step after a finding whose remedy is not recover:
    "stop": recover refuses on it, so there is no other next step (as with every finding of exit bit 8);
    "find": the missing thing must be searched first, before a repair, which at best guesses it, and before a start;
    "setting": another setting or release is the remedy, and no repair of the store helps.
    """

    name: str
    severity: Severity
    message: str
    remedy: str
    meaning: str
    cause: str
    broker: str
    action: str
    one: str | None = None
    none: str | None = None
    bits: dict[Question, int] = {}
    leads: Leads = ""

    @property
    def repaired_by(self) -> RepairedBy:
        return by_of(self.remedy)

    @property
    def exit_bits(self) -> int:
        return self.bits.get("verify", OF_SEVERITY[self.severity])

    def message_of(self, facts: Mapping[str, object]) -> str:
        """The message that fits such facts."""
        fit = [self.one if facts.get("count") == 1 else None, self.none if facts.get("messages") == 0 else None]
        return next(filter(None, fit), self.message)

    def judged_by(self, question: Question) -> tuple[Severity, int]:
        """The severity and the exit bits of such a finding as the answer to a question."""
        bits = self.bits.get(question, self.exit_bits)
        return (_OF_BITS.get(bits, self.severity) if question in self.bits else self.severity), bits


# --- Refusals: they end a command on purpose, each with its exit code.


class Refusal(Exception):  # noqa: N818 - the house word; a refusal is not a bug
    """mqtool will not or cannot do this (exit 8): broker running, stale plan, unreadable part."""

    exit_code = OPERATIONAL

    def __init__(self, message: str, remedy: str = "", **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.facts = facts


class UsageRefusal(Refusal):
    """The request itself makes no sense for this store (exit 16)."""

    exit_code = USAGE


class NotAStore(UsageRefusal):
    """Nothing at that path looks like a store (exit 16)."""


EXTRAS = {
    "spark": ("pyspark", "pyarrow", "pandas"),
    "parquet": ("pyarrow",),
    "s3": ("pyarrow",),
    "send": ("rocketmq",),
    "connect": ("pyspark", "pyarrow", "pandas", "grpc", "grpc_status", "google.rpc"),
}
"""The extras of our package that bring what commands need beyond the local engine: the modules that each brings."""


def require(extra: str, what: str) -> None:
    """Refuse (8) unless the packages of an extra are installed: `what` needs them. Imports none of them."""
    missing = [name for name in EXTRAS[extra] if not _is_installed(name)]
    if missing:
        raise Refusal(Phrase("{what} needs {names} and {last}, which are not installed" if missing[1:] else
                             "{what} needs {last}, which is not installed", what=what, names=tuple(missing[:-1]),
                             last=missing[-1]),
                      Phrase("Install it: pip install 'mqtool[{extra}]'", extra=extra), extra=extra, packages=missing)


def _is_installed(name: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of the package that the module is in
        return False


class Interrupted(Refusal):
    """Stopped by a signal; what was begun can be resumed (exit 32)."""

    exit_code = INTERRUPTED


def unreadable(error: OSError) -> Refusal:
    """The refusal for a path that cannot be listed or opened."""
    return Refusal(Phrase("cannot read {file}: {error}", file=error.filename, error=error.strerror), remedy_of(error),
                   path=str(error.filename))


def remedy_of(error: OSError) -> str:
    """The remedy for an error; empty if there is nothing to add to the error itself."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return N_("Free some space there, or choose a place on another disk.")
    if isinstance(error, PermissionError):
        return N_("Run as the user that the broker runs as, or as root.")
    if isinstance(error, (IsADirectoryError, NotADirectoryError)):
        return N_("There is a file in place of a folder, or the reverse. Move it out of the store and run again.")
    return ""
