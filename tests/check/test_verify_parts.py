"""What stands around the log: abort and lock, a log that is gone, timer units, parts that are not read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from formats.batchconsumequeue import BATCH_CQ_UNIT, BatchCqUnit
from formats.dledger import DLEDGER_ENTRY_HEAD, DLedgerEntryHead
from formats.legacy_transaction import STATE_PREPARED, STATE_UNIT, StateUnit
from formats.timer import TIMER_CHECK, TIMER_LOG_UNIT, TimerCheck, TimerLogUnit
from mqtool import exits
from recover.check.parts import ALL_PARTS, check_parts
from recover.findings.model import Finding
from tests.cli.runner import mqtool
from tests.support.looks import looked_at
from tests.support.stores import broker_conf, real_store
from tests.support.unread_stores import add_rocksdb, put

Make = Callable[[str], Path]

FIRST = "0" * 20


def findings(root: Path, wanted: frozenset[str] = ALL_PARTS, **settings: str) -> list[Finding]:
    store, look = looked_at(root, **settings)
    return check_parts(store, look, wanted)


def notable(root: Path, **settings: str) -> list[Finding]:
    return [item for item in findings(root, **settings) if item.severity != "info"]


def bits(root: Path) -> int:
    return sum({item.bits for item in findings(root)})


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
    (f"transaction/statetable/{FIRST}", STATE_UNIT.encode(StateUnit(8, 9, 1, 1, STATE_PREPARED)),
     "transaction/statetable"),
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
    assert [item.code for item in findings(root, frozenset({"config"}))] == ["part-not-supported"]
    assert findings(root, frozenset({"commitlog", "index"})) == []


def test_parts_without_data_are_listed(store: Make) -> None:
    root = store("killed-5.5.0")
    listed = {item.facts["part"] for item in findings(root) if item.code == "part-recognised"}
    assert {"rocksdbstore", "timerlog"} <= listed


def _unit(phy_offset: int, size: int, due: int = 1 << 41) -> bytes:
    return TIMER_LOG_UNIT.encode(TimerLogUnit(52, -1, 1, due, 0, phy_offset, size, 0, 0))


def _timer(root: Path, content: bytes) -> None:
    put(root / "config" / "timercheck", TIMER_CHECK.encode(TimerCheck(1, 0, 0, 0, 0, 0, 0)))
    put(root / "timerlog" / FIRST, content.ljust(52 * 20 + 16, b"\0"))


def test_a_pending_unit_that_names_another_message_is_found_and_a_delivered_one_is_not(store: Make) -> None:
    root = store("clean-4.5.1")
    row = next(iter(looked_at(root)[1].log.live())).records[3]
    due = 1_000_000
    _timer(root, _unit(int(row["phy_offset"]), int(row["size"]) - 1, due))
    assert [item.code for item in findings(root) if item.code != "part-recognised"] == ["timer-wrong-record"]
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


def test_bytes_that_are_no_unit_are_an_info(store: Make) -> None:
    root = store("clean-4.5.1")
    row = next(iter(looked_at(root)[1].log.live())).records[0]
    _timer(root, _unit(int(row["phy_offset"]), int(row["size"])) + b"\x07" * 30)
    (found,) = [item for item in findings(root) if item.code == "timer-log-stops"]
    assert (found.offset, found.severity) == (52, "info")
    assert found.message.endswith("(0 whole units follow)")


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
    assert said.code == 4 and refused["remedy"] == found["remedy"] in said.document["next"][0]["command"]
    off = ("--set", "timerWheelEnable=false")
    assert mqtool("predict", root, "--broker", "5.3.3", "--broker-conf", conf, *off).code & 4 == 0
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
        assert all(f"not checked: {name}" in result.document["summary"] for name in said)
    for line in (("verify",), ("verify", "--only", folder), ("recover", "--yes")):
        refused = mqtool(line[0], root, *line[1:], "--json")
        assert refused.code == exits.OPERATIONAL
        assert f"{folder}: Permission denied" in refused.document["error"]["message"]
