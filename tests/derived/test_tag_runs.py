"""Runs of records with and without a unit for their tags, out of what a pass over an index file learnt of each."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from formats.native.index import TAG_ABSENT, TAG_PRESENT, TAG_UNKNOWN
from formats.record.rows import RECORD
from recover.derived.index_keys import TagRun, tag_runs


@given(st.lists(st.sampled_from([TAG_UNKNOWN, TAG_ABSENT, TAG_PRESENT]), max_size=12))
def test_runs_of_tags_are_those_of_one_record_after_the_other(states: list[int]) -> None:
    records = np.zeros(len(states), dtype=RECORD)
    records["phy_offset"] = np.arange(len(states)) * 100
    known = [(100 * place, state == TAG_PRESENT) for place, state in enumerate(states) if state != TAG_UNKNOWN]
    wanted: list[TagRun] = []
    for first, present in known:
        if wanted and wanted[-1].present == present:
            wanted[-1] = TagRun(wanted[-1].first, wanted[-1].count + 1, present)
        else:
            wanted.append(TagRun(first, 1, present))
    assert tag_runs(records, np.array(states, dtype=np.uint8)) == wanted
