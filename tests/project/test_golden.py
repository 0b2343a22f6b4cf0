"""The golden run itself: a sample of its cases holds; it notices a changed document, a changed tree and a lost case."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fixtures.damage import RECIPES
from tests import golden
from tests.cli.runner import Result, mqtool
from tests.golden import COMMANDS, STORES, Case
from tests.support.stores import write_at

KNOWN = golden.kept()
QUICK = golden.quick(KNOWN)
SAMPLE = sorted(QUICK, key=lambda case: case.rank)[:6]
ONE = Case("clean-plain-4.9.7", "queue-behind")


@pytest.fixture
def folder() -> Iterator[Path]:
    with golden.surroundings() as path:
        yield path / "case"


def differences(case: Case, folder: Path) -> list[str]:
    return golden.differences(golden.outcome(case, folder, COMMANDS), KNOWN[case])


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_store_and_damage_give_what_the_golden_run_has_kept(case: Case, folder: Path) -> None:
    assert differences(case, folder) == []


def test_quick_sample_covers_every_recipe_and_every_store() -> None:
    assert {case.recipe for case in QUICK} == set(RECIPES)
    assert {case.store for case in QUICK} == set(STORES)
    for command in COMMANDS:
        assert any(command in commands for commands in QUICK.values())


def changing(monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[Path, dict], None]) -> None:
    """Let every run of one command change its document, or the store, by `change(root, document)`."""
    def changed(*arguments: object) -> Result:
        result = mqtool(*arguments)
        if arguments[0] != name or "--dry-run" in arguments:
            return result
        document = result.document
        change(Path(str(arguments[1])), document)
        return Result(result.code, json.dumps(document), result.stderr)

    monkeypatch.setattr(golden, "mqtool", changed)


def test_changed_fact_of_a_finding_is_a_difference(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def change(root: Path, document: dict) -> None:
        document["findings"][0]["facts"]["first"] += 1

    changing(monkeypatch, "verify", change)
    told = differences(ONE, folder)
    assert told[0] == f"{ONE}: verify"
    assert len(told) == 2


def test_changed_byte_of_a_recovered_store_is_a_difference(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def change(root: Path, document: dict) -> None:
        write_at(root / "checkpoint", 4000, b"x")

    changing(monkeypatch, "recover", change)
    told = differences(ONE, folder)
    assert told[0].startswith(f"{ONE}: ")
    assert "tree" in told[0]
