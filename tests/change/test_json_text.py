"""Documents laid out by compiled code: character for character what the standard library makes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recover.store.reading import laid_out

_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8)
_VALUES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(_VALUES, st.sampled_from([1, 2]), st.booleans())
def test_it_is_what_the_standard_library_makes(value: Any, indent: int, sort_keys: bool) -> None:
    assert laid_out(value, indent, sort_keys=sort_keys) == json.dumps(value, indent=indent, sort_keys=sort_keys)


@pytest.mark.parametrize("value", [
    pytest.param({"file": "consumequeue/\udc80/0", "n": 1}, id="a-name-that-is-no-text"),
    pytest.param([math.nan, math.inf, -0.0, 1e300, 2**70], id="numbers-that-are-no-json"),
    pytest.param([[], {}, [{}], {"a": []}], id="nothing-in-it"),
])
def test_what_the_compiled_layout_does_not_take_is_laid_out_all_the_same(value: Any) -> None:
    assert laid_out(value, 1) == json.dumps(value, indent=1)


def test_what_is_no_json_is_refused_or_made_into_it() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        laid_out([math.nan], 1, allow_nan=False)
    with pytest.raises(TypeError):
        laid_out([Path("x")], 1)
    assert laid_out([Path("x")], 1, default=str) == '[\n "x"\n]'
