"""Findings about what mqtool itself did to a store."""

from __future__ import annotations

from recover.finding_code import Code

PLAN_CODES: tuple[Code, ...] = (
    Code(
        "run-unfinished", "warning",
        "the run {run} ({command}) is {state}: {steps_done} of {steps} steps are done",
        "mqtool resume {store}   (or: mqtool undo {store})",
        meaning="A change of this store was begun and stopped half way; its journal and the saved bytes are in place.",
        cause="mqtool was killed or interrupted, or the disk failed while it worked.",
        broker="It knows nothing of the run and would start on a store that is half changed.",
        action="Resume it, or undo it, before a broker starts here.",
    ),
    Code(
        "run-journal-damaged", "warning",
        "the journal of an earlier run cannot be used: {reason}",
        "",
        meaning="A record of the journal is missing or cannot be read, so the run can be neither resumed nor undone.",
        cause="The disk lost it, or somebody edited or copied part of the journal folder.",
        broker="It never looks at this folder.",
        action="The bytes that the run overwrote are still in its folder; put the folder aside to work without it.",
    ),
    Code(
        "plan-loses-delivered", "info",
        "the plan would cost {count} messages that this store delivers as it is (broker {broker})",
        "Keep the store as it is: the broker alone delivers more. --max-loss {count} accepts the loss.",
        meaning="What brokers deliver from the store as it is was compared with what they would deliver after the plan, "
        "by the rules of predict. Messages would be missing, so the plan is refused.",
        cause="One damaged record, mark, name or unit was believed against the rest of the store.",
        broker="It starts on the store as it is and delivers these messages.",
        action="Save a copy of the store. Start the broker on it, or accept the loss with --max-loss.",
        one="the plan would cost one message that this store delivers as it is (broker {broker})",
    ),
    Code(
        "plan-overwrites-named", "error",
        "a plan was made that overwrites {count} intact messages of whole log files as old ones: the log file before "
        "them may be the wrong one",
        "Look for the right file, in a backup or a replica. --max-loss {count} accepts the loss.",
        meaning="Whole log files look older than what stands before them, and the plan gives them up. But a broker that "
        "cuts its log deletes the files after the cut, so the plan is refused.",
        cause="A log file before them is of another store, or its store times are wrong.",
        broker="It may cut the log before these files, and delete them.",
        action="Save a copy of the store. Bring the right file back, or accept the loss with --max-loss.",
    ),
)
