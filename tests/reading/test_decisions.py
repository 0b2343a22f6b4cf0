"""What a reading believes, and that a log once read stays as it was read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from formats.record.rows import BIT_SUPERSEDED
from recover.check.log import check_commitlog
from recover.log.judge import Claim
from recover.log.scan import LogView
from recover.reading.accepting import OldEnd, Relabel
from recover.reading.doubts import DOUBTS, resolved
from recover.reading.facts import Facts
from recover.reading.policy import POLICIES, SOURCES, Explanation, decide
from recover.reading.reading import Reading
from tests.support.analysed import opened
from tests.support.stores import real_store, strike

OWN = Claim("record", False)


def explained(*claims: Claim[bool], start: int = 0, among: int = 0) -> Explanation:
    """An explanation of the hundred bytes from `start` on."""
    return Explanation("other-log", OldEnd(start), claims, where=(start, start + 100), among=among)


@pytest.mark.parametrize(("claims", "holds"), [
    ((OWN, Claim("unit", True)), False),
    ((OWN, Claim("unit", True), Claim("checkpoint", True)), True),
    ((OWN, Claim("unit", True), Claim("checkpoint", True, 0)), False),
    ((OWN, Claim("unit", False, 2), Claim("adjoining units", True, 2)), False),
    ((OWN, Claim("unit", False, 2), Claim("adjoining units", True, 3)), True),
    ((), True),
])
def test_what_is_stored_falls_to_two_witnesses_and_no_fewer_than_its_own(
    claims: tuple[Claim[bool], ...], holds: bool
) -> None:
    assert bool(decide([explained(*claims)])) == holds


def test_a_range_has_one_explanation_in_a_round_the_first_that_holds() -> None:
    weak, first, second = (explained(Claim("unit", True, weight)) for weight in (1, 2, 3))
    assert decide([weak, first, second]) == (first,)


def test_witnesses_that_deny_every_range_are_wrong_themselves() -> None:
    both = [explained(Claim("unit", True, 2), start=start, among=2) for start in (0, 100)]
    assert decide(both) == ()
    assert decide(both[:1]) == (both[0],)


def test_a_source_that_the_table_does_not_know_is_a_bug() -> None:
    with pytest.raises(KeyError, match="hearsay"):
        decide([explained(Claim("hearsay", True, 2))])


def content(log: LogView) -> tuple[object, ...]:
    """All that a log says, copied."""
    rows = np.concatenate([split.records.copy() for split in log.splits()])
    counts = [log.stale, log.superseded, log.tally.messages, log.log_end, log.valid_to]
    return rows.tobytes(), counts, [damage.json() for damage in log.damaged], log.tail, log.tally.queues.tobytes()


@pytest.mark.parametrize("recipe", [
    "record-older-whole", "bit-in-queue-offset", "torn-tail", "bit-in-topic-legal", "log-file-of-another-store",
    "record-older-whole-at-end",
])
def test_no_doubt_changes_the_log_that_it_looks_at(recipe: str, tmp_path: Path) -> None:
    root = real_store("clean-5.3.3", tmp_path)
    strike(recipe, root, 3)
    first = Reading.first(Facts.of(opened(root)))
    before = content(first.log)
    last = resolved(first)
    assert content(first.log) == before
    assert last.settled
    assert not any(decide(doubt(last)) for doubt in DOUBTS)


def test_a_store_whose_parts_contradict_one_another_without_end_is_no_clean_one(tmp_path: Path) -> None:
    first = Reading.first(Facts.of(opened(real_store("clean-5.3.3", tmp_path))))

    def never_content(reading: Reading) -> Iterator[Explanation]:
        superseded = np.array([first.log.min_offset], dtype=np.int64)
        yield Explanation("never-content", Relabel(superseded, gains=BIT_SUPERSEDED))

    last = resolved(first, (never_content,))
    assert not last.settled
    codes = [item.code for item in check_commitlog(last.store, last)]
    assert "commitlog-unsettled" in codes
    assert not any(item.code == "commitlog-unsettled" for item in check_commitlog(first.store, resolved(first)))


def test_the_page_of_evidence_lists_all_sources_doubts_and_edits() -> None:
    page = (Path(__file__).parents[2] / "docs" / "evidence.md").read_text()
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")]
    told = {row[0]: row[1:] for row in rows}
    for source in SOURCES.values():
        assert told[source.name] == [source.what, str(source.weight), source.each]
    for policy in POLICIES.values():
        assert told[policy.kind][:3] == [policy.witness, policy.finding, policy.done]
    assert re.findall(r"^\d+\. `(\w+)` \(`", page, re.MULTILINE) == [doubt.__name__ for doubt in DOUBTS]
