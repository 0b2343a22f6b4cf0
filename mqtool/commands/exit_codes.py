"""`mqtool exit-codes`: the table."""

from __future__ import annotations

from mqtool import exits
from mqtool.options import command
from mqtool.output import Printer
from mqtool.screens import table


@command(examples=[("", "the table"), ("--json", "the same for a script")])
def run(out: Printer) -> int:
    """Print the exit codes. They are bits: 6 means 2 and 4."""
    out.answer(codes=[{"bit": row.bit, "name": row.name, "meaning": row.meaning} for row in exits.TABLE])
    out.show(table("", [">bit", "name", "*meaning"], ((row.bit, row.name, row.meaning) for row in exits.TABLE)))
    out.summary("The exit code is the sum of the bits that apply.")
    return exits.CLEAN
