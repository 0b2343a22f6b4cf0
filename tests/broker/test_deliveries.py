"""Foretold is what happens, to the message: what whole brokers store and deliver once they have started."""

from __future__ import annotations

import time
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from fixtures.lab.kinds import Kind, Life, step, write
from fixtures.lab.packed import settings
from fixtures.lab.toolchain import VERSIONS
from fixtures.lab.whole import WholeBroker
from formats.record.message import RETRY_PREFIX
from tests.broker.deliveries import CONF, Counts, happened
from tests.cli.runner import mqtool
from tests.support import plain_reader as plain
from tests.support.stores import real_store

pytestmark = [pytest.mark.broker, pytest.mark.patient]

STORES = ("killed-5.5.0", "clean-5.3.3", "clean-4.5.1", "clean-plain-4.9.7", "killed-plain-4.5.1", "killed-ext-5.5.0",
          "kinds/clean-timers-5.3.3", "kinds/killed-timers-5.5.0")
SAMPLE = {("killed-5.5.0", "5.3.3", "before"), ("clean-4.5.1", "4.9.7", "after")}
CASES = [pytest.param(*case, marks=pytest.mark.deep if case in SAMPLE else ())
         for case in product(STORES, VERSIONS, ("before", "after"))]
#: The lab's brokers keep what is old: without this they give up half messages that are older than three days.
KEPT = ("--set", "fileReservedTime=7200")


def sizes(name: str) -> dict[str, object]:
    """The sizes of the store's files, without which a broker does not load them."""
    named = "mappedFileSize", "maxHashSlotNum", "maxIndexNum", "enableConsumeQueueExt"
    return {key: value for key, value in settings(name).items() if key.startswith(named)}


def options(version: str) -> list[str]:
    told = ["enableLmq", "enableMultiDispatch", "transactionCheckInterval", "timerWheelEnable"]
    words = [word for name in told for word in ("--set", f"{name}={str(CONF[name]).lower()}")]
    return ["--broker", version, *words, *KEPT]


def foretold(root: Path, version: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = mqtool("predict", root, *options(version), "--json").document["delivers"]
    return found


def of(rows: list[dict[str, Any]], outcome: str) -> Counts:
    counts: Counts = Counter()
    for row in rows:
        counts[row["kind"], row["topic"]] += row[outcome]
    return +counts


@pytest.mark.parametrize(("name", "version", "when"), CASES)
def test_broker_delivers_what_was_foretold(name: str, version: str, when: str, tmp_path: Path) -> None:
    root = real_store(name, tmp_path)
    if when == "after":
        assert mqtool("recover", root, "--yes", "--max-loss", "all").code & 0x18 == 0
    rows = foretold(root, version)
    copies_before = Counter((record.topic, record.properties.get("UNIQ_KEY"), record.body)
                            for record in plain.records(root))
    found = happened(version, root, sizes(name))
    assert of(rows, "again") == found.again
    assert of(rows, "now") == found.now
    half = {key: number for key, number in of(rows, "skipped").items() if key[0] == "half"}
    assert half == found.skipped
    for topic, extra in found.twice.items():
        old = sum(number - 1 for (each, _, _), number in copies_before.items() if each == topic)
        said = sum(number for (kind, each), number in of(rows, "again").items() if each == topic and kind != "half")
        assert topic.startswith("%RETRY%") or extra == old + said, topic


@pytest.mark.parametrize("release", [pytest.param("5.3.3", marks=pytest.mark.deep), "5.5.0"])
def test_popped_messages_come_to_their_retry_topic_as_foretold(release: str, tmp_path: Path) -> None:
    """60 popped, half of them without an answer, and a kill; the check points are in the log, not in a kvStore."""
    life = Life((step("topic", "Popped", 2), step("send", "Popped", 60), step("pop", "Popped", "pops", 60),
                 step("sleep", 15_000)), killed=True)
    kind = Kind("pop", release, "popped messages", (life,), (("popConsumerKVServiceEnable", False),), ())
    root = write(kind, tmp_path / "store")
    retry = f"{RETRY_PREFIX}pops_Popped"
    # what a pop hides comes back after a minute
    at = int(time.time() * 1000) + 90_000
    said = mqtool("predict", root, "--broker", release, "--at", at, *KEPT, "--json").document["delivers"]
    foretold = sum(row["again"] + row["now"] for row in said if row["kind"] == "revive")
    before = sum(record.topic == retry for record in plain.records(root))
    time.sleep(max(0.0, at / 1000 - time.time() - 60))
    with WholeBroker(release, root, kind.conf, kill=True) as broker:
        broker.act([step("await", retry, before + foretold, 100_000), step("sleep", 10_000)])
    assert sum(record.topic == retry for record in plain.records(root)) - before == foretold
    assert foretold >= 30
