"""offsets.json of broadcast clients: the texts are what OffsetSerializeWrapper of the released clients writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from formats.config.json import loads
from formats.config.tables import client_offsets
from recover.change.carry_out import apply_plan
from recover.change.preconditions import seal
from recover.findings.code import Interrupted
from recover.repair.config_repair import plan_client_offsets
from tests.cli.runner import mqtool
from tests.support.trees import Node, tree_digest

FASTJSON1 = (
    '{\n\t"offsetTable":{{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":0,\n\t\t\t"topic":"Tx-0"\n\t\t}:100,{\n'
    '\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":1,\n\t\t\t"topic":"Tx-1"\n\t\t}:101\n\t}\n}')
"""Of clients 4.5.1 to 5.3.3."""
FASTJSON2 = (
    '{\n\t"offsetTable":{\n\t\t{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":0,\n\t\t\t"topic":"Tx-0"\n\t\t}:100,\n'
    '\t\t{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":1,\n\t\t\t"topic":"Tx-1"\n\t\t}:101\n\t}\n}')
"""Of clients 5.5.0."""
BROKEN = {
    "cut": FASTJSON1[:90], "empty": "", "zeros": "\0" * 80, "more text": FASTJSON2 + "}}", "no table": "{}",
    "negative": FASTJSON1.replace(":100", ":-5"), "no queue": FASTJSON2.replace("queueId", "queueIe"),
}


def files_in(folder: Path) -> dict[str, Node]:
    """Content, owner, mode and times of each file but those of mqtool."""
    return {name: node for name, node in tree_digest(folder).items() if name != "."}


@pytest.mark.parametrize("text", [FASTJSON1, FASTJSON2])
def test_offsets_of_each_queue_are_shown(text: str, tmp_path: Path) -> None:
    assert client_offsets(loads(text.encode())) == (
        [("Tx-0", "broker-a", 0, 100), ("Tx-1", "broker-a", 1, 101)], [])
    path = tmp_path / "offsets.json"
    path.write_text(text)
    found = mqtool("inspect", path, "--json")
    assert found.code == 0
    assert found.document["facts"]["offsets"] == ["Tx-0/0 of broker-a: 100", "Tx-1/1 of broker-a: 101"]


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("backup", [FASTJSON1, FASTJSON1[:40], None], ids=["backup", "cut backup", "no backup"])
def test_broken_one_is_a_problem_with_its_remedy(how: str, backup: str | None, tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_text(BROKEN[how])
    if backup is not None:
        path.with_name("offsets.json.bak").write_text(backup)
    found = mqtool("inspect", path, "--json")
    assert found.code == 2
    step = found.document["next"][-1]["command"]
    assert step == f"mqtool recover {path} --dry-run"
    assert step.removesuffix(" --dry-run") in found.document["facts"]["remedy"]
    before = files_in(tmp_path)
    planned = mqtool("recover", path, "--dry-run", "--json")
    assert planned.code == 2 and planned.document["room"] and not planned.document["applied"]
    assert files_in(tmp_path) == before
    done = mqtool("recover", path, "--yes", "--json")
    assert done.code == 1
    if how == "more text":  # the text before is whole, and newer than the backup
        assert path.read_text() == FASTJSON2
    elif backup == FASTJSON1:
        assert path.read_text() == FASTJSON1
    else:
        assert {item.name for item in tmp_path.iterdir()} == {".mqtool"}
    assert mqtool("inspect", path).code == (0 if path.exists() else 16)
    assert done.document["undo"]["command"] == f"mqtool undo {tmp_path}"
    assert mqtool("undo", tmp_path, "--yes").code == 0
    assert files_in(tmp_path) == before


def test_folder_of_the_group_is_repaired_too_and_a_second_run_has_nothing_to_do(tmp_path: Path) -> None:
    (tmp_path / "offsets.json").write_text(FASTJSON1)
    (tmp_path / "offsets.json.bak").write_text(FASTJSON2[:30])
    assert mqtool("recover", tmp_path, "--yes").code == 1
    assert (tmp_path / "offsets.json.bak").read_text() == FASTJSON1
    again = mqtool("recover", tmp_path, "--yes", "--json")
    assert (again.code, again.document["plan"]["steps"]) == (0, [])
    assert "undo" in mqtool("journal", tmp_path).stdout
    # options of stores mean nothing here
    assert mqtool("recover", tmp_path, "--policy", "broker", "--yes").code == 16
    assert mqtool("recover", tmp_path, "--plan-out", tmp_path.parent / "plan.json").code == 16


@pytest.mark.parametrize("command", ["resume", "undo"])
def test_killed_repair_is_completed_or_undone(command: str, tmp_path: Path) -> None:
    for name in ("offsets.json", "offsets.json.bak"):
        (tmp_path / name).write_text(FASTJSON1[:50])
    before = files_in(tmp_path)
    plan = seal(plan_client_offsets(tmp_path), tmp_path)
    done: list[int] = []
    with pytest.raises(Interrupted):
        apply_plan(tmp_path, plan, progress=lambda n, _all, _what: done.append(n), interrupted=lambda: len(done) == 1)
    assert [item.name for item in tmp_path.iterdir() if item.name.startswith("offsets")] == ["offsets.json.bak"]
    assert mqtool("recover", tmp_path, "--yes").code == 8
    found = mqtool(command, tmp_path, "--yes")
    assert found.code == (1 if command == "resume" else 0), found.stderr
    assert (tmp_path / "offsets.json").exists() is (command == "undo")
    if command == "resume":
        assert mqtool("undo", tmp_path, "--yes").code == 0
    assert files_in(tmp_path) == before


def test_text_of_another_name_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"topicConfigTable":{"a":')
    assert mqtool("inspect", path).code == 2
