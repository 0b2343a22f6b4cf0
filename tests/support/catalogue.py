"""`python -m tests.support.catalogue`: brings the catalogues of mqtool/locale up to date with the texts in the code.

1. Collect every text that a person can read: rows of findings, reasons and broker logs, help, exit codes, arguments
   of `_`, `N_` and `Phrase`, and literal titles, columns, labels and reasons of next steps.
2. Merge them into each `.po`: translations stay, texts that are gone go, new ones are listed and stay English.
3. Compile each `.mo`, which the wheel carries.

It does not judge a translation; `tests/project/test_words.py` holds the facts in it to those of the English. Values of
phrases, and refusals of `IN_ENGLISH`, are not seen here.
"""

from __future__ import annotations

import ast
import errno
import importlib
import inspect
import io
import os
import pkgutil
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, get_args

from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

import formats
from formats.basics import Layout
from formats.config.tables import CONFIG_FILES
from formats.record.grammar import RULES
from mqtool import exits, words
from mqtool.commands import COMMANDS, command_of
from recover.broker.log_lines import ROWS
from recover.broker.recovery import Mode
from recover.drill import DRILLS
from recover.export.trace import Stage
from recover.findings import derived_codes, log_codes, store_codes
from recover.findings.code import Remedy
from recover.findings.log_codes import REASONS
from recover.findings.model import CODES
from recover.look.file import KINDS
from recover.look.store import KNOWN_PARTS
from recover.repair.config_repair import Action
from recover.store.config_files import STATE_TEXT
from tests.support.command_docs import parameters

ROOT = Path(words.__file__).parent
RECOVER = ROOT.parent / "recover"
HEADER: dict[str, Any] = {
    "project": "mqtool", "version": "1", "copyright_holder": "mqtool", "msgid_bugs_address": "", "fuzzy": False,
    "header_comment": "# The texts of mqtool. `python -m tests.support.catalogue` brings them up to date.",
    "creation_date": datetime(2026, 1, 1, tzinfo=UTC), "revision_date": datetime(2026, 1, 1, tzinfo=UTC),
    "last_translator": "mqtool",
}
REFUSALS = {"Refusal", "UsageRefusal", "NotAStore", "StaleRefusal", "Interrupted"}
"""Exceptions whose message and remedy are shown."""
IN_ENGLISH = ("recover/cluster", "recover/derived", "recover/reading/facts.py")
"""Where refusals are still put together, in English alone."""
MARKS = {"N_", "Phrase", "Check", "Item", *REFUSALS}
"""What of recover has literal arguments that are shown."""
CALLS = {*MARKS, "_", "table", "Table", "facts", "Step", "dry_run", "progress", "steps", "step_by_step",
         "copy_with_progress"}
"""The same of mqtool."""
CONSTANTS = {"_GROUP_COLUMNS", "_QUEUES", "_INDEX", "_LOG", "_TITLES"}
"""Names of columns that are not written where the table is."""
ERRORS = (errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOENT, errno.EEXIST,
          errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.ELOOP, errno.ENAMETOOLONG, errno.EBUSY, errno.ESTALE,
          errno.EFBIG, errno.EMFILE, errno.ENODEV, errno.ENXIO, errno.ETIMEDOUT)
"""Errors of the system that stores meet: refusals quote their texts."""
Text = tuple[str | None, str]
_LINE = r"mqtool [a-z-]+(?: (?:--[a-z-]+|\{\w+\}))*"
_COMMAND = re.compile(rf"{_LINE}(?:   \(or: {_LINE}\))?")
"""Texts that are nothing but commands."""
_VALUE = re.compile(r"\{\w+\}")


def texts() -> list[Text]:
    """Every text that is looked up in a catalogue with its context, each once, in the order of the code. Nouns after a
    number have a context of their own: in Chinese they come with a measure word."""
    plain = [(None, text) for text in (*_texts(), ", ", ": ") if text.strip() and not _COMMAND.fullmatch(text)
             and not _VALUE.fullmatch(text)]
    return list(dict.fromkeys([*plain, *((words.COUNTED, noun) for noun in _nouns())]))


@cache
def _nouns() -> tuple[str, ...]:
    return tuple(item.value for path in sorted(ROOT.rglob("*.py")) for node in _parsed(path)
                 if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("count", "C_")
                 for item in node.args if isinstance(item, ast.Constant) and item.value and isinstance(item.value, str))


@cache
def _parsed(path: Path) -> tuple[ast.AST, ...]:
    """The calls and assignments of a module."""
    every = ast.walk(ast.parse(path.read_text("utf-8")))
    return tuple(node for node in every if isinstance(node, ast.Assign | ast.Call))


def _texts() -> Iterator[str]:
    for code in CODES.values():
        yield from (code.message, code.one or "", code.none or "", code.remedy)
        yield from (code.meaning, code.cause, code.broker, code.action)
    for reason in REASONS.values():
        yield from (reason.meaning, reason.cause, reason.broker, reason.action)
    yield from (row.meaning for row in ROWS)
    # facts that are texts themselves
    yield from STATE_TEXT.values()
    yield from (*get_args(Action), *get_args(Mode))
    for module in (log_codes, store_codes, derived_codes):
        yield from (text for text in vars(module).values() if isinstance(text, Remedy))
    yield from (file.lost for file in CONFIG_FILES)
    yield from (drill.summary for drill in DRILLS.values())
    yield from get_args(Stage)
    yield from (kind.title for kind in KINDS.values())
    yield from (rule.name for rule in RULES)
    yield from (field.note for layout in _layouts() for field in layout.fields if " " in field.note)
    yield from map(os.strerror, ERRORS)
    yield from (what for what, _ in KNOWN_PARTS.values())
    for row in exits.TABLE:
        yield from (row.name, row.meaning)
    for name, entry in COMMANDS.items():
        command = command_of(entry)
        yield from (entry.help, entry.panel, inspect.cleandoc(command.__doc__ or ""))
        yield from (what for _, what in command.examples)
        for parameter in parameters(name):
            yield from (getattr(parameter, "help", None) or "", getattr(parameter, "rich_help_panel", None) or "")
    for folder, calls, columns in (ROOT, CALLS, CONSTANTS), (RECOVER, MARKS, frozenset[str]()):
        for path in sorted(folder.rglob("*.py")):
            yield from _literals(_parsed(path), calls, columns)


def _layouts() -> Iterator[Layout[Any]]:
    """The layouts of all files, which declare what each field means."""
    for module in pkgutil.walk_packages(formats.__path__, "formats."):
        if not module.name.startswith("formats.native"):
            for value in vars(importlib.import_module(module.name)).values():
                found = value.values() if isinstance(value, dict) else [value]
                yield from (each for each in found if isinstance(each, Layout))


def _literals(nodes: Iterable[ast.AST], calls: Collection[str], columns: Collection[str]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in columns:
            found = [item.value for item in ast.walk(node.value) if isinstance(item, ast.Constant)]
            yield from (name.lstrip(">*").replace("_", " ") for name in found)
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in calls:
            for argument in _either(node.args):
                parts = argument.elts if isinstance(argument, ast.List | ast.Tuple) else [argument]
                for part in parts:
                    inner = part.elts[0] if isinstance(part, ast.Tuple) and part.elts else part
                    if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                        yield inner.value.lstrip(">*")


def put_together() -> list[str]:
    """Where a refusal gets a text that is put together there, and so cannot be looked up."""
    paths = [path for folder in (ROOT, RECOVER) for path in sorted(folder.rglob("*.py"))]
    return [f"{path}:{said.lineno}" for path in paths
            if not str(path.relative_to(ROOT.parent)).startswith(IN_ENGLISH)
            for node in _parsed(path) if isinstance(node, ast.Call) and getattr(node.func, "id", "") in REFUSALS
            for said in _either(node.args) if isinstance(said, ast.JoinedStr | ast.BinOp)]


def _either(arguments: list[ast.expr]) -> Iterator[ast.expr]:
    """The arguments; of a choice both sides."""
    for argument in arguments:
        if isinstance(argument, ast.IfExp):
            yield from _either([argument.body, argument.orelse])
        else:
            yield argument


def catalogue(language: str) -> Catalog:
    path = words.FOLDER / language / "LC_MESSAGES" / f"{words.DOMAIN}.po"
    if not path.exists():
        return Catalog(language, domain=words.DOMAIN, **HEADER)
    with path.open("rb") as stream:
        return read_po(stream, language, words.DOMAIN)


def updated(language: str) -> Catalog:
    """The catalogue with exactly the texts of the code."""
    old, new = catalogue(language), Catalog(language, domain=words.DOMAIN, **HEADER)
    for context, text in texts():
        known = old.get(text, context)
        new.add(text, str(known.string) if known is not None and known.string else "", context=context)
    return new


def compiled(of: Catalog) -> bytes:
    stream = io.BytesIO()
    write_mo(stream, of)
    return stream.getvalue()


def main() -> int:
    missing = 0
    for language in words.LANGUAGES[1:]:
        new = updated(language)
        folder = words.FOLDER / language / "LC_MESSAGES"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{words.DOMAIN}.po").open("wb") as stream:
            write_po(stream, new, width=120, omit_header=False, sort_output=False, no_location=True)
        (folder / f"{words.DOMAIN}.mo").write_bytes(compiled(new))
        left = [item.id for item in new if item.id and not item.string]
        missing += len(left)
        print(f"{language}: {len(new)} texts, {len(left)} without a translation")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
