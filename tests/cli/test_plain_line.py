"""A plain line is read here as the CLI library would read it; every other is left to the library."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqtool import exits, grammar
from mqtool.commands import COMMANDS, Entry, command_of
from mqtool.declared import Argument, Parameter
from mqtool.options import Command
from mqtool.output import Printer
from mqtool.plain_line import read

_GOOD = (
    "store", "/data/a store", "5.3.3", "7", "0", "12345", "64K", "commitlog", "config", "auto", "spark", "never",
    "keep", "normal", "visible", "all", "a=b", "Größe", "%RETRY%group", "plan.json",
)
_RARE = (
    "", "-", "--", "-1", "007", "+1", " 7", "1_000", "7.0", "1e3", "٣", "99999999999999999999", "AUTO", "64Q",
    "x\udcff", "--json", "--help", "-h", "--no", "--jso", "--json=1", "--store", "=", "--only=", "--only=index",
    "--threads=0",
)


_made: dict[str, Any] = {}
_load = grammar.load


def _once(name: str, entry: Entry) -> Any:
    """What the library makes of a command, made once: it does not change with the lines."""
    if name not in _made:
        _made[name] = _load(name, entry)
    return _made[name]


def _by_library(monkeypatch: pytest.MonkeyPatch, line: list[str]) -> dict[str, Any] | None:
    """What the library makes of a line, None where it makes no call of it."""
    seen: list[dict[str, Any]] = []

    def take(command: Command, printer: Printer, name: str, values: dict[str, Any]) -> int:
        assert name == line[0]
        seen.append(values)
        return exits.CLEAN

    with monkeypatch.context() as patched:
        patched.setattr(Command, "__call__", take)
        patched.setattr(grammar, "load", _once)
        patched.setattr("sys.stdout", open("/dev/null", "w"))  # noqa: SIM115  # --help is one of the lines
        try:
            grammar.invoke(line, Printer())
        except Exception as error:
            assert exits.failure_of(error).code == exits.USAGE, error
    return seen[0] if seen else None


def _plainly(line: list[str]) -> dict[str, Any] | None:
    return read(line[1:], command_of(COMMANDS[line[0]]).parameters)


def _typed(values: dict[str, Any] | None) -> Any:
    return None if values is None else {name: (type(value), value) for name, value in values.items()}


PLAIN = [
    "verify /data/store", "verify --json /data/store --only index --only=config",
    "verify s --no-progress --color never --nice",
    "verify s --mapped-file-size 64K --rate-limit=200M --threads 2 --memory 1G --engine local",
    "verify s --commitlog a --commitlog b --consumequeue=c --index d --broker 5.3.3 --set a=b --set=c=d",
    "predict s --broker 5.3.3 --set forceVerifyPropCRC=true", "inspect s --offset 12 --limit 0 --hex",
    "inspect Größe --quiet", "query s --topic T --key K --limit 5", "query s --begin 12345", "journal s",
    "recover s --dry-run --policy broker --max-loss all", "truncate s --to 0", "rebuild s --output /tmp/o --yes",
    "rebuild-consumequeue s --topic T --queue 0", "rebuild-index s", "apply plan.json --yes", "resume s",
    "undo s --dry-run", "explain", "explain bad-body-crc", "exit-codes --json",
]


@pytest.mark.parametrize("text", PLAIN)
def test_a_plain_line_needs_no_library_and_means_the_same_to_it(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    line = text.split()
    read_here = _plainly(line)
    assert read_here is not None
    assert _typed(read_here) == _typed(_by_library(monkeypatch, line))


def test_every_option_of_every_command_can_stand_in_a_plain_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in COMMANDS:
        parameters = command_of(COMMANDS[name]).parameters
        needed = [word for item in parameters if item.default is not None for word in _needed(item)]
        for item in parameters:
            if isinstance(item.declared, Argument) or item.declared.name in needed:
                continue
            lines = [[name, *needed, *words] for words in _spellings(item)]
            read_here = [(line, values) for line in lines if (values := _plainly(line)) is not None]
            assert read_here, (name, item.name)
            for line, values in read_here:
                assert _typed(values) == _typed(_by_library(monkeypatch, line)), line


def _needed(item: Parameter) -> list[str]:
    from mqtool.declared import REQUIRED

    if item.default is not REQUIRED:
        return []
    return ["7"] if isinstance(item.declared, Argument) else [item.declared.name, "7"]


def _spellings(item: Parameter) -> list[list[str]]:
    assert not isinstance(item.declared, Argument)
    return [[part] for part in item.declared.name.split("/")] + [[item.declared.name, value] for value in _GOOD]


@pytest.mark.parametrize("text", [
    "verify", "verify --help", "verify s --nonsense", "verify s t", "verify s --jso", "verify s --json=1",
    "verify s --threads", "verify s --threads 0", "verify s --threads 007", "verify s --threads 1_0",
    "verify s --threads x", "verify s --engine SPARK", "verify s --only log", "verify s --memory 64Q",
    "verify s --broker -x", "verify s --broker=", "verify -- s", "verify -", "verify s --json --json",
    "verify s --broker 1 --broker 2", "verify s --progress --no-progress", "truncate s", "exit-codes too many",
    "verify x\udcff",
])
def test_any_other_line_is_left_to_the_library(text: str) -> None:
    assert _plainly(text.split(" ")) is None


@settings(max_examples=300, deadline=None)
@given(st.integers(min_value=0, max_value=2**32))
def test_lines_at_random_are_read_as_the_library_reads_them(seed: int) -> None:
    line = _random_line(random.Random(seed))
    read_here = _plainly(line)
    if read_here is not None:
        with pytest.MonkeyPatch.context() as patched:
            assert _typed(read_here) == _typed(_by_library(patched, line)), line


def _random_line(dice: random.Random) -> list[str]:
    name = dice.choice(list(COMMANDS))
    words: list[str] = []
    for item in dice.sample(command_of(COMMANDS[name]).parameters, k=dice.randrange(5)):
        value = dice.choice(_GOOD if dice.random() < 0.8 else _RARE)
        if isinstance(item.declared, Argument):
            words.append(value)
        else:
            option = dice.choice(item.declared.name.split("/"))
            words += dice.choice([[option], [option, value], [f"{option}={value}"]])
    return [name, *words, *(["store"] if dice.random() < 0.7 else [])]


def test_completion_is_left_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    from mqtool import cli

    monkeypatch.setenv("_MQTOOL_COMPLETE", "complete_bash")
    asked: list[bool] = []
    monkeypatch.setattr(grammar, "invoke", lambda arguments, printer, completing: asked.append(completing) or 0)
    assert cli.main(["exit-codes"]) == 0
    assert asked == [True]
