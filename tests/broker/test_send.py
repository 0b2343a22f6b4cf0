"""`mqtool send` into live clusters: name server, broker, proxy, and a consumer that gets every message once."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.lab.lab import SMALL_FILES
from fixtures.lab.toolchain import VERSIONS, LabUnavailable
from fixtures.lab.whole import WholeBroker
from tests.cli.runner import mqtool
from tests.support import plain_reader as plain
from tests.support.brokers import give_up
from tests.support.stores import unpacked
from tests.support.trees import assert_unchanged

pytestmark = pytest.mark.broker
ROOT = Path(__file__).parents[2]
SOURCE = "clean-5.3.3"
PROXIES = [version for version in VERSIONS if version >= "5.2"]


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "messages.ndjson"
    assert mqtool("export", unpacked(SOURCE), "-o", out).code == 0
    return out


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first messages of each queue: all topics, properties and encodings that the whole has."""
    out = tmp_path_factory.mktemp("part") / "messages.ndjson"
    assert mqtool("export", unpacked(SOURCE), "-o", out, "--queue-offsets", "0:60").code == 0
    return out


def lines(export: Path) -> list[dict[str, Any]]:
    """The messages of the export that are no copies of others."""
    found = [json.loads(line) for line in export.read_bytes().splitlines()]
    return [message for message in found if message["kind"] is None]


def received(endpoints: str, group: str, topics: list[str], due: int, patience: float = 60) -> Iterator[Any]:
    """What a consumer of the Apache client gets: `due` messages, and then nothing for a while; or patience ends."""
    from rocketmq.v5.client import ClientConfiguration, Credentials
    from rocketmq.v5.consumer import SimpleConsumer
    from rocketmq.v5.exception import InternalErrorException
    from rocketmq.v5.model import FilterExpression

    consumer = SimpleConsumer(ClientConfiguration(endpoints, Credentials(), request_timeout=10), group,
                              {topic: FilterExpression() for topic in topics}, await_duration=1)
    consumer.startup()
    got, until, quiet = 0, time.monotonic() + patience, 0
    try:
        while time.monotonic() < until and (got < due or quiet < len(topics)):
            try:
                messages = consumer.receive(32, 60) or []
            except InternalErrorException:  # the proxy does not know the consumer yet
                time.sleep(0.5)
                continue
            quiet = 0 if messages else quiet + 1
            for message in messages:
                got += 1
                until = time.monotonic() + patience
                yield message
                consumer.ack(message)
    finally:
        consumer.shutdown()


def stored(root: Path, topic: str) -> list[plain.Record]:
    return [record for record in plain.records(root) if record.topic == topic]


def cluster(version: str, root: Path, *, proxy: bool = True) -> WholeBroker:
    if proxy:
        pytest.importorskip("rocketmq", reason="NOT RUN: pip install 'mqtool[send]'")
    conf = {**SMALL_FILES, "enableLmq": False, "enableMultiDispatch": False, "timerWheelEnable": True}
    try:
        return WholeBroker(version, root, conf, kill=True, proxy=proxy)
    except LabUnavailable as error:
        give_up(str(error))


def send(*words: object) -> list[str]:
    return [sys.executable, "-m", "mqtool", "send", *map(str, words)]


@pytest.mark.parametrize("version", PROXIES)
def test_a_consumer_gets_every_message_once_with_all_that_its_producer_set(
    version: str, part: Path, tmp_path: Path,
) -> None:
    due = lines(part)
    topics = sorted({message["topic"] for message in due})
    with cluster(version, tmp_path / "store") as broker:
        broker.act([f"topic\t{topic}\t4\t+message.type=NORMAL" for topic in topics])
        with assert_unchanged(part.parent):
            result = mqtool("send", part, "--endpoints", broker.endpoints, "--yes", "--json")
        assert (result.code, result.document["sent"]) == (0, len(due)), result.stdout
        got = list(received(broker.endpoints, "everything", topics, len(due)))
    origins = Counter(message.properties["MQTOOL_ORIGIN"] for message in got)
    assert set(origins.values()) == {1}
    assert len(origins) == len(due)
    for message in due:
        origin = "{store_host}/{stored_topic}/{stored_queue}/{queue_offset}/{unique_key}".format_map(message)
        (one,) = [each for each in got if each.properties["MQTOOL_ORIGIN"] == origin]
        assert one.topic == message["topic"]
        assert (one.tag, set(one.keys)) == (message["tags"], set((message["keys"] or "").split()))
    for topic in topics:
        # the source has some of them compressed
        old = Counter(
            base64.b64decode(message["body"]) if message["body_encoding"] == "base64" else message["body"].encode()
            for message in due if message["topic"] == topic
        )
        assert Counter(record.body for record in stored(tmp_path / "store", topic)) == old
    own = {name for message in due for name in message["properties"] if name.islower() or name.startswith("p")}
    arrived = Counter((name, one.properties[name]) for one in got for name in own if name in one.properties)
    assert arrived == Counter(
        (name, message["properties"][name]) for message in due for name in own if name in message["properties"])


@pytest.mark.parametrize("version", PROXIES)
def test_a_run_that_was_killed_goes_on_and_sends_one_message_twice_at_most(
    version: str, part: Path, tmp_path: Path,
) -> None:
    due = lines(part)
    topics = sorted({message["topic"] for message in due})
    position = tmp_path / "position"
    with cluster(version, tmp_path / "store") as broker:
        broker.act([f"topic\t{topic}\t4\t+message.type=NORMAL" for topic in topics])
        words = send(part, "--endpoints", broker.endpoints, "--position", position, "--yes", "--no-progress")
        for number, end in ((40, signal.SIGKILL), (200, signal.SIGTERM), (300, signal.SIGKILL)):
            with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
                                  env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) as run:
                until = time.monotonic() + 90
                while not (position.exists() and json.loads(last_line(position))[1] >= number):
                    assert run.poll() is None and time.monotonic() < until, run.communicate()
                    time.sleep(0.01)
                run.send_signal(end)
                _, told = run.communicate(timeout=60)
                told = " ".join(told.split())  # lines are as long as the screen is wide
            assert run.returncode == (32 if end == signal.SIGTERM else -end), told
            if number == 40:
                assert "going on" not in told
            if number == 200:
                assert "can arrive twice" in told
            if number == 300:
                assert "can arrive twice" not in told and "continuing after" in told
        result = mqtool(*words[3:], "--json")
        assert (result.code, result.document["sent"]) == (0, len(due)), result.stdout
        again = mqtool(*words[3:], "--json")
        assert (again.code, again.document["sent"]) == (0, len(due))
        got = list(received(broker.endpoints, "killed", topics, len(due)))
    origins = Counter(message.properties["MQTOOL_ORIGIN"] for message in got)
    assert len(origins) == len(due)
    assert origins.total() - len(due) <= 2, "one for each kill"


def last_line(position: Path) -> bytes:
    return position.read_bytes().rpartition(b"\n")[0].rpartition(b"\n")[2] or b"[0, 0]"


@pytest.mark.parametrize("version", PROXIES)
def test_delays_and_rates_are_kept_and_what_a_cluster_refuses_is_told(
    version: str, export: Path, tmp_path: Path,
) -> None:
    copy = next(json.loads(line) for line in export.read_bytes().splitlines() if b'"kind":"delayed"' in line)
    waits = {name: value for name, value in copy["properties"].items() if name != "DELAY"}
    file = tmp_path / "waiting.ndjson"
    root = unpacked(SOURCE)
    with cluster(version, tmp_path / "store") as broker:
        broker.act(["topic\tWaits\t1\t+message.type=DELAY", "topic\tOrdered\t2\t+message.type=FIFO", "topic\tFast\t4"])
        to = ("--endpoints", broker.endpoints, "--yes", "--json")
        absent = mqtool("send", root, "--topic", "TopicA", "--limit", "3", "--topic-map", "TopicA=Absent", *to)
        assert (absent.code, absent.document["sent"]) == (8, 0), absent.stdout
        assert "Absent" in absent.document["error"]["message"]
        assert "--topic-map" in absent.document["error"]["remedy"]
        ordered = mqtool("send", root, "--topic", "TopicA", "--limit", "3", "--topic-map", "TopicA=Ordered", *to)
        assert (ordered.code, ordered.document["refused_messages"]) == (8, 3), ordered.stdout
        assert "FIFO" in ordered.document["refused"][0]["reason"]
        fast = mqtool("send", root, "--topic", "TopicA", "--limit", "200", "--topic-map", "TopicA=Fast", "--in-flight",
                      "16", *to)
        assert (fast.code, fast.document["sent"]) == (0, fast.document["planned"]), fast.stdout
        began = time.monotonic()
        slow = mqtool("send", root, "--topic", "TopicB", "--limit", "40", "--topic-map", "TopicB=Fast", "--rate-limit",
                      "20", *to)
        assert (slow.code, slow.document["sent"]) == (0, slow.document["planned"]), slow.stdout
        assert time.monotonic() - began >= (slow.document["sent"] - 1) / 20
        ready = int(time.time() * 1000) + 12_000
        line = {**copy, "topic": "Waits", "properties": {**waits, "TIMER_OUT_MS": str(ready)}}
        file.write_text(json.dumps(line) + "\n")
        sent = mqtool("send", file, "--keep-delay", *to)
        assert (sent.code, sent.document["sent"]) == (0, 1), sent.stdout
        (one,) = received(broker.endpoints, "waiting", ["Waits"], 1)
        assert time.time() * 1000 >= ready
        text = copy["body"]
        assert one.body == (base64.b64decode(text) if copy["body_encoding"] == "base64" else text.encode())
    each = fast.document["sent"], slow.document["sent"]
    assert len(stored(tmp_path / "store", "Fast")) == sum(each) and min(each) > 30


@pytest.mark.parametrize("version", ["4.9.7"])
def test_the_producer_of_the_page_sends_the_same_to_a_broker_of_4x(version: str, export: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "commands" / "send.md").read_text()
    (code,) = re.findall(r"^```java\n(.*?)^```", page, re.M | re.S)
    (tmp_path / "Resend.java").write_text(code)
    due = lines(export)
    with cluster(version, tmp_path / "store", proxy=False) as broker:
        broker.act([f"topic\t{topic}\t4" for topic in sorted({message["topic"] for message in due})])
        done = subprocess.run(broker.java(tmp_path / "Resend.java", export, broker.address), capture_output=True,
                              text=True, check=False, timeout=240)
        assert done.returncode == 0, done.stderr[-2000:]
    old = [record for topic in sorted({message["topic"] for message in due})
           for record in stored(unpacked(SOURCE), topic)]
    new = [record for topic in sorted({message["topic"] for message in due})
           for record in stored(tmp_path / "store", topic)]
    assert len(new) == len(due)
    assert Counter(known(record) for record in new) == Counter(known(record) for record in old)
    assert len({record.properties["MQTOOL_ORIGIN"] for record in new}) == len(due)


def known(record: plain.Record) -> tuple[object, ...]:
    """What a producer sets."""
    return record.topic, record.body, record.properties.get("TAGS"), record.properties.get("KEYS")
