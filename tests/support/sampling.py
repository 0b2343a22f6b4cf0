"""Samples of long suites: some cases for every run, more for the deep suite, all others for the long one."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import pytest

_Parameters = type(pytest.param())
with_long = True
"""Whether cases marked `long` are made: for a run that leaves them out, collecting 12,000 of them takes long."""


def sampled(*axes: Iterable[Any], quick: int = 0, one_in: int = 0) -> list[Any]:
    """All combinations as parameters, see `chosen`."""
    return chosen(list(product(*axes)), quick=quick, one_in=one_in)


def chosen(cases: Sequence[tuple[Any, ...]], *, quick: int = 0, one_in: int = 0) -> list[Any]:
    """Cases as parameters: `quick` of them run always, one in `one_in` with the deep suite, all others are `long`.

    Always the same ones, and spread: a value of an axis that no case so far has comes first.
    """
    assert not any(isinstance(value, _Parameters) for case in cases for value in case), "`few` takes what has marks"
    deep = len(cases) // one_in if one_in else 0
    left = list(range(len(cases)))
    random.Random(20).shuffle(left)
    seen: set[tuple[int, str]] = set()
    marks: dict[int, tuple[pytest.MarkDecorator, ...]] = {}
    for count in range(min(quick + deep, len(cases))):
        best = max(left, key=lambda number: len(_values(cases[number]) - seen))
        left.remove(best)
        seen |= _values(cases[best])
        marks[best] = () if count < quick else (pytest.mark.deep,)
    return [
        pytest.param(*case, id="-".join(map(_name, case)), marks=marks.get(number, (pytest.mark.long,)))
        for number, case in enumerate(cases) if with_long or number in marks
    ]


def few(
    names: str | Sequence[str], cases: Iterable[Any], *, quick: int | Iterable[int], ids: Any = None,
) -> Any:
    """`parametrize` by cases that prove one clause: `quick` of them, or those at these places, run always, the rest
    are `long`."""
    one = isinstance(names, str) and "," not in names
    always = set(range(quick) if isinstance(quick, int) else quick)
    made = []
    for number, case in enumerate(cases):
        if number in always or with_long:
            if not isinstance(case, _Parameters):
                case = pytest.param(*((case,) if one else case))
            marks = case.marks if number in always else (*case.marks, pytest.mark.long)
            name = ids(*case.values) if callable(ids) else ids[number] if ids else case.id
            made.append(pytest.param(*case.values, id=name, marks=marks))
    return pytest.mark.parametrize(names, made)


def _values(case: tuple[Any, ...]) -> set[tuple[int, str]]:
    return {(axis, _name(value)) for axis, value in enumerate(case)}


def _name(value: Any) -> str:
    return str(getattr(value, "__name__", value))
