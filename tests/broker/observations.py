"""What a broker's start did, asked once in a run: several tests compare themselves with the same start."""

from __future__ import annotations

import fcntl
import hashlib
import pickle
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fixtures.damage import Damage
from fixtures.lab.observe import observation
from fixtures.lab.report import OracleReport
from tests.broker.cases import Case
from tests.support.stores import copy_store


class Observed(NamedTuple):
    """One start: the broker's report, and what it cost in the form that fixtures/observed keeps."""

    report: OracleReport
    kept: dict[str, Any]


class Observations:
    """The starts of one run, in a folder that its workers share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def of(self, case: Case, root: Path, done: Damage, start: Callable[[Case, Path], OracleReport]) -> Observed:
        """What `start` says of a copy of the damaged store `root`, or what it said when it was first asked."""
        path = self._folder / hashlib.sha256(" ".join(case).encode()).hexdigest()
        with path.open("a+b") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            handle.seek(0)
            if known := handle.read():
                return Observed._make(pickle.loads(zlib.decompress(known)))
            # beside them: a store that was closed can still write a file of its own, when the copy is gone already
            seen = _look(case, root, done, start, self._folder)
            handle.write(zlib.compress(pickle.dumps(tuple(seen)), 1))
        return seen


def _look(case: Case, root: Path, done: Damage, start: Callable[[Case, Path], OracleReport], folder: Path) -> Observed:
    with tempfile.TemporaryDirectory(prefix="observe-", dir=folder, ignore_cleanup_errors=True) as scratch:
        copy = copy_store(root, Path(scratch) / "store")
        report = start(case, copy)
        return Observed(report, observation(case.store, report, done, copy))
