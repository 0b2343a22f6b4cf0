"""`mqtool rebuild-index`: index files from the log."""

from __future__ import annotations

from mqtool.changing import BITS, ChangeChoice
from mqtool.options import BrokerChoice, EngineChoice, StoreChoice, command
from mqtool.output import Printer
from mqtool.rebuilding import Rebuild, RebuildChoice
from mqtool.recovering import ZoneChoice


@command(
    examples=[
        ("/data/store", "put wrong or missing index files right in place"),
        ("/data/store --output /tmp/derived --timezone Asia/Shanghai",
         "all files from scratch, named as a broker in that zone would"),
    ],
    bits=BITS,
)
def run(
    out: Printer, store: StoreChoice, broker: BrokerChoice, engine: EngineChoice, zone: ZoneChoice,
    consent: ChangeChoice, what: RebuildChoice,
) -> int:
    """Rebuild index files from the log, byte for byte as a broker writes them.

    In place sound files stay as they are, and others keep their names and where they begin.
    """
    return Rebuild(out, store, engine, broker, zone, consent, what, ("index",)).run()
