"""`mqtool verify`: every part of a store against every other."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from mqtool import exits
from mqtool.next_steps import STOPS, Scene, next_steps
from mqtool.options import BrokerChoice, EngineChoice, StoreChoice, command, flag, option
from mqtool.printer import Printer
from mqtool.screens.verdict import verify_line, verify_tables
from recover.check.report import verify as verify_store

_WHAT = "What to check"


class Part(Enum):
    """The values of --only."""

    commitlog = "commitlog"
    consumequeue = "consumequeue"
    index = "index"
    checkpoint = "checkpoint"
    config = "config"


@command(
    examples=[
        ("/data/store", "everything"),
        ("/data/store --only commitlog", "only the messages themselves"),
        ("/data/store --json --findings-out /tmp/findings.ndjson", "for a script, with every single finding"),
        ("/data/store --commitlog /disk2/commitlog --broker-conf broker.conf", "a store with parts kept elsewhere"),
    ],
    bits=(exits.DERIVED, exits.MESSAGES, exits.UNSUPPORTED),
)
def verify(
    out: Printer,
    store: StoreChoice,
    broker: BrokerChoice,
    engine: EngineChoice,
    only: Annotated[list[Part] | None, option("--only", "Check this part only; repeat for several.", _WHAT)] = None,
    include_deleted: Annotated[bool, flag(
        "--include-deleted", "Expect queues and index of deleted topics, too.", _WHAT)] = False,
) -> int:
    """Cross-check the whole store and report every problem; never stops at the first one, never writes.

    Records against their checksums and places, queues against the log both ways, index against the log both ways,
    checkpoint, abort, config files, consumer offsets.
    """
    opened = store.open(broker)
    with engine.scan(out, opened, title="verifying", include_deleted=include_deleted) as scan:
        report = verify_store(opened, scan, [part.value for part in only or ()])
    document, code = report.json(), report.exit_code
    out.answer(**document)
    out.found(report.findings)
    out.show(*verify_tables(document))
    stop = next((item for item in report.findings if item.code in STOPS), None)
    line = verify_line(document, code) if stop is None or report.survey.log.messages else stop.message
    out.summary(line, next_steps(Scene("checked", out.given, code, list(report.findings), unread=report.unread)))
    return code
