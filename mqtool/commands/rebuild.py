"""`mqtool rebuild`: consume queues, index and checkpoint from the log."""

from __future__ import annotations

from mqtool.changing import BITS, ChangeChoice
from mqtool.options import BrokerChoice, EngineChoice, StoreChoice, command
from mqtool.output import Printer
from mqtool.rebuilding import Rebuild, RebuildChoice
from mqtool.recovering import ZoneChoice


@command(
    examples=[
        ("/data/store --dry-run", "what is wrong and would be rebuilt"),
        ("/data/store", "put queues, index and checkpoint right in place"),
        ("/data/store --output /tmp/derived", "all of them from scratch, in a folder of their own"),
    ],
    bits=BITS,
)
def run(
    out: Printer, store: StoreChoice, broker: BrokerChoice, engine: EngineChoice, zone: ZoneChoice,
    consent: ChangeChoice, what: RebuildChoice,
) -> int:
    """Rebuild consume queues, index and checkpoint from the log, in one scan.

    In place only what is wrong is changed; units of expired messages stay, and so do sound index files. The log is not
    touched: damage in it needs `mqtool recover`.
    """
    parts = ("consumequeue", "index", "checkpoint")
    return Rebuild(out, store, engine, broker, zone, consent, what, parts).run()
