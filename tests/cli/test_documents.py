"""Every document of `--json` is held to the JSON Schema that the wheel carries."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

import mqtool as package
from fixtures.damage import damage
from mqtool.commands import COMMANDS
from tests.cli.runner import mqtool
from tests.support.stores import unpacked

SCHEMAS = Path(package.__file__).parent / "schemas"


@cache
def validator(name: str) -> Draft202012Validator:
    loaded = {path.name: json.loads(path.read_text()) for path in SCHEMAS.glob("*.json")}
    registry = Registry().with_resources((key, Resource.from_contents(value)) for key, value in loaded.items())
    return Draft202012Validator(loaded[f"{name}.json"], registry=registry)


def held(document: dict[str, Any], name: str) -> None:
    problems = [f"{error.json_path}: {error.message[:200]}" for error in validator(name).iter_errors(document)]
    assert not problems, problems


@pytest.mark.parametrize("name", [*COMMANDS, "envelope", "message"])
def test_each_command_has_a_schema(name: str) -> None:
    Draft202012Validator.check_schema(json.loads((SCHEMAS / f"{name}.json").read_text()))


LINES = {
    "inspect": ("STORE",), "verify": ("STORE",), "predict": ("STORE", "--broker", "5.3.3"),
    "query": ("STORE", "--phy-offset", "0"), "journal": ("STORE",), "recover": ("STORE", "--dry-run"),
    "rebuild": ("STORE", "--dry-run"), "rebuild-index": ("STORE", "--dry-run"),
    "rebuild-consumequeue": ("STORE", "--dry-run"),
    "truncate": ("STORE", "--to", "0", "--max-loss", "all", "--dry-run"),
    "undo": ("STORE",), "resume": ("STORE",), "apply": ("no-such-plan.json",), "explain": ("bad-body-crc",),
    "exit-codes": (),
}


@pytest.mark.parametrize("recipe", ["", "bit-in-body", "log-middle-missing", "crash-everything-derived"])
@pytest.mark.parametrize("name", LINES)
def test_a_document_is_as_its_schema_says(name: str, recipe: str, store: Callable[[str], Path]) -> None:
    if recipe and "STORE" not in LINES[name]:
        pytest.skip("says nothing of a store")
    root = store("clean-manyfiles-5.3.3") if recipe else unpacked("clean-5.3.3")
    if recipe:
        damage(recipe, root, 1)
    words = [root if word == "STORE" else word for word in LINES[name]]
    result = mqtool(name, *words, "--json")
    held(result.document, name)
    assert result.document["exit_code"] == result.code
    if "STORE" in LINES[name]:
        assert Path(result.document["store"]).is_absolute()


def test_what_is_carried_out_and_taken_back_is_as_its_schema_says(store: Callable[[str], Path]) -> None:
    root = store("clean-manyfiles-5.3.3")
    damage("bit-in-body", root, 1)
    for name, words in (("recover", ("--yes",)), ("journal", ()), ("undo", ("--yes",)), ("journal", ())):
        held(mqtool(name, root, *words, "--json").document, name)


def test_a_refusal_and_a_wrong_line_are_documents_too(tmp_path: Path) -> None:
    held(mqtool("verify", tmp_path / "nowhere", "--json").document, "verify")
    held(mqtool("query", unpacked("clean-5.3.3"), "--json").document, "query")


def test_a_line_of_an_export_is_as_its_schema_says(store: Callable[[str], Path], tmp_path: Path) -> None:
    root = store("clean-5.3.3")
    damage("page-random", root, 1)
    for more in ("--damaged",), ("--include", "system,stale,superseded"):
        out = tmp_path / f"{more[0]}.ndjson"
        held(mqtool("export", root, "-o", out, *more, "--json").document, "export")
        for line in out.read_bytes().splitlines()[::7]:
            held(json.loads(line), "message")
