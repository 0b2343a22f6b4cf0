"""Looks at a store while a real broker writes to it as fast as it can."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fixtures.lab.toolchain import ensure
from fixtures.synth import write_topics
from recover.change.lock import probe
from tests.broker.cases import one_deep
from tests.cli.runner import mqtool

TRUE = {"consumequeue-missing-units", "consumequeue-missing-folder", "index-missing-units", "checkpoint-all-zero",
        "start-drops-index"}
"""What the broker fills late: its consumers wait for the messages, too. And what a crash would cost now."""


@pytest.mark.broker
@pytest.mark.patient
@pytest.mark.parametrize("version", one_deep(["4.5.1", "4.9.7", "5.3.3"], "5.3.3"))
def test_nothing_is_called_damaged_while_a_broker_writes(version: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    write_topics(root, {f"Topic{number}": 4 for number in range(5)})
    request = {
        "root": root, "bytes": 700 << 20, "body": 300, "topics": 5, "queues": 4, "keys": 1, "seed": 3,
        "conf.diskMaxUsedSpaceRatio": 95, "conf.mappedFileSizeConsumeQueue": 600_000,
        "conf.mappedFileSizeCommitLog": 64 << 20,
    }
    wrote: list[Any] = []
    writer = threading.Thread(target=lambda: wrote.append(ensure(version).ask(
        "BulkWriter", "".join(f"{name}={value}\n" for name, value in request.items()), heap="1500m", quick=False)))
    writer.start()
    looks = 0
    try:
        while writer.is_alive():
            if not (root / "lock").exists() or probe(root) is None or not (root / "index").is_dir():
                time.sleep(0.1)
                continue
            for command in (("verify",), ("predict",), ("recover", "--dry-run")):
                ran = mqtool(*command, root, "--json", "--broker", version)
                if probe(root) is None:
                    break  # it stopped meanwhile, and removed what it had made ahead
                findings = ran.document["findings"]
                assert {item["code"] for item in findings if item["severity"] != "info"} <= TRUE, findings
                looks += 1
    finally:
        writer.join()
    assert wrote and looks
