"""Positions grouped by queue: the same rows however many queues are taken at once, and those of the reference."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from formats.record.rows import BIT_MISNUMBERED
from recover.check.survey import ScanOptions, survey
from recover.derived import expected
from recover.derived.expected import Expectation, QueueKey
from recover.log.generations import numbered
from recover.store.columns import Rows
from tests.support.looks import opened
from tests.support.stores import STORES, unpacked


def expectation(name: str) -> Expectation:
    return survey(opened(unpacked(name)), ScanOptions(include_deleted=True), with_queues=False).expectation


def plain(groups: Iterable[tuple[QueueKey, Rows]]) -> list[tuple[QueueKey, bytes]]:
    return [(key, rows.tobytes()) for key, rows in groups]


@pytest.mark.parametrize("at_once", [1, 40, 1000])
@pytest.mark.parametrize("name", STORES)
def test_it_does_not_matter_how_many_rows_are_taken_at_once(
    name: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = expectation(name)
    whole = plain(seen.grouped())
    monkeypatch.setattr(expected, "_AT_ONCE", at_once)
    assert plain(seen.grouped()) == whole
    # two that are gone through at once do not share their room
    pairs = zip(seen.grouped(), seen.grouped(), strict=True)
    assert all(key == other and rows.tobytes() == others.tobytes() for (key, rows), (other, others) in pairs)


@pytest.mark.parametrize("name", STORES)
def test_the_rows_are_those_that_a_look_at_every_record_finds(name: str) -> None:
    seen = expectation(name)
    found: dict[int, list[tuple[int, ...]]] = {}
    columns = ("queue_offset", "phy_offset", "tags_code", "store_timestamp", "size", "queue", "bits")
    for split in seen.log.live():
        rows = split.records[numbered(split.records)]
        for row in rows[(rows["bits"] & BIT_MISNUMBERED) == 0]:
            if not seen.skipped[row["queue"]]:
                found.setdefault(int(row["queue"]), []).append(tuple(int(row[column]) for column in columns))
    for row in seen.lmq_rows:
        found.setdefault(int(row["queue"]), []).append(tuple(int(row[column]) for column in columns))
    assert {key: [tuple(map(int, row)) for row in rows.tolist()] for key, rows in seen.grouped()} == {
        seen.keys[number]: sorted(rows) for number, rows in found.items()
    }


def test_only_what_is_wanted_is_grouped() -> None:
    seen = expectation(STORES[0])
    wanted = {key for number, key in enumerate(seen.queues()) if number % 2}
    chosen = plain(seen.grouped(wanted))
    assert chosen == [(key, rows) for key, rows in plain(seen.grouped()) if key in wanted]
    assert len(chosen) == len(wanted) > 1
