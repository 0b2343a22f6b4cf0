"""`mqtool truncate`: cut the log at a record boundary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from mqtool.changing import BITS, ChangeChoice
from mqtool.declared import option
from mqtool.options import BrokerChoice, EngineChoice, StoreChoice, command
from mqtool.output import Printer
from mqtool.recovering import Change, ZoneChoice, max_loss

if TYPE_CHECKING:
    from mqtool.recovering import Planner
    from recover.store.store import Store

_PANEL = "Where to cut"


@command(
    examples=[
        ("/data/store --to 1305932 --dry-run", "what a cut there would cost"),
        ("/data/store --to 1305932 --max-loss 12", "cut, if at most 12 intact messages go"),
        ("/data/store --to 1305932 --max-loss all --yes", "cut without asking"),
    ],
    bits=BITS,
)
def run(
    out: Printer, store: StoreChoice, broker: BrokerChoice, engine: EngineChoice, zone: ZoneChoice,
    consent: ChangeChoice,
    to: Annotated[int, option(
        "--to", "Log offset; a record must begin or end there.", _PANEL, metavar="OFFSET", min=0)],
    loss: Annotated[str | None, option(
        "--max-loss", "How many messages the cut may drop, and missing log files may have held (default: 0).", _PANEL,
        metavar="N|all")] = None,
) -> int:
    """Cut the log at a record boundary and everything that derives from it with it.

    Between two boundaries the command refuses (16) and names both. What is cut is zeroed, so that it cannot come back
    to life, and kept in the journal; files keep their length.
    """

    def make(opened: Store) -> Planner:
        from recover.repair.recover import RecoverOptions, plan_truncate

        options = RecoverOptions(max_loss=max_loss(loss), zone=zone.zone, command="truncate")
        return lambda before: plan_truncate(opened, to, options, before)

    out.answer(mode=None, policy=None, start_file=None, to=to)
    return Change(out, store, engine, broker, consent, max_loss=max_loss(loss)).run(make)
