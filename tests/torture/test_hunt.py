"""The random hunt: whatever happens to a store, nothing intact is lost or changed without a refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.counts import Count, Note
from tests.torture.hunt import STORES, Tally, hunt

CASES_A_STORE = 320
BLOCK = 20
SAMPLE = range(CASES_A_STORE, CASES_A_STORE + 5)


def held(
    seeds: range, folder: Path, count: Count, note: Note, stores: tuple[str, ...] = STORES, brokers: int = 0,
) -> None:
    tally = Tally()
    for outcome in hunt(stores, seeds, folder, brokers):
        tally.add(outcome)
    for end, number in tally.ends.items():
        count(f"hunt: {end}", number)
    count("hunt: starts of real brokers", tally.asked)
    count("hunt: ended badly", len(tally.bad))
    for each in (*tally.refused, *tally.bad):
        note(each)
    assert not tally.bad, "\n".join(tally.bad)


@pytest.mark.deep
@pytest.mark.parametrize("name", STORES[:5])
def test_some_random_damages_cost_no_intact_message(name: str, tmp_path: Path, count: Count, note: Note) -> None:
    held(SAMPLE, tmp_path, count, note, (name,))


@pytest.mark.long
@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("first", range(0, CASES_A_STORE, BLOCK))
def test_random_damages_cost_no_intact_message(
    name: str, first: int, tmp_path: Path, count: Count, note: Note,
) -> None:
    held(range(first, first + BLOCK), tmp_path, count, note, (name,))


@pytest.mark.broker
@pytest.mark.deep
@pytest.mark.parametrize("name", STORES)
def test_real_brokers_deliver_what_random_damages_left(name: str, tmp_path: Path, count: Count, note: Note) -> None:
    held(range(SAMPLE.stop, SAMPLE.stop + 2), tmp_path, count, note, (name,), brokers=1)
