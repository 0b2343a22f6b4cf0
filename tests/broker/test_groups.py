"""groups: what consumers of a real broker skip and get again after its start is what the command says before it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.damage.config import consumer_offsets
from fixtures.lab.observe import SOUND
from fixtures.lab.packed import settings
from fixtures.lab.whole import Subscription, WholeBroker
from tests.broker.cases import marked
from tests.broker.judge import damaged, mqtool
from tests.support import plain_reader as plain

pytestmark = pytest.mark.broker

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
