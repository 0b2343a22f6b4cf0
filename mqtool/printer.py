"""The one printer: the answer to stdout, the rest to stderr; one JSON document, or screens laid out by rich.

A command fills a `Printer`; the entry point ends it, with the command's bits or with the failure that stopped it.
So the document and the findings so far are always printed, however the command ends.
"""

from __future__ import annotations

import json
import math
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TextIO, cast

from msgspec import structs
from rich import box
from rich.cells import cell_len
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text as Text

from mqtool import exits, version
from mqtool.declared import OutputOptions
from mqtool.next_steps import NOTHING_GIVEN, Given, Scene, Step
from mqtool.text import clean, count, human_seconds, human_size, middle
from mqtool.words import N_, _, listed, retold, told
from recover.findings.code import UsageRefusal
from recover.findings.model import Finding, FindingList, Phrase, shell_line, without_secrets

if TYPE_CHECKING:
    from rich.live import Live


SCREEN_FINDINGS = 5
JSON_FINDINGS = 10_000
_PIPE_WIDTH = 120
_NARROWEST = 20
"""The least width of a column whose text is wrapped."""
_LONG, _SHORT = 40, 24
"""Names of more characters than the first are shortened to the second where a table is too wide."""
_QUOTED = re.compile(r"`((?:mqtool|\{typed\}|\{again\})[^`]*)`")
_PADDING = re.compile(r" +(?=\n)")
_STYLES = {N_("error"): "bold red", N_("warning"): "yellow", N_("info"): "dim"}
_CLOCK_OF_FILES = 5
"""CLOCK_REALTIME_COARSE, for which Python has no name: file times come from it, other clocks are ms ahead."""


# --- tables --------------------------------------------------------------------------------------


class Table(NamedTuple):
    """A table as a value, for screens and for the page of report. Without `columns` its rows are names and values."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[object]]


Shown = Text | Table


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]] = (), most: int | None = None,
    of: int | None = None, rest: str = N_("--json shows all"),
) -> Table:
    """A table; a column named `>x` is right-aligned, `*x` takes the remaining width.

    Cells are `Text`, taken as they are, or other values (made harmless, integers grouped). With `most` the last row
    states how many rows are hidden, and with `rest` where they are; `of` is the total if `rows` does not hold all.
    """
    shown = list(rows)
    hidden = 0 if most is None else (len(shown) if of is None else of) - most
    if hidden > 0:
        words = Text(_("… {n:,} more: {where}").format(n=hidden, where=_(rest)), style="dim")
        shown = [*shown[:most], [words, *[Text("")] * (len(columns) - 1)]]
    return Table(title, columns, shown)


def facts(title: str, pairs: Iterable[tuple[str, object]]) -> Table:
    return Table(title, (), [(_(name), value) for name, value in pairs])


def severity_text(severity: str, text: str = "") -> Text:
    return Text(clean(text or _(severity)), style=_STYLES[severity])


def findings_table(findings: Iterable[Finding], given: Given, most: int | None = None) -> Table:
    """Findings by code: severity, code, place, problem, and each remedy once. `most`: rows per code."""
    rows: list[Sequence[object]] = []
    said: set[str] = set()
    for items in _by_code(findings):
        # one more row takes no more space than a line that says so
        shown = items if most is None or len(items) <= most + 1 else items[:most]
        for item in shown:
            message, advice = told(item)
            what = Text(clean(given.fill(message)))
            remedy = clean(given.fill(advice))
            command = remedy.partition("   (or: ")[0]  # another way that concerns one file of many
            if remedy and command not in said:
                said.add(command)
                what.append("\n→ " + remedy, style="dim")
            rows.append((severity_text(item.severity), severity_text(item.severity, item.code), _place(item), what))
        if len(shown) < len(items):
            more = _("… {n:,} more").format(n=len(items) - len(shown))
            rows.append(("", Text(items[0].code, style="dim"), Text(more, style="dim"), Text(_(
                "the last: {place}\n--max-findings N or --findings-out FILE shows all").format(
                    place=_place(items[-1])), style="dim")))
    return Table("findings", ["", "code", "where", "*problem and remedy"], rows)


def _notes_table(findings: Iterable[Finding], given: Given) -> Table:
    """One line per code: the first finding, and the number of others."""
    rows = []
    for items in _by_code(findings):
        more = _(" (and {n:,} more)").format(n=len(items) - 1) if len(items) > 1 else ""
        message = clean(given.fill(told(items[0])[0]))
        rows.append((Text(items[0].code, style="dim"), Text(message + more, style="dim")))
    return Table("notes", ["code", "*"], list(rows))


def _by_code(findings: Iterable[Finding]) -> Iterable[list[Finding]]:
    groups: dict[tuple[str, str], list[Finding]] = {}
    for item in findings:
        groups.setdefault((item.severity, item.code), []).append(item)
    return groups.values()


def _place(item: Finding) -> str:
    return clean(item.file or _("the store")) + ("" if item.offset is None else f" @ {item.offset:,}")


# --- drawing -------------------------------------------------------------------------------------


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """A closed stdout ends the command; without a reader of stderr it goes on."""
        if not self.stderr:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


class _Unpadded:
    """A stream that is not a terminal: the blanks that fill up lines are left out."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(_PADDING.sub("", text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def make_console(color: str, *, stderr: bool = False) -> Console:
    """A console that obeys --color, NO_COLOR and the terminal, and never interprets markup."""
    stream = sys.stderr if stderr else sys.stdout
    terminal = stream is not None and stream.isatty()
    forced = {"always": True, "never": False}.get(color)
    return _Console(
        file=None if terminal or forced else cast("TextIO", _Unpadded(stream)), stderr=stderr,
        width=None if terminal or os.environ.get("COLUMNS") else _PIPE_WIDTH, highlight=False, markup=False,
        emoji=False, force_terminal=forced or None, no_color=None if forced is None else not forced,
    )


def _laid_out(table: Table, width: int) -> RichTable | Group:
    """The table, of which only `*` columns are wrapped. What is too wide for `width` gets narrower step by step: words
    of headings below each other, names shortened in the middle, less space between columns; if that is not enough, the
    rows stand one below the other. Shortened names stand whole below."""
    columns = table.columns or ("", "*")
    whole = rows = [[*map(cell, row)] for row in table.rows]
    below: list[Text] = []
    names, gap = [Text(_(name.lstrip(">*"))) for name in columns], 3
    for limit, gap in ((0, 3), (0, 3), (_LONG, 3), (_SHORT, 3), (_SHORT, 2), (_SHORT * 2 // 3, 2)):
        if _width(columns, names, rows, gap) <= width:
            break
        names = [Text(name.plain.replace(" ", "\n")) if column.startswith(">") else name
                 for column, name in zip(columns, names, strict=True)]
        if limit:
            rows, below = _shortened(columns, whole, limit)
    if _width(columns, names, rows, gap) > width:
        return Group(_stacked(_(table.title), columns, rows), *below)
    result = RichTable(title=_(table.title) or None, title_justify="left", title_style="bold", header_style="bold",
                       pad_edge=False, show_edge=False, show_header=bool(table.columns), padding=(0, gap - 2, 0, 1),
                       box=box.SIMPLE_HEAD if table.columns else None)
    for column, name in zip(columns, names, strict=True):
        result.add_column(name, justify="right" if column.startswith(">") else "left", overflow="fold",
                          no_wrap=not column.startswith("*"), style="" if column or table.columns else "dim")
    for row in rows:
        result.add_row(*row)
    return Group(result, *below) if below else result


def _width(columns: Sequence[str], names: Sequence[Text], rows: list[list[Text]], gap: int) -> int:
    """The least width of a table: of each column its longest line, or `_NARROWEST` where lines may be wrapped."""
    needs = [max(cell_len(line) for text in column for line in text.plain.split("\n"))
             for column in zip(names, *rows, strict=True)]
    return gap * (len(needs) - 1) + sum(
        min(need, _NARROWEST) if column.startswith("*") else need for column, need in zip(columns, needs, strict=True))


def _shortened(columns: Sequence[str], rows: list[list[Text]], limit: int) -> tuple[list[list[Text]], list[Text]]:
    """The rows with names of left-aligned columns shortened in the middle, each differently, and a line for each."""
    shorter: dict[str, str] = {}

    def short(column: str, text: Text) -> Text:
        name = text.plain
        if column.startswith((">", "*")) or len(name) <= _LONG or " " in name or "\n" in name:
            return text
        if name not in shorter:
            same = sum(1 for other in shorter if middle(other, limit) == middle(name, limit))
            shorter[name] = f"{middle(name, limit - 2)}~{same + 1}" if same else middle(name, limit)
        return Text(shorter[name], style=text.style)

    result = [[short(column, text) for column, text in zip(columns, row, strict=True)] for row in rows]
    return result, [Text(f"{name} = {whole}", style="dim") for whole, name in shorter.items()]


def _stacked(title: str, columns: Sequence[str], rows: list[list[Text]]) -> Group:
    """Each row as names and values, and below them, indented, the values of its `*` columns."""
    lines: list[Text | Padding] = [Text(title, style="bold")] if title else []
    for row in rows:
        pairs = [(name, value) for name, value in zip(columns, row, strict=True) if value.plain not in ("", "-")]
        lines.append(Text("  ").join(Text.assemble((_(name.lstrip(">")) + " " * bool(name), "dim"), value)
                                     for name, value in pairs if not name.startswith("*")))
        lines += [Padding(value, (0, 0, 0, 2)) for name, value in pairs if name.startswith("*")]
    return Group(*lines)


def cell(value: object) -> Text:
    """A value as a harmless cell."""
    if isinstance(value, Text):
        return value
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, bool):
        return Text(_("yes" if value else "no"))
    return Text(f"{value:,}" if isinstance(value, int) else clean(value))


# --- the answer ----------------------------------------------------------------------------------


class Printer:
    """The answer of one run of one command."""

    def __init__(self, arguments: Sequence[str] = ()) -> None:
        self.options = OutputOptions()
        self.arguments = list(arguments)
        self.command = ""
        self.store: str | None = None
        self.began_ns = time.clock_gettime_ns(_CLOCK_OF_FILES)
        self.document: dict[str, Any] = {}
        self.findings = FindingList()
        self.given: Given = NOTHING_GIVEN
        self.writing = False
        self.shown: list[Finding] | None = None
        """The findings that the screen of the command has, with their messages; None: the printer shows them."""
        self.again = ""
        """The command line that makes the plan again, if it differs from the one that was typed."""
        self._summary = ""
        self._clean = True
        self._steps: list[Step] = []
        self._undo: Step | None = None
        self._screen: Console | None = None
        self._drawn = False
        self._said: set[str] = set()
        self._ended = False

    @property
    def typed(self) -> list[str]:
        """The words of the command line, without --json and with *** for secrets."""
        return [item for item in without_secrets(self.arguments) if item != "--json"]

    def begin(
        self, command: str, options: OutputOptions, store: str | None, parts: Iterable[Path] = (),
        given: Given = NOTHING_GIVEN,
    ) -> None:
        """Start a command; a usage error (16) at once if --findings-out could not be written at the end."""
        self.given = given
        # until that place has been checked, nothing may be written there, not even at the end of a failure
        self.command, self.options, self.store = command, structs.replace(options, findings_out=None), store
        if options.findings_out is not None:
            outside_store(options.findings_out, [Path(store)] if store else [], parts)
        self.options = options

    def stderr_console(self) -> Console:
        return make_console(self.options.color, stderr=True)

    def progress(self, title: str, total: int) -> Progress:
        """The progress line of a scan of `total` bytes."""
        return Progress(_(title), self.options.progress, self.stderr_console, total)

    @contextmanager
    def steps(self, title: str) -> Iterator[Callable[[int, int, str], None]]:
        """Yield a function of (steps done, total, description of the next one) that updates a progress line."""
        with self.line() as line:
            yield lambda done, total, what: line.show(_("{title}  step {n} of {total} · {what}").format(
                title=_(title), n=min(done + 1, total), total=total, what=what))

    def line(self) -> Line:
        return Line(self.options.progress, self.stderr_console)

    def answer_on_stderr(self) -> None:
        """Reserve stdout for data: screens and the summary go to stderr."""
        self._screen = self.stderr_console()

    def answer(self, **keys: Any) -> None:
        self.document.update(keys)

    @property
    def width(self) -> int:
        """The columns of the screen."""
        if self._screen is None:
            self._screen = make_console(self.options.color)
        return self._screen.width

    def show(self, *things: Shown) -> None:
        if things and not self.options.json and not self.options.quiet:
            self._draw(*([Text("")] if self._drawn else ()), *things)
            self._drawn = True

    def _draw(self, *things: Shown, soft_wrap: bool = False) -> None:
        if self._screen is None:
            self._screen = make_console(self.options.color)
        for thing in things:
            self._screen.print(thing if isinstance(thing, Text) else _laid_out(thing, self._screen.width),
                               soft_wrap=soft_wrap)

    def say(self, *messages: str) -> None:
        """Print lines that are not part of the answer to stderr; each only once."""
        for message in messages:
            if not self.options.quiet and message not in self._said:
                self._said.add(message)
                console = self.stderr_console()
                console.print(Text(clean(retold(message)), style="dim"), soft_wrap=not console.is_terminal)

    def scene(self, phase: str, code: int = 0, **more: Any) -> Scene:
        """What the next steps depend on, from the store and the findings so far; `more`: other fields of `Scene`."""
        return structs.replace(Scene(phase, self.given, code, list(self.findings), self.typed), **more)

    def found(self, findings: Iterable[Finding]) -> None:
        self.findings.extend(findings)

    def summary(self, line: str, steps: Iterable[Step] = (), undo: Step | None = None, *, clean: bool = True) -> None:
        """Set the line that is always printed, the next steps, and the undo step. Not `clean`: exit code 0 means that
        the question was answered, and says nothing about the store."""
        self._summary, self._steps, self._undo, self._clean = line, list(steps), undo, clean

    def fail(self, failure: exits.Failure) -> int:
        """End with an error: the document with the results so far, or a message on stderr."""
        if failure.kind == "interrupted" and not self.writing:
            failure = failure._replace(remedy="The store was not changed; `{typed}` starts again.")
        # our commands are in backticks; whole sentences before the first one are work for a person, and come first
        commands = _QUOTED.findall(failure.remedy)
        sentences, stop, _rest = failure.remedy.partition("`")[0].rpartition(". ")
        by_hand = sentences + stop.rstrip() if commands else failure.remedy
        self._steps = [Step(self._complete(way), failure.message) for way in (by_hand, *commands) if way]
        if self._ended:
            self._complain(failure)
        else:
            self._summary = self._summary or failure.message
            self.end(failure.code, failure)
        return failure.code

    def end(self, code: int, failure: exits.Failure | None = None) -> int:
        """Print what is left of the answer; return the exit code."""
        self._ended = True
        if self.options.findings_out is not None and self.command:
            with self.options.findings_out.open("w", encoding="ascii") as stream:
                for item in self.findings.sorted():
                    stream.write(to_json(self._filled(item), indent=None) + "\n")
        if self.options.json:
            self._print_document(code, failure)
        else:
            if self.shown is None:
                self._print_findings()
            if failure is None:
                self._print_summary(code)
        if failure is not None:
            self._complain(failure)
        return code

    def _print_document(self, code: int, failure: exits.Failure | None) -> None:
        findings = self.findings.sorted()
        wanted = self.options.max_findings
        shown = findings[: JSON_FINDINGS if wanted is None else wanted]
        here = self.store is not None and "://" not in self.store
        document: dict[str, Any] = {
            "schema": f"mqtool/{self.command or 'mqtool'}/1", "tool": {"name": "mqtool", "version": version()},
            "host": socket.gethostname(), "time": time.time_ns() // 1_000_000,
            "store": str(Path(str(self.store)).absolute()) if here else self.store, "exit_code": code,
            **self.document,
            "findings": [self._filled(item) for item in shown], "finding_counts": self.findings.counts(),
            "truncated": len(shown) < len(findings), "summary": self._summary,
            "next": [step._asdict() for step in self._steps],
        }
        if self._undo is not None:
            document["undo"] = self._undo._asdict()
        if failure is not None:
            document["error"] = {"kind": failure.kind, "message": failure.message,
                                 "remedy": self._complete(failure.remedy)}
        sys.stdout.write(to_json(document) + "\n")
        sys.stdout.flush()

    def _complete(self, text: str) -> str:
        typed = shell_line("mqtool", *self.typed)
        return self.given.fill(text.replace("{again}", self.again or typed), typed)

    def _filled(self, item: Finding) -> dict[str, Any]:
        return {**item.json(), "message": self.given.fill(item.message), "remedy": self.given.fill(item.remedy)}

    def _print_findings(self) -> None:
        """Print the worst findings first: a few per code, then a line per code for notes. Or as many as requested."""
        findings = sorted(self.findings, key=lambda item: [*_STYLES].index(item.severity))
        most = self.options.max_findings
        self.shown = findings
        if most is None:
            wrong = [item for item in findings if item.severity != "info"]
            tables = [findings_table(wrong, self.given, SCREEN_FINDINGS),
                      _notes_table(findings[len(wrong) :], self.given)]
        else:
            tables = [findings_table(findings[:most], self.given)]
        for item in tables:
            if item.rows:
                self.show(item)
        if most is not None and most < len(findings):
            hidden = count(len(findings) - most, "more finding")
            self.show(Text(_("… and {findings}: --findings-out FILE writes all.").format(findings=hidden), style="dim"))

    def _print_summary(self, code: int) -> None:
        style = "bold red" if code & ~(exits.CORRECTED | exits.DERIVED) else \
            "bold yellow" if code & exits.DERIVED else "bold green"
        names = exits.names(code) if code or self._clean else [N_("complete")]
        line = Text.assemble((f"{clean(self._summary) or _('done')} ", style),
                             (f"({_('exit')} {code}{_(': ')}{listed(map(_, names))})", "dim"))
        on_terminal = sys.stdout is not None and sys.stdout.isatty()
        self._draw(*([Text("")] if self._drawn else ()), line, soft_wrap=not on_terminal)
        if self.options.quiet:
            return
        words = [_("next"), *[_("or")] * len(self._steps)]
        last = [(_("undo"), self._undo)] if self._undo else []
        above = {self.given.fill(told(item)[0]) for item in self.shown or ()}
        for word, step in [*zip(words, self._steps, strict=False), *last]:
            command, why = clean(_(step.command)), clean(_(step.why))
            if step.why in above:
                why = ""
            line = Text.assemble((f"{word}: ", "bold"), command, (f"    ({why})" if why else "", "dim"))
            assert self._screen is not None
            if not on_terminal or line.cell_len <= self._screen.width:
                self._draw(line, soft_wrap=True)
                continue
            # a command stays one line for who copies it; everything else breaks between words
            is_command = command.startswith("mqtool ")
            self._draw(Text.assemble((f"{word}: ", "bold"), command), soft_wrap=is_command)
            if why:
                self._screen.print(Padding(Text(why, style="dim"), (0, 0, 0, 6)))

    def _complain(self, failure: exits.Failure) -> None:
        name = f"mqtool {self.command}" if self.command else "mqtool"
        message = self.given.fill(retold(failure.message))
        lines = [Text.assemble((f"{name}: ", "bold"), (clean(message), "bold red"),
                               (f" ({_('exit')} {failure.code}{_(': ')}"
                                f"{listed(map(_, exits.names(failure.code)))})", "dim"))]
        remedy = self._complete(retold(failure.remedy))
        lines += [Text(clean(remedy))] if remedy else []
        console = self.stderr_console()
        for line in lines:
            console.print(line, soft_wrap=not console.is_terminal)
        # the report quotes content of the store only inside the traceback, so cleaning line by line is safe
        for text in failure.detail.splitlines():
            console.print(Text(clean(text)), soft_wrap=True)


def to_json(value: Any, indent: int | None = 2) -> str:
    """JSON in pure ASCII, so that no name from a store reaches a terminal raw."""
    return json.dumps(value, indent=indent, default=_json_default)


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
    raise TypeError(f"{type(value).__name__} has no place in a document")


def outside_store(target: Path, roots: Iterable[Path], parts: Iterable[Path] = ()) -> None:
    """`UsageRefusal` (16) for `-`, a file inside a store that is only read, or one in a missing folder."""
    if str(target) == "-":
        raise UsageRefusal("- is not a file name here: stdout carries the answer", "Name a file.")
    place = target.resolve()
    for root in [*roots, *parts]:
        inside = root.resolve()
        if place == inside or (inside.is_dir() and inside in place.parents):
            raise UsageRefusal(Phrase("{target} is inside the store", target=target), "Name a file outside of it.")
    if not place.parent.is_dir():
        raise UsageRefusal(Phrase("there is no folder {folder}", folder=place.parent),
                           "Create it first, or name another place.")


# --- Progress on stderr: bytes, records, rate, and after some seconds an estimate.


_WARM_UP = 3.0
_PLAIN_EVERY = 2.0


class Line:
    """One line on stderr that is redrawn. `wanted` None: only if stderr is a terminal. If requested where nothing can
    be redrawn (a log file, a pipe), it is a plain line every few seconds."""

    def __init__(self, wanted: bool | None, console: Callable[[], Console]) -> None:
        stream = sys.stderr
        self.active = wanted if wanted is not None else bool(stream is not None and stream.isatty())
        self._console = console
        self._live: Live | None = None
        self._printed = -math.inf
        self._line = ""

    def __enter__(self) -> Self:
        if self.active and (console := self._console()).is_terminal:
            from rich.live import Live

            self._live = Live(get_renderable=lambda: Text(clean(self.text())), console=console, transient=True)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def text(self) -> str:
        """The line as it is now; a terminal shows it four times a second."""
        return self._line

    def show(self, line: str) -> None:
        self._line = line
        self._print()

    def _print(self, every: float = _PLAIN_EVERY) -> None:
        if self.active and self._live is None and (now := time.monotonic()) - self._printed >= every:
            self._printed = now
            self._console().print(Text(clean(self.text())))


class Progress(Line):
    """A scan of `total` bytes; call it with the bytes and records done since the last call, from any thread."""

    def __init__(self, title: str, wanted: bool | None, console: Callable[[], Console], total: int) -> None:
        super().__init__(wanted, console)
        self.title, self.total, self._start = title, total, time.monotonic()
        self._done = self._records = self._queues = 0
        self._lock = threading.Lock()

    def __call__(self, size: int, records: int) -> None:
        with self._lock:
            self._done += size
            self._records += records
            self._print()

    def queue(self) -> None:
        """Add a checked queue; from the first one on, the line counts these."""
        with self._lock:
            self._queues += 1
            self._print()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._queues:
            self._print(0)  # a log file ends with the total, however few seconds the queues took
        super().__exit__(kind)

    def text(self) -> str:
        if self._queues:
            return _("{title}  {n} queues checked").format(title=self.title, n=f"{self._queues:,}")
        elapsed = max(time.monotonic() - self._start, 1e-6)
        share = f"{100 * self._done / self.total:3.0f} %  " if self.total else ""
        parts = [_("{title}  {share}{done} of {total}").format(
            title=self.title, share=share, done=human_size(self._done), total=human_size(self.total)),
            f"{human_size(int(self._done / elapsed))}/s"]
        if self._records:
            parts.append(_("{n} records").format(n=f"{self._records:,}"))
        if elapsed >= _WARM_UP and 0 < self._done < self.total:
            parts.append(_("about {time} left").format(
                time=human_seconds(elapsed * (self.total - self._done) / self._done)))
        return " · ".join(parts)
