"""May it start? Whatever ends in "start the broker" asks what predict asks, and names no start where that says no."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.damage import damage
from mqtool import exits
from mqtool.next_steps import START_BROKER
from tests.cli.runner import Result, mqtool
from tests.support.stores import real_store

_OWNER = 12345
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root gives files away")


def _closed_log_file(root: Path) -> tuple[str, ...]:
    """All files are of one user but one of the log, which root owns and nobody else may read."""
    for path in (root, *root.rglob("*")):
        os.chown(path, _OWNER, _OWNER)
    last = max((root / "commitlog").iterdir())
    os.chown(last, 0, 0)
    last.chmod(0o600)
    return ()


def _short_retention(root: Path) -> tuple[str, ...]:
    """The broker is to keep log files for one hour, and all but the last are older."""
    return ("--set", "fileReservedTime=1")


def _other_offsets(root: Path) -> tuple[str, ...]:
    """The settings select the file of consumer offsets that has none."""
    return ("--set", "enableLmq=false")


AROUND = [pytest.param(_closed_log_file, marks=AS_ROOT), _short_retention, _other_offsets]


def _named(result: Result) -> list[str]:
    return [step["command"] for step in result.document["next"]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A sound store with several log files."""
    return real_store("clean-5.3.3", tmp_path)


@pytest.mark.parametrize("surround", AROUND)
@pytest.mark.parametrize("recipe", ["", "bit-in-body"])
def test_no_command_names_a_start_that_predict_advises_against(
    surround: Callable[[Path], tuple[str, ...]], recipe: str, root: Path, tmp_path: Path
) -> None:
    if recipe:
        damage(recipe, root, 3)
    given = surround(root)
    plan = tmp_path / "plan.json"
    commands: list[tuple[object, ...]] = [
        ("inspect", root, *given), ("verify", root, *given), ("groups", root, *given),
        ("recover", root, *given, "--dry-run", "--plan-out", plan), ("rebuild", root, *given, "--yes"),
        ("recover", root, *given, "--yes"), ("recover", root, *given, "--yes"), ("undo", root, "--yes"),
        ("apply", plan, "--yes"), ("report", root, *given),
    ]
    for words in commands:
        said = mqtool(*words, "--json")
        assert START_BROKER not in _named(said), words
    assert mqtool("predict", root, *given).code & exits.MESSAGES


@pytest.mark.parametrize("surround", AROUND)
def test_a_repair_says_first_what_keeps_the_broker_from_starting(
    surround: Callable[[Path], tuple[str, ...]], root: Path
) -> None:
    damage("bit-in-body", root, 3)
    given = surround(root)
    done = mqtool("recover", root, *given, "--yes", "--json")
    if surround is _closed_log_file and done.code & exits.OPERATIONAL:
        pytest.skip("NOT RUN: recover acts as the store's user, who may not read the file")
    assert done.code & exits.CORRECTED
    expected = {_closed_log_file: "chown", _short_retention: "fileReservedTime=", _other_offsets: "enableLmq=true"}
    assert expected[surround] in _named(done)[0], _named(done)


def test_a_repair_ends_with_the_start_where_it_costs_nothing(root: Path) -> None:
    damage("bit-in-body", root, 3)
    done = mqtool("recover", root, "--yes", "--json")
    assert _named(done)[0] == START_BROKER
