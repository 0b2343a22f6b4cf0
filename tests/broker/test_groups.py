"""groups: what consumers of a real broker skip and get again after its start is what the command says before it."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.damage.config import consumer_offsets
from fixtures.lab.observe import SOUND
from fixtures.lab.packed import settings
from fixtures.lab.whole import Subscription, WholeBroker
from mqtool import exits
from tests.broker.cases import marked, one_deep
from tests.broker.judge import damaged, mqtool
from tests.support import plain_reader as plain
from tests.support.stores import real_store
from tests.support.trees import assert_same_tree, tree_digest

pytestmark = [pytest.mark.broker, pytest.mark.patient]

STORES = ("clean-4.5.1", "killed-5.5.0")
VERSIONS = ("4.9.7", "5.1.4", "5.3.3", "5.5.0")
#: None with units that lead to damaged bytes: there a client drops what follows in the same answer.
DAMAGES = (
    SOUND, "crash-bit-without-checkpoint", "log-first-missing", "log-middle-missing", "queue-missing",
    "queues-behind", "crash-everything-derived",
)
TOPICS = ("TopicA", "TopicB")
PLACES: dict[str, Callable[[int], int]] = {
    "CG_middle": lambda end: end // 2, "CG_past": lambda end: end + 5, "CG_first": lambda end: 0,
}


def places(root: Path) -> dict[tuple[str, str], dict[int, int]]:
    """(group, topic) -> queue -> committed offset: in the middle of each queue, past its end, and at 0."""
    ends: dict[str, dict[int, int]] = {topic: defaultdict(int) for topic in TOPICS}
    for topic, queue, offset in plain.units(root):
        if topic in ends:
            ends[topic][queue] = max(ends[topic][queue], offset + 1)
    return {
        (f"{kind}_{topic}", topic): {queue: place(end) for queue, end in queues.items()}
        for topic, queues in ends.items() for kind, place in PLACES.items()
    }


@pytest.mark.parametrize(("store", "damage", "version"), marked(
    [(store, damage, version) for store in STORES for damage in DAMAGES for version in VERSIONS], 1))
def test_consumers_skip_and_get_again_what_groups_says(store: str, damage: str, version: str, tmp_path: Path) -> None:
    root, _ = damaged(store, damage, tmp_path)
    committed = places(root)
    consumer_offsets(root, {f"{topic}@{group}": queues for (group, topic), queues in committed.items()})
    intact = {
        (record.phy_offset, record.properties.get("UNIQ_KEY")): record for base, file in plain.log_files(root).items()
        for record in plain.all_records(file, base) if record.has_unit
    }
    rows = mqtool("groups", root, "--broker", version).document["groups"]
    said = {(row["group"], row["topic"], row["queue"]): (row["skips"], row["again"]) for row in rows
            if (row["group"], row["topic"]) in committed}
    # with LMQ brokers read lmqConsumerOffset.json alone
    conf = {**settings(store), "enableLmq": False, "enableMultiDispatch": False}
    with WholeBroker(version, root, conf, kill=True) as broker:
        received = broker.consume([Subscription(topic, group=group, due=-1) for group, topic in committed])
    seen: dict[tuple[str, str, int], tuple[int, int]] = {}
    for ((group, topic), queues), messages in zip(committed.items(), received, strict=True):
        got = {(one.phy_offset, one.uniq_key) for one in messages}
        for queue, offset in queues.items():
            mine = {key: record.queue_offset for key, record in intact.items()
                    if (record.topic, record.queue_id) == (topic, queue)}
            seen[group, topic, queue] = (
                sum(at >= offset and key not in got for key, at in mine.items()),
                sum(at < offset and key in got for key, at in mine.items()))
    assert seen == said


def _offsets(root: Path) -> dict[str, dict[int, int]]:
    return {name: {int(queue): offset for queue, offset in queues.items()} for name, queues in json.loads(re.sub(
        r"([{,]\s*)(\d+):", r'\1"\2":', (root / "config/consumerOffset.json").read_text()))["offsetTable"].items()}


@pytest.mark.parametrize("version", one_deep(("4.9.7", "5.3.3"), "5.3.3"))
def test_offsets_that_went_back_by_a_failover_are_merged_and_no_message_is_skipped_or_comes_a_third_time(
    version: str, tmp_path: Path
) -> None:
    """The slave's file is a quarter of the way, the master's three quarters; one queue is ahead on the slave, and one
    offset of the master lies past the end of its queue."""
    root = real_store("clean-4.5.1", tmp_path)
    ends: dict[int, int] = defaultdict(int)
    for topic, queue, offset in plain.units(root):
        if topic == "TopicA":
            ends[queue] = max(ends[queue], offset + 1)
    ahead, past = sorted(ends)[:2]
    master = {queue: end * 3 // 4 for queue, end in ends.items()} | {ahead: 1, past: ends[past] + 7}
    slave = {queue: end // 4 for queue, end in ends.items()}
    consumer_offsets(root, {"TopicA@CG": master})
    other = tmp_path / "other-consumerOffset.json"
    shutil.copy(root / "config/consumerOffset.json", other)
    consumer_offsets(root, {"TopicA@CG": slave})
    before = tree_digest(root)
    done = mqtool("recover", root, "--broker", version, "--offsets-from", other, "--yes")
    assert not done.code & exits.OPERATIONAL, done
    merged = {queue: min(max(slave[queue], master[queue]), end) for queue, end in ends.items()}
    assert _offsets(root)["TopicA@CG"] == merged
    copy = shutil.copytree(root, tmp_path / "copy")
    conf = {**settings("clean-4.5.1"), "enableLmq": False, "enableMultiDispatch": False}
    with WholeBroker(version, copy, conf, kill=True) as broker:
        received, = broker.consume([Subscription("TopicA", group="CG", due=-1)])
    got = Counter((one.queue_id, one.queue_offset) for one in received)
    # what the group had read up to the merged offset does not come again, and nothing behind it is left out
    due = {(record.queue_id, record.queue_offset) for base, file in plain.log_files(root).items()
           for record in plain.all_records(file, base)
           if record.has_unit and record.topic == "TopicA" and record.queue_offset >= merged[record.queue_id]}
    assert due and due == {key for key in got if key[1] >= merged[key[0]]} and set(got) == due
    assert max(got.values()) == 1
    assert mqtool("undo", root, "--yes").code == 0
    assert_same_tree(before, tree_digest(root))
