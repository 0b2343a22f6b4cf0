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
from recover.codes.reasons import REASONS, Reason
from recover.errors import UsageRefusal
from recover.finding_code import Code


def _complete(incomplete: str) -> list[str]:
    return [name for name in (*CODES, *REASONS) if name.startswith(incomplete)]


@command(examples=[
    ("", "every code that verify can report, and every reason of damage"),
    ("bad-body-crc", "what that one means, how it happens, what a broker does, what to do"),
])
def run(
    out: Printer,
    code: Annotated[str | None, argument(
        "CODE", "A finding's code, or a reason of damage; without one, the list.", _complete)] = None,
) -> int:
    """Explain a finding or a reason of damage: meaning, cause, what a broker does with it, what to do."""
    if code is None:
        _list(out)
    else:
        _one(out, code.strip().lower())
    return exits.CLEAN


def _document(item: Code | Reason) -> dict[str, Any]:
    """A code with its severity and exit bits; a reason has neither: the finding that names it has."""
    kind = {"code": item.name, "severity": item.severity, "exit_bits": item.exit_bits} if isinstance(item, Code) \
        else {"reason": item.name}
    return {**kind, "meaning": item.meaning, "cause": item.cause, "broker": item.broker, "action": item.action}


def _list(out: Printer) -> None:
    out.answer(codes=[_document(code) for _, code in sorted(CODES.items())],
               reasons=[_document(reason) for _, reason in sorted(REASONS.items())])
    rows = (
        (severity_text(code.severity, name), severity_text(code.severity), code.exit_bits, code.meaning)
        for name, code in sorted(CODES.items())
    )
    out.show(table("findings", ["code", "severity", ">exit", "*meaning"], rows), Text(""))
    reasons = ((name, reason.meaning) for name, reason in sorted(REASONS.items()))
    out.show(table("reasons of damage, which findings of the log name", ["reason", "*meaning"], reasons))
    out.summary(f"{len(CODES)} codes, {len(REASONS)} reasons of damage; mqtool explain NAME says more of one")


def _one(out: Printer, name: str) -> None:
    item = CODES.get(name) or REASONS.get(name)
    if item is None:
        near = get_close_matches(name, (*CODES, *REASONS), n=3)
        raise UsageRefusal(f"there is no code and no reason {name!r}",
                           f"Did you mean {', '.join(near)}?" if near else "`mqtool explain` lists them all.")
    out.answer(**_document(item))
    if isinstance(item, Code):
        out.show(Text.assemble(severity_text(item.severity, item.name), (f"  {item.severity}", "dim")))
        what = f"{item.severity}, adds {item.exit_bits} ({', '.join(exits.names(item.exit_bits))}) to the exit code"
    else:
        out.show(Text(item.name, style="bold"))
        what = "a reason of damage; the finding that names it says what it adds to the exit code"
    for title, text in (("what it means", item.meaning), ("how it happens", item.cause),
                        ("what a broker does", item.broker), ("what to do", item.action)):
        out.show(Text(""), Text(title, style="bold"), Text(text))
    out.show(Text(""))
    out.summary(f"{item.name}: {what}")
