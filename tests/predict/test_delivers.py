"""What a start delivers, by clause; the figures of packed stores are what real brokers stored (tests/broker)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from recover.broker.settings import BrokerSettings
from recover.predict import start
from recover.predict.dispatch import Loaded, load
from recover.store.store import Store
from tests.cli.runner import Result, mqtool
from tests.support import plain_reader as plain
from tests.support.stores import unpacked

CRASH = "2026-11-21T02:05Z"
WRITTEN = ("--set", "enableLmq=true", "--set", "enableMultiDispatch=true")
OUTCOMES = ("again", "now", "pending", "skipped")


def predicted(root: Path, *more: object, broker: str = "5.3.3") -> Result:
    return mqtool("predict", root, "--broker", broker, *WRITTEN, *more, "--json")


def sums(result: Result, kind: str) -> tuple[int, ...]:
    """Messages of a kind that come again, now, later, never."""
    rows = [row for row in result.document["delivers"] if row["kind"] == kind]
    return tuple(sum(row[outcome] for row in rows) for outcome in OUTCOMES)


def due_times(name: str, topic: str, delay: int) -> list[int]:
    return [record.store_time + delay for record in plain.records(unpacked(name)) if record.topic == topic]


@pytest.mark.parametrize("release", ["4.5.1", "4.9.7", "5.3.3", "5.5.0"])
def test_killed_store_delivers_again_what_real_brokers_delivered_again(release: str) -> None:
    found = predicted(unpacked("killed-5.5.0"), "--at", CRASH, broker=release)
    assert sums(found, "delay") == (9, 13, 0, 0)
    again = Counter({row["topic"]: row["again"] for row in found.document["delivers"] if row["kind"] == "delay"})
    assert again == {"Orders-2026": 2, "TopicA": 4, "TopicB": 3}
    # up to 4.9 no broker reads op messages that name several half messages, nor offsets of LMQ brokers before 4.9.3
    assert sums(found, "half")[:2] == {"4.5.1": (120, 40), "4.9.7": (20, 20)}.get(release, (20, 20))
    assert "start-delivers-again" in found.notable
    assert found.code & 6
    assert "a second time" in found.document["summary"]
    assert not any("costs nothing" in step["why"] for step in found.document["next"])


def test_groups_has_the_same_rows(tmp_path: Path) -> None:
    root = unpacked("killed-5.5.0")
    groups = mqtool("groups", root, "--broker", "5.3.3", *WRITTEN, "--at", CRASH, "--json").document
    assert groups["delivers"] == predicted(root, "--at", CRASH).document["delivers"]


def test_time_decides_what_is_overdue(tmp_path: Path) -> None:
    root, due = unpacked("clean-plain-4.9.7"), due_times("clean-plain-4.9.7", "SCHEDULE_TOPIC_XXXX", 10_000)
    assert sums(predicted(root, "--at", min(due) - 1), "delay") == (0, 0, len(due), 0)
    later = predicted(root, "--at", max(due))
    assert sums(later, "delay") == (0, len(due), 0, 0)
    assert "start-delivers-overdue" in later.codes
    assert later.code == 0
    assert "costs nothing" not in later.stdout


def test_offset_of_a_level_that_is_ahead_skips_messages(store: Callable[[str], Path]) -> None:
    root, due = store("clean-plain-4.9.7"), due_times("clean-plain-4.9.7", "SCHEDULE_TOPIC_XXXX", 10_000)
    (root / "config").mkdir(exist_ok=True)
    (root / "config/delayOffset.json").write_text(json.dumps({"offsetTable": {"3": 25}}))
    found = predicted(root, "--at", min(due) - 1, broker="4.9.7")
    assert sums(found, "delay") == (0, 0, len(due) - 25, 25)
    assert found.code == 4
    assert [item["facts"]["count"] for item in found.found("start-skips-waiting")] == [25]


@pytest.mark.parametrize(("after_ms", "outcome"), [(-60_000, "pending"), (1000, "now"), (8 * 24 * 3600_000, "skipped")])
def test_timers_wait_come_late_or_are_a_week_too_old(after_ms: int, outcome: str) -> None:
    root = unpacked("kinds/clean-timers-5.3.3")
    due = max(int(record.properties["TIMER_OUT_MS"]) for record in plain.records(root)
              if record.topic == "rmq_sys_wheel_timer")
    found = predicted(root, "--at", due + after_ms)
    assert sums(found, "timer") == tuple(40 if name == outcome else 0 for name in OUTCOMES)
    assert bool(found.code & 4) is (outcome == "skipped")


def test_release_without_a_timer_delivers_none() -> None:
    assert sums(predicted(unpacked("kinds/clean-timers-5.3.3"), broker="4.9.7"), "timer") == (0, 0, 0, 0)


@pytest.mark.parametrize(("release", "counts"), [("4.5.1", (620, 40)), ("5.3.3", (20, 40))])
def test_half_message_that_was_committed_and_is_checked_all_the_same_comes_again(
    release: str, counts: tuple[int, int],
) -> None:
    # 20 of the 60 were stored again by checks after their commit; 4.5.1 reads no op message that names several
    assert sums(predicted(unpacked("clean-5.3.3"), "--at", CRASH, broker=release), "half")[:2] == counts


def test_slave_delivers_nothing() -> None:
    found = predicted(unpacked("killed-5.5.0"), "--at", CRASH, "--set", "brokerRole=SLAVE")
    assert [sum(row[name] for row in found.document["delivers"]) for name in ("again", "now")] == [0, 0]


def test_half_messages_are_given_up_when_a_setting_says_so() -> None:
    root = unpacked("killed-5.5.0")
    often = predicted(root, "--at", CRASH, "--set", "transactionCheckMax=1")
    assert sums(often, "half")[3] > 0
    assert "start-discards-half" in often.notable
    assert often.code == 4
    old = predicted(root, "--at", "2026-12-24T00:00Z")
    assert sums(old, "half") == (0, 0, 0, 40)
    assert [item["severity"] for item in old.found("start-discards-half")] == ["info"]


@pytest.mark.parametrize("command", ["predict", "pending", "groups", "report"])
def test_a_command_plays_the_start_of_a_release_once(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: Counter[str] = Counter()

    def counted(store: Store, settings: BrokerSettings) -> Loaded:
        loaded[str(settings.version)] += 1
        return load(store, settings)

    monkeypatch.setattr(start, "load", counted)
    found = mqtool(command, unpacked("killed-5.5.0"), "--broker", "5.3.3", "--at", CRASH, "--json")
    assert found.code & 8 == 0
    assert loaded["5.3.3"] == 1 and max(loaded.values()) == 1
