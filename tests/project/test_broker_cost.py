"""The tables of what a broker's start costs are those of the matrix, and the matrix is one of all stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.lab.table import PAGES, kept, matrix, render
from fixtures.lab.toolchain import RELEASES
from tests.broker.cases import ALL
from tests.scenarios.drill import all_stores


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_those_of_the_matrix(page: Path) -> None:
    text = page.read_text("utf-8")
    assert "<!-- broker-cost:" in text
    assert render(text) == text, "stale: make docs"


def test_every_store_every_version_and_every_recipe_was_started() -> None:
    rows = matrix()
    assert set(rows) == set(all_stores())
    assert {name for damages in rows.values() for name in damages} == set(ALL)
    started = {version for damages in rows.values() for row in damages.values() for version in row["start"]}
    assert started == set(RELEASES)


def test_brokers_deliver_all_that_was_intact_after_every_recover() -> None:
    told = {
        (store, name): kept(row)
        for store, damages in matrix().items() for name, row in damages.items() if "recovered" in row
    }
    assert len(told) > 700
    odd = {case: text for case, text in told.items() if not text.startswith(("all ", "refuses"))}
    assert odd == {}
