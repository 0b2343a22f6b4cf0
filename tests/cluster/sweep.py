"""Every kind of damage on every packed store, with either engine; one Spark serves all of it, `--cluster` a cluster.

`python -m tests.cluster.sweep` goes through all of them in an order that mixes stores and damage, so that a run that
is stopped early has seen some of everything, and prints what differed and how many were the same.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from fixtures.damage import RECIPES, NotApplicable, damage
from recover.cluster.session import stop_session
from tests.cluster.cluster import cluster
from tests.cluster.twice import SPARK, SPLITS, same_answers, same_changes
from tests.scenarios.drill import all_stores
from tests.support.plans import quick_folder
from tests.support.stores import real_store

UNDAMAGED = "nothing"
SAME, LACKS = "the same to both", "not to be had in that store"


def cases() -> list[tuple[str, str]]:
    """(store, recipe) of the whole sweep, those without damage included; always in the same mixed order."""
    found = list(product(all_stores(), [UNDAMAGED, *sorted(RECIPES)]))
    random.Random(6).shuffle(found)
    return found


def compare(name: str, recipe: str, folder: Path, line: tuple[str, ...] = SPARK) -> str:
    """What both engines say of a damaged store and what both make of it; `AssertionError` where that differs."""
    root = real_store(name, folder)
    if recipe != UNDAMAGED:
        try:
            damage(recipe, root)
        except NotApplicable:
            return LACKS
    same_answers(root, "verify", spark=line)
    same_changes(root, "recover", spark=line)
    return SAME


def main(arguments: list[str]) -> int:
    """0 when no case differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.sweep", description=__doc__)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so many minutes")
    parser.add_argument("--skip", type=int, default=0, help="leave out the first N cases")
    parser.add_argument("--cluster", action="store_true", help="on a master and two workers of this machine")
    options = parser.parse_args(arguments)
    with _engine(on_cluster=options.cluster) as line:
        return _sweep(options, line)


@contextmanager
def _engine(*, on_cluster: bool) -> Iterator[tuple[str, ...]]:
    """The options that put a command on Spark."""
    if not on_cluster:
        yield SPARK
        return
    with TemporaryDirectory(prefix="mqtool-cluster-") as folder:
        try:
            with cluster(Path(folder)) as running:
                yield ("--engine", "spark", *running.line(SPLITS))
        finally:
            stop_session()


def _sweep(options: argparse.Namespace, line: tuple[str, ...]) -> int:
    begin, counts = time.monotonic(), Counter[str]()
    chosen = cases()[options.skip :]
    for name, recipe in chosen:
        if time.monotonic() - begin > 60 * options.minutes:
            break
        with quick_folder() as folder:
            try:
                outcome = compare(name, recipe, folder, line)
            except Exception as error:
                outcome = "different"
                print(f"{name} {recipe}: {type(error).__name__}: {str(error)[:2000]}", flush=True)
        counts[outcome] += 1
        if counts.total() % 50 == 0:
            print(_line(counts, len(chosen), begin), flush=True)
    print(_line(counts, len(chosen), begin))
    return 1 if counts["different"] else 0


def _line(counts: Counter[str], total: int, begin: float) -> str:
    seen = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
    return f"{counts.total()} of {total} cases in {(time.monotonic() - begin) / 60:.0f} min: {seen}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
