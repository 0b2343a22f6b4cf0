"""A copy of a store of any size, damaged by a recipe at places that a scan of it finds."""

from __future__ import annotations

import random
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, structs

from formats.commitlog import decode
from formats.record_columns import NO_MESSAGE
from recover.drill.recipes import DRILLS, Change, Facts, Hit, NotApplicable, UsedFile
from recover.errors import Refusal
from recover.files.reader import FileReader
from recover.files.store import Store
from recover.memory.columns import Rows
from recover.scan.engine import Engine
from recover.scan.file_scan import FileScan, ProgressCallback
from recover.scan.log import LogView

_TRIES = 1000


class Rehearsal(Struct, frozen=True):
    """What a recipe did to a copy."""

    recipe: str
    seed: int
    changes: tuple[Change, ...]
    facts: Facts

    def json(self) -> dict[str, Any]:
        """The keys of the documents."""
        return {"recipe": self.recipe, "seed": self.seed, "changes": [structs.asdict(item) for item in self.changes],
                "facts": self.facts}


class ScannedSite:
    """A copy as a scan found it: rows say where its intact records are, and a record is read when one is wanted."""

    def __init__(self, root: Path, log: LogView) -> None:
        self.root = root
        self._log = log
        self._splits = [(scan, split.records) for scan in log.files for split in scan.splits if split.records.size]
        self._ends = list(accumulate(int(rows.size) for _, rows in self._splits))

    def victim(self, rng: random.Random) -> Hit:
        """See `Site`; one of the records that are asked for, with all others left out that do not fit."""
        total = self._ends[-1] if self._ends else 0
        for _ in range(_TRIES if total > 1 else 0):
            number = rng.randrange(total - 1)
            at = int(np.searchsorted(self._ends, number, side="right"))
            scan, rows = self._splits[at]
            row = rows[number - (self._ends[at - 1] if at else 0)]
            if row["bits"] & NO_MESSAGE:
                continue
            hit = _hit(scan, row)
            if hit.record.body and hit.record.properties:
                return hit
        raise NotApplicable("the log has no record with a body, properties and another record after it")

    def last_record(self) -> Hit:
        """See `Site`."""
        for scan, rows in reversed(self._splits):
            live = np.flatnonzero((rows["bits"] & NO_MESSAGE) == 0)
            if live.size:
                return _hit(scan, rows[live[-1]])
        raise NotApplicable("the store has no record")

    def used_files(self) -> list[UsedFile]:
        """See `Site`."""
        last = {scan.mapped_file: int(rows["phy_offset"][-1]) for scan, rows in self._splits}
        return [UsedFile(file.path, file.file_from_offset, offset - file.file_from_offset)
                for file, offset in last.items()]


def _hit(scan: FileScan, row: Rows) -> Hit:
    position = int(row["phy_offset"]) - scan.mapped_file.file_from_offset
    with FileReader(scan.mapped_file.path) as reader:
        return Hit(decode(reader.read(position, int(row["size"])), check_crc=False), scan.mapped_file.path, position)


def rehearse(
    copy: Path, name: str, seed: int, engine: Engine, progress: ProgressCallback | None = None
) -> Rehearsal:
    """Damage a copy that was made for it. `Refusal` (8), with nothing changed, if it lacks what the recipe damages."""
    store = Store.open(copy)
    log = engine.scan_log(store.commitlog, progress=progress, with_keys=False)
    try:
        # the same places for the same seed, whatever the machine
        changes, facts = DRILLS[name].run(ScannedSite(copy, log), random.Random(f"{name}/{seed}"))
    except NotApplicable as reason:
        raise Refusal(f"{name}: {reason}", "Choose another drill, or another store: mqtool drill --list.") from reason
    return Rehearsal(name, seed, tuple(changes), facts)
