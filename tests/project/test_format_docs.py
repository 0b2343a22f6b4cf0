"""The format reference says what the code says."""

from __future__ import annotations

import re

import pytest

from formats.registry import FORMATS, Format
from tests.support.format_docs import REFERENCE, layout_blocks, render

TEXT = REFERENCE.read_text()


def test_the_generated_tables_are_those_of_the_code() -> None:
    assert render(TEXT) == TEXT, "stale: python -m tests.support.format_docs"


def test_a_changed_figure_in_a_table_would_be_noticed() -> None:
    changed = TEXT.replace("| 12 | i64 | `tags_code`", "| 13 | i64 | `tags_code`")
    assert changed != TEXT
    assert render(changed) == TEXT


@pytest.mark.parametrize("entry", FORMATS, ids=lambda entry: entry.name)
def test_every_format_has_its_layouts_in_the_reference(entry: Format) -> None:
    shown = {entry.layout(layout).record for name, layout in layout_blocks(TEXT) if name == entry.name}
    # the variants of a layout (IPv6 hosts) share a table with it
    assert {entry.layout(name).record for name in entry.layouts} <= shown


def test_every_marker_is_closed_and_known() -> None:
    assert TEXT.count("<!-- end -->") == len(re.findall(r"<!-- (?:layout|config-files|format-list|record-rules)", TEXT))


def test_links_within_the_reference_lead_somewhere() -> None:
    headings = {re.sub(r"[^a-z0-9_ -]", "", line.lstrip("# ").lower()).replace(" ", "-")
                for line in TEXT.splitlines() if line.startswith("#")}
    assert {target for target in re.findall(r"\]\(#([^)]+)\)", TEXT)} <= headings
