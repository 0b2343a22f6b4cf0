"""`mqtool explain`: what a finding code means."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any

from mqtool import exits
from mqtool.declared import argument
from mqtool.options import command
from mqtool.output import Printer
from mqtool.screens import severity_text, table
from mqtool.shown import Text
from recover.codes import CODES
from recover.errors import UsageRefusal
from recover.finding_code import Code


def _complete(incomplete: str) -> list[str]:
    return [name for name in CODES if name.startswith(incomplete)]


@command(examples=[
    ("", "every code that verify can report"),
    ("bad-body-crc", "what that one means, how it happens, what a broker does, what to do"),
])
def run(
    out: Printer,
    code: Annotated[str | None, argument(
        "CODE", "A finding's code; without one, the list.", _complete)] = None,
) -> int:
    """Explain a finding: what it means, how it happens, what a broker does with it, what to do."""
    if code is None:
        _list(out)
    else:
        _one(out, code.strip().lower())
    return exits.CLEAN


def _document(code: Code) -> dict[str, Any]:
    return {
        "code": code.name, "severity": code.severity, "exit_bits": code.exit_bits, "meaning": code.meaning,
        "cause": code.cause, "broker": code.broker, "action": code.action,
    }


def _list(out: Printer) -> None:
    out.answer(codes=[_document(code) for _, code in sorted(CODES.items())])
    rows = (
        (severity_text(code.severity, name), severity_text(code.severity), code.exit_bits, code.meaning)
        for name, code in sorted(CODES.items())
    )
    out.show(table("", ["code", "severity", ">exit", "*meaning"], rows))
    out.summary(f"{len(CODES)} codes", "mqtool explain CODE")


def _one(out: Printer, name: str) -> None:
    code = CODES.get(name)
    if code is None:
        near = get_close_matches(name, CODES, n=3)
        raise UsageRefusal(f"there is no code {name!r}",
                           f"Did you mean {', '.join(near)}?" if near else "`mqtool explain` lists them all.")
    out.answer(**_document(code))
    out.show(Text.assemble(severity_text(code.severity, code.name), (f"  {code.severity}", "dim")))
    for title, text in (("what it means", code.meaning), ("how it happens", code.cause),
                        ("what a broker does", code.broker), ("what to do", code.action)):
        out.show(Text(""), Text(title, style="bold"), Text(text))
    out.show(Text(""))
    bits = ", ".join(exits.names(code.exit_bits))
    out.summary(f"{code.name}: {code.severity}, adds {code.exit_bits} ({bits}) to the exit code")
