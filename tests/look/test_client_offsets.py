"""offsets.json of broadcast clients: the texts are what OffsetSerializeWrapper of the released clients writes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from formats.config.json import loads
from formats.config.tables import client_offsets
from tests.cli.runner import mqtool

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
    command = found.document["facts"]["remedy"].partition("then: ")[2].partition(";")[0]
    subprocess.run(command, shell=True, check=True)
    if backup == FASTJSON1:
        assert mqtool("inspect", path).code == 0
    else:
        assert not path.exists() and not path.with_name("offsets.json.bak").exists()


def test_text_of_another_name_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"topicConfigTable":{"a":')
    assert mqtool("inspect", path).code == 2
