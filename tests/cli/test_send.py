"""`mqtool send` up to the moment that a cluster is asked: what would go out, what not, and every refusal."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fixtures.damage import damage
from fixtures.synth import StoreWriter
from recover.export.messages import Message
from recover.export.send import (
    Outbox,
    Outgoing,
    Place,
    Position,
    RejectedMessage,
    Rules,
    _judged,
    read_messages,
    unreachable,
)
from recover.findings.code import Refusal, UsageRefusal
from tests.cli.runner import mqtool
from tests.support import plain_reader as plain
from tests.support.sampling import few
from tests.support.stores import unpacked
from tests.support.trees import assert_unchanged

TO = ("--endpoints", "127.0.0.1:1")
ASIDE = ("RMQ_SYS_", "rmq_sys_", "SCHEDULE_TOPIC_XXXX", "%RETRY%", "%DLQ%")


def planned(*arguments: object, code: int = 0) -> dict[str, Any]:
    result = mqtool("send", *arguments, *TO, "--dry-run", "--json")
    assert result.code == code, result.stderr
    assert (result.document["sent"], result.document["dry_run"]) == (0, True)
    return result.document


def export(root: Path, out: Path, *more: str) -> Path:
    assert mqtool("export", root, "-o", out, *more).code == 0
    return out


@pytest.mark.parametrize("name", ["clean-4.5.1", "clean-5.3.3", "killed-5.5.0"])
def test_every_message_that_consumers_know_goes_out_once_from_a_file_as_from_the_store(
    name: str, tmp_path: Path,
) -> None:
    root = unpacked(name)
    due = Counter(record.topic for record in plain.records(root) if not record.topic.startswith(ASIDE))
    with assert_unchanged(root):
        document = planned(root)
    assert document["topics"] == due
    assert document["planned"] == due.total()
    assert set(document["left_out"]) <= {"half copy", "delayed copy", "timer copy", "retry copy"}
    of_file = planned(export(root, tmp_path / "m.ndjson"))
    assert (of_file["topics"], of_file["left_out"]) == (document["topics"], document["left_out"])


@few("name", ["clean-4.5.1", "clean-5.3.3", "killed-5.5.0"], quick=(0, 1))
def test_delayed_messages_go_out_if_no_later_record_delivered_them(name: str) -> None:
    root = unpacked(name)
    found = plain.records(root)
    delivered = {record.properties.get("UNIQ_KEY") for record in found if not record.topic.startswith(ASIDE)}
    waiting = [
        record for record in found if record.topic in ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer")
        and not record.properties["REAL_TOPIC"].startswith("%") and record.properties["UNIQ_KEY"] not in delivered]
    plain_plan, kept = planned(root), planned(root, "--keep-delay")
    assert Counter(kept["topics"]) - Counter(plain_plan["topics"]) == Counter(
        record.properties["REAL_TOPIC"] for record in waiting)


def test_a_timer_message_goes_out_once_however_often_it_was_stored_and_not_if_it_was_recalled(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store")
    timer = {"REAL_TOPIC": "Topic", "REAL_QID": "0", "TIMER_OUT_MS": "1795729786000"}
    for key in ("waits", "recalled", "of 5.2", "delivered"):
        writer.put("rmq_sys_wheel_timer", b"body", {**timer, "UNIQ_KEY": key})
    # as a broker of 5.3.3 with recallMessageEnable=true stores it, and as 5.2 does
    recall = {**timer, "UNIQ_KEY": "recalled", "TIMER_DEL_UNIQKEY": "Topic+recalled", "TAGS": "_RECALL_TAG_"}
    writer.put("rmq_sys_wheel_timer", b"0", recall)
    writer.put("rmq_sys_wheel_timer", b"0", {**timer, "UNIQ_KEY": "other", "TIMER_DEL_UNIQKEY": "of 5.2"})
    for key in ("waits", "recalled", "waits"):
        writer.put("rmq_sys_wheel_timer", b"body", {**timer, "UNIQ_KEY": key, "TIMER_ROLL_TIMES": "1"})
    until = writer.put("Topic", b"body", {"UNIQ_KEY": "delivered"}).store_timestamp
    writer.close()
    left_out = {"recall copy": 2, "timer, recalled by its producer": 3, "timer, stored again later": 2,
                "timer, delivered since": 1}
    for more in ((), ("--until", str(until))):
        plan = planned(tmp_path / "store", "--keep-delay", *more)
        assert (plan["planned"], plan["left_out"]) == (1 if more else 2, left_out)
    of_file = planned(export(tmp_path / "store", tmp_path / "m.ndjson"), "--keep-delay")
    assert (of_file["planned"], of_file["left_out"]) == (2, left_out)


def test_keys_are_parted_at_spaces_alone(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store")
    writer.put("Topic", b"body", {"KEYS": "\u8ba2\u5355\u30004711 \u00a0 b\tc b\tc"})
    writer.close()
    line = export(tmp_path / "store", tmp_path / "m.ndjson").read_bytes()
    outgoing = Outbox(Rules()).take(msgspec.json.decode(line, type=Message))
    assert isinstance(outgoing, Outgoing)
    assert outgoing.keys == ("\u8ba2\u5355\u30004711", "b\tc"), "the client takes no blank key"


def test_copies_go_out_on_request_and_topics_of_brokers_never() -> None:
    root = unpacked("clean-5.3.3")
    half = Counter(record.properties["REAL_TOPIC"] for record in plain.records(root)
                   if record.topic == "RMQ_SYS_TRANS_HALF_TOPIC")
    plan, more = planned(root), planned(root, "--kind", "half")
    assert Counter(more["topics"]) - Counter(plan["topics"]) == half
    with_system = planned(root, "--include", "system")
    assert with_system["topics"] == plan["topics"]
    assert not [topic for topic in planned(root, "--include", "system", "--kind", "half,delayed,timer,retry")["topics"]
                if topic.startswith(ASIDE)]


def test_transactions_are_said_to_go_out_as_normal_messages() -> None:
    root = unpacked("clean-5.3.3")
    assert planned(root, "--topic", "TopicTx")["types"] == {"transactional": sum(
        record.topic == "TopicTx" for record in plain.records(root))}
    result = mqtool("send", root, "--topic", "TopicTx", *TO, "--dry-run")
    assert "committed transactions are sent as normal messages" in result.stderr


def test_topic_map_and_filters_choose_what_goes_where() -> None:
    root = unpacked("clean-5.3.3")
    one = planned(root, "--topic", "TopicA")["topics"]
    assert planned(root, "--topic", "TopicA", "--topic-map", "TopicA=Other")["topics"] == {"Other": one["TopicA"]}
    assert planned(root, "--topic", "TopicA", "--topic-map", "TopicA=SCHEDULE_TOPIC_XXXX")["planned"] == 0


@pytest.mark.parametrize("limit", [1, 7, 400])
def test_a_limit_counts_messages_that_go_out_and_no_copies_that_stay(limit: int) -> None:
    root = unpacked("clean-5.3.3")
    all_of_them = planned(root)
    assert all_of_them["left_out"] and all_of_them["planned"] > limit
    assert planned(root, "--limit", limit)["planned"] == limit


def test_damaged_and_compressed_messages_stay_and_are_counted(store: Callable[[str], Path], tmp_path: Path) -> None:
    root = store("clean-5.3.3")
    damage("bit-in-body", root, 1)
    file = tmp_path / "damaged.ndjson"
    assert mqtool("export", root, "-o", file, "--damaged").code == 0
    assert planned(file)["left_out"] == {"damaged": len(file.read_bytes().splitlines())}
    packed = unpacked("killed-compressed-5.3.3")
    raw = planned(export(packed, tmp_path / "raw.ndjson", "--raw-body"))
    assert raw["left_out"]["body not decompressed"] > 0
    assert planned(packed)["planned"] == raw["planned"] + raw["left_out"]["body not decompressed"]


@pytest.mark.parametrize("line", [
    b"{}\n", b'{"topic": 1}\n', b"{" + b"[" * 100_000 + b"\n", b'{"topic": "A', b"{\xff\n",
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n",
])
def test_a_line_that_is_not_a_message_ends_it_by_its_number(line: bytes, tmp_path: Path) -> None:
    file = export(unpacked("clean-5.3.3"), tmp_path / "m.ndjson", "--limit", "2")
    file.write_bytes(file.read_bytes() + line)
    result = mqtool("send", file, *TO, "--dry-run", "--json")
    assert result.code == 8
    assert "line 3" in result.document["error"]["message"]


@pytest.mark.parametrize("change", [{"body": "YWJj##"}, {"body": "YWJ"}, {"body_encoding": "rot13"}])
def test_a_body_that_is_not_what_an_export_wrote_is_not_sent_as_another_one(
    change: dict[str, str], tmp_path: Path,
) -> None:
    file = export(unpacked("clean-5.3.3"), tmp_path / "m.ndjson", "--limit", "1")
    file.write_text(json.dumps({**json.loads(file.read_bytes()), "body_encoding": "base64", **change}) + "\n")
    result = mqtool("send", file, *TO, "--dry-run", "--json")
    assert result.code == 8
    assert "line 1" in result.document["error"]["message"]


@pytest.mark.parametrize(("words", "code"), [
    (("STORE", *TO), 8),  # neither a terminal nor --yes
    (("STORE",), 16), (("STORE", "--endpoints", "nowhere"), 16), (("nowhere", *TO), 16),
    (("STORE", *TO, "--kind", "wrong"), 16), (("STORE", *TO, "--topic-map", "A"), 16),
    (("STORE", *TO, "--position", "STORE/position"), 16), (("FILE", *TO, "--topic", "A"), 16),
])
def test_what_cannot_be_sent_is_refused_and_changes_nothing(words: tuple[str, ...], code: int, tmp_path: Path) -> None:
    root = unpacked("clean-5.3.3")
    file = export(root, tmp_path / "m.ndjson", "--limit", "2")
    before = sorted(tmp_path.iterdir())
    with assert_unchanged(root):
        result = mqtool("send", *(word.replace("STORE", str(root)).replace("FILE", str(file)) for word in words),
                        "--json")
    assert result.code == code
    assert result.document["error"]["remedy"]
    assert sorted(tmp_path.iterdir()) == before


def test_a_missing_client_is_named_with_the_command_that_brings_it(tmp_path: Path) -> None:
    file = export(unpacked("clean-5.3.3"), tmp_path / "m.ndjson", "--limit", "2")
    script = "import sys; sys.modules['rocketmq'] = None; from mqtool.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", script, "send", str(file), *TO, "--yes", "--json"],
                          capture_output=True, text=True, check=False, env={**os.environ, "HOME": str(tmp_path)})
    assert done.returncode == 8
    assert "pip install 'mqtool[send]'" in json.loads(done.stdout)["error"]["remedy"]


ABOUT = {"source": "m.ndjson", "options": "1"}


def test_a_position_is_the_last_whole_line_and_survives_a_cut_at_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "position"
    position = Position(path, ABOUT)
    assert (position.place, position.went_on) == (Place(), False)
    position.begin()
    places = [Place(), Place(1, 1, "a"), Place(2, 1, "b"), Place(30, 29, "\u00e9")]
    for place in places[1:]:
        position.move(place)
    position.close()
    content = path.read_bytes()
    head = content.index(b"\n") + 1
    for end in range(head, len(content) + 1):
        path.write_bytes(content[:end])
        again = Position(path, ABOUT)
        assert again.place == places[max(0, content[head:end].count(b"\n") - 1)]
        assert not again.ended


def test_a_position_says_that_it_ended_and_belongs_to_one_source_and_one_set_of_options(tmp_path: Path) -> None:
    path = tmp_path / "position"
    position = Position(path, ABOUT)
    position.begin()
    position.move(Place(7, 7, "last"))
    position.end()
    again = Position(path, ABOUT)
    assert (again.place, again.ended) == (Place(7, 7, "last"), True)
    with pytest.raises(UsageRefusal):
        Position(path, {**ABOUT, "options": "2"})
    path.write_bytes(b"something else\n")
    with pytest.raises(UsageRefusal):
        Position(path, ABOUT)


def test_a_position_belongs_to_one_run_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "position"
    first, late = Position(path, {}), Position(path, {})
    first.begin()
    first.move(Place(1, 1, "origin"))
    beside = Position(path, {})
    for run in (late, beside):
        with pytest.raises(Refusal, match="another mqtool uses"):
            run.begin()
    first.move(Place(2, 2, "origin"))
    first.end()
    with pytest.raises(Refusal, match="another run has used"):
        beside.begin()
    assert Position(path, {}).place == Place(2, 2, "origin")


def test_a_position_file_stays_short(tmp_path: Path) -> None:
    path = tmp_path / "position"
    position = Position(path, ABOUT)
    position.begin()
    for number in range(12_000):
        position.move(Place(number, number, "x" * 200))
    position.close()
    assert path.stat().st_size < (1 << 20) + 1000
    assert Position(path, ABOUT).place == Place(11_999, 11_999, "x" * 200)


class _Cluster:
    """A cluster that refuses the second message, and once gives no answer to the fourth."""

    def __init__(self) -> None:
        self.seen = self.again = 0

    def send(self, messages: list[Outgoing], _: object) -> list[RejectedMessage | None]:
        self.seen += 1
        if self.seen == 4:
            raise Refusal("no answer")
        return [RejectedMessage("too long") if self.seen == 2 else None for _ in messages]

    def close(self) -> None:
        pass


def test_a_message_that_the_cluster_refused_is_told_by_every_later_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = export(unpacked("clean-5.3.3"), tmp_path / "m.ndjson", "--topic", "TopicA", "--limit", "5")
    words = ("send", file, *TO, "--position", tmp_path / "position", "--yes", "--json")
    cluster = _Cluster()
    monkeypatch.setattr("mqtool.commands.send.Cluster", lambda *_, **__: cluster)
    for sent in (2, 4, 4):
        result = mqtool(*words)
        document = result.document
        assert (result.code, document["sent"], document["refused_messages"]) == (8, sent, 1), document
        assert "1 NOT taken" in document["summary"]
    # its message alone goes out with the command that is named
    (step,) = document["next"]
    words = [*shlex.split(step["command"])[1:], "--yes", "--json"]
    assert Path(words[1]).read_bytes() == file.read_bytes().splitlines(keepends=True)[1]
    cluster.seen = 9
    for _ in range(2):
        again = mqtool(*words).document
        assert (again["planned"], again["sent"], again["exit_code"], again["next"]) == (1, 1, 0, [])


def test_a_refused_message_is_kept_once_however_the_run_ends(tmp_path: Path) -> None:
    file = export(unpacked("clean-5.3.3"), tmp_path / "m.ndjson", "--topic", "TopicA", "--limit", "3")
    one, two, three = (message for message in read_messages(file) if not isinstance(message, str))
    first = Position(tmp_path / "p", ABOUT)
    first.begin()
    first.move(Place(1, 0, "one", first.keep([one])))
    first.keep([two])  # and killed
    first.close()
    second = Position(tmp_path / "p", ABOUT)
    second.begin()
    second.move(Place(3, 0, "three", second.keep([two, three])))
    second.close()
    assert second.refused is not None and [*read_messages(second.refused)] == [one, two, three]
    second.refused.unlink()  # sent, and removed
    last = Position(tmp_path / "p", ABOUT)
    last.begin()
    assert last.keep([one]) == len(file.read_bytes().splitlines(keepends=True)[0])
    last.close()
    (tmp_path / "p").unlink()
    with pytest.raises(Refusal, match=r"p\.refused exists"):
        Position(tmp_path / "p", ABOUT).begin()


@pytest.mark.parametrize("text", [
    "no available message queues for selection.",
    "40300, org.apache.rocketmq.proxy.common.ProxyException: no writable queue",
])
def test_a_topic_that_takes_no_messages_ends_the_run_and_is_no_fault_of_a_message(text: str) -> None:
    client = pytest.importorskip("rocketmq.v5.exception", reason="NOT RUN: pip install 'mqtool[send]'")
    # as a proxy of 5.5.0 and the client answer after updateTopicPerm -p 4
    error = client.ForbiddenException(text, 40300) if text[0] == "4" else client.IllegalArgumentException(text)
    with pytest.raises(Refusal, match="topic Orders of the cluster takes no messages") as caught:
        _judged(error, "Orders")
    assert "-p 6" in caught.value.remedy


def test_what_proxies_tell_each_other_is_not_sent(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store")
    for topic in ("DefaultHeartBeatSyncerTopic", "rmq_sys_REVIVE_LOG_DefaultCluster", "Orders"):
        writer.put(topic, b"body", {"UNIQ_KEY": "one"})
    writer.close()
    assert planned(tmp_path / "store")["topics"] == {"Orders": 1}
    assert planned(tmp_path / "store", "--include", "system")["topics"] == {"Orders": 1}


def test_a_host_that_cannot_be_reached_is_not_taken_for_a_missing_topic() -> None:
    pytest.importorskip("rocketmq")
    result = mqtool("send", unpacked("clean-5.3.3"), "--topic", "TopicA", "--limit", "1", *TO, "--yes", "--json")
    error = result.document["error"]
    assert result.code == 8 and "127.0.0.1:1 cannot be reached: Connection refused" in error["message"]
    assert "updateTopic" not in error["remedy"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert unreachable(f"127.0.0.1:1;127.0.0.1:{server.getsockname()[1]}") == ""
