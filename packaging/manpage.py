"""The man page, out of the registry of commands and the table of exit codes."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from mqtool.commands import COMMANDS
from mqtool.exits import TABLE

_HEAD = r""".TH MQTOOL 1 "{date}" "mqtool {version}" "User Commands"
.SH NAME
mqtool \- forensics and recovery for the stores of Apache RocketMQ brokers
.SH SYNOPSIS
.B mqtool
.I COMMAND STORE
[\fIOPTIONS\fR]
.SH DESCRIPTION
Reads the store of a broker without the broker, shows what is damaged and what a start would cost, and repairs it
without giving up an intact message. Reading commands write nothing and take no lock. Changing commands show a plan
first, ask, and can be undone. \fBmqtool \fICOMMAND\fB \-\-help\fR describes a command with examples.
"""
_TAIL = r""".SH FILES
.TP
.I STORE/.mqtool/
journals, replaced bytes and removed files of runs, for \fBresume\fR and \fBundo\fR
.SH EXAMPLES
.nf
mqtool inspect /data/store
mqtool predict /data/store \-\-broker 5.3.3
mqtool recover /data/store
.fi
"""


def escaped(text: str) -> str:
    """Return text with what troff would read as its own escaped."""
    return text.replace("\\", "\\e").replace("-", "\\-")


def page(version: str, seconds: int) -> str:
    """Return the page for a version and a day (seconds since 1970)."""
    lines = [_HEAD.format(date=time.strftime("%Y-%m-%d", time.gmtime(seconds)), version=version)]
    panel = ""
    for name, entry in COMMANDS.items():
        if entry.panel != panel:
            lines.append(f".SH {entry.panel.partition(' (')[0].upper()} COMMANDS\n")
            panel = entry.panel
        lines.append(f".TP\n.B {escaped(name)}\n{escaped(entry.help)}\n")
    lines.append(".SH EXIT STATUS\nA sum of bits:\n")
    lines += [f".TP\n.B {row.bit}\n{escaped(row.meaning)}\n" for row in TABLE]
    return "".join([*lines, _TAIL])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(sys.argv[2], int(sys.argv[3])))
