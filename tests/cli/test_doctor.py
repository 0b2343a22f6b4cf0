"""doctor: one screen that answers whether a broker may start, what matters, and what to type."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.damage import damage
from mqtool import exits
from tests.cli.runner import mqtool
from tests.cli.test_documents import held
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


@pytest.mark.parametrize("name", ["clean-5.3.3", "killed-5.5.0"])
@pytest.mark.parametrize("harm", [_healthy, _bit, _no_queues, _no_checkpoint, _no_log])
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
