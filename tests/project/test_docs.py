"""The documentation is held to the code: pages, options, exit codes, links, commands that are shown."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from fixtures.damage import RECIPES
from mqtool import exits
from mqtool.commands import COMMANDS
from tests.support.command_docs import DOCS, PAGES, block, exit_table, page, parameters, render

ROOT = DOCS.parent
TEXTS = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "fixtures").rglob("*.md")])
EVERYWHERE = {"--help", "--version"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_page_with_its_generated_parts(name: str) -> None:
    text = page(name).read_text()
    assert text.startswith(f"# mqtool {name}\n")
    for what in ("examples", "options", "exit-codes"):
        assert f"<!-- {what} -->" in text, f"docs/commands/{name}.md lacks its {what}"
    assert render(name, text) == text, "stale: python -m tests.support.command_docs"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_on_its_page(name: str) -> None:
    text = page(name).read_text()
    for item in parameters(name):
        for spelling in [*item.opts, *item.secondary_opts]:
            if spelling.startswith("-"):
                assert f"`{spelling}`" in text, spelling


def test_every_page_is_that_of_a_command() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == COMMANDS.keys()


def test_the_index_leads_to_every_page() -> None:
    text = (DOCS / "index.md").read_text()
    for path in DOCS.rglob("*.md"):
        if path.name != "index.md":
            assert f"]({path.relative_to(DOCS).as_posix()})" in text, path.name


def test_the_table_of_exit_codes_is_that_of_the_code() -> None:
    assert exit_table() in (DOCS / "index.md").read_text()
    assert len(exits.TABLE) == 9


def test_a_changed_option_would_be_noticed() -> None:
    name = next(iter(COMMANDS))
    text = page(name).read_text()
    assert render(name, text.replace(block(name, "options"), "gone")) == text


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_between_pages_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", path.read_text()):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert (path.parent / target).exists(), target


def _shown_commands() -> list[tuple[str, str]]:
    found = []
    for path in TEXTS:
        if path.name == "CHANGELOG.md":
            continue
        text = path.read_text()
        fenced = "\n".join(re.findall(r"^```(?:console|sh)\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
        lines = re.findall(r"^(?:\$ )?(mqtool [^\n#]+)", fenced, re.MULTILINE)
        found += [(path.relative_to(ROOT).as_posix(), line.strip())
                  for line in [*lines, *re.findall(r"`(mqtool [^`\n]+)`", text)]]
    return found


@pytest.mark.parametrize(("where", "line"), sorted(set(_shown_commands())))
def test_every_command_line_that_is_shown_exists(where: str, line: str) -> None:
    words = shlex.split(line.split("|")[0].split(">")[0].split("&&")[0].rstrip("\\ "))
    options = {word.split("=")[0] for word in words if word.startswith("--")}
    if len(words) < 2 or words[1].startswith("-"):
        assert options <= EVERYWHERE
        return
    assert words[1] in COMMANDS, f"{where}: {line}"
    known = {name for item in parameters(words[1]) for name in [*item.opts, *item.secondary_opts]}
    assert options <= known | EVERYWHERE, f"{where}: {line}"


def test_the_damage_recipes_that_are_named_exist() -> None:
    for path in TEXTS:
        for name in re.findall(r"python -m fixtures\.damage ([a-z][a-z-]+)", path.read_text()):
            assert name in RECIPES, f"{path.name}: {name}"


def test_contributing_shows_the_floors_of_recover_as_the_import_rule_has_them() -> None:
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [rule["layers"] for rule in rules if rule.get("containers") == ["recover"]]
    floor = {name.strip(): number for number, names in enumerate(layers) for name in names.split("|")}
    text = (ROOT / "CONTRIBUTING.md").read_text()
    lines = text[text.index("\ncluster/ ") + 1 :].partition("\n```")[0].splitlines()
    shown = [name for line in lines for name in line.partition("   ")[0].split() if line]
    assert {name.rstrip("/") for name in shown if name.endswith("/")} == {
        path.parent.name for path in (ROOT / "recover").glob("*/__init__.py")
    }
    numbers = [floor[name.removesuffix("/").removesuffix(".py")] for name in shown]
    assert numbers == sorted(numbers)
