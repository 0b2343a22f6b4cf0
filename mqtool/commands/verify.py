"""`mqtool verify`: every byte against every other."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from mqtool import exits
from mqtool.declared import FLAG, option
from mqtool.next_steps import STOPS, Scene, next_steps
from mqtool.options import BrokerChoice, EngineChoice, StoreChoice, command
from mqtool.output import Printer
from mqtool.scanning import run_verify, store_options
from mqtool.verify_screen import verify_line, verify_tables

_WHAT = "What to check"


class Part(Enum):
    """What `--only` takes."""

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
def run(
    out: Printer,
    store: StoreChoice,
    broker: BrokerChoice,
    engine: EngineChoice,
    only: Annotated[list[Part] | None, option(
        "--only", "Check this part only; repeat for several.", _WHAT)] = None,
    include_deleted: Annotated[bool, option(
        "--include-deleted", "Expect queues and index of deleted topics, too.", _WHAT, metavar=FLAG)] = False,
) -> int:
    """Check every byte of a store against every other; never stops at the first problem, never writes.

    Records against their checksums and places, queues against the log both ways, index against the log both ways,
    checkpoint, abort, config files, consumer offsets.
    """
    from recover.store.store import Store

    opened = Store.open(store.root, store_options(store, broker))
    report = run_verify(out, opened, engine, broker, only=[part.value for part in only or ()],
                        include_deleted=include_deleted)
    document = report.json()
    out.answer(**document)
    out.found(report.findings)
    out.show(*verify_tables(document))
    code = report.exit_code
    gone = next((item for item in report.findings if item.code in STOPS), None)
    line = verify_line(document, code) if gone is None or report.survey.log.messages else gone.message
    out.summary(line, next_steps(Scene("checked", out.given, code, list(report.findings))))
    return code
