"""The page of guarantees against the tests that it names."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guarantees.md"
_NAME = re.compile(r"`(test_\w+)`")
_ROW = re.compile(r"^\| (?!promise|---)(.+) \| (.+) \|$", re.M)


MAKEFILE = (ROOT / "Makefile").read_text()


def _places() -> list[Path]:
    """The files and folders that `make test-torture` names."""
    listed = re.search(r"^TORTURE := (.+?[^\\])$", MAKEFILE, re.M | re.S)
    assert listed
    return [ROOT / name for name in listed[1].replace("\\\n", " ").split()]


def _tests() -> set[str]:
    """The tests in them."""
    places = _places()
    files = [file for place in places for file in ([place] if place.is_file() else sorted(place.glob("test_*.py")))]
    return {name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)}


def test_every_test_that_is_named_exists_and_is_run_by_the_torture_suite() -> None:
    named = set(_NAME.findall(PAGE.read_text()))
    assert len(named) > 40
    assert named <= _tests(), sorted(named - _tests())


def test_all_that_the_targets_of_the_makefile_name_exists() -> None:
    assert len(_places()) > 5
    assert [place for place in _places() if not place.exists()] == []
    named = set(re.findall(r"-m ((?:fixtures|tests|formats|benchmarks)[\w.]*)", MAKEFILE))
    assert len(named) > 5
    assert {name for name in named if importlib.util.find_spec(name) is None} == set()
    folders = set(re.findall(r"(?<= )tests/[\w/]+(?:\.py)?", MAKEFILE))
    assert {name for name in folders if not (ROOT / name).exists()} == set()


def test_every_promise_names_a_test() -> None:
    rows = _ROW.findall(PAGE.read_text())
    assert len(rows) > 20
    for promise, proof in rows:
        assert _NAME.search(proof) or proof == "the same tests", promise
