"""No change is planned on what could not be read: a second try might show intact messages there."""

from __future__ import annotations

from recover.errors import Refusal
from recover.verify.report import VerifyReport

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
