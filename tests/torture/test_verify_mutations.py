"""Trust in the verdict: one damage anywhere in a real store is found, or it is shown why nothing could tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.counts import Count, Note
from tests.torture.mutation import Tally, mutated

STORES = (
    "clean-4.5.1", "clean-expired-4.5.1", "clean-expired-5.5.0", "clean-manyfiles-5.3.3", "clean-multipath-4.9.7",
    "clean-plain-4.9.7", "clean-propcrc-5.3.3", "clean-restarts-4.9.7", "clean-restarts-5.5.0", "clean-v2-5.5.0",
    "killed-5.5.0", "killed-compressed-5.3.3", "killed-expired-4.9.7", "killed-expired-5.3.3", "killed-ext-4.5.1",
    "killed-ext-5.5.0", "killed-lmq-4.9.7", "killed-manyfiles-5.5.0", "killed-multipath-5.3.3", "killed-plain-4.5.1",
    "killed-v2-ipv6-5.3.3",
)
SAMPLE = ("clean-plain-4.9.7", "killed-expired-5.3.3", "killed-ext-5.5.0")
DAMAGES = 1200


def held(name: str, seed: int, tally: Tally, count: Count, note: Note) -> None:
    """Count and print the tally; fail if anything was missed."""
    print(*tally.lines(), sep="\n")
    count("damages found", tally.found.total())
    count("damages harmless or without a witness", tally.harmless.total())
    count("damages missed", len(tally.missed))
    for reason, number in tally.harmless.items():
        count(f"damages harmless or without a witness: {reason}", number)
    count("damages understated", len(tally.understated))
    note(f"seed of damages: {seed}")
    for each in tally.missed:
        note(f"MISSED {name} {seed}: {each}")
    for each in tally.understated:
        note(f"UNDERSTATED {name} {seed}: {each}")
    assert not tally.missed, "\n".join(tally.missed)
    assert not tally.understated, "\n".join(tally.understated)


@pytest.mark.parametrize("name", ["clean-plain-4.9.7", "clean-expired-5.5.0"])
def test_a_single_damage_is_found(name: str, folder: Path, count: Count, note: Note) -> None:
    held(name, 1, mutated(name, folder, 1, 150), count, note)


@pytest.mark.deep
@pytest.mark.parametrize("name", SAMPLE)
def test_each_of_many_damages_is_found(name: str, folder: Path, count: Count, note: Note) -> None:
    held(name, 2, mutated(name, folder, 2, 300), count, note)


@pytest.mark.long
@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.parametrize("name", STORES)
def test_each_damage_anywhere_is_found(name: str, seed: int, folder: Path, count: Count, note: Note) -> None:
    held(name, seed, mutated(name, folder, seed, DAMAGES), count, note)
