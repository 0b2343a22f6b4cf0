"""`mqtool rebuild-consumequeue`: consume queues from the log."""

from __future__ import annotations

from typing import Annotated

from mqtool.changing import BITS, ChangeChoice
from mqtool.declared import option
from mqtool.options import BrokerChoice, EngineChoice, StoreChoice, command
from mqtool.output import Printer
from mqtool.rebuilding import Rebuild, RebuildChoice
from mqtool.recovering import ZoneChoice
from recover.findings.refusal import UsageRefusal

_PANEL = "What and where"


@command(
    examples=[
        ("/data/store --dry-run", "which queues are wrong"),
        ("/data/store --topic Orders", "the queues of one topic, in place"),
        ("/data/store --topic Orders --queue 3", "one queue, in place"),
        ("/data/store --output /tmp/derived", "all queues from scratch, in a folder of their own"),
    ],
    bits=BITS,
)
def run(
    out: Printer, store: StoreChoice, broker: BrokerChoice, engine: EngineChoice, zone: ZoneChoice,
    consent: ChangeChoice, what: RebuildChoice,
    topic: Annotated[str | None, option("--topic", "Only the queues of this topic.", _PANEL, metavar="T")] = None,
    queue: Annotated[int | None, option("--queue", "Only this queue of the topic.", _PANEL, metavar="N", min=0)] = None,
) -> int:
    """Rebuild consume queues from the log: all, those of a topic, or one; LMQ queues and consumequeue_ext included.

    In place only cells that are wrong or missing are written; no queue loses its highest offset.
    """
    if queue is not None and topic is None:
        raise UsageRefusal("--queue needs --topic", "Each topic counts its own queues.")
    return Rebuild(out, store, engine, broker, zone, consent, what, ("consumequeue",), topic, queue).run()
