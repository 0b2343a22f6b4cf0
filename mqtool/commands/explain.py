"""`mqtool explain` and `mqtool exit-codes`: what findings, reasons of damage, broker logs and exit bits mean."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from mqtool import exits
from mqtool.next_steps import Given, Step
from mqtool.options import argument, command, option
from mqtool.printer import Printer, Text, severity_text, table
from mqtool.text import count
from mqtool.words import N_, _, listed
from recover.broker.broker_logs import Occurrence, read_log
from recover.broker.log_lines import NOTE
from recover.findings.code import Code, UsageRefusal
from recover.findings.log_codes import REASONS, Reason
from recover.findings.model import CODES, Phrase, shell_line

_END = re.compile(r"\.(?: |$)|。")
"""Where a sentence ends, in English and in Chinese."""
_RANKS = {"failure": "bold red", "loss": "red", "repair": "yellow", "note": "dim"}


@command(examples=[
    ("", "every code that verify can report, and every reason of damage"),
    ("bad-body-crc", "what that one means, how it happens, what a broker does, what to do"),
    ("--log /var/log/rocketmqlogs/store.log", "what a broker's log reports about its store"),
])
def explain(
    out: Printer,
    code: Annotated[str | None, argument(
        "CODE", "A finding's code, or a reason of damage; without one, the list.", (*CODES, *REASONS))] = None,
    log: Annotated[Path | None, option(
        "--log", "Explain a broker's log instead: store.log, broker.log or its stdout; gzip is fine.",
        "What", metavar="FILE")] = None,
) -> int:
    """Explain a finding or a reason of damage: meaning, cause, what a broker does with it, what to do.

    With --log: explain what a broker's log reports about its store, with file, offset and the next commands.
    """
    if log is not None and code is not None:
        raise UsageRefusal("a code and --log", "Explain one of them.")
    if log is not None:
        _log(out, log)
    elif code is None:
        _list(out)
    else:
        _one(out, code.strip().lower())
    return exits.CLEAN


def _log(out: Printer, path: Path) -> None:
    found = read_log(path)
    documents = [_occurrence(item) for item in found.seen]
    out.answer(log=str(path.absolute()), log_store=found.store, lines=found.lines, bytes=found.size, seen=documents,
               recognized=found.recognized or bool(documents))
    rows = [(Text(item["name"], style=_RANKS[item["rank"]]), item["lines"], item["last_time"] or item["last_line"],
             item["file"], item["offset"], _(item["meaning"])) for item in documents]
    if rows:
        out.show(table("", ["what", ">lines", "last", "*file", ">offset", "*meaning"], rows))
    lines = count(found.lines, "line")
    if not documents and not found.recognized:
        out.summary(_("{lines}: none is recognized as a broker's: nothing is known of the store").format(lines=lines))
    elif not documents or documents[0]["rank"] == NOTE:
        given = Given(found.store or "STORE")
        out.summary(_("{lines}: no sign of damage").format(lines=lines),
                    [Step(given.line("verify"), "checks every byte, not only what the broker noticed")])
    else:
        several = len({item.store for item in found.seen}) > 1
        out.summary(*_worst(documents[0], several=several))


def _occurrence(item: Occurrence) -> dict[str, Any]:
    """A row that a log has, and the commands of it that can be completed."""
    row, offset, file = item.row, item.offset, item.file
    facts = {"store": shell_line(item.store or "STORE"), "file": shell_line(file or "FILE"), "offset": offset}
    lacking = {"{file}", "{offset}"} if file is None else {"{offset}"} if offset is None else set()
    then = [line.format_map(facts) for line in row.then if not any(name in line for name in lacking)]
    return {
        "name": row.name, "rank": row.rank, "code": row.code, "meaning": row.meaning, "since": row.since or None,
        "until": row.until or None, "only_read_in": row.read or None,
        "lines": item.count, "first_line": item.first_line, "last_line": item.last_line,
        "first_time": item.first_time, "last_time": item.last_time, "text": item.text, "file": file,
        "store": item.store, "offset": offset, "then": then}


def _worst(worst: dict[str, Any], *, several: bool) -> tuple[str, list[Step]]:
    """The summary and the next steps of what a log says first; `several`: it speaks of more than one store."""
    place = _(" in {file}").format(file=worst["file"]) if worst["file"] else \
        _(" in the store {store}").format(store=worst["store"]) if several else ""
    place += _(" at offset {offset} of the log").format(offset=worst["offset"]) if worst["offset"] is not None else ""
    last = worst["last_time"] or _("line {n}").format(n=worst["last_line"])
    steps = [Step(line, worst["meaning"]) for line in worst["then"]]
    if worst["code"]:
        steps.append(Step(f"mqtool explain {worst['code']}", "meaning, cause and remedy"))
    first = _END.split(_(worst["meaning"]))[0]
    return first + place + _(" (last at {time})").format(time=last), steps


def _document(item: Code | Reason) -> dict[str, Any]:
    """A code with its severity and exit bits; a reason has neither: the finding that names it has."""
    kind = {"code": item.name, "severity": item.severity, "exit_bits": item.exit_bits} if isinstance(item, Code) \
        else {"reason": item.name}
    return {**kind, "meaning": item.meaning, "cause": item.cause, "broker": item.broker, "action": item.action}


def _list(out: Printer) -> None:
    out.answer(codes=[_document(code) for _, code in sorted(CODES.items())],
               reasons=[_document(reason) for _, reason in sorted(REASONS.items())])
    rows = (
        (severity_text(code.severity, name), severity_text(code.severity), code.exit_bits, _(code.meaning))
        for name, code in sorted(CODES.items())
    )
    out.show(table("findings", ["code", "severity", ">exit", "*meaning"], rows))
    reasons = ((name, _(reason.meaning)) for name, reason in sorted(REASONS.items()))
    out.show(table("reasons of damage, which findings of the log name", ["reason", "*meaning"], reasons))
    out.summary(_("{codes} codes, {reasons} reasons of damage; mqtool explain NAME describes one").format(
        codes=len(CODES), reasons=len(REASONS)))


def _one(out: Printer, name: str) -> None:
    item = CODES.get(name) or REASONS.get(name)
    if item is None:
        near = get_close_matches(name, (*CODES, *REASONS), n=3)
        remedy: str = N_("`mqtool explain` lists them all.")
        if near:
            remedy = Phrase("Did you mean {near}?", near=tuple(near))
        if Path(name).is_file():
            remedy = Phrase("To explain a broker's log: {line}", line=shell_line("mqtool", "explain", "--log", name))
        raise UsageRefusal(Phrase("unknown code or reason {name}", name=repr(name)), remedy)
    out.answer(**_document(item))
    if isinstance(item, Code):
        out.show(Text.assemble(severity_text(item.severity, item.name), (f"  {item.severity}", "dim")))
        what = _("{severity}, adds {bits} ({names}) to the exit code").format(
            severity=item.severity, bits=item.exit_bits, names=listed(map(_, exits.names(item.exit_bits))))
    else:
        out.show(Text(item.name, style="bold"))
        what = _("a reason of damage; the exit code depends on the finding that names it")
    for title, text in ((N_("what it means"), item.meaning), (N_("how it happens"), item.cause),
                        (N_("what a broker does"), item.broker), (N_("what to do"), item.action)):
        out.show(Text(_(title), style="bold"), Text(_(text)))
    out.summary(f"{item.name}: {what}")


@command(examples=[("", "the table"), ("--json", "the same for a script")])
def exit_codes(out: Printer) -> int:
    """Print the exit codes. They are bits: 6 means 2 and 4."""
    out.answer(codes=[row._asdict() for row in exits.TABLE])
    out.show(table("", [">bit", "name", "*meaning"], ((row.bit, _(row.name), _(row.meaning)) for row in exits.TABLE)))
    out.summary(_("The exit code is the sum of the bits that apply."))
    return exits.CLEAN
