"""What a release promises to scripts and programs, in fixtures/promised.json: until the next major version, a test
fails where any of it is gone.

`python -m tests.support.promised` writes what this work tree promises; a release does that (CONTRIBUTING.md).

1. Commands with their options, exit bits, finding codes with their severity, and the names of the Python API.
2. The keys of every document of `--json`, by their path in its schema: type by type, and whether they are always there.

Additions do not count. A text may change, and so may what an option does by default: no comparison tells that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from mqtool import exits
from mqtool.commands import COMMANDS
from recover.findings.model import CODES
from tests.support.command_docs import parameters

PLACE = Path(__file__).resolve().parents[2] / "fixtures" / "promised.json"
SCHEMAS = Path(exits.__file__).with_name("schemas")


def promised() -> dict[str, list[str]]:
    """Return what is promised, by kind, one line a promise."""
    return {
        "command line": sorted(
            line for name in COMMANDS for line in [name, *(f"{name} {option}" for item in parameters(name)
                                                           for option in (*item.opts, *item.secondary_opts))]),
        "exit bits": [f"{row.bit} {row.name}" for row in exits.TABLE],
        "findings": sorted(f"{name} {code.severity}" for name, code in CODES.items()),
        "keys": sorted({line for path in SCHEMAS.glob("*.json") for line in _keys(_read(path.name), path.stem)}),
        "python": sorted(f"{package}.{name}" for package in ("formats", "recover.store", "recover.log")
                         for name in import_module(package).PUBLIC),
    }


def _read(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((SCHEMAS / name).read_text())
    return schema


def _keys(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield a line for each type that a schema allows at a path, and for each key that it always has."""
    if "$ref" in schema:
        yield f"{path} is {schema['$ref']}"
    for one in schema.get("allOf", ()):
        yield from _keys(one, path)
    for one in schema.get("anyOf", ()):
        # not what is required: that may be of one of them only
        yield from (line for line in _keys(one, path) if not line.startswith(f"{path} has "))
    if "type" in schema:
        yield f"{path} {schema['type']}"
    yield from (f"{path} has {name}" for name in schema.get("required", ()))
    for name, one in schema.get("properties", {}).items():
        yield from (f"{path}.{name}", *_keys(one, f"{path}.{name}"))
    for below, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(below), Mapping):
            yield from _keys(schema[below], f"{path}{mark}")


if __name__ == "__main__":
    PLACE.write_text(json.dumps(promised(), indent=0) + "\n")
