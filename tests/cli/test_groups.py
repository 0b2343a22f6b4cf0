"""groups and report: what consumers skip and get again, and a page of all that happened."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage import damage
from fixtures.damage.config import consumer_offsets
from mqtool import exits
from recover.broker.versions import BrokerVersion, boundaries
from tests.cli.runner import mqtool
from tests.cli.test_documents import held
from tests.support import plain_reader as plain
from tests.support.sampling import few
from tests.support.stores import real_store, unpacked, write_at
from tests.support.trees import assert_unchanged, tree_digest

# --- `mqtool groups`: committed offsets against the queues, counted by the plain reader.


_BARE_KEY = re.compile(r"([{,]\s*)(-?\d+):")


def committed(root: Path) -> dict[tuple[str, str, int], int]:
    """(group, topic, queue) -> offset, of both offset files."""
    found = {}
    for name in ("consumerOffset.json", "lmqConsumerOffset.json"):
        file = root / "config" / name
        if not file.exists():
            continue
        value = json.loads(_BARE_KEY.sub(r'\1"\2":', file.read_text()))
        for key, queues in value.get("offsetTable", {}).items():
            topic, group = key.split("@")
            found.update({(group, topic, int(queue)): offset for queue, offset in queues.items()})
        for key, offset in value.get("lmqOffsetTable", {}).items():
            topic, group = key.split("@")
            found[group, topic, 0] = offset
    return found


def ends(root: Path) -> dict[tuple[str, int], tuple[int, int]]:
    """Each queue's first and next queue offset, by its units."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for topic, queue, offset in plain.units(root):
        first, end = found.get((topic, queue), (offset, 0))
        found[topic, queue] = min(first, offset), max(end, offset + 1)
    return found


def rows_of(root: Path, *options: object, code: int = 0) -> dict[tuple[str, str, int], dict[str, Any]]:
    with assert_unchanged(root):
        result = mqtool("groups", root, *options, "--json")
    assert result.code == code, result.stdout
    return {(row["group"], row["topic"], row["queue"]): row for row in result.document["groups"]}


@pytest.mark.parametrize("name", ["clean-4.5.1", "clean-5.3.3", "killed-5.5.0"])
@pytest.mark.parametrize("broker", ["4.9.8", "5.3.3"])
def test_every_committed_offset_is_a_row_with_its_lag(name: str, broker: str) -> None:
    root = unpacked(name)
    rows = rows_of(root, "--broker", broker)
    queues, log = ends(root), plain.records(root)
    assert {key: row["committed"] for key, row in rows.items()} == committed(root)
    assert sum(row["lag"] for row in rows.values()) > 0
    for (_, topic, queue), row in rows.items():
        first, end = queues.get((topic, queue), (0, 0))
        assert (row["min"], row["max"], row["min_after"], row["max_after"]) == (first, end, first, end)
        if topic.startswith("%LMQ%"):
            continue
        assert row["lag"] == sum(
            (record.topic, record.queue_id) == (topic, queue) and row["committed"] <= record.queue_offset < end
            and record.has_unit for record in log)
        assert (row["skips"], row["again"], row["resumes"]) == (0, 0, row["committed"])


@pytest.mark.parametrize(("lmq", "committed_at"), [("true", {10}), ("false", {100}), (None, {10, 100})])
def test_of_two_files_of_offsets_the_one_that_the_broker_reads_counts(
    lmq: str | None, committed_at: set[int], store: Callable[[str], Path],
) -> None:
    """With enableLmq brokers 4.9.7 and 5.3.3 went on at the offsets of the second file, without it at the first's."""
    root = store("clean-4.5.1")
    consumer_offsets(root, {"TopicA@CG_x": {0: 100}})
    (root / "config" / "lmqConsumerOffset.json").write_text(
        '{"lmqOffsetTable":{},"offsetTable":{"TopicA@CG_x":{0:10}}}')
    options = [] if lmq is None else ["--set", f"enableLmq={lmq}"]
    found = mqtool("groups", root, "--broker", "5.3.3", "--group", "CG_x", *options, "--json").document
    assert {row["committed"] for row in found["groups"]} == committed_at
    assert any("enableLmq" in line for line in found["assumptions"])
    (lag,) = {row["lag"] for row in found["groups"] if row["committed"] == (10 if lmq == "true" else 100)}
    assert f"1 group, {lag} messages not consumed yet" in found["summary"]


@pytest.mark.parametrize(("lmq", "file", "forgotten"), [
    ("true", "consumerOffset.json", True), ("false", "lmqConsumerOffset.json", True),
    ("true", "lmqConsumerOffset.json", False), ("false", "consumerOffset.json", False),
    (None, "lmqConsumerOffset.json", False),
])
@few("broker", ["4.9.7", "5.3.3"], quick=(1,))
def test_offsets_in_the_file_that_the_broker_does_not_read_are_forgotten(
    lmq: str | None, file: str, forgotten: bool, broker: str, store: Callable[[str], Path],
) -> None:
    """Consumers of a real 4.9.7 and 5.3.3 with that setting began anew."""
    root = store("clean-4.5.1")
    consumer_offsets(root, {"TopicA@CG_x": {0: 100}})
    (root / "config" / "consumerOffset.json").rename(root / "config" / file)
    (root / "config" / "consumerOffset.json.bak").unlink(missing_ok=True)
    options = [] if lmq is None else ["--set", f"enableLmq={lmq}"]
    for command, code in (("predict", 4), ("groups", 4), ("verify", 2)):
        said = mqtool(command, root, "--broker", broker, *options, "--json")
        assert ("config-other-offsets" in said.document["finding_counts"]) is forgotten, command
        assert bool(said.code & code) is forgotten, command
        if forgotten and command == "predict":
            right = str(file.startswith("lmq")).lower()
            assert f"enableLmq={right}" in said.document["next"][0]["command"]
            assert file in said.document["next"][0]["why"]
            assert said.document["summary"].startswith("DO NOT START: ")


def test_a_configuration_that_leaves_out_enablelmq_is_named_before_the_start(store: Callable[[str], Path]) -> None:
    root = store("clean-5.3.3")
    conf = root / "broker.conf"
    conf.write_text("mappedFileSizeCommitLog=1048576\n")
    said = {command: mqtool(command, root, "--broker", "5.3.3", "--broker-conf", conf, "--json").document
            for command in ("predict", "recover")}
    assert said["predict"]["exit_code"] & 4
    for command, document in said.items():
        steps = [step["command"] for step in document["next"]]
        assert any(step.startswith("Set enableLmq=true in the broker's conf") for step in steps), command
        assert "start the broker" not in steps, command


def test_group_and_topic_choose_rows() -> None:
    root = unpacked("clean-5.3.3")
    every = rows_of(root)
    assert rows_of(root, "--group", "CG_retry", "--topic", "TopicT?") == {
        key: row for key, row in every.items() if key[0] == "CG_retry" and key[1] == "TopicTx"}
    assert rows_of(root, "--group", "nobody") == {}


@few(("broker", "rewinds"), [("4.5.2", True), ("4.9.7", False), ("5.3.3", False)], quick=(0, 1))
def test_an_offset_above_the_end_is_a_finding_that_clamping_ends(
    broker: str, rewinds: bool, store: Callable[[str], Path],
) -> None:
    root = store("clean-5.3.3")
    facts = damage("consumer-offset-above-max", root, 5).facts
    result = mqtool("groups", root, "--broker", broker, "--json")
    assert result.code == 2
    (found,) = result.document["findings"]
    assert (found["code"], found["facts"]["group"]) == ("consumer-offset-above-max", facts["group"])
    assert "--clamp-offsets" in found["remedy"]
    assert f"queue {facts['queue_id']} ends at {facts['max']}, the offset is {facts['offset']}" in found["message"]
    with assert_unchanged(root):
        assert mqtool("recover", root, "--yes").code == exits.DERIVED
    assert "--clamp-offsets" in result.document["next"][0]["command"]
    place = facts["group"], facts["topic"], facts["queue_id"]
    row = rows_of(root, "--broker", broker, code=2)[place]
    held = [r for r in plain.records(root) if (r.topic, r.queue_id) == place[1:]]
    assert row["committed"] == facts["offset"] > row["max_after"] == facts["max"]
    assert (row["resumes"], row["again"]) == ((0, len(held)) if rewinds else (row["max_after"], 0))
    assert (row["skips"], row["lag"]) == (0, 0)
    assert mqtool("recover", root, "--clamp-offsets", "--yes").code == 1
    row = rows_of(root, "--broker", broker)[place]
    assert (row["committed"], row["again"], row["skips"]) == (facts["max"], 0, 0)


def test_an_offset_below_the_first_message_left_goes_on_there(store: Callable[[str], Path]) -> None:
    root = store("clean-manyfiles-5.3.3")
    facts = damage("consumer-offset-below-min", root, 5).facts
    row = rows_of(root, "--group", facts["group"], "--topic", facts["topic"])[
        facts["group"], facts["topic"], facts["queue_id"]]
    assert row["committed"] < row["min"] == row["min_after"] == row["resumes"]
    assert (row["skips"], row["again"]) == (0, 0)


@pytest.mark.parametrize("committed_at", [0, 83, 84])
def test_a_message_whose_unit_a_start_appends_elsewhere_is_not_skipped(
    committed_at: int, store: Callable[[str], Path],
) -> None:
    """Dispatch of 5.3.3 goes on after the message at 83 of this queue: each later unit stands one position lower."""
    root = store("clean-4.5.1")
    damage("queues-behind", root, 0)
    consumer_offsets(root, {"TopicA@CG_middle": {3: committed_at}})
    row = rows_of(root, "--broker", "5.3.3", "--group", "CG_middle", code=exits.DERIVED)["CG_middle", "TopicA", 3]
    assert (row["max_after"], row["skips"], row["again"]) == (130, 1, 0)


@pytest.mark.parametrize("seed", [1, 2])
def test_what_a_start_cuts_off_is_skipped(seed: int, store: Callable[[str], Path]) -> None:
    root = store("killed-5.5.0")
    before = plain.records(root)
    damage("page-zeroed", root, seed)
    files = plain.log_files(root)
    left = [record for record in before for base, file in files.items()
            if base <= record.phy_offset < base + len(file)
            and file.startswith(record.content, record.phy_offset - base)]
    prediction = mqtool("predict", root, "--broker", "5.3.3", "--json").document
    with assert_unchanged(root):
        result = mqtool("groups", root, "--broker", "5.3.3", "--json")
    skipped = 0
    for row in result.document["groups"]:
        topic, queue, offset = row["topic"], row["queue"], row["committed"]
        if topic.startswith("%LMQ%"):
            continue
        mine = [record for record in left if (record.topic, record.queue_id) == (topic, queue)]
        due = sum(record.queue_offset >= offset and record.phy_offset >= prediction["max_phy"] for record in mine)
        assert row["skips"] == due
        assert [row["min_after"], row["max_after"]] == prediction["queues"].get(f"{topic}/{queue}", [0, 0])
        skipped += due
    assert skipped > 0 or prediction["lost_messages"] == 0
    if prediction["lowered_queues"]:
        assert result.code & 4


def test_offsets_that_cannot_be_read_are_said_to_be(store: Callable[[str], Path]) -> None:
    root = store("clean-5.3.3")
    for file in (root / "config").glob("*onsumerOffset.json*"):
        file.write_bytes(file.read_bytes()[:20])
    result = mqtool("groups", root, "--json")
    assert result.code != 0
    assert result.document["complete"] is False
    assert {found["code"] for found in result.document["findings"]} & {"config-lost", "start-refused"}


@few("recipe", [None, "page-zeroed", "consumer-offset-above-max"], quick=(1, 2))
def test_predict_and_recover_list_the_same_rows(
    recipe: str | None, store: Callable[[str], Path], tmp_path: Path,
) -> None:
    root = store("killed-5.5.0")
    if recipe is not None:
        damage(recipe, root, 2)
    rows = mqtool("groups", root, "--broker", "5.3.3", "--json").document["groups"]
    assert rows
    predicted = mqtool("predict", root, "--broker", "5.3.3", "--json").document
    assert predicted["groups"] == rows
    planned = mqtool("recover", root, "--broker", "5.3.3", "--dry-run", "--json").document
    assert (planned["groups"], planned["groups_after"]) == (rows, None)
    assert (planned["delivers"], planned["delivers_after"]) == (predicted["delivers"], None)
    document = mqtool("recover", root, "--broker", "5.3.3", "--yes", "--json").document
    assert document["groups"] == rows
    after = mqtool("groups", root, "--broker", "5.3.3", "--json").document
    assert (document["groups_after"], document["delivers_after"]) == (after["groups"], after["delivers"])
    assert predicted["delivers"] and any(row["again"] for row in after["delivers"])
    if recipe == "page-zeroed":
        skipped = sum(row["skips"] for row in rows)
        assert sum(row["skips"] for row in document["groups_after"]) <= skipped


@pytest.mark.parametrize("gone", ["", "TopicA/2"])
def test_what_is_not_consumed_of_a_queue_without_its_units_is_not_known(gone: str, tmp_path: Path) -> None:
    root = real_store("clean-5.3.3", tmp_path)
    shutil.rmtree(root / "consumequeue" / gone)
    done = mqtool("groups", root, "--group", "CG_retry", "--json")
    unknown = {(row["topic"], row["queue"]) for row in done.document["groups"]
               if (row["min"], row["max"], row["lag"]) == (None, None, None)}
    assert unknown == {(row["topic"], row["queue"]) for row in done.document["groups"]
                       if gone in ("", f"{row['topic']}/{row['queue']}")}
    assert done.code == exits.DERIVED and done.document["complete"] is False
    assert "unknown" in done.document["summary"] and "recover" in done.document["next"][0]["command"]


@pytest.mark.parametrize("left", [150, 100])
def test_messages_after_the_end_of_a_cut_queue_leave_its_lag_unknown(left: int, tmp_path: Path) -> None:
    """Also where the group has consumed past that end: brokers before 4.9.4 begin again at 0."""
    root = real_store("clean-5.3.3", tmp_path)
    file = root / "consumequeue" / "TopicA" / "0" / f"{0:020}"
    content = file.read_bytes()
    file.write_bytes(content[: left * 20].ljust(len(content), b"\0"))
    done = mqtool("groups", root, "--group", "CG_retry", "--topic", "TopicA", "--json")
    (row,) = (row for row in done.document["groups"] if row["queue"] == 0)
    assert (row["committed"], row["max"], row["lag"]) == (148, left, None)
    assert done.code == exits.DERIVED


def test_no_group_is_not_said_to_have_consumed_everything_where_the_offsets_are_gone(tmp_path: Path) -> None:
    root = real_store("clean-5.3.3", tmp_path)
    shutil.rmtree(root / "config")
    done = mqtool("groups", root, "--json")
    assert done.code & exits.MESSAGES and done.document["groups"] == [] and done.document["complete"] is False
    assert "unknown" in done.document["summary"] and "0 messages not consumed" not in done.document["summary"]


def test_the_offset_of_a_broadcasting_group_behind_a_proxy_is_a_row(store: Callable[[str], Path]) -> None:
    root = store("clean-5.3.3")
    for file in (root / "config").glob("lmqConsumerOffset.json*"):
        file.unlink()
    consumer_offsets(root, {"TopicA@CG@broadcast": {0: 10, 1: 100_000}})
    done = mqtool("groups", root, "--json")
    rows = {row["queue"]: (row["group"], row["topic"], row["committed"]) for row in done.document["groups"]
            if row["group"].startswith("CG@")}
    assert rows == {0: ("CG@broadcast", "TopicA", 10), 1: ("CG@broadcast", "TopicA", 100_000)}
    assert done.document["complete"] and done.document["notes"] == []
    assert done.document["finding_counts"].get("consumer-offset-above-max") == 1
    assert mqtool("recover", root, "--clamp-offsets", "--yes").code & exits.CORRECTED
    assert mqtool("groups", root, "--json").document["finding_counts"].get("consumer-offset-above-max") is None


@pytest.mark.parametrize(("name", "part"), [("clean-config2-5.5.0", "rdb"), ("clean-rocksdb-5.3.3", "consumerOffsets")])
def test_offsets_in_rocksdb_are_said_to_be_unread(name: str, part: str) -> None:
    done = mqtool("groups", unpacked(f"kinds/{name}"), "--json")
    assert done.code == exits.UNSUPPORTED and done.document["groups"] == [] and done.document["complete"] is False
    assert any(f"config/{part}" in note for note in done.document["notes"])
    assert "unknown" in done.document["summary"] and not re.search(r"\b0 messages", done.document["summary"])


def test_without_the_log_nothing_is_known_of_messages(tmp_path: Path) -> None:
    root = real_store("clean-5.3.3", tmp_path)
    for file in (root / "commitlog").iterdir():
        file.unlink()
    done = mqtool("groups", root, "--json")
    assert done.code & exits.MESSAGES and "commitlog-empty-queues-left" in done.document["finding_counts"]
    assert {(row["lag"], row["skips"], row["again"]) for row in done.document["groups"]} == {(None, None, None)}
    start = mqtool("predict", root, "--broker", "5.3.3", "--json").document
    assert start["summary"].endswith("; cannot predict timer messages")
    assert any("entries of the timerlog" in part for part in start["unsupported"])
    assert "unknown" in done.document["summary"] and "disk" in done.document["next"][0]["command"]
    page = tmp_path / "page.md"
    mqtool("report", root, "-o", page)
    assert "No message is known to be lost" not in page.read_text() and "unknown: the log" in page.read_text()


# --- mqtool report: one page that says what the other commands say, that is harmless, and that changes nothing.


TAGS = {
    "html", "head", "meta", "title", "style", "body", "header", "h1", "h2", "h3", "p", "div", "section", "span",
    "table", "tr", "th", "td", "svg", "rect", "text", "footer",
}
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def harmless(path: Path) -> Page:
    page = Page(path)
    assert page.tags <= TAGS, page.tags - TAGS
    assert not [name for name in page.attributes if name.startswith("on") or name in ("src", "href", "xlink:href")]
    assert "url(" not in path.read_text() and "@import" not in path.read_text()
    assert "default-src 'none'" in path.read_text()
    return page


def damaged(folder: Path) -> Path:
    root = real_store("clean-5.3.3", folder)
    damage("consumer-offset-above-max", root, 1)
    damage("crash-bit-without-checkpoint", root, 2)
    return root


def test_the_page_says_what_the_other_commands_say(tmp_path: Path) -> None:
    root = damaged(tmp_path)
    before = tree_digest(root)
    result = mqtool("report", root, "--broker", "5.3.3", "-o", tmp_path / "r.html", "--json")
    held(result.document, "report")
    assert tree_digest(root) == before
    verify = mqtool("verify", root, "--json")
    assert result.code == verify.code == exits.DERIVED | exits.MESSAGES
    for part in ("commitlog", "consumequeue", "index", "checkpoint"):
        assert result.document["verify"][part] == verify.document[part]
    assert result.document["findings"] == mqtool("verify", root, "--broker", "5.3.3", "--json").document["findings"]
    predict = mqtool("predict", root, "--broker", "5.3.3", "--json").document
    for key, value in result.document["predict"].items():
        assert predict[key] == value or key == "assumptions", key
    assert result.document["groups"] == mqtool("groups", root, "--broker", "5.3.3", "--json").document["groups"]
    out = tmp_path / "lost.ndjson"
    dry = mqtool("recover", root, "--broker", "5.3.3", "--dry-run", "--loss-out", out, "--json").document
    assert result.document["loss"] == dry["plan"]["loss"]
    assert result.document["plan"]["steps"] == dry["plan"]["steps"]
    keys = [json.loads(line)["phy_offset"] for line in out.read_text().splitlines()]
    assert [item["phy_offset"] for item in result.document["lost_messages"]] == keys
    page = harmless(tmp_path / "r.html")
    lost = dry["damaged_messages"]
    assert f"{lost} message damaged or missing in 1 place of the log" in page.text
    assert f"delete {predict['lost_messages']:,} intact messages" in page.text
    for step in result.document["next"]:
        assert step["command"] in page.text
    assert str(keys[0]) in re.sub(",", "", page.text)


def test_traffic_and_map_count_every_message_once(tmp_path: Path) -> None:
    root = damaged(tmp_path)
    document = mqtool("report", root, "--json").document
    log, traffic = document["verify"]["commitlog"], document["traffic"]
    assert sum(traffic["messages"]) == log["messages"]
    assert sum(sum(queue["lost"]) for queue in traffic["queues"]) == log["damaged_messages"]
    assert [damage[:2] for part in document["map"] for damage in part["damaged"]] == \
        [[item["start"], item["stop"]] for item in log["damaged"]]
    assert sum(part["files"] for part in document["map"]) == log["files"]
    assert document["evidence"]["count"] == sum(path.is_file() for path in root.rglob("*"))
    assert document["evidence"]["sha256"] is None


@pytest.mark.parametrize("recipe", ["blank-too-large", "log-stray-folder"])
def test_each_release_stands_in_the_row_of_what_its_start_does(recipe: str, tmp_path: Path) -> None:
    root = real_store("clean-manyfiles-5.3.3", tmp_path)
    damage(recipe, root, 1)
    starts = mqtool("report", root, "--json").document["starts"]
    rows = [(BrokerVersion.parse(item["releases"].split()[0]), item) for item in starts]
    assert [first for first, _ in rows] == sorted(first for first, _ in rows)
    for version in boundaries():
        item = [item for first, item in rows if first <= version][-1]
        told = mqtool("predict", root, "--broker", version, "--json")
        lines = [re.sub(rf"\b(?:the broker|a broker|broker {version}|{version})\b", "B", line)
                 for line in (item["summary"], told.document["summary"])]
        assert lines[0] == lines[1], version
        assert item["exit_code"] == told.code


def test_a_sound_store_has_nothing_to_be_done(tmp_path: Path) -> None:
    result = mqtool("report", unpacked("clean-5.3.3"), "-o", tmp_path / "r.html", "--json")
    assert result.code == exits.CLEAN
    page = harmless(tmp_path / "r.html")
    assert "No message is known to be lost." in page.text and "No changes are needed." in page.text


@few(("name", "recipe"), [
    ("clean-manyfiles-5.3.3", "log-middle-missing"), ("clean-plain-4.9.7", "log-all-missing"),
    ("clean-empty-5.3.3", ""), ("kinds/clean-rocksdb-5.5.0", ""), ("kinds/clean-dledger-5.3.3", ""),
    ("killed-v2-ipv6-5.3.3", "page-random"),
], quick=(0, 1, 3))
def test_a_page_comes_of_every_store(name: str, recipe: str, tmp_path: Path) -> None:
    root = real_store(name, tmp_path / "stores")
    if recipe:
        damage(recipe, root, 1)
    result = mqtool("report", root, "-o", tmp_path / "r.html", "--json")
    held(result.document, "report")
    assert result.code == mqtool("verify", root, "--json").code
    harmless(tmp_path / "r.html")
    assert len(result.document["map"]) <= 24
    unread = result.document["verify"]["not_checked"]
    assert ("not checked: " in result.document["sentence"]) == bool(unread)
    assert "commitlog" not in unread or "intact" not in result.document["sentence"].replace("no intact", "")
    assert mqtool("report", root, "-o", tmp_path / "r.md").code == result.code


def hostile_store(folder: Path) -> Path:
    """Names that a browser would run, wherever a store can hold any: folders, groups, topics, keys of a message."""
    root = real_store("clean-5.3.3", folder)
    name = HOSTILE.replace("/", "\u2215")
    root = root.rename(folder / name)
    folder_of_queue = next(path for path in sorted((root / "consumequeue").glob("*/0")) if any(path.iterdir()))
    shutil.copytree(folder_of_queue, root / "consumequeue" / f"T{name}" / "0")
    consumer_offsets(root, {f"{HOSTILE.replace(chr(34), '')}@{HOSTILE.replace(chr(34), '')}": {0: 3}})
    log = root / "commitlog" / f"{0:020d}"
    content = log.read_bytes()
    keys = content.index(b"KEYS\x01", content.index(b"KEYS\x01") + 1) + 5
    write_at(log, keys, b"<b>")
    # the checksum of the body: a damaged message is listed with its keys
    write_at(log, content.rindex(b"\xda\xa3\x20\xa7", 0, keys) + 4, bytes(4))
    (root / "commitlog" / f"{name}.bak").write_bytes(b"x")
    return root


def test_names_of_a_store_stay_text(tmp_path: Path) -> None:
    root = hostile_store(tmp_path)
    page_file, text_file = tmp_path / "r.html", tmp_path / "r.md"
    mqtool("report", root, "-o", page_file)
    mqtool("report", root, "-o", text_file)
    shown = harmless(page_file).text
    assert "document.title='owned'" in shown and "<b>" in shown and "<img src=x onerror=document" in shown
    text = text_file.read_text()
    outside_code = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
    assert "document.title='owned'" in outside_code and not re.search(r"<\s*[a-z/!]", outside_code)
    assert all(line.startswith("    ") or "<" not in line for line in text.splitlines())


def test_text_that_turns_writing_around_is_shown_as_an_escape(tmp_path: Path) -> None:
    root = real_store("clean-5.3.3", tmp_path).rename(tmp_path / "store\u202egpj\u200b")
    mqtool("report", root, "-o", tmp_path / "r.html")
    page = harmless(tmp_path / "r.html")
    assert "\\u202egpj" in page.text and "\u202e" not in page.text and "\u200b" not in page.text


with_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")


def browsed(page: Path, added: str = "") -> str:
    """Its title in a window of 1280 x 800, after its scripts and `added` at its end ran: its policy is left out."""
    assert BROWSER is not None
    text, policies = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    assert policies == 1
    bare = page.with_name(f"bare-{page.name}")
    bare.write_text(text.replace("</body>", f"{added}</body>"))
    return title(bare)


def title(page: Path) -> str:
    assert BROWSER is not None
    seen = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
         f"--user-data-dir={page.parent / 'profile'}", "--window-size=1280,800", "--virtual-time-budget=2000",
         "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120)
    found = re.search(r"<title>(.*?)</title>", seen.stdout)
    assert found is not None, seen.stderr
    return found[1]


@pytest.mark.deep
@with_browser
def test_a_real_browser_runs_no_script_of_a_name(tmp_path: Path) -> None:
    """With the policy of the page and, so that the escaping is seen by itself, without it."""
    root = hostile_store(tmp_path)
    page = tmp_path / "r.html"
    mqtool("report", root, "-o", page)
    assert browsed(page, HOSTILE) == "owned"
    assert browsed(page).startswith("Store ") and title(page).startswith("Store ")


@pytest.mark.deep
@with_browser
@pytest.mark.parametrize(("name", "recipes"), [
    ("clean-5.3.3", ["consumer-offset-above-max", "page-random", "crash-bit-without-checkpoint"]),
    ("clean-manyfiles-5.3.3", ["log-all-missing"]),
    *(pytest.param(name, recipes, marks=pytest.mark.long) for name, recipes in [
        ("clean-manyfiles-5.3.3", ["log-middle-missing"]), ("killed-5.5.0", ["crash-everything-derived"]),
        ("kinds/clean-rocksdb-5.5.0", ["page-zeroed"])]),
])
def test_the_first_screen_of_a_real_browser_holds_the_three_answers(
    name: str, recipes: list[str], tmp_path: Path,
) -> None:
    root = real_store(name, tmp_path)
    for seed, recipe in enumerate(recipes):
        damage(recipe, root, seed)
    mqtool("report", root, "-o", tmp_path / "r.html")
    asks = "document.querySelector('.cards').getBoundingClientRect()"
    bottom, right = map(float, browsed(
        tmp_path / "r.html", f"<script>document.title = {asks}.bottom + ' ' + {asks}.right</script>").split())
    assert bottom < 720 and right <= 1280  # a window of 800 shows 720 or more of a page


def test_digests_are_those_of_the_files(tmp_path: Path) -> None:
    root = real_store("clean-manyfiles-5.3.3", tmp_path)
    document = mqtool("report", root, "--digests", "--json").document["evidence"]
    lines = ""
    for item in document["files"]:
        digest = hashlib.sha256((root / item["path"]).read_bytes()).hexdigest()
        assert (item["sha256"], item["size"]) == (digest, (root / item["path"]).stat().st_size)
        lines += f"{digest}  {item['path']}\n"
    assert document["count"] == len(document["files"]) and document["unread"] == 0
    assert document["sha256"] == hashlib.sha256(lines.encode()).hexdigest()


def test_a_run_is_told_with_what_it_stated_as_lost(store: Callable[[str], Path], tmp_path: Path) -> None:
    root = store("clean-manyfiles-5.3.3")
    damage("bit-in-body", root, 1)
    assert mqtool("recover", root, "--yes").code & exits.CORRECTED
    result = mqtool("report", root, "-o", tmp_path / "r.html", "--json")
    assert [item["state"] for item in result.document["runs"]] == ["applied"]
    page = harmless(tmp_path / "r.html")
    assert result.document["runs"][0]["id"] in page.text and "mqtool never changed" not in page.text


def test_what_cannot_be_written_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    root = real_store("clean-5.3.3", tmp_path)
    taken = tmp_path / "taken.html"
    taken.write_text("mine")
    assert mqtool("report", root).code == exits.USAGE
    assert mqtool("report", root, "-o", tmp_path / "r.txt").code == exits.USAGE
    assert mqtool("report", root, "-o", root / "r.html").code == exits.USAGE
    assert mqtool("report", root, "-o", taken).code == exits.OPERATIONAL
    assert taken.read_text() == "mine" and not (root / "r.html").exists()
