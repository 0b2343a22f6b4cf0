"""Broker releases, their behaviours, and the settings that decide a start."""

from __future__ import annotations

from pathlib import Path

import pytest

from recover.broker.settings import KNOWN, BrokerSettings, canonical, load_settings
from recover.broker.versions import (
    BEHAVIOURS,
    LAST_THREE_FILES,
    NEWEST_COMPARED,
    NORMAL_DISPATCHES,
    OLDEST_COMPARED,
    REPUT_FROM_QUEUES,
    BrokerVersion,
    boundaries,
    generation_of,
)
from recover.findings.refusal import UsageRefusal

V = BrokerVersion.parse


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("5.3.3", (5, 3, 3)), ("5.3", (5, 3, 0)), (" v4.9.7 ", (4, 9, 7)), ("rocketmq-all-4.5.1", (4, 5, 1)),
        ("V5_3_3", (5, 3, 3)), ("4.1.0-incubating", (4, 1, 0)), ("5.0.0-ALPHA", (5, 0, 0)),
    ],
)
def test_release_names_are_understood(text: str, parts: tuple[int, int, int]) -> None:
    version = V(text)
    assert (version.major, version.minor, version.patch) == parts


@pytest.mark.parametrize("text", ["", "5", "newest", "5.x", "5.3.3.3.3 or so"])
def test_other_words_are_no_release(text: str) -> None:
    with pytest.raises(UsageRefusal):
        V(text)


def test_releases_are_ordered_by_number_not_by_text() -> None:
    assert V("4.9.10") > V("4.9.9") and V("5.10.0") > V("5.9.9") and str(V("5.3")) == "5.3.0"


def test_behaviours_hold_from_their_release_up_to_the_next_change() -> None:
    assert not V("4.4.0").has(REPUT_FROM_QUEUES)
    assert V("4.5.0").has(REPUT_FROM_QUEUES) and V("4.9.8").has(REPUT_FROM_QUEUES)
    assert not V("5.0.0").has(REPUT_FROM_QUEUES)
    assert V("5.3.1").has(LAST_THREE_FILES) and not V("5.3.2").has(LAST_THREE_FILES)
    assert not V("5.3.1").has(NORMAL_DISPATCHES) and V("5.5.0").has(NORMAL_DISPATCHES)


def test_behaviours_have_names_of_their_own_and_say_something() -> None:
    assert len({behaviour.name for behaviour in BEHAVIOURS}) == len(BEHAVIOURS)
    assert all(behaviour.what and (behaviour.until is None or behaviour.since < behaviour.until)
               for behaviour in BEHAVIOURS)


def test_generations_begin_where_behaviours_change() -> None:
    firsts = boundaries()
    assert list(firsts) == sorted(set(firsts))
    assert {V("4.5.0"), V("5.0.0"), V("5.1.3"), V("5.3.2"), V("5.4.0"), V("5.5.0")} <= set(firsts)
    assert generation_of(V("5.3.3")) == V("5.3.2")
    assert generation_of(BrokerVersion(3, 5, 8)) == OLDEST_COMPARED and generation_of(NEWEST_COMPARED) == V("5.5.0")


def test_old_spelling_of_mapped_counts() -> None:
    settings = load_settings(V("4.5.1"), sets=["mapedFileSizeCommitLog=1048576"])
    assert canonical("mapedFileSizeConsumeQueue") == "mappedFileSizeConsumeQueue"
    assert settings.stated_number("mappedFileSizeCommitLog") == 1048576


def test_sizes_that_nobody_gave_are_not_taken_from_defaults() -> None:
    assert BrokerSettings(V("5.3.3")).stated_number("mappedFileSizeCommitLog") is None


def test_options_win_over_the_file_and_unknown_keys_are_kept(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("# a broker\nbrokerName = a\nmessageIndexSafe=true\nflushDiskType : SYNC_FLUSH\n")
    settings = load_settings(V("5.3.3"), conf, ["messageIndexSafe=false", "checkCRCOnRecover=FALSE"])
    assert not settings.flag("messageIndexSafe") and not settings.flag("checkCRCOnRecover")
    assert settings.text("flushDiskType") == "SYNC_FLUSH"
    assert settings.unknown == {"brokerName": "a"}


def test_a_setting_that_came_later_is_ignored_and_named() -> None:
    settings = load_settings(V("4.9.7"), sets=["forceVerifyPropCRC=true", "commitLogRecoverMaxNum=3"])
    assert not settings.flag("forceVerifyPropCRC") and settings.number("commitLogRecoverMaxNum") == 10
    assert set(settings.too_new) == {"forceVerifyPropCRC", "commitLogRecoverMaxNum"}


def test_numbers_that_are_none_leave_the_default_as_in_the_broker(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("commitLogRecoverMaxNum=many")
    settings = load_settings(V("5.4.0"), conf)
    assert settings.number("commitLogRecoverMaxNum") == 10


@pytest.mark.parametrize("option", ["checkCRCOnRecover", "=true", "messageDelayLevel=1s 2x"])
def test_options_without_a_meaning_are_refused(option: str) -> None:
    with pytest.raises(UsageRefusal):
        load_settings(V("5.3.3"), sets=[option])


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageRefusal):
        load_settings(V("5.3.3"), tmp_path / "none.conf")


def test_defaults_are_those_of_the_broker() -> None:
    settings = BrokerSettings(V("5.5.0"))
    assert settings.flag("checkCRCOnRecover") and not settings.flag("forceVerifyPropCRC")
    assert settings.delay_table[1] == 1000 and settings.delay_table[18] == 7_200_000
    assert all(setting.what for setting in KNOWN.values())
