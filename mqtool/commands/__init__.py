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
    "inspect": Entry("inspect", "inspect", "One screen about a store, or the records of one file.", READING),
    "verify": Entry("verify", "verify", "Cross-check the whole store and report every problem.", READING),
    "predict": Entry("predict", "predict", "What the start of a broker version would do to this store.", READING),
    "query": Entry("query", "query", "Look up messages by key, queue offset, time or ID.", READING),
    "trace": Entry("query", "trace", "One message's life, from half or delay to retries and consumers.", READING),
    "export": Entry("export", "export", "Messages out of a store, in bulk.", READING),
    "groups": Entry("predict", "groups", "Consumer groups against their queues, before and after a start.", READING),
    "journal": Entry("runs", "journal", "What was done to this store, when, and what is unfinished.", READING),
    "report": Entry("report", "report", "What happened, what is lost, what to do, on one page.", READING),
    "fleet": Entry("verify", "fleet", "Many stores verified in one Spark job, into tables.", READING),
    "drill": Entry("drill", "drill", "A damaged copy of a store, to rehearse on.", READING),
    "recover": Entry("changes", "recover",
                     "Repair a store so that a broker starts without losing intact messages.", CHANGING),
    "truncate": Entry("changes", "truncate", "Cut the log at a record boundary, and all that derives from it.",
                      CHANGING),
    "rebuild": Entry("changes", "rebuild", "Consume queues, index and checkpoint from the log.", CHANGING),
    "rebuild-consumequeue": Entry("changes", "rebuild_consumequeue", "Consume queues from the log.", CHANGING),
    "rebuild-index": Entry("changes", "rebuild_index", "Index files from the log.", CHANGING),
    "apply": Entry("runs", "apply", "Run a saved plan.", CHANGING),
    "resume": Entry("runs", "resume", "Complete a run that was killed.", CHANGING),
    "undo": Entry("runs", "undo", "Revert the last applied run, byte for byte.", CHANGING),
    "send": Entry("send", "send", "Exported messages into a live cluster.", CHANGING),
    "explain": Entry("explain", "explain", "What a finding means and what to do about it.", HELP),
    "exit-codes": Entry("explain", "exit_codes", "The table of exit codes.", HELP),
}


def command_of(entry: Entry) -> Command:
    found: Command = getattr(import_module(f"mqtool.commands.{entry.module}"), entry.function)
    return found
