"""Config files: each kind of damage is named, what brokers write is not, and offsets are held against the queues."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures import shapes
from fixtures.damage import damage
from formats.config.tables import BY_NAME
from recover.check.config import check_config, queue_ranges
from recover.derived.expected import QueueKey
from recover.findings.model import Finding
from recover.store.config_files import read_config
from tests.support.looks import looked_at

Make = Callable[[str], Path]

WITH_CONFIG = ("clean-4.5.1", "clean-5.3.3", "killed-5.5.0")


def findings(root: Path) -> list[Finding]:
    return check_config(*looked_at(root)).findings


def codes(root: Path) -> list[str]:
    return [item.code for item in findings(root)]


def test_a_broken_backup_that_would_stop_the_start_is_called_so(store: Make) -> None:
    root = store("clean-4.5.1")
    config = root / "config"
    for name in ("delayOffset.json", "delayOffset.json.bak"):
        (config / name).write_bytes(bytes(41))
    (found,) = findings(root)
    assert found.code == "config-lost"
    assert found.facts["starts"] is False
    assert "no broker starts" in found.message
    (config / "delayOffset.json.bak").write_bytes(b"")
    (found,) = findings(root)
    assert found.facts["starts"] is True


def test_a_file_that_no_broker_of_this_store_ever_wrote_is_not_missing(store: Make) -> None:
    root = store("clean-4.5.1")
    (root / "config" / "subscriptionGroup.json").unlink()  # it has no backup here
    assert codes(root) == []


@pytest.mark.parametrize("how", ["no folder", "empty folder"])
def test_config_that_is_gone_is_missing_where_the_store_has_messages(store: Make, how: str) -> None:
    root = store("clean-4.5.1")
    shutil.rmtree(root / "config")
    if how == "empty folder":
        (root / "config").mkdir()
    (found,) = findings(root)
    assert (found.code, found.severity, found.file) == ("config-missing", "warning", "config")
    assert "TopicA" in found.message and "consumer offsets" in found.message and "source of this copy" in found.remedy


def test_config_that_is_gone_with_the_messages_is_not_missing(tmp_path: Path) -> None:
    shapes.empty(tmp_path / "s")
    assert codes(tmp_path / "s") == []


EMPTY = {
    "no table": b"{}", "an empty table": b'{"%s":{}}', "only a version": b'{"dataVersion":{"counter":1,"timestamp":1}}',
}


@pytest.mark.parametrize("bak", ["sound", "emptied", "missing"])
@pytest.mark.parametrize("text", EMPTY)
@pytest.mark.parametrize("name", ["topics.json", "consumerOffset.json", "delayOffset.json", "subscriptionGroup.json"])
def test_a_file_that_names_nothing_although_the_store_shows_that_it_did_is_missing(
    store: Make, name: str, text: str, bak: str
) -> None:
    root = store("clean-4.5.1")
    main, backup = root / "config" / name, root / "config" / f"{name}.bak"
    content = main.read_bytes()
    main.write_bytes(EMPTY[text].replace(b"%s", BY_NAME[name].required[0].encode()))
    backup.write_bytes(content if bak == "sound" else main.read_bytes())
    if bak == "missing":
        backup.unlink()
    (found,) = findings(root)
    guessed = name == "topics.json" and bak != "sound"
    assert (found.code, found.file) == ("config-topics-guessed" if guessed else "config-missing", f"config/{name}")
    assert ("mqtool recover" in found.remedy) == (bak == "sound" or guessed)


def test_an_empty_table_is_what_a_broker_without_groups_writes(store: Make) -> None:
    root = store("clean-plain-4.9.7")
    for name in ("consumerOffset.json", "consumerFilter.json"):
        (root / "config" / name).write_bytes(b'{"%s":{}}' % BY_NAME[name].required[0].encode())
    assert codes(root) == []


@pytest.mark.parametrize("witness", ["subscriptionGroup.json", "topics.json"])
def test_missing_consumer_offsets_are_a_finding_where_groups_were(store: Make, witness: str) -> None:
    root = store("clean-5.3.3")
    for path in (root / "config").iterdir():
        if path.name != witness:
            path.unlink()
    missing = [item for item in findings(root) if item.code == "config-missing"]
    assert [item.file for item in missing] == ["config/consumerOffset.json"]
    assert "CG_retry" in missing[0].message and "recover" not in missing[0].remedy


def test_topics_kept_in_rocksdb_are_not_missing(store: Make) -> None:
    root = store("clean-4.5.1")
    damage("topics-missing", root)
    (root / "config" / "topics").mkdir()
    assert codes(root) == []


@pytest.mark.parametrize("content", [b"", b"{", bytes(30), b"null", b"[]", b'{"offsetTable":{}}{'])
def test_a_broken_backup_of_a_sound_file_is_a_warning(store: Make, content: bytes) -> None:
    root = store("clean-4.5.1")
    (root / "config" / "consumerOffset.json.bak").write_bytes(content)
    (found,) = findings(root)
    assert (found.code, found.severity) == ("config-backup-broken", "warning")


def test_the_number_in_front_of_a_break_is_not_believed(store: Make) -> None:
    root = store("clean-4.5.1")
    path = root / "config" / "consumerOffset.json"
    for text in (b'{"offsetTable":{"T@G":{0:5,1:12', b'{"offsetTable":{"T@G":{0:5,1:12\0\0\0',
                 b'{"offsetTable":{"T@G":{0:5,1:12\x9f4}}}'):
        path.write_bytes(text)
        assert read_config(path, BY_NAME["consumerOffset.json"]).table == {"T@G": {0: 5}}


def test_an_offset_at_the_end_of_a_queue_whose_files_are_lost_is_not_above_it(store: Make) -> None:
    root = store("clean-4.5.1")
    for path in (root / "consumequeue").rglob("*"):
        if path.is_file():
            path.unlink()
    assert "consumer-offset-above-max" not in codes(root)


def test_light_queues_and_delay_levels_have_ends_too(store: Make) -> None:
    root = store("clean-5.3.3")
    config = root / "config"
    look = looked_at(root)[1]
    end = queue_ranges(look)[QueueKey("SCHEDULE_TOPIC_XXXX", 2)].end
    (config / "delayOffset.json").write_bytes(b'{"offsetTable":{3:%d}}' % (end + 7))
    light = next(key for key in queue_ranges(look) if key.topic.startswith("%LMQ%"))
    (config / "lmqConsumerOffset.json").write_bytes(
        b'{"lmqOffsetTable":{"%s@G":999999}}' % light.topic.encode())
    found = {item.code: item for item in findings(root)}
    assert found["delay-offset-above-max"].facts["end"] == end
    assert found["consumer-offset-above-max"].facts["topic"] == light.topic


def test_offsets_of_static_and_batch_topics_are_left_alone(store: Make) -> None:
    root = store("clean-5.3.3")
    config = root / "config"
    (config / "consumerOffset.json").write_bytes(b'{"offsetTable":{"TopicA@G":{0:99999},"Batch@G":{0:99999}}}')
    (config / "topicQueueMapping.json").write_bytes(b'{"topicQueueMappingInfoMap":{"TopicA":{"totalQueues":4}}}')
    (root / "batchconsumequeue" / "Batch" / "0").mkdir(parents=True)
    assert codes(root) == []


def test_an_unreadable_file_is_an_operational_error(store: Make) -> None:
    root = store("clean-4.5.1")
    path = root / "config" / "delayOffset.json"
    path.unlink()
    path.mkdir()
    (found,) = findings(root)
    assert (found.code, found.bits) == ("config-unreadable", 8)
