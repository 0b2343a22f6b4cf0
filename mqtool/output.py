"""The one printer: the answer to stdout, the rest to stderr, one JSON document or screens.

A command fills a `Printer`; the entry point ends it, with the command's bits or with the
failure that stopped it. So a document appears, and findings are counted and kept, whatever
happened on the way.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mqtool import exits, version
from mqtool.next_steps import NOTHING_GIVEN, Given, Step, as_documents
from mqtool.screens import findings_by_code, findings_table, style_of
from mqtool.shown import Shown, Text
from mqtool.text import clean, count
from recover.findings.model import Finding, FindingList
from recover.findings.refusal import UsageRefusal
from recover.store.reading import laid_out

if TYPE_CHECKING:
    from rich.console import Console

SCREEN_FINDINGS = 5
JSON_FINDINGS = 10_000
_SEVERITIES = ("error", "warning", "info")
_CLOCK_OF_FILES = 5
"""CLOCK_REALTIME_COARSE, which Python has no name for: files are stamped with it, others are milliseconds ahead."""


class OutputOptions(NamedTuple):
    """How a command shall answer. `max_findings` None: 10,000 in a document, 5 of a code on a screen."""

    json: bool = False
    color: str = "auto"
    quiet: bool = False
    progress: bool | None = None
    max_findings: int | None = None
    findings_out: Path | None = None


class Printer:
    """What one run of one command says."""

    def __init__(self) -> None:
        self.options = OutputOptions()
        self.arguments: list[str] = []
        self.command = ""
        self.store: str | None = None
        self.began_ns = time.clock_gettime_ns(_CLOCK_OF_FILES)
        self.document: dict[str, Any] = {}
        self.findings = FindingList()
        self.summary_line = ""
        self.given: Given = NOTHING_GIVEN
        self.steps: list[Step] = []
        self.undo: Step | None = None
        self.writing = False
        self._screens: Console | None = None
        self._said: set[str] = set()
        self._ended = False

    def begin(
        self, command: str, options: OutputOptions, store: str | None, parts: Iterable[Path] = (),
        given: Given = NOTHING_GIVEN,
    ) -> None:
        """Name the command and check, before anything long starts, that findings can be put where they shall go."""
        self.given = given
        # until the place for findings has been judged, nothing may be written there, not even at the end of a failure
        self.command, self.options, self.store = command, options._replace(findings_out=None), store
        if options.findings_out is not None:
            outside_store(options.findings_out, [Path(store)] if store else [], parts)
        self.options = options

    def stderr_console(self) -> Console:
        """A console for words that are not part of the answer."""
        from mqtool.console import make_console

        return make_console(self.options.color, stderr=True)

    def answer_on_stderr(self) -> None:
        """Stdout is for something else: screens and the summary go to stderr."""
        self._screens = self.stderr_console()

    @property
    def human(self) -> bool:
        """Whether screens are wanted at all."""
        return not self.options.json and not self.options.quiet

    def answer(self, **keys: Any) -> None:
        """Put keys into the JSON document."""
        self.document.update(keys)

    def show(self, *things: Shown) -> None:
        """A part of the answer's screen."""
        if self.human:
            for thing in things:
                self._draw(thing)

    def _draw(self, *things: Shown, soft_wrap: bool | None = None) -> None:
        from mqtool.console import draw, make_console

        if self._screens is None:
            self._screens = make_console(self.options.color)
        draw(self._screens, *things, soft_wrap=soft_wrap)

    def _tell(self, text: Text, *, soft_wrap: bool | None = None) -> None:
        from mqtool.console import draw

        draw(self.stderr_console(), text, soft_wrap=soft_wrap)

    def say(self, message: str) -> None:
        """A word that is not part of the answer, to stderr; the same one only once."""
        if not self.options.quiet and message not in self._said:
            self._said.add(message)
            self._tell(Text(clean(message), style="dim"))

    def found(self, findings: Iterable[Finding]) -> None:
        """Take findings; they are printed at the end."""
        self.findings.extend(findings)

    def summary(self, line: str, steps: Iterable[Step] = (), undo: Step | None = None) -> None:
        """The one line that is always printed, what to do next, and apart from that what takes a change back."""
        self.summary_line, self.steps, self.undo = line, list(steps), undo

    def finish(self, code: int) -> int:
        """Print what is left to print and return the exit code."""
        self._end(code, None)
        return code

    def fail(self, failure: exits.Failure) -> int:
        """End with an error: the document with what is known so far, or a message on stderr."""
        if failure.kind == "interrupted" and not self.writing:
            failure = failure._replace(remedy="The store was not changed.")
        if self._ended:
            self._complain(failure)
        else:
            self._end(failure.code, failure)
        return failure.code

    def _end(self, code: int, failure: exits.Failure | None) -> None:
        self._ended = True
        self._write_findings()
        if self.options.json:
            self._print_document(code, failure)
        else:
            if failure is None or len(self.findings):
                self._print_findings()
            if failure is None:
                self._print_summary(code)
        if failure is not None:
            self._complain(failure)

    def _print_document(self, code: int, failure: exits.Failure | None) -> None:
        findings = self.findings.sorted()
        wanted = self.options.max_findings
        shown = findings[: JSON_FINDINGS if wanted is None else wanted]
        document: dict[str, Any] = {
            "schema": f"mqtool/{self.command or 'mqtool'}/1", "tool": {"name": "mqtool", "version": version()},
            "host": socket.gethostname(), "time": time.time_ns() // 1_000_000, "store": _absolute(self.store),
            "exit_code": code, **self.document,
            "findings": [self._document_of(item) for item in shown], "finding_counts": self.findings.counts(),
            "truncated": len(shown) < len(findings), "summary": self.summary_line, "next": as_documents(self.steps),
        }
        if self.undo is not None:
            (document["undo"],) = as_documents([self.undo])
        if failure is not None:
            document["error"] = {
                "kind": failure.kind, "message": failure.message, "remedy": self.given.fill(failure.remedy),
            }
        write_stdout(to_json(document) + "\n")

    def _print_findings(self) -> None:
        """The worst first, since a person stops reading: a few of each code, a line for what is only worth knowing.

        Or as many as were asked for.
        """
        findings = self.findings.sorted()
        if not self.human or not findings:
            return
        findings.sort(key=lambda item: _SEVERITIES.index(item.severity))
        most = self.options.max_findings
        if most is None:
            wrong = [item for item in findings if item.severity != "info"]
            notes = findings_by_code(findings[len(wrong) :], self.given)
            tables = [findings_table(wrong, self.given, SCREEN_FINDINGS), notes]
        else:
            tables = [findings_table(findings[:most], self.given)]
        for table in tables:
            if table.rows:
                self._draw(table, Text(""))
        if most is not None and most < len(findings):
            hidden = count(len(findings) - most, "more finding")
            self._draw(Text(f"… and {hidden}: --findings-out FILE takes all.\n", style="dim"))

    def _print_summary(self, code: int) -> None:
        line = Text(f"{clean(self.summary_line) or 'done'} ", style=style_of(code))
        line.append(f"(exit {code}: {', '.join(exits.names(code))})", style="dim")
        self._draw(line, soft_wrap=True)
        if self.options.quiet:
            return
        words = ["next", *["or"] * len(self.steps)]
        for word, step in [*zip(words, self.steps, strict=False), *([("undo", self.undo)] if self.undo else [])]:
            text = Text.assemble((f"{word}: ", "bold"), clean(step.command))
            text.append(f"    ({clean(step.why)})", style="dim")
            self._draw(text, soft_wrap=True)

    def _complain(self, failure: exits.Failure) -> None:
        name = f"mqtool {self.command}" if self.command else "mqtool"
        text = Text.assemble((f"{name}: ", "bold"), (clean(failure.message), "bold red"))
        text.append(f" (exit {failure.code}: {', '.join(exits.names(failure.code))})", style="dim")
        self._tell(text, soft_wrap=True)
        if failure.remedy:
            self._tell(Text(clean(self.given.fill(failure.remedy))), soft_wrap=True)
        if failure.detail:
            # The report quotes no store content except inside the traceback, so line by line is safe.
            for line in failure.detail.splitlines():
                self._tell(Text(clean(line)), soft_wrap=True)

    def _write_findings(self) -> None:
        target = self.options.findings_out
        if target is None or not self.command:
            return
        with target.open("w", encoding="ascii") as stream:
            for item in self.findings.sorted():
                stream.write(to_json(self._document_of(item), indent=None) + "\n")

    def _document_of(self, item: Finding) -> dict[str, Any]:
        document = item.json()
        for key in ("message", "remedy"):
            document[key] = self.given.fill(document[key])
        return document


def to_json(value: Any, indent: int | None = 2) -> str:
    """JSON in pure ASCII, so that no name from a store reaches a terminal raw."""
    if indent is None:
        return json.dumps(value, default=_json_default)
    return laid_out(value, indent, default=_json_default)


def _json_default(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):  # a numpy scalar
        return value.item()
    if hasattr(value, "json"):
        return value.json()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, tuple):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no place in a document")


def _absolute(store: str | None) -> str | None:
    """A place on this machine from the root on; one on s3:// or hdfs:// as it was named."""
    return store if store is None or "://" in store else str(Path(store).absolute())


def write_stdout(text: str) -> None:
    """Write to stdout, or say that nobody listens."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise exits.StdoutClosedError from error


def outside_store(target: Path, roots: Iterable[Path], parts: Iterable[Path] = ()) -> None:
    """Refuse (16) a file of ours that would lie inside the store that we look at."""
    place = target.resolve()
    for root in [*roots, *parts]:
        inside = root.resolve()
        if place == inside or (inside.is_dir() and inside in place.parents):
            raise UsageRefusal(f"{target} lies inside the store", "Name a file outside of it: reading leaves no trace.")
    if not place.parent.is_dir():
        raise UsageRefusal(f"there is no folder {place.parent}", "Create it first, or name another place.")
