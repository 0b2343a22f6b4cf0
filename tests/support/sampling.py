"""Samples of long suites: a part of the cases for every run of the deep suite, the rest for the long one."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def sampled(*axes: Iterable[str], one_in: int) -> list[Any]:
    """All combinations as parameters; one in `one_in`, always the same, is marked `deep`, the others `long`."""
    cases = list(product(*axes))
    chosen = set(random.Random(20).sample(range(len(cases)), len(cases) // one_in))
    return [
        pytest.param(*case, id="-".join(case), marks=[pytest.mark.deep if number in chosen else pytest.mark.long])
        for number, case in enumerate(cases)
    ]
