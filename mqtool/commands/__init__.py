"""The registry of commands: a command's module is imported when it is called."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mqtool.options import Command

READING = "Reading (never writes, takes no lock)"
CHANGING = "Changing (shows a plan, asks, keeps what it replaces)"
HELP = "Help"


class Entry(NamedTuple):
    """One command: its module and function, one line of help, its panel."""

    module: str
    function: str
    help: str
    panel: str


COMMANDS: dict[str, Entry] = {
    "doctor": Entry("doctor", "doctor", "Say whether a broker may start, what matters, and the next command.", READING),
    "inspect": Entry("inspect", "inspect", "Show a store on one screen, or the records of one file.", READING),
    "verify": Entry("verify", "verify", "Cross-check the whole store and report every problem.", READING),
    "predict": Entry("predict", "predict", "Predict what a broker version's start would do to this store.", READING),
    "query": Entry("query", "query", "Look up messages by key, queue offset, time or ID.", READING),
    "trace": Entry("query", "trace", "Show the life of one message, from half or delay to consumers.", READING),
    "export": Entry("export", "export", "Export messages from a store in bulk.", READING),
    "groups": Entry("predict", "groups", "Consumer groups and their queues, before and after a start.", READING),
    "pending": Entry("pending", "pending", "List what waits: delayed, timer, half, popped messages; lag.",
                     READING),
    "journal": Entry("runs", "journal", "Show what was done to this store, when, and what is unfinished.", READING),
    "report": Entry("report", "report", "Report on one page what happened, what is lost and what to do.", READING),
    "fleet": Entry("verify", "fleet", "Verify many stores in one Spark job, into tables.", READING),
    "drill": Entry("drill", "drill", "Make a damaged copy of a store to rehearse on.", READING),
    "recover": Entry("changes", "recover",
                     "Repair a store so that a broker starts without losing intact messages.", CHANGING),
    "truncate": Entry("changes", "truncate", "Cut the log at a record boundary, and everything derived from it.",
                      CHANGING),
    "rebuild": Entry("changes", "rebuild", "Rebuild consume queues, index and checkpoint from the log.", CHANGING),
    "rebuild-consumequeue": Entry("changes", "rebuild_consumequeue", "Rebuild consume queues from the log.", CHANGING),
    "rebuild-index": Entry("changes", "rebuild_index", "Rebuild index files from the log.", CHANGING),
    "apply": Entry("runs", "apply", "Run a saved plan.", CHANGING),
    "resume": Entry("runs", "resume", "Complete a run that was killed.", CHANGING),
    "undo": Entry("runs", "undo", "Revert the last applied run, byte for byte.", CHANGING),
    "send": Entry("send", "send", "Send exported messages to a live cluster.", CHANGING),
    "explain": Entry("explain", "explain", "Explain a finding and what to do about it.", HELP),
    "exit-codes": Entry("explain", "exit_codes", "Print the table of exit codes.", HELP),
}


def command_of(entry: Entry) -> Command:
    found: Command = getattr(import_module(f"mqtool.commands.{entry.module}"), entry.function)
    return found
