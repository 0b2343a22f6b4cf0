"""Stores that `mqtool export --format store` writes: each release starts on them and delivers what was intact."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fixtures.lab.observe import SOUND
from fixtures.lab.packed import readers, settings
from tests.broker.cases import Case, cases, marked
from tests.broker.judge import broken_promises, damaged, mqtool, parts, start
from tests.support.brokers import require_lab

pytestmark = pytest.mark.broker

DAMAGES = (SOUND, "bit-in-body", "page-zeroed", "log-middle-missing", "crash-everything-derived")
CASES = [case for case in cases() if case.damage in DAMAGES]


@pytest.mark.parametrize(("store", "damage", "version"), marked(CASES, 2))
def test_a_release_delivers_what_was_exported_to_a_store(
    store: str, damage: str, version: str, tmp_path: Path
) -> None:
    require_lab()
    case = Case(store, damage, version)
    root, done = damaged(store, damage, tmp_path)
    out, before = tmp_path / "out", tmp_path / "before"
    document = mqtool("export", root, *parts(store, root), "-o", out, "--format", "store").document
    assert document["complete"]
    shutil.copytree(out, before)
    conf = {name: value for name, value in settings(store).items() if name != "storePathCommitLog"}
    seen = start(case, out, conf)
    valid_to = mqtool("verify", before).document["commitlog"]["valid_to"]
    assert broken_promises(case, seen, done, valid_to, before) == []


@pytest.mark.parametrize("version", marked([(version,) for version in readers("clean-5.3.3")], 1))
def test_a_release_delivers_one_topic_that_was_exported_to_a_store(version: str, tmp_path: Path) -> None:
    require_lab()
    case = Case("clean-5.3.3", SOUND, version)
    root, _ = damaged(case.store, case.damage, tmp_path)
    out, lines = tmp_path / "out", tmp_path / "lines"
    mqtool("export", root, "-o", out, "--format", "store", "--topic", "TopicA")
    mqtool("export", root, "-o", lines, "--topic", "TopicA")
    due = {
        (f"{message['stored_topic']}/{message['stored_queue']}", message["queue_offset"], message["phy_offset"])
        for message in map(json.loads, lines.read_bytes().splitlines()) if message["kind"] is None
    }
    seen = start(case, out)
    assert seen.starts
    got = {(queue, message.queue_offset, message.phy_offset) for queue, message in seen.messages()}
    assert due
    assert due <= got
    assert {queue for queue, _, _ in got} & {f"TopicB/{queue}" for queue in range(8)} == set()
