"""Config files, and what stands around the log: abort and lock, a log that is gone, timer units, parts that are not
read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from fixtures import shapes
from fixtures.damage import damage
from formats.config.tables import BY_NAME
from formats.consumequeue import BATCH_CQ_UNIT, BatchCqUnit
from formats.dledger import DLEDGER_ENTRY_HEAD, DLedgerEntryHead
from formats.timer import TIMER_CHECK, TIMER_LOG_UNIT, TimerCheck, TimerLogUnit
from mqtool import exits
from recover.check.config import ConfigReport
from recover.check.parts import PARTS, check_parts
from recover.check.surroundings import Surroundings
from recover.findings.model import Finding
from recover.store.config_files import read_config
from tests.cli.runner import mqtool
from tests.support import plain_reader as plain
from tests.support.analysed import analysed
from tests.support.stores import broker_conf, real_store, write_at
from tests.support.unread_stores import add_rocksdb, put

# --- Config files: each kind of damage is named, what brokers write is not, and offsets are held against the queues.


Make = Callable[[str], Path]

WITH_CONFIG = ("clean-4.5.1", "clean-5.3.3", "killed-5.5.0")


def findings(root: Path) -> list[Finding]:
    return ConfigReport(analysed(root)[1]).findings


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
    assert "No broker starts" in found.message
    (config / "delayOffset.json.bak").write_bytes(b"")
    (found,) = findings(root)
    assert found.facts["starts"] is True


def test_a_file_that_no_broker_of_this_store_ever_wrote_is_not_missing(store: Make) -> None:
    root = store("clean-4.5.1")
    (root / "config" / "subscriptionGroup.json").unlink()  # it has no backup here
    assert codes(root) == []


def test_an_empty_table_of_delays_is_not_missed_where_no_delayed_message_is_left(store: Make) -> None:
    root = store("kinds/killed-pop-5.5.0")
    first = next(record for record in plain.records(root) if record.topic == "SCHEDULE_TOPIC_XXXX")
    cut = mqtool("truncate", root, "--to", first.phy_offset, "--max-loss", "all", "--yes", "--json")
    assert cut.document["applied"] and (root / "consumequeue" / "SCHEDULE_TOPIC_XXXX").is_dir()
    assert "config-missing" not in mqtool("verify", root, "--json").codes
    assert not mqtool("predict", root, "--json").code & exits.MESSAGES


@pytest.mark.parametrize("how", ["no folder", "empty folder"])
def test_config_that_is_gone_is_missing_where_the_store_has_messages(store: Make, how: str) -> None:
    root = store("clean-4.5.1")
    shutil.rmtree(root / "config")
    if how == "empty folder":
        (root / "config").mkdir()
    found, offsets = findings(root)
    assert (found.code, found.severity, found.file) == ("config-missing", "warning", "config")
    assert "TopicA" in found.message and "consumer groups" in found.message and "source of this copy" in found.remedy
    # the offsets at once, and not only after recover made a topics.json
    assert (offsets.code, offsets.file) == ("config-missing", "config/consumerOffset.json")
    assert mqtool("recover", root, "--yes", "--json").document["finding_counts"]["config-missing"] == 1


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


# --- What stands around the log: abort and lock, a log that is gone, timer units, parts that are not read.


FIRST = "0" * 20


def findings_of_parts(root: Path, wanted: Collection[str] = PARTS, **settings: str) -> list[Finding]:
    store, analysis = analysed(root, **settings)
    return check_parts(store, analysis, wanted, Surroundings.on(analysis))


def notable(root: Path, **settings: str) -> list[Finding]:
    return [item for item in findings_of_parts(root, **settings) if item.severity != "info"]


def bits(root: Path) -> int:
    return sum({item.bits for item in findings_of_parts(root)})


def test_a_lost_log_is_not_blamed_on_the_timer(store: Make) -> None:
    root = store("clean-5.3.3")
    shutil.rmtree(root / "commitlog")
    assert [item.code for item in notable(root)] == ["commitlog-empty-queues-left"]


def _entry() -> bytes:
    return DLEDGER_ENTRY_HEAD.encode(DLedgerEntryHead(1, 148, 0, 1, 0, 0, 0, 0, 100)) + bytes(100)


@pytest.mark.parametrize(("file", "content", "part"), [
    ("consumequeue/000012.sst", b"table", "consumequeue"),
    ("consumequeue_rocksdb/000012.sst", b"table", "consumequeue_rocksdb"),
    ("config/topics/000004.log", b"batch", "config/topics"),
    ("config/rdb/000012.sst", b"table", "config/rdb"),
    ("rocksdbstore/000004.log", b"batch", "rocksdbstore"),
    (f"dledger-n0/data/{FIRST}", _entry(), "dledger-n0"),
    (f"compaction/compactionLog/T/0/{FIRST}", bytes([0, 0, 1, 0]), "compaction/compactionLog"),
    ("tieredstore/broker/T/0/commitlog/segment", b"data", "tieredstore"),
    (f"batchconsumequeue/T/0/{FIRST}", BATCH_CQ_UNIT.encode(BatchCqUnit(7, 9, 0, 1, 0, 3, -1, 0)), "batchconsumequeue"),
])
def test_data_in_a_part_that_is_not_read_sets_its_bit(store: Make, file: str, content: bytes, part: str) -> None:
    root = store("clean-4.5.1")
    path = root / file
    if path.suffix in (".sst", ".log"):
        add_rocksdb(path.parent)
    put(path, bytes(len(content)) if path.name == FIRST else b"")
    assert bits(root) == 0  # the empty skeleton
    path.write_bytes(content)
    if part == "compaction/compactionLog":
        put(root / file.replace("compactionLog", "compactionCq"), content)
    (found,) = notable(root)
    assert (found.code, found.bits, found.facts["part"]) == ("part-not-supported", 64, part)


def test_a_part_counts_only_for_the_questions_that_need_it(store: Make) -> None:
    root = store("clean-4.5.1")
    add_rocksdb(root / "config" / "rdb")
    put(root / "config" / "rdb" / "000012.sst", b"table")
    assert [item.code for item in findings_of_parts(root, frozenset({"config"}))] == ["part-not-supported"]
    assert findings_of_parts(root, frozenset({"commitlog", "index"})) == []


def test_parts_without_data_are_listed(store: Make) -> None:
    root = store("killed-5.5.0")
    listed = {item.facts["part"] for item in findings_of_parts(root) if item.code == "part-recognised"}
    assert {"rocksdbstore", "timerlog"} <= listed


def _unit(phy_offset: int, size: int, due: int = 1 << 41) -> bytes:
    return TIMER_LOG_UNIT.encode(TimerLogUnit(52, -1, 1, due, 0, phy_offset, size, 0, 0))


def _timer(root: Path, content: bytes) -> None:
    put(root / "config" / "timercheck", TIMER_CHECK.encode(TimerCheck(1, 0, 0, 0, 0, 0, 0)))
    put(root / "timerlog" / FIRST, content.ljust(52 * 20 + 16, b"\0"))


def test_a_pending_unit_that_names_another_message_is_found_and_a_delivered_one_is_not(store: Make) -> None:
    root = store("clean-4.5.1")
    row = next(iter(analysed(root)[1].log.live())).records[3]
    due = 1_000_000
    _timer(root, _unit(int(row["phy_offset"]), int(row["size"]) - 1, due))
    assert [item.code for item in findings_of_parts(root) if item.code != "part-recognised"] == ["timer-wrong-record"]
    put(root / "config" / "timercheck", TIMER_CHECK.encode(TimerCheck(due + 1, 52, 1, 1, 0, 0, 0)))
    assert TIMER_CHECK.decode((root / "config" / "timercheck").read_bytes()).last_read_timestamp == due + 1
    assert notable(root) == []


def test_units_of_messages_that_expired_or_were_damaged_are_not_the_timers_fault(store: Make) -> None:
    root = store("clean-5.3.3")
    at = TIMER_LOG_UNIT.decode((root / "timerlog" / FIRST).open("rb").read(52)).phy_offset
    first = sorted((root / "commitlog").iterdir())[0]
    assert at > 0
    if at < first.stat().st_size:
        first.unlink()
    assert notable(root) == []


def test_a_timercheck_of_zeros_beside_units_says_nothing(tmp_path: Path) -> None:
    """To a broker it is the file that it makes where there is none: a real 5.5.0 starts and delivers all 40."""
    root = real_store("kinds/clean-timers-5.5.0", tmp_path)
    check = root / "config" / "timercheck"
    check.write_bytes(bytes(check.stat().st_size))
    assert notable(root)[0].code == "timer-check-wrong" and "zeros" in notable(root)[0].message


@pytest.mark.parametrize("version", ["5.3.3", "5.5.0"])
@pytest.mark.parametrize(("lower", "told"), [(0, 0), (15, 15)])
def test_a_timercheck_before_pending_messages_that_have_units_delivers_them_twice(
    tmp_path: Path, version: str, lower: int, told: int
) -> None:
    """Real ones delivered 30 of 20 messages; of those that were stored a moment ago a kill leaves the same."""
    root = real_store(f"kinds/clean-timers-{version}", tmp_path)
    path = root / "config" / "timercheck"
    check = TIMER_CHECK.decode(path.read_bytes()[:TIMER_CHECK.size])
    (root / "abort").touch()
    for later, units in ((0, 0), (70_000, told)):
        write_at(path, 0, TIMER_CHECK.encode(check._replace(
            last_read_timestamp=check.last_read_timestamp + later,
            last_timer_queue_offset=check.last_timer_queue_offset - lower,
            master_timer_queue_offset=check.master_timer_queue_offset - lower)))
        assert [item.facts["units"] for item in notable(root) if item.code != "abort-present"] == [units] * bool(units)
    (root / "abort").unlink()
    write_at(path, TIMER_CHECK.offset("last_read_timestamp"), check.last_read_timestamp.to_bytes(8, "big"))
    assert [item.facts["units"] for item in notable(root)] == [told] * bool(told), "an orderly stop leaves none"


@pytest.mark.parametrize("wheel", ["kept", "gone", "zeros"])
def test_units_before_the_last_files_of_the_timerlog_need_their_wheel(tmp_path: Path, wheel: str) -> None:
    """Of 80 messages in five files of a timerlog a real 5.3.3 without its wheel delivered 48, 5.5.0 79."""
    root = real_store("kinds/clean-timers-5.3.3", tmp_path)
    size = (root / "timerlog" / FIRST).stat().st_size
    put(root / "timerlog" / f"{size:020d}", bytes(size))
    path = root / "config" / "timercheck"
    write_at(path, TIMER_CHECK.offset("last_timer_log_flush_position"), (2 * size).to_bytes(8, "big"))
    if wheel == "gone":
        (root / "timerwheel").unlink()
    if wheel == "zeros":
        (root / "timerwheel").write_bytes(bytes((root / "timerwheel").stat().st_size))
    code = {"kept": [], "gone": ["part-missing"], "zeros": ["part-damaged"]}[wheel]
    assert [(item.code, item.file) for item in notable(root)] == [(name, "timerwheel") for name in code]
    assert mqtool("predict", root, "--broker", "5.3.3").code == (64 if code else 0)


def test_a_log_without_a_message_says_nothing_of_when_the_timer_delivered(store: Make) -> None:
    root = store("clean-5.3.3")
    for path in (root / "commitlog").iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    assert "timer-check-wrong" not in {item.code for item in notable(root)}


def test_bytes_that_are_no_unit_are_an_info(store: Make) -> None:
    root = store("clean-4.5.1")
    row = next(iter(analysed(root)[1].log.live())).records[0]
    _timer(root, _unit(int(row["phy_offset"]), int(row["size"])) + b"\x07" * 30)
    (found,) = [item for item in findings_of_parts(root) if item.code == "timer-log-stops"]
    assert (found.offset, found.severity) == (52, "info")
    assert found.message.endswith("(0 whole entries follow)")


def test_a_wheel_of_another_length_is_found(store: Make) -> None:
    root = store("clean-4.5.1")
    put(root / "timerwheel", b"")
    assert notable(root) == []
    put(root / "timerwheel", bytes(1000))
    assert [item.code for item in notable(root)] == ["timer-wheel-bad-length"]


def test_a_timerlog_file_of_another_length_is_found(tmp_path: Path) -> None:
    """A real 5.3.3 with this configuration did not start on the file cut in half."""
    root = real_store("kinds/clean-timers-5.3.3", tmp_path)
    conf = broker_conf("kinds/clean-timers-5.3.3", root, tmp_path / "broker.conf")
    os.truncate(root / "timerlog" / ("0" * 20), 1 << 19)
    verified = mqtool("verify", root, "--broker-conf", conf, "--json")
    (found,) = [item for item in verified.document["findings"] if item["severity"] != "info"]
    assert (verified.code, found["code"]) == (2, "timer-log-bad-length")
    assert (found["facts"]["length"], found["facts"]["expected"]) == (1 << 19, 1 << 20)
    said = mqtool("predict", root, "--broker", "5.3.3", "--broker-conf", conf, "--json")
    refused = said.found("start-refused")[0]
    assert said.code == 4 and all(item["remedy"].startswith("mqtool recover") for item in (refused, found))
    assert said.document["next"][0]["command"].startswith("mqtool recover")
    off = ("--set", "timerWheelEnable=false")
    without = mqtool("predict", root, "--broker", "5.3.3", "--broker-conf", conf, *off, "--json")
    assert not without.found("start-refused")
    os.truncate(root / "timerlog" / ("0" * 20), 1 << 20)
    assert mqtool("verify", root, "--broker-conf", conf).code == 0


@pytest.mark.parametrize("folder", ["consumequeue", "index"])
def test_a_folder_that_cannot_be_listed_is_left_to_who_asks_for_it(
    store: Make, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, known = store("clean-5.3.3"), {"listdir": os.listdir, "scandir": os.scandir}

    def refusing(name: str) -> Callable[..., Any]:
        def listed(path: Any = ".") -> Any:
            if path in (str(root / folder), root / folder):
                raise PermissionError(13, "Permission denied", str(path))
            return known[name](path)

        return listed

    for name in known:
        monkeypatch.setattr(os, name, refusing(name))
    for part in ("commitlog", "checkpoint"):
        result = mqtool("verify", root, "--only", part, "--json")
        assert (result.code, result.document["commitlog"]["messages"]) == (0, 2765)
        said = {"consumequeue": "consumequeue"} if folder == "consumequeue" else {}
        assert result.document["not_checked"] == said
        assert all(name in result.document["summary"].partition("not checked: ")[2] for name in said)
    for line in (("verify",), ("verify", "--only", folder), ("recover", "--yes")):
        refused = mqtool(line[0], root, *line[1:], "--json")
        assert refused.code == exits.OPERATIONAL
        assert f"{folder}: Permission denied" in refused.document["error"]["message"]
