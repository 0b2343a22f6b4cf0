"""doctor: one screen that answers whether a broker may start, what matters, and what to type."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from rich.cells import cell_len

from fixtures.damage import damage
from mqtool import exits
from tests.cli.runner import mqtool
from tests.cli.test_documents import held
from tests.support.sampling import sampled
from tests.support.stores import real_store
from tests.support.trees import assert_unchanged


def _healthy(root: Path) -> None:
    """Nothing is wrong with it."""


def _bit(root: Path) -> None:
    damage("bit-in-body", root, 0)


def _no_queues(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")


def _no_checkpoint(root: Path) -> None:
    (root / "checkpoint").unlink()


def _no_log(root: Path) -> None:
    shutil.rmtree(root / "commitlog")
    (root / "commitlog").mkdir()


@pytest.mark.parametrize(("name", "harm"), sampled(
    ["clean-5.3.3", "killed-5.5.0"], [_healthy, _bit, _no_queues, _no_checkpoint, _no_log], quick=5,
))
def test_doctor_answers_as_predict_and_leads_where_verify_leads(
    name: str, harm: Callable[[Path], None], tmp_path: Path,
) -> None:
    root = real_store(name, tmp_path)
    harm(root)
    with assert_unchanged(root):
        said = mqtool("doctor", root, "--json")
    held(said.document, "doctor")
    predicted, verified = mqtool("predict", root, "--json"), mqtool("verify", root, "--json")
    assert said.code == said.document["exit_code"] == predicted.code | verified.code
    assert said.document["may_start"] is (predicted.document["starts"] and not predicted.code & exits.MESSAGES)
    assert {item["code"] for item in said.document["matters"]} <= {
        item["code"] for result in (predicted, verified) for item in result.document["findings"]
        if item["severity"] != "info"}
    starts = [step["command"] for step in said.document["next"] if step["command"] == "start the broker"]
    assert said.document["next"] and (not starts or said.document["may_start"])
    if not said.document["may_start"]:
        assert said.document["next"][0] == verified.document["next"][0]


def test_the_three_answers_fit_a_screen_of_80_by_24(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = real_store("killed-5.5.0", tmp_path)
    damage("bit-in-body", root, 0)
    damage("topics-missing", root, 0)
    shutil.rmtree(root / "index")
    monkeypatch.setenv("COLUMNS", "80")
    screen = mqtool("doctor", root).stdout
    rows = sum(-(-len(line) // 80) or 1 for line in screen.splitlines())
    assert rows <= 24, screen
    assert screen.startswith("May 5.5.0 start on it? NO")
    assert screen.splitlines()[-1].startswith(("next: ", "or: "))


def on_terminal(*words: object, columns: int = 80) -> list[str]:
    """The lines that a command writes to a terminal of that width."""
    main, other = pty.openpty()
    line = [sys.executable, "-m", "mqtool", *map(str, words)]
    environment = {**os.environ, "COLUMNS": str(columns), "LINES": "24", "NO_COLOR": "1", "TERM": "xterm"}
    with subprocess.Popen(line, stdout=other, stderr=subprocess.DEVNULL, env=environment) as process:
        os.close(other)
        found = b""
        with suppress(OSError):  # the end of what a terminal gives, on Linux
            while piece := os.read(main, 65536):
                found += piece
    os.close(main)
    assert process.returncode is not None
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", found.decode()).replace("\r", "").splitlines()


@pytest.mark.parametrize("language", ["en", "zh_CN"])
def test_on_a_terminal_of_24_lines_the_answer_is_whole_and_breaks_between_words(language: str, tmp_path: Path) -> None:
    root = real_store("clean-5.3.3", tmp_path).rename(tmp_path / "store")
    damage("crash-bit-without-checkpoint", root, 2)
    lines = on_terminal("doctor", root, "--lang", language)
    assert len(lines) <= 22, "the answer and the prompt after it"
    commands = [line.partition(": ")[2] for line in lines if line.startswith(("next: ", "or: ", "下一步: ", "或: "))]
    assert commands == [f"mqtool recover {root} --mend-bits --dry-run", f"mqtool recover {root} --dry-run"]
    assert all(cell_len(line) <= 80 for line in lines if "mqtool recover" not in line)
    text = " ".join(" ".join(lines).split())
    if language == "en":
        assert mqtool("doctor", root, "--json").document["summary"].partition(" (2.0 MiB")[0] in text
