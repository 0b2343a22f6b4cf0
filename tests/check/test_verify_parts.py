"""What stands around the log: abort and lock, a log that is gone, timer units, parts that are not read."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage import damage
from formats.batchconsumequeue import BATCH_CQ_UNIT, BatchCqUnit
from formats.dledger import DLEDGER_ENTRY_HEAD, DLedgerEntryHead
from formats.legacy_transaction import STATE_PREPARED, STATE_UNIT, StateUnit
from formats.timer import TIMER_CHECK, TIMER_LOG_UNIT, TimerCheck, TimerLogUnit, encode_blank, encode_check
from mqtool import exits
from recover.check.parts import ALL_PARTS, check_parts
from recover.findings.model import Finding
from tests.cli.runner import mqtool
from tests.support.looks import looked_at
from tests.support.stores import CLEAN, KILLED, broker_conf, real_store, unpacked
from tests.support.unread_stores import add_rocksdb

Make = Callable[[str], Path]

FIRST = "0" * 20
HOLDER = """
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(fd, fcntl.F_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 1, 0))
print("held", flush=True)
sys.stdin.read()
"""


def findings(root: Path, wanted: frozenset[str] = ALL_PARTS, **settings: str) -> list[Finding]:
    store, look = looked_at(root, **settings)
    return check_parts(store, look, wanted)


def notable(root: Path, **settings: str) -> list[Finding]:
    return [item for item in findings(root, **settings) if item.severity != "info"]


def bits(root: Path) -> int:
    return sum({item.bits for item in findings(root)})


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_store_shows_nothing(name: str) -> None:
    assert notable(unpacked(name)) == []


@pytest.mark.parametrize("name", KILLED)
def test_a_killed_store_shows_its_abort_and_nothing_else(name: str) -> None:
    assert [item.code for item in notable(unpacked(name))] == ["abort-present"]


def test_a_lock_file_that_nobody_holds_is_normal(store: Make) -> None:
    root = store("clean-4.5.1")
    assert (root / "lock").read_bytes() == b"lock"
    assert findings(root) == []


def test_a_held_lock_makes_abort_an_info_and_names_the_holder(store: Make) -> None:
    root = store("killed-5.5.0")
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(root / "lock")], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as broker:
        assert broker.stdout is not None and broker.stdin is not None
        assert broker.stdout.readline() == b"held\n"
        found = {item.code: item for item in findings(root)}
        broker.stdin.close()
    assert found["broker-running"].facts["pid"] == broker.pid
    assert found["broker-running"].severity == found["abort-present"].severity == "info"
    assert found["abort-present"].bits == 0
    assert notable(root)[0].facts["pid"] == int((root / "abort").read_bytes())


def test_our_own_lock_is_no_broker(store: Make) -> None:
    root = store("clean-4.5.1")
    opened, look = looked_at(root)
    held = os.open(root / "lock", os.O_RDWR)
    try:
        fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        assert check_parts(opened, look, holder=lambda path: None) == []
    finally:
        os.close(held)


@pytest.mark.parametrize("how", ["folder gone", "folder empty", "files empty"])
def test_queues_without_a_log_say_do_not_start(store: Make, how: str) -> None:
    root = store("clean-4.5.1")
    shutil.rmtree(root / "commitlog")
    if how != "folder gone":
        (root / "commitlog").mkdir()
    if how == "files empty":
        (root / "commitlog" / FIRST).touch()
    (found,) = notable(root)
    assert (found.code, found.severity, found.bits) == ("commitlog-empty-queues-left", "error", 4)
    assert "do not start the broker" in found.message
    shutil.rmtree(root / "consumequeue")
    assert [item.code for item in notable(root)] == ["commitlog-empty-queues-left"]  # the index alone is enough
    shutil.rmtree(root / "index")
    assert notable(root) == []


def test_a_lost_log_is_not_blamed_on_the_timer(store: Make) -> None:
    root = store("clean-5.3.3")
    shutil.rmtree(root / "commitlog")
    assert [item.code for item in notable(root)] == ["commitlog-empty-queues-left"]


def test_an_empty_store_has_lost_no_log() -> None:
    assert notable(unpacked("clean-empty-5.3.3")) == []


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


def test_the_log_of_a_dledger_group_is_not_a_lost_log(store: Make) -> None:
    root = store("clean-4.5.1")
    shutil.rmtree(root / "commitlog")
    put(root / "dledger-n0" / "data" / FIRST, _entry())
    assert bits(root) == 64


def test_parts_without_data_are_listed(store: Make) -> None:
    root = store("killed-5.5.0")
    listed = {item.facts["part"] for item in findings(root) if item.code == "part-recognised"}
    assert {"rocksdbstore", "timerlog"} <= listed


def _unit(phy_offset: int, size: int, due: int = 1 << 41) -> bytes:
    return TIMER_LOG_UNIT.encode(TimerLogUnit(52, -1, 1, due, 0, phy_offset, size, 0, 0))


def _timer(root: Path, content: bytes) -> None:
    put(root / "config" / "timercheck", encode_check(TimerCheck(0, 0, 0, 0, 0, 0, 0)))
    put(root / "timerlog" / FIRST, content.ljust(52 * 20 + 16, b"\0"))


def test_timer_units_that_name_their_messages_are_right(store: Make) -> None:
    root = store("clean-5.3.3")
    assert TIMER_LOG_UNIT.decode((root / "timerlog" / FIRST).open("rb").read(52)).size == 52
    assert notable(root) == []


def test_timer_units_behind_the_end_of_the_log_are_found(store: Make) -> None:
    root = store("clean-4.5.1")
    log = looked_at(root)[1].log
    row = next(iter(log.live())).records[0]
    good = _unit(int(row["phy_offset"]), int(row["size"]))
    _timer(root, good + _unit(log.log_end, 100) + good + _unit(log.log_end - 10, 100) + encode_blank(52 * 16 + 16))
    (found,) = notable(root)
    assert (found.code, found.bits) == ("timer-points-beyond-log", 2)
    assert (found.offset, found.facts["count"], found.facts["last"]) == (52, 2, 156)


def test_the_end_mark_of_a_full_timerlog_is_no_unit(store: Make) -> None:
    root = store("clean-4.5.1")
    row = next(iter(looked_at(root)[1].log.live())).records[0]
    good = _unit(int(row["phy_offset"]), int(row["size"]))
    _timer(root, good * 20 + encode_blank(16))
    put(root / "timerlog" / str(52 * 20 + 16).zfill(20), good.ljust(52 * 20 + 16, b"\0"))
    assert [item for item in findings(root) if item.code != "part-recognised"] == []


def test_a_pending_unit_that_names_another_message_is_found_and_a_delivered_one_is_not(store: Make) -> None:
    root = store("clean-4.5.1")
    row = next(iter(looked_at(root)[1].log.live())).records[3]
    due = 1_000_000
    _timer(root, _unit(int(row["phy_offset"]), int(row["size"]) - 1, due))
    assert [item.code for item in findings(root) if item.code != "part-recognised"] == ["timer-wrong-record"]
    put(root / "config" / "timercheck", encode_check(TimerCheck(due + 1, 52, 1, 1, 0, 0, 0)))
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
    refused = next(item for item in said.document["findings"] if item["code"] == "start-refused")
    assert said.code == 4 and refused["remedy"] == found["remedy"] in said.document["next"][0]["command"]
    off = ("--set", "timerWheelEnable=false")
    assert mqtool("predict", root, "--broker", "5.3.3", "--broker-conf", conf, *off).code & 4 == 0
    os.truncate(root / "timerlog" / ("0" * 20), 1 << 20)
    assert mqtool("verify", root, "--broker-conf", conf).code == 0


def test_settings_that_would_cut_the_log_are_warned_of(store: Make) -> None:
    plain, checked = unpacked("clean-4.5.1"), unpacked("clean-propcrc-5.3.3")
    (found,) = notable(plain, forceVerifyPropCRC="true")
    log = looked_at(plain)[1].log
    assert (found.code, found.bits) == ("settings-would-truncate", 2)
    assert (found.offset, found.facts["count"]) == (log.min_offset, log.messages)
    assert notable(plain, forceVerifyPropCRC="false") == []
    assert notable(checked, forceVerifyPropCRC="true") == []


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


def test_the_recipes_of_abort_are_seen(store: Make) -> None:
    root = store("clean-4.5.1")
    damage("abort-added", root)
    assert [item.facts["pid"] for item in notable(root)] == [4711]
    put(root / "abort", b"not a pid at all")
    assert [item.facts["pid"] for item in notable(root)] == [None]
