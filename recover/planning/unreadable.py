"""No change is planned on what could not be read, where a second try might show intact messages, nor without a log.

Nor on what stands in a part that mqtool does not read.
"""

from __future__ import annotations

from collections.abc import Iterable

from recover.errors import Refusal
from recover.evidence.lost import record_count
from recover.files.store import COMMITLOG
from recover.findings import Finding
from recover.scan.log import MISSING_FILE
from recover.verify.commitlog import NOT_A_FILE
from recover.verify.parts import FOREIGN, MOSTLY_GONE, NO_LOG, NOT_SUPPORTED, OTHER_LOG
from recover.verify.report import VerifyReport

_NAMED = 5
_CODES = frozenset(
    f"{part}-unreadable" for part in ("commitlog", "consumequeue", "index", "checkpoint", "config")
)


def refuse_unreadable(report: VerifyReport) -> None:
    """`Refusal` (8) if a file that recover works from could not be read whole. Unread bytes count as zeros there."""
    found = next((item for item in report.findings.sorted() if item.code in _CODES), None)
    if found is not None:
        raise Refusal(
            f"{found.file} could not be read whole: {found.facts.get('error', 'I/O error')}",
            "Copy the store with a tool that reads on past errors, such as ddrescue, and recover the copy.",
            file=found.file, offset=found.offset,
        )


def refuse_unread(report: VerifyReport, written: Iterable[str] = ()) -> None:
    """`Refusal` (8) if the log, from which all is judged, or what is to be `written` is in a part that is not read."""
    for question in (COMMITLOG, *written):
        held = report.survey.elsewhere.get(question)
        if held is not None:
            raise Refusal(
                f"the {question} of this store is in {held.part} ({held.what}), which mqtool does not read: nothing is "
                "judged by it, and nothing is written in its place",
                f"Leave the store as it is: a broker with the settings that wrote {held.part} reads it.",
                part=held.part,
            )


def refuse_cut_of_unread(report: VerifyReport) -> None:
    """`Refusal` (8) if a part that is not read derives from the log: it cannot be cut with it."""
    for item in report.findings:
        if item.code == NOT_SUPPORTED and not {"commitlog", "consumequeue"}.isdisjoint(item.facts["answers"]):
            raise Refusal(
                f"{item.file} ({item.facts['what']}) would have to be cut with the log, and mqtool does not read it",
                "`mqtool recover` keeps every intact message and cuts nothing but a dirty tail.", part=item.file,
            )


def refuse_without_log(report: VerifyReport, max_loss: int | None = 0) -> None:
    """`Refusal` (8) when the log is gone while queues or index are there: rebuilding them would empty them.

    So too where something else stands in place of a log file, and, unless `max_loss` allows for that, where hardly
    anything of the log can be read, or a file of it is no log's or another log's.
    """
    for code in (NO_LOG, NOT_A_FILE, MOSTLY_GONE, FOREIGN, OTHER_LOG):
        for item in report.findings:
            if item.code == code and not _allowed(item, max_loss):
                raise Refusal(item.message, item.remedy, code=code)


def refuse_missing_files(report: VerifyReport, max_loss: int | None = 0, cut: int = 0) -> int:
    """How many messages missing log files (from `cut` on) held, as far as anything names them.

    `Refusal` (8) if `max_loss` is less than those of all: what derives from the log is judged without them.
    """
    missing = [
        (damage, max(1, record_count(positions)))
        for damage, positions in zip(report.survey.log.damaged, report.survey.losses.by_damage, strict=True)
        if damage.reason == MISSING_FILE
    ]
    total = sum(count for _, count in missing)
    if max_loss is not None and total > max_loss:
        ranges = ", ".join(f"{damage.start} to {damage.stop}" for damage, _ in missing[:_NAMED])
        raise Refusal(
            f"log files are missing ({ranges}): {total} messages of theirs are known of, --max-loss allows {max_loss}",
            "Find them: another path (--commitlog DIR), the source of this copy, a replica, a backup. If they are gone "
            f"for good, --max-loss {total} (or all) goes on without them.",
            lost_messages=total, max_loss=max_loss,
        )
    return sum(count for damage, count in missing if damage.start >= cut)


def _allowed(item: Finding, max_loss: int | None) -> bool:
    if item.code in (NO_LOG, NOT_A_FILE):
        return False
    if max_loss is None:
        return True
    whole = item.code == MOSTLY_GONE and not item.facts["index_units"]
    return (whole or item.code == OTHER_LOG) and bool(item.facts["lost"] <= max_loss)
