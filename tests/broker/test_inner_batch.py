"""A record that says it has a batch inside, without a number: where a log of 5.x ends, before recover and after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.synth import StoreWriter
from tests.broker.cases import marked
from tests.broker.judge import mqtool
from tests.support.brokers import VERSIONS, oracle

pytestmark = pytest.mark.broker

SIZES = {"mappedFileSizeCommitLog": 65536, "mappedFileSizeConsumeQueue": 2000}  # those of the writer
MESSAGES, WRONG = 20, 7
CASES = [(version, name) for version in VERSIONS for name in ("INNER_BASE", "INNER_NUM")]


@pytest.mark.parametrize(("version", "name"), marked(CASES, 1))
def test_what_stands_behind_it_is_cut_by_5_x_unless_recovered(version: str, name: str, tmp_path: Path) -> None:
    for is_recovered in (False, True):
        root = tmp_path / str(is_recovered)
        writer = StoreWriter(root)
        ends = [0]
        for number in range(MESSAGES):
            values = {"INNER_BASE": str(number), "INNER_NUM": "1"}
            writer.put("T", b"body", {**values, **({name: "q"} if number == WRONG else {})})
            ends.append(writer.position)
        writer.close()
        if is_recovered:
            assert mqtool("recover", root, "--yes").document["bridged"]
        seen = oracle(version).start(root, SIZES)
        assert seen.after_start is not None
        cut = version.startswith("5.") and not is_recovered
        assert seen.after_start.max_phy == ends[WRONG if cut else MESSAGES]
