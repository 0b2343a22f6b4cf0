"""The registry of commands: each is imported when it is called."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from mqtool.options import Command

READING = "Reading (never writes, takes no lock)"
CHANGING = "Changing (shows a plan, asks, keeps what it replaces)"
HELP = "Help"


class Entry(NamedTuple):
    """One command: the module with its `run`, one line of help, its panel."""

    module: str
    help: str
    panel: str


COMMANDS: dict[str, Entry] = {
    "inspect": Entry("inspect", "One screen about a store, or the records of one file.", READING),
    "verify": Entry("verify", "Cross-check the whole store and report every problem.", READING),
    "predict": Entry("predict", "What the start of a broker version would do to this store.", READING),
    "query": Entry("query", "Look up messages by key, queue offset, time or ID.", READING),
    "trace": Entry("trace", "One message's life, from half or delay to retries and consumers.", READING),
    "export": Entry("export", "Messages out of a store, in bulk.", READING),
    "groups": Entry("groups", "Consumer groups against their queues, before and after a start.", READING),
    "journal": Entry("journal", "What was done to this store, when, and what is unfinished.", READING),
    "report": Entry("report", "What happened, what is lost, what to do, on one page.", READING),
    "drill": Entry("drill", "A damaged copy of a store, to rehearse on.", READING),
    "recover": Entry("recover", "Repair a store so that a broker starts without losing intact messages.", CHANGING),
    "truncate": Entry("truncate", "Cut the log at a record boundary, and all that derives from it.", CHANGING),
    "rebuild": Entry("rebuild", "Consume queues, index and checkpoint from the log.", CHANGING),
    "rebuild-consumequeue": Entry("rebuild_consumequeue", "Consume queues from the log.", CHANGING),
    "rebuild-index": Entry("rebuild_index", "Index files from the log.", CHANGING),
    "apply": Entry("apply", "Run a saved plan.", CHANGING),
    "resume": Entry("resume", "Complete a run that was killed.", CHANGING),
    "undo": Entry("undo", "Revert the last applied run, byte for byte.", CHANGING),
    "send": Entry("send", "Exported messages into a live cluster.", CHANGING),
    "explain": Entry("explain", "What a finding means and what to do about it.", HELP),
    "exit-codes": Entry("exit_codes", "The table of exit codes.", HELP),
}


def command_of(entry: Entry) -> Command:
    """Import a command."""
    return cast("Command", importlib.import_module(f"mqtool.commands.{entry.module}").run)
