"""The catalogues: every text has its translation, none is stale, facts and commands are the same in each language."""

from __future__ import annotations

import gettext
import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.damage import damage
from fixtures.lab.logs import LOGS
from mqtool import words
from mqtool.commands import COMMANDS
from recover.findings.model import CODES, Phrase, finding, listing
from tests.cli.runner import mqtool
from tests.support.catalogue import catalogue, put_together, texts
from tests.support.sampling import few
from tests.support.stores import real_store

ROOT = Path(__file__).parents[2]
OTHERS = words.LANGUAGES[1:]
CHINESE = re.compile(r"[\u4e00-\u9fff]")


def names(text: str) -> set[str]:
    return set(re.findall(r"\{(\w*)", text))


def commands(text: str) -> list[tuple[str, str]]:
    return sorted(word for word in re.findall(r"mqtool ([a-z-]+)|(--[a-z-]+)", text)
                  if word[1] or word[0] in COMMANDS)


@pytest.mark.parametrize("language", OTHERS)
def test_every_text_has_a_translation_and_no_translation_is_stale(language: str) -> None:
    known = {(item.context, item.id): item.string for item in catalogue(language) if item.id}
    every = texts()
    assert [text for text in every if not known.get(text)] == [], "python -m tests.support.catalogue lists them"
    assert sorted(map(str, known.keys() - set(every))) == []
    assert put_together() == [], "a refusal takes a text of the catalogue or a phrase"


@pytest.mark.parametrize("language", OTHERS)
def test_a_translation_has_the_facts_and_the_commands_of_its_text(language: str) -> None:
    for item in catalogue(language):
        # a text without a translation stays English
        if item.id and item.string and isinstance(item.id, str) and isinstance(item.string, str):
            assert names(item.id) == names(item.string), item.id
            assert commands(item.id) == commands(item.string), item.id


@pytest.mark.parametrize("language", OTHERS)
def test_the_catalogue_that_is_read_is_the_one_that_is_written(language: str) -> None:
    read = gettext.translation(words.DOMAIN, words.FOLDER, [language])
    for item in catalogue(language):
        if item.id and item.string and isinstance(item.id, str):
            found = read.pgettext(item.context, item.id) if item.context else read.gettext(item.id)
            assert found == item.string


@pytest.mark.parametrize("said", [
    Phrase("lost: {lost}", lost=Phrase("{n:file}", n=2)),
    Phrase("{names} and {n} more", names=listing(["A", Phrase("{n:file}", n=2)]), n=7),
])
def test_a_phrase_is_told_in_each_language_with_the_phrases_in_it(said: Phrase) -> None:
    kept = pickle.loads(pickle.dumps(said))
    assert words.retold(kept) == kept == said and "2 files" in said
    with words.speaking("zh_CN"):
        assert "2 个文件" in words.retold(kept) and "file" not in words.retold(kept)
        # a plan or a journal holds the text alone
        assert words.retold(json.loads(json.dumps(said))) == said


def sentence(text: str) -> str:
    """The letters of a message without its facts and paths."""
    return re.sub(r"\{[^}]*\}|\S*/\S*|\W", "", text)


@pytest.fixture
def chinese() -> Iterator[None]:
    with words.speaking("zh_CN"):
        yield


@pytest.mark.usefixtures("chinese")
@pytest.mark.parametrize("code", [name for name, code in CODES.items() if sentence(code.message)])
def test_a_finding_is_told_in_chinese_from_its_facts(code: str) -> None:
    facts = {name: 7 for name in names(CODES[code].message + (CODES[code].one or "")) - {"file", "offset"}}
    message, _ = words.told(finding(code, "commitlog", 4, **{**facts, "count": 2}))
    assert CHINESE.search(message) and "{" not in message.replace("{store}", "").replace("{typed}", "")


@pytest.fixture(scope="module")
def struck(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = real_store("killed-5.5.0", tmp_path_factory.mktemp("words"))
    damage("bit-in-body", root, 0)
    return root


@few("line", [("doctor",), ("verify",), ("predict",), ("recover", "--dry-run"), ("groups",)], quick=(0, 2, 3))
def test_screens_are_chinese_on_request_and_documents_stay_english(line: tuple[str, ...], struck: Path) -> None:
    name, *more = line
    spoken = mqtool(name, struck, *more, "--lang", "zh_CN")
    english = mqtool(name, struck, *more)
    assert CHINESE.search(spoken.stdout.splitlines()[-1]) and not CHINESE.search(english.stdout)
    document = mqtool(name, struck, *more, "--lang", "zh_CN", "--json")
    assert not CHINESE.search(document.stdout)
    assert spoken.code == english.code == document.code


def test_progress_is_chinese_on_request(struck: Path) -> None:
    lines = mqtool("verify", struck, "--progress", "--lang", "zh_CN").stderr.splitlines()
    assert lines and all(CHINESE.match(line) for line in lines) and "queues" not in " ".join(lines)


def english_clauses(screen: str) -> list[str]:
    """Three English words in a row, outside of commands and heads of tables."""
    return re.findall(r"(?<![-/.\w])[A-Za-z]?[a-z]{2,}(?: [a-z]{2,}){2,}", re.sub(
        r"mqtool [a-z-]+|^(?:\w+ {2,})+\w+$", "", screen, flags=re.MULTILINE))


@few("recipe", ["crash-power-loss", "log-middle-missing", "topics-missing"], quick=(1,))
def test_a_chinese_screen_has_no_english_clause(recipe: str, tmp_path: Path) -> None:
    """What stays is names of commands, options, files, codes and settings, and columns that brokers name so."""
    root = real_store("clean-manyfiles-5.3.3", tmp_path)
    damage(recipe, root, 5)
    for line in ("doctor", "inspect", "verify", "predict", "recover --dry-run", "groups", "pending", "journal",
                 "query --topic Nope --key K", "query --phy-offset 5", "trace K --scan", "verify --estimate",
                 "send --endpoints 127.0.0.1:9 --dry-run",
                 f"report -o {tmp_path}/page.md", "recover --yes --max-loss all", "undo --yes",
                 f"export -o {tmp_path}/all.ndjson"):
        name, *more = line.split()
        said = mqtool(name, root, *more, "--lang", "zh_CN")
        page = (tmp_path / "page.md").read_text() if name == "report" else ""
        assert english_clauses(said.stdout + said.stderr + page) == [], (line, said.stdout, said.stderr)
        assert not re.search(r"^#+ [ -~]*[a-z] [ -~]*$", page, re.MULTILINE)
    said = mqtool("inspect", next((root / "consumequeue").glob("*/*/*")), "--lang", "zh_CN")
    assert english_clauses(said.stdout + said.stderr) == [], said.stdout


@pytest.mark.parametrize("case", ["bit-in-body", "log-missing"])
def test_the_log_of_a_broker_is_explained_in_chinese_and_its_document_in_english(case: str) -> None:
    log = LOGS / f"{case}-5.5.0.log"
    said = mqtool("explain", "--log", log, "--lang", "zh_CN")
    assert english_clauses(said.stdout) == []
    english, document = (mqtool("explain", "--log", log, "--json", "--lang", lang).document for lang in words.LANGUAGES)
    time = {"time": 0}
    assert english | time == document | time
    meaning = document["seen"][0]["meaning"]
    with words.speaking("zh_CN"):
        first, end, _ = words.retold(meaning).partition("。")
    assert english_clauses(meaning) and end and said.stdout.splitlines()[-len(document["next"]) - 1].startswith(first)


def test_a_refusal_is_told_in_chinese_and_its_document_in_english(tmp_path: Path) -> None:
    root, plan = real_store("clean-manyfiles-5.3.3", tmp_path), tmp_path / "plan.json"
    damage("bit-in-body", root, 0)
    assert mqtool("recover", root, "--dry-run", "--plan-out", plan).code < 8
    (root / "commitlog" / "00000000000000000000").touch()
    for line in (("apply", plan, "--yes"), ("undo", root, "--yes"), ("resume", root, "--yes")):
        said = mqtool(*line, "--lang", "zh_CN")
        first = said.stderr.splitlines()[0]
        assert said.code == 8 and CHINESE.search(first) and english_clauses(said.stderr) == [], said.stderr
        error = mqtool(*line, "--lang", "zh_CN", "--json").document["error"]
        assert english_clauses(error["message"]) and not CHINESE.search(str(error))


@few("line", [
    "verify --nope", "--nope verify", "verifi", "zzz", "verify A B C", "query A --offset", "verify --json=3",
    "truncate A", "explain nothing", "verify A --max-findings x", "verify A --max-findings=-1", "verify A --price=-1",
    "recover A --policy foo", "verify A --memory 3q", "verify", "recover /nonexistent", "verify {tmp}",
    "predict {tmp} --at noon", "query {tmp}", "predict {tmp} --broker 9.9", "predict {tmp} --set flushDiskTyp=x",
    "recover {tmp} --max-loss some", "query {tmp} --key K", "recover {tmp} --extend", "export", "export {tmp}",
    "apply {tmp}/plan.json", "drill nothing {tmp} --copy-to {tmp}/c", "rebuild {tmp} --journal {tmp}/none", "send",
    "report {tmp}", "report {tmp} -o {tmp}/page.pdf", "inspect {tmp}/none",
], quick=range(0, 33, 4))
def test_what_a_wrong_command_line_gets_is_chinese(line: str, tmp_path: Path) -> None:
    words = line.format(tmp=tmp_path).split()
    said = mqtool(*words, "--lang=zh_CN")
    assert said.code in (8, 16) and english_clauses(said.stderr.replace(str(tmp_path), "")) == [], said.stderr
    assert all(map(CHINESE.search, said.stderr.splitlines())), said.stderr


def test_the_locale_decides_without_the_option(struck: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert CHINESE.search(mqtool("doctor", struck).stdout)
    assert CHINESE.search(mqtool("verify", "--help").stdout)
    assert not CHINESE.search(mqtool("doctor", struck, "--lang", "en").stdout)


def test_a_command_line_in_one_language_leaves_the_next_in_its_own(struck: Path) -> None:
    mqtool("doctor", struck, "--lang", "zh_CN")
    assert not CHINESE.search("".join(text for _, text in texts()))
