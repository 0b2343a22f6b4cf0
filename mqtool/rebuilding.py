"""The three rebuilds: the same way in place, or fresh files in a folder of their own."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Struct

from mqtool import exits
from mqtool.changing import ChangeChoice
from mqtool.declared import FLAG, option
from mqtool.next_steps import Scene, next_steps
from mqtool.options import BrokerChoice, EngineChoice, StoreChoice
from mqtool.output import Printer
from mqtool.progress import Line
from mqtool.recovering import Change, ZoneChoice, max_loss
from mqtool.scanning import scan_options, store_options
from mqtool.screens import facts
from mqtool.text import count, human_size

if TYPE_CHECKING:
    from mqtool.recovering import Planner
    from recover.check.survey import ScanOptions
    from recover.repair.rebuild import RebuildOptions
    from recover.store.store import Store

_PANEL = "What and where"


class RebuildChoice(Struct, frozen=True, kw_only=True):
    """Where to, and whether deleted topics count."""

    output: Annotated[Path | None, option(
        "--output", "Write fresh files here (a new or empty folder); the store is not touched.", _PANEL,
        metavar="DIR")] = None
    include_deleted: Annotated[bool, option(
        "--include-deleted", "Rebuild queues of deleted topics, too.", _PANEL, metavar=FLAG)] = False
    max_loss: Annotated[str | None, option(
        "--max-loss", "How many messages that a broker would deliver from the store as it is may go undelivered "
        "afterwards, and missing log files may have held (default: 0).", _PANEL, metavar="N|all")] = None


class Rebuild(Struct, frozen=True):
    """One run of a rebuild command for some `parts` of a store; `topic` and `queue` narrow the consume queues."""

    out: Printer
    choice: StoreChoice
    engine: EngineChoice
    broker: BrokerChoice
    zone: ZoneChoice
    consent: ChangeChoice
    what: RebuildChoice
    parts: Collection[str]
    topic: str | None = None
    queue: int | None = None

    def run(self) -> int:
        """In place by a plan, or into a folder; the exit code."""
        if self.what.output is not None:
            return self._write(self.what.output)
        change = Change(
            self.out, self.choice, self.engine, self.broker, self.consent, include_deleted=self.what.include_deleted,
            max_loss=max_loss(self.what.max_loss),
        )
        return change.run(self._plan)

    def _options(self, scan: ScanOptions) -> RebuildOptions:
        from recover.repair.rebuild import RebuildOptions

        return RebuildOptions(scan, self.parts, self.topic, self.queue, self.zone.zone, self.out.command,
                              max_loss(self.what.max_loss))

    def _plan(self, store: Store) -> Planner:
        from recover.check.survey import ScanOptions
        from recover.repair.rebuild import plan_rebuild

        options = self._options(ScanOptions())
        return lambda before: plan_rebuild(store, options, before)

    def _write(self, output: Path) -> int:
        from recover.repair.rebuild import write_rebuild
        from recover.store.store import Store

        out, store = self.out, Store.open(self.choice.root, store_options(self.choice, self.broker))
        names = ", ".join(sorted(self.parts))
        out.answer(plan=None, applied=False, journal=None, output=str(output), files=[], bytes=0, verify=None)
        if self.consent.dry_run:
            typed = tuple(item for item in out.arguments if item not in ("--dry-run", "--json"))
            out.summary(f"Dry run, nothing was written: {names} would be built in {output}",
                        next_steps(Scene("planned", out.given, typed=typed)))
            return exits.CLEAN
        with scan_options(
            out, store, self.engine, self.broker, include_deleted=self.what.include_deleted, rebuilds=True,
        ) as scan:
            options = self._options(scan)
            with Line(False, out.stderr_console) as line, exits.between_steps() as interrupted:
                done = write_rebuild(store, options, output, interrupted=interrupted,
                                     progress=lambda name, size: line.show(f"writing {name}"))
        code = done.findings.bits | (exits.CORRECTED if done.corrected else 0)
        out.found(done.findings)
        out.answer(applied=True, files=list(done.files), bytes=done.size,
                   verify={**done.before.json(), "exit_code": done.findings.bits})
        out.show(facts("", [("built", names), ("from", self.choice.store), ("in", str(output))]))
        written = count(len(done.files), "file")
        out.summary(f"{written} written to {output}, {human_size(done.size)}, read back and compared with the log")
        return code
