"""Which store meets which damage and which broker: the whole matrix, and the sample that `make test-deep` runs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import pytest

from fixtures.damage import RECIPES, of_area
from fixtures.lab.observe import SOUND
from fixtures.lab.packed import WHOLE_BROKER, made, readers


class Case(NamedTuple):
    """One start: `damage` is the name of a recipe, or "none"."""

    store: str
    damage: str
    version: str


#: The stores that the lab wrote meet one or two recipes of every kind.
TYPICAL = (
    SOUND,
    "bit-in-body",
    "bit-in-size",
    "page-zeroed",
    "blank-zeroed",
    "torn-tail",
    "ghosts-behind-tail",
    "log-first-missing",
    "log-middle-missing",
    "queue-unit-zeroed",
    "queue-missing",
    "all-queues-missing",
    "checkpoint-missing",
    "checkpoint-future",
    "abort-added",
    "crash-torn-tail",
    "crash-bit-without-checkpoint",
    "crash-everything-derived",
)
#: What a store alone does with config files is nothing; they are judged elsewhere. So are mixed snapshots, displaced
#: logs and lying witnesses (WITNESS), of which brokers deliver nearly all.
ALL = (SOUND, *(entry.name for entry in RECIPES.values()
                if entry.area not in ("config", "displaced", "snapshot", "witness")))


#: (store, damage, seed): one record, mark, name or unit that lies; stores that were stopped, and killed.
WITNESS = list(product(("clean-4.5.1", "killed-5.5.0"), (*of_area("witness"), "queue-units-swapped"), "123"))

#: Stores that meet every recipe and all of their readers: those of whole brokers, and one of more than ten log files.
IN_FULL = (*WHOLE_BROKER, "killed-manyfiles-5.5.0")


def pairs() -> Iterator[tuple[str, str]]:
    """(store, damage) of the whole matrix."""
    yield from product(IN_FULL, ALL)
    yield from product([name for name in made() if name not in IN_FULL], TYPICAL)


def cases() -> list[Case]:
    """The matrix with versions: every reader for the stores in full, two of them, in turn, for the others."""
    found = []
    for number, (store, damage) in enumerate(pairs()):
        able = readers(store)
        chosen = (
            able
            if store in IN_FULL
            else [v for v in able if v in (able[number % len(able)], able[(number + 1) % len(able)])]
        )
        found += [Case(store, damage, version) for version in chosen]
    return found


def log_cases() -> list[Case]:
    """Those in which a broker's recovery of the log has something to decide."""
    areas = ("log", "files", "crash", "checkpoint", "abort")
    return [case for case in cases() if case.damage == SOUND or RECIPES[case.damage].area in areas]


def marked(items: Sequence[tuple[Any, ...]], sample: int) -> list[Any]:
    """The items as parameters; `sample` of them, always the same, carry the mark `deep`."""
    chosen = set(random.Random(20).sample(range(len(items)), min(sample, len(items))))
    return [
        pytest.param(*item, id=" ".join(item), marks=[pytest.mark.deep] if number in chosen else [])
        for number, item in enumerate(items)
    ]


def one_deep(versions: Sequence[str], chosen: str) -> list[Any]:
    """All versions; the chosen one carries the mark `deep`."""
    return [pytest.param(version, marks=pytest.mark.deep if version == chosen else []) for version in versions]
