"""The pages: links, tables, promises with their tests, runbooks that do what they say, and the benchmark."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fixtures.damage import RECIPES
from fixtures.lab.table import PAGES as COST_PAGES, kept, matrix, render as render_costs
from fixtures.lab.toolchain import RELEASES
from mqtool import exits
from mqtool.commands import COMMANDS
from tests.broker.cases import ALL
from tests.scenarios.drill import all_stores
from tests.support.command_docs import DOCS, PAGES, exit_table, page, parameters, render
from tests.support.format_docs import REFERENCE, layout_blocks, render as render_formats
from tests.support.formats import FORMATS, Format

# --- The documentation is held to the code: pages, options, exit codes, links, commands that are shown.


ROOT = Path(__file__).parents[2]
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


NAMED = re.compile(r"`((?:formats|recover|mqtool|tests|fixtures|benchmarks)[./][\w./]+|\w+\.(?:py|c|h))[`:(]")
FOLDERS = ("formats", "recover", "mqtool", "tests", "fixtures", "benchmarks")


def _is_there(name: str, files: set[str]) -> bool:
    """Whether a path, a file by its base name, or a dotted module with a name that it defines is in the tree."""
    path = "/" in name or name.endswith((".py", ".c", ".h"))
    if path:
        return (ROOT / name).exists() or ("/" not in name and name in files)
    module, rest = ROOT, name.split(".")
    while rest and (module / rest[0]).is_dir():
        module, rest = module / rest[0], rest[1:]
    if rest and (module / f"{rest[0]}.py").is_file():
        module, rest = module / f"{rest[0]}.py", rest[1:]
    if not rest:
        return True
    text = (module / "__init__.py" if module.is_dir() else module).read_text()
    return re.search(rf"^(?:(?:def|class) )?{rest[0]}\b", text, re.M) is not None


def test_every_module_that_docs_and_docstrings_name_exists() -> None:
    sources = [path for folder in FOLDERS for kind in ("py", "c", "h") for path in (ROOT / folder).rglob(f"*.{kind}")]
    files = {path.name for path in [*sources, *ROOT.glob("*.py")]}
    named = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in [*(text for text in TEXTS if text.name != "CHANGELOG.md"), *sources]
        for name in NAMED.findall(path.read_text())
        if not re.search(r"/(?:\d|[A-Z]+\.)", name)  # the schema of a document; a word that stands for any name
    }
    assert len(named) > 100
    assert sorted(item for item in named if not _is_there(item[1], files)) == []


def test_the_table_of_rooms_has_the_floors_of_recover_as_the_import_rule_has_them() -> None:
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [rule["layers"] for rule in rules if rule.get("containers") == ["recover"]]
    floor = {name.strip(): number for number, names in enumerate(layers) for name in names.split("|")}
    shown = re.findall(r"^\| `recover/(\w+(?:/|\.py))` \|", (DOCS / "architecture.md").read_text(), re.M)
    assert {name.rstrip("/") for name in shown if name.endswith("/")} == {
        path.parent.name for path in (ROOT / "recover").glob("*/__init__.py")
    }
    numbers = [floor[name.removesuffix("/").removesuffix(".py")] for name in shown]
    assert numbers == sorted(numbers)


# --- The format reference says what the code says.


TEXT = REFERENCE.read_text()


def test_the_generated_tables_are_those_of_the_code() -> None:
    assert render_formats(TEXT) == TEXT, "stale: python -m tests.support.format_docs"


@pytest.mark.parametrize("entry", FORMATS, ids=lambda entry: entry.name)
def test_every_format_has_its_layouts_in_the_reference(entry: Format) -> None:
    shown = {entry.layout(layout).record for name, layout in layout_blocks(TEXT) if name == entry.name}
    # the variants of a layout (IPv6 hosts) share a table with it
    assert {entry.layout(name).record for name in entry.layouts} <= shown


def test_links_within_the_reference_lead_somewhere() -> None:
    headings = {re.sub(r"[^a-z0-9_ -]", "", line.lstrip("# ").lower()).replace(" ", "-")
                for line in TEXT.splitlines() if line.startswith("#")}
    assert {target for target in re.findall(r"\]\(#([^)]+)\)", TEXT)} <= headings


# --- The page of guarantees against the tests that it names.


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


# --- The tables of what a broker's start costs are those of the matrix, and the matrix is one of all stores.


@pytest.mark.parametrize("page", COST_PAGES, ids=lambda page: page.name)
def test_tables_are_those_of_the_matrix(page: Path) -> None:
    text = page.read_text("utf-8")
    assert "<!-- broker-cost:" in text
    assert render_costs(text) == text, "stale: make docs"


def test_every_store_every_version_and_every_recipe_was_started() -> None:
    rows = matrix()
    assert set(rows) == set(all_stores())
    assert {name for damages in rows.values() for name in damages} == set(ALL)
    started = {version for damages in rows.values() for row in damages.values() for version in row["start"]}
    assert started == set(RELEASES)


def test_brokers_deliver_all_that_was_intact_after_every_recover() -> None:
    told = {
        (store, name): kept(row)
        for store, damages in matrix().items() for name, row in damages.items() if "recovered" in row
    }
    assert len(told) > 700
    odd = {case: text for case, text in told.items() if not text.startswith(("all ", "refused"))}
    assert odd == {}


# --- `python -m benchmarks` runs, and ends with a row for each goal of the parts that it measured.


def test_the_parts_that_need_no_broker_are_measured_and_held_to_their_goals() -> None:
    line = [sys.executable, "-m", "benchmarks", "--parts", "start", "--runs", "1"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    _, goals = done.stdout.split("### Goals")
    rows = re.findall(r"^\| (\S+) +\| +(\S.*?) \| +(\S.*?) \| +(?:yes|no) \|$", goals, re.M)
    assert [(name, goal) for name, goal, _ in rows] == [("start-up", "<= 0.45 s"), ("--help", "<= 0.4 s")]
    assert all(float(measured.split()[0]) > 0 for _, _, measured in rows)
