"""How findings are told: a few of each code on a screen, up to a limit in a document, all of them in a file."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import Counter
from pathlib import Path
from string import Formatter

import pytest

from formats.record.grammar import RULES
from mqtool.printer import SCREEN_FINDINGS
from recover.evidence.beyond import TORN_RECORD, ZEROED
from recover.findings.code import Code
from recover.findings.log_codes import REASONS
from recover.findings.model import finding
from recover.findings.registry import CODES
from recover.log.scan import GHOSTS, MISSING_FILE
from tests.cli.runner import mqtool
from tests.support.command_docs import DOCS
from tests.support.stores import real_store

ROOT = DOCS.parent
MISSING = "consumequeue-missing-units"


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal on which no code is broken in two."""
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def without_queues(tmp_path: Path) -> Path:
    """A store whose queue files are gone, and its checkpoint: one finding for each of many queues, and one more."""
    store = real_store("killed-5.5.0", tmp_path)
    shutil.rmtree(store / "consumequeue")
    (store / "checkpoint").unlink()
    return store


def test_findings_are_cut_in_the_document_and_whole_in_the_file(without_queues: Path, tmp_path: Path) -> None:
    target = tmp_path / "findings.ndjson"
    result = mqtool("verify", without_queues, "--json", "--max-findings", "1", "--findings-out", target)
    assert len(result.document["findings"]) == 1
    assert result.document["truncated"] is True
    assert len(target.read_text().splitlines()) > 1


def test_a_screen_shows_a_few_findings_of_a_code_and_says_how_many_there_are(
    without_queues: Path, tmp_path: Path
) -> None:
    target = tmp_path / "findings.ndjson"
    screen = mqtool("verify", without_queues, "--findings-out", target).stdout
    findings = [json.loads(line) for line in target.read_text().splitlines()]
    missing = [item["file"] for item in findings if item["code"] == MISSING]
    assert len(missing) > SCREEN_FINDINGS + 1
    assert screen.split().count(MISSING) == SCREEN_FINDINGS + 1
    assert f"… {len(missing) - SCREEN_FINDINGS} more" in screen
    assert missing[-1] in screen
    # none is hidden after the many of another code
    assert {item["code"] for item in findings if item["severity"] != "info"} <= set(screen.split())


def test_a_screen_shows_as_many_findings_as_asked_for(without_queues: Path, tmp_path: Path) -> None:
    target = tmp_path / "findings.ndjson"
    screen = mqtool("verify", without_queues, "--max-findings", "1000", "--findings-out", target).stdout
    codes = Counter(json.loads(line)["code"] for line in target.read_text().splitlines())
    assert {code: screen.split().count(code) for code in codes} == codes
    assert "more" not in screen.split()
    assert f"… and {codes.total() - 1} more findings" in mqtool("verify", without_queues, "--max-findings", "1").stdout


def test_what_explain_says_of_a_code_has_no_gaps() -> None:
    # facts are filled into message and remedy of a finding alone
    texts = {code.name: code.meaning + code.cause + code.broker + code.action for code in CODES.values()}
    assert [name for name, text in texts.items() if "{" in text] == []


@pytest.mark.parametrize("code", [code for code in CODES.values() if code.one is not None], ids=lambda code: code.name)
def test_a_finding_of_one_says_so_without_a_range(code: Code) -> None:
    known = {name for _, name, _, _ in Formatter().parse(f"{code.message}{code.one}") if name}
    facts = {name: name.upper() for name in known}
    one, two = finding(code.name, **facts | {"count": 1}), finding(code.name, **facts | {"count": 2})
    assert "{" not in one.message + two.message
    assert "LAST" not in one.message and one.message != two.message
    assert (one.bits, one.remedy) == (two.bits, two.remedy.replace("--max-loss 2", "--max-loss 1"))


def test_a_unit_that_is_wrong_is_told_by_its_number(tmp_path: Path) -> None:
    store = real_store("clean-5.3.3", tmp_path)
    queues = sorted(store.glob("consumequeue/[A-Za-z]*/*/0*"))
    queue = next(path for path in queues if any(path.read_bytes()[40:60]))
    with queue.open("r+b") as file:
        file.seek(20 + 11)
        file.write(b"\x01")
    said = [item["message"] for item in mqtool("verify", store, "--json").document["findings"]
            if item["code"] == "consumequeue-wrong-units"]
    place = "/".join(queue.parts[-3:-1])
    assert said == [f"{place}: the unit at queue offset 1 does not name its message"]


def test_every_reason_that_a_judge_of_the_log_can_give_is_explained() -> None:
    """Out of the sources: the codec, the verdict and what the scan and the evidence add."""
    texts = [path.read_text() for place in ("formats/record", "recover/log", "recover/evidence")
             for path in (ROOT / place).glob("*.py")]
    given = {name for text in texts for name in re.findall(r'FormatError\(\s*"([a-z-]+)"', text)}
    given |= set(re.findall(r'"(bad-[a-z-]+|short|blank)"', (ROOT / "formats/record/grammar.py").read_text()))
    given |= {rule.reason for rule in RULES} | {MISSING_FILE, GHOSTS, TORN_RECORD, ZEROED}
    given |= {"bad-blank-size", "unread"}
    assert given - {"", "bad-", "bad-host"} <= REASONS.keys()
    for name in REASONS:
        assert mqtool("explain", name).code == 0
    assert not REASONS.keys() & CODES.keys()


def test_reasons_that_damage_gets_are_explained(tmp_path: Path) -> None:
    chance = random.Random(7)
    store = real_store("clean-propcrc-5.3.3", tmp_path)
    for path in sorted((store / "commitlog").iterdir()):
        content = bytearray(path.read_bytes())
        for _ in range(200):
            at = chance.randrange(len(content) // 2)
            content[at : at + 4] = chance.choice((bytes(4), chance.randbytes(4)))
        path.write_bytes(content)
    document = mqtool("verify", store, "--json").document
    reasons = {item["reason"] for item in document["commitlog"]["damaged"]}
    assert len(reasons) > 3
    assert reasons <= REASONS.keys()
    assert {item["facts"]["reason"] for item in document["findings"] if "reason" in item["facts"]} <= REASONS.keys()
    listed = mqtool("explain", "--json").document
    assert {item["reason"] for item in listed["reasons"]} == REASONS.keys()
