"""inspect: stores, files of every kind, and what a broker's configuration says of both."""

from __future__ import annotations

import gzip
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from fixtures.damage import damage
from formats import sysflag
from formats.basics import FormatError, offset_to_name
from formats.checkpoint import decode, encode
from formats.legacy_transaction import STATE_PREPARED, STATE_UNIT, StateUnit
from formats.record import BLANK_SIZE, HEADS, OFFSET_SYS_FLAG
from formats.record.grammar import unserved
from formats.sysflag import COMPRESSION_ZLIB
from mqtool import exits
from mqtool.next_steps import START_BROKER
from recover.broker.settings import KNOWN
from recover.change.lock import store_lock
from recover.log.judge import judge
from recover.look.items import record_item
from recover.store.config_files import STATE_TEXT, State
from tests.cli.runner import mqtool
from tests.scenarios.drill import LOG_FOLDERS
from tests.support.commitlog import placed_records
from tests.support.sampling import few
from tests.support.stores import EXPECTED, STORES, copy_store, flip, log_place, real_store, unpacked, write_at
from tests.support.trees import assert_unchanged

# --- `mqtool inspect STORE`: one screen, nothing written, sensible words for odd stores.


@pytest.mark.parametrize("name", STORES)
def test_every_real_store_is_told_on_one_screen(name: str) -> None:
    store = unpacked(name)
    with assert_unchanged(store):
        document = mqtool("inspect", store, "--json").document
        screen = mqtool("inspect", store)
    assert screen.code == document["exit_code"] == {"clean": 0, "killed": 2}[EXPECTED[name]["exit_state"]]
    assert {"parts", "sizes", "generation", "offsets", "exit_state", "start_file"} <= set(document)
    assert document["exit_state"]["verdict"] == {"clean": "clean", "killed": "unclean"}[EXPECTED[name]["exit_state"]]
    assert document["sizes"] == {
        "mapped_file_size": 1 << 20, "queue_file_size": 20_000, "index_slots": 500, "index_entries": 2000,
    }
    assert document["offsets"]["log_end"] == EXPECTED[name]["log_end"]
    assert document["offsets"]["undispatched_bytes"] == 0
    assert all(start["file"] for start in document["start_file"].values())
    assert all(item["state"] == "whole" for item in document["config"])


@pytest.mark.parametrize(("name", "said", "unsaid"), [
    ("clean-dledger-5.3.3", "in dledger-n0, which is not", "log files are missing"),
    ("clean-mixed-5.3.3", "in dledger-n0, which is not", "log files are missing"),
    ("clean-rocksdb-5.3.3", "queue unknown (consume queues in", "(assumed)"),
])
def test_what_is_kept_elsewhere_is_not_missing_and_has_no_assumed_size(name: str, said: str, unsaid: str) -> None:
    store = unpacked(f"kinds/{name}")
    screen = mqtool("inspect", store)
    assert said in screen.stdout and unsaid not in screen.stdout
    sizes = mqtool("inspect", store, "--json").document["sizes"]
    told = {"clean-dledger-5.3.3": (None, 20_000), "clean-mixed-5.3.3": (1 << 20, 20_000),
            "clean-rocksdb-5.3.3": (1 << 20, None)}[name]
    assert (sizes["mapped_file_size"], sizes["queue_file_size"]) == told
    if name == "clean-dledger-5.3.3":
        assert not any(line.startswith("commitlog ") for line in screen.stdout.splitlines()), "nothing is missing"


@pytest.mark.parametrize("name", [
    "clean-mixed-5.3.3", "killed-mixed-5.3.3", "clean-dledger-4.9.7", "killed-batch-5.5.0", "killed-pop-5.5.0",
])
def test_a_look_finds_nothing_in_a_brokers_store_that_verify_does_not(name: str, tmp_path: Path) -> None:
    store = real_store(f"kinds/{name}", tmp_path)
    for part in (None, "checkpoint"):
        if part is not None:
            (store / part).unlink()
        assert mqtool("inspect", store, "--json").notable <= mqtool("verify", store, "--json").notable


def test_broker_option_asks_for_that_release_only() -> None:
    document = mqtool("inspect", unpacked("clean-5.3.3"), "--broker", "5.3.3", "--json").document
    assert list(document["start_file"]) == ["5.3.3"]


def test_traces_of_5_4_and_later_are_seen() -> None:
    document = mqtool("inspect", unpacked("killed-5.5.0"), "--json").document
    assert document["generation"]["at_least"] == "5.4.0"


@pytest.mark.parametrize("name", ["clean-4.5.1", "clean-manyfiles-5.3.3"])
def test_a_checkpoint_of_noise_proves_no_release(name: str, tmp_path: Path) -> None:
    root = real_store(name, tmp_path)
    known = mqtool("inspect", root, "--json").document["generation"]["at_least"]
    (root / "checkpoint").write_bytes(random.Random(5).randbytes(4096))
    assert mqtool("inspect", root, "--json").document["generation"]["at_least"] == known
    mqtool("recover", root, "--yes")
    assert mqtool("inspect", root, "--json").document["generation"]["at_least"] == known


def test_compression_of_the_clients_tells_nothing_of_the_broker(tmp_path: Path) -> None:
    """A producer of 5.x names its compression in the sysFlag, and a 4.9.7 stores what it was sent."""
    store = real_store("clean-plain-4.9.7", tmp_path)
    write_at(min((store / "commitlog").iterdir()), OFFSET_SYS_FLAG, COMPRESSION_ZLIB.to_bytes(4, "big"))
    before = mqtool("inspect", unpacked("clean-plain-4.9.7"), "--json").document["generation"]
    assert mqtool("inspect", store, "--json").document["generation"] == before
    assert mqtool("verify", store).code == 0


@pytest.mark.parametrize(("broken", "bits", "code"), [
    ("config/topics.json*", 2, "config-topics-guessed"), ("checkpoint", 2, "checkpoint-missing"),
    ("commitlog/*131072", 4, "commitlog-missing-file"), ("consumequeue", 2, "consumequeue-missing"),
    ("index", 2, "index-missing"),
])
def test_inspect_ends_with_the_bits_of_what_it_shows(broken: str, bits: int, code: str, tmp_path: Path) -> None:
    store = real_store("clean-manyfiles-5.3.3" if "log" in broken else "clean-5.3.3", tmp_path)
    for path in store.glob(broken):
        path.write_bytes(b"{") if "config" in broken else shutil.rmtree(path) if path.is_dir() else path.unlink()
    result = mqtool("inspect", store, "--json")
    assert result.code == bits
    assert code in result.codes


@pytest.mark.parametrize("length", [0, 1000, (64 << 10) + 4096])
@pytest.mark.parametrize("file", [7 << 16, 15 << 16])
def test_a_log_file_of_another_length_is_named_at_the_first_look(file: int, length: int, tmp_path: Path) -> None:
    """Brokers do not start on it; between others a file that is too short lacks messages."""
    root = real_store("clean-manyfiles-5.3.3", tmp_path)
    path = root / "commitlog" / offset_to_name(file)
    path.touch()
    os.truncate(path, length)
    done = mqtool("inspect", root, "--json")
    (found,) = done.found("commitlog-bad-file-length")
    assert found["file"].endswith(path.name) and found["facts"] == {"length": length, "expected": 64 << 10}
    assert ("whole file" in found["remedy"]) is (file == 7 << 16 and length < 64 << 10)
    assert done.code == exits.DERIVED


@pytest.mark.parametrize(("field", "value", "code"), [
    ("logics_msg_timestamp", 9_162_656_531_219_994_239, "checkpoint-later-than-log"),
    ("index_msg_timestamp", -5, "checkpoint-impossible-time"),
    ("logics_physical_offset", 1 << 50, "checkpoint-offset-no-record"),
])
def test_inspect_names_what_no_checkpoint_of_this_log_can_have(
    field: str, value: int, code: str, tmp_path: Path,
) -> None:
    store = real_store("clean-5.3.3", tmp_path)
    path = store / "checkpoint"
    path.write_bytes(encode(decode(path.read_bytes(), extend=True)._replace(**{field: value}), path.read_bytes()))
    for command in ("inspect", "verify"):
        found = mqtool(command, store, "--json")
        assert found.code == 2 and code in found.codes


def test_log_files_alone_do_not_tell_how_the_broker_was_stopped(tmp_path: Path) -> None:
    store = real_store("clean-5.3.3", tmp_path)
    for path in store.iterdir():
        if path.name != "commitlog":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    found = mqtool("inspect", store, "--json")
    assert found.document["exit_state"]["verdict"] == "unknown" and "stopped cleanly" not in found.document["summary"]
    assert "queue 5.7 MiB (assumed)" in mqtool("inspect", store).stdout


@pytest.mark.parametrize(("name", "recipe", "told"), [
    ("clean-plain-4.9.7", "far", "commitlog-far-file"),
    ("clean-plain-4.9.7", "log-misnamed", "commitlog-misnamed-file"),
    ("clean-manyfiles-5.3.3", "log-last-missing", "commitlog-missing-file"),
    ("clean-manyfiles-5.3.3", "log-middle-missing", "commitlog-missing-file"),
    ("clean-restarts-5.5.0", "log-early-end-mark", None), ("clean-plain-4.9.7", "short", "commitlog-size-untold"),
])
def test_inspect_names_log_files_that_are_missing_or_elsewhere_as_verify_does(
    name: str, recipe: str, told: str | None, tmp_path: Path,
) -> None:
    store = real_store(name, tmp_path)
    log = sorted((store / "commitlog").iterdir())
    if recipe == "far":
        size = log[-1].stat().st_size
        log[-1].with_name(f"{int(log[-1].name) + 2 * size:020d}").write_bytes(bytes(size))
    elif recipe == "short":
        for path in log[1:]:
            path.unlink()
        os.truncate(log[0], 100_001)
    else:
        damage(recipe, store, 27)
    asked = {"commitlog-far-file", "commitlog-misnamed-file", "commitlog-missing-file", "commitlog-size-untold"}
    shown, found = (mqtool(command, store, "--json").document for command in ("inspect", "verify"))
    assert shown["finding_counts"].keys() & asked == found["finding_counts"].keys() & asked == {told} - {None}
    assert bool(shown["offsets"]["log_end"]) and (told == "commitlog-missing-file") == bool(shown["gaps"])


def test_one_missing_log_file_is_called_by_its_name(tmp_path: Path) -> None:
    root = real_store("clean-manyfiles-5.3.3", tmp_path)
    _, gone, *_ = sorted((root / "commitlog").iterdir())
    gone.unlink()
    for command in ("inspect", "verify", "predict"):
        told = {item["code"]: item["message"] for item in mqtool(command, root, "--json").document["findings"]}
        assert told["commitlog-missing-file"].startswith(f"the log file {gone.name} is missing")


def test_a_packed_log_file_is_not_said_to_have_two_names(tmp_path: Path) -> None:
    root = real_store("clean-manyfiles-5.3.3", tmp_path)
    last = max((root / "commitlog").iterdir())
    last.with_name(last.name + ".gz").write_bytes(gzip.compress(last.read_bytes()))
    last.unlink()
    told = {item["code"]: item["message"] for item in mqtool("verify", root, "--json").document["findings"]}
    assert told["commitlog-not-a-file"].startswith(f"{last.name}.gz seems to be a missing log file")


def test_another_mqtool_that_holds_the_lock_is_no_broker(tmp_path: Path) -> None:
    store = real_store("clean-plain-4.9.7", tmp_path)
    (store / "lock").unlink(missing_ok=True)
    with store_lock(store):
        script = "import sys; from mqtool.cli import main; sys.exit(main(sys.argv[1:]))"
        done = subprocess.run([sys.executable, "-c", script, "inspect", store], check=False, capture_output=True,
                              text=True)
    assert "another mqtool" in done.stdout
    assert "broker holds" not in done.stdout and "running broker" not in done.stdout


def test_config_that_brokers_take_for_something_else_is_listed(tmp_path: Path) -> None:
    store = real_store("clean-4.5.1", tmp_path)
    for name, right, wrong in (("topics.json", b"ConfigTable", b"ConfigTabme"), ("delayOffset.json", b"{1:", b"{q:")):
        path = store / "config" / name
        path.write_bytes(path.read_bytes().replace(right, wrong))
    states = {item["name"]: item["state"] for item in mqtool("inspect", store, "--json").document["config"]}
    assert (states["topics.json"], states["delayOffset.json"]) == ("flipped-name", "odd-offset")
    assert {state for name, state in states.items() if name[0] in "cs"} == {"whole"}


def test_without_a_log_it_is_to_be_found_and_nothing_is_stated_that_only_the_log_tells(tmp_path: Path) -> None:
    root = real_store("clean-5.3.3", tmp_path)
    shutil.rmtree(root / "commitlog")
    assert "log 1.0 GiB (assumed), queue 19.5 KiB," in mqtool("inspect", root).stdout
    done = mqtool("predict", root, "--json")
    (step,) = done.document["next"]
    assert "Mount the disk" in step["command"] and done.code & 4
    screen = mqtool("predict", root).stdout
    assert "yes, but do not start it" in screen and "-1 to 0" not in screen
    for row in ("log after load", "intact messages deleted", "messages not delivered (no queue entry)",
                "queue offsets of messages in the log reused"):
        (told,) = [line for line in screen.splitlines() if line.startswith(row)]
        assert not any(char.isdigit() for char in told)


@pytest.mark.parametrize("place", ["s3://bucket/store", "s3a://bucket/store", "hdfs://name/store"])
@pytest.mark.parametrize("line", [("recover", "--dry-run"), ("rebuild-index", "--dry-run"), ("undo",)])
def test_no_remote_store_is_changed(place: str, line: tuple[str, ...]) -> None:
    result = mqtool(line[0], place, *line[1:], "--json")
    assert result.code == 8
    assert result.document["error"]["kind"] == "refused"
    assert "never changed" in result.document["error"]["message"]


def test_escape_codes_in_folder_names_stay_harmless(tmp_path: Path) -> None:
    store = real_store("clean-4.5.1", tmp_path)
    shutil.copytree(store / "consumequeue" / "TopicA", store / "consumequeue" / "evil\x1b[2J\nname")
    result = mqtool("inspect", store, "--color", "never")
    assert "\x1b" not in result.stdout
    assert "evil\\x1b[2J\\x0aname" in result.stdout


def test_findings_out_may_not_lie_inside_the_store() -> None:
    store = unpacked("clean-5.3.3")
    assert mqtool("inspect", store, "--findings-out", store / "out.ndjson").code == 16
    assert not (store / "out.ndjson").exists()


def test_findings_out_is_no_stdout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert mqtool("inspect", unpacked("clean-5.3.3"), "--findings-out", "-").code == 16
    assert not (tmp_path / "-").exists()


def test_queues_that_reach_further_than_the_log_show_that_files_are_missing(tmp_path: Path) -> None:
    root = real_store("clean-5.3.3", tmp_path)
    max((root / "commitlog").iterdir()).unlink()
    shown = " ".join(mqtool("inspect", root).stdout.split())
    assert "691,590 bytes (675.4 KiB) after the end of the log: log files are missing" in shown


# --- `mqtool inspect FILE`: kinds, items, fields, checks, and what is no file of ours.


LOG = "commitlog/00000000000000000000"


@pytest.mark.parametrize(("path", "kind"), [
    (LOG, "commitlog"), ("checkpoint", "checkpoint"), ("lock", "lock"), ("config/topics.json", "config"),
    ("config/timercheck", "timercheck"), ("timerwheel", "timerwheel"), ("timerlog/00000000000000000000", "timerlog"),
    ("consumequeue/TopicA/0/00000000000000000000", "consumequeue"), ("abort.bak", "abort"),
    ("consumequeue_ext/TopicA/0/00000000000000000000", "consumequeue-ext"), ("config/timermetrics", "config"),
])
def test_every_part_is_recognised_and_sound(path: str, kind: str) -> None:
    store = unpacked("clean-5.3.3")
    with assert_unchanged(store):
        result = mqtool("inspect", store / path, "--json")
    assert result.code == 0
    assert result.document["kind"] == kind
    assert all(item["ok"] for item in result.document["items"])
    assert mqtool("inspect", store / path).code == 0


@pytest.mark.parametrize(("path", "kind"), [
    (LOG, "commitlog"), ("checkpoint", "checkpoint"), ("config/topics.json", "config"),
    ("consumequeue/TopicA/0/00000000000000000000", "consumequeue"),
    ("consumequeue_ext/TopicA/0/00000000000000000000", "consumequeue-ext"),
    ("timerlog/00000000000000000000", "timerlog"),
])
def test_content_tells_the_kind_of_a_file_out_of_place(path: str, kind: str, tmp_path: Path) -> None:
    copy = tmp_path / "evidence.bin"
    copy.write_bytes((unpacked("clean-5.3.3") / path).read_bytes()[: 1 << 20])
    assert mqtool("inspect", copy, "--json").document["kind"] == kind


@pytest.mark.parametrize("name", ["topics.json", "consumerOffset.json.bak"])
@pytest.mark.parametrize(("state", "change"), [
    ("cut", lambda text: text[:122]), ("zeros", lambda text: bytes(len(text))), ("empty", lambda text: b""),
    ("trailing-garbage", lambda text: text + b"}}"), ("trailing-zeros", lambda text: text + bytes(9)),
])
def test_a_config_file_that_is_not_whole_is_not_called_clean(
    name: str, state: State, change: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(change((unpacked("clean-4.5.1") / "config" / name).read_bytes()))
    done = mqtool("inspect", path, "--json")
    (text,) = done.document["items"]
    assert [(check["name"], check["ok"], check["detail"]) for check in text["checks"]] == [
        ("whole text", False, STATE_TEXT[state])]
    assert done.code == exits.DERIVED and "1 with failed checks: whole text" in done.document["summary"]


def test_index_file_shows_header_and_entries() -> None:
    path = sorted((unpacked("killed-5.5.0") / "index").iterdir())[0]
    document = mqtool("inspect", path, "--limit", "0", "--json").document
    assert document["facts"] == {"slots": 500, "entries": 2000}
    assert [item["kind"] for item in document["items"][:2]] == ["header", "entry"]
    assert all(item["ok"] for item in document["items"])


def test_one_record_field_by_field_with_every_check() -> None:
    path = unpacked("killed-v2-ipv6-5.3.3") / LOG
    (record,) = mqtool("inspect", path, "--offset", "0", "--hex", "--json").document["items"]
    names = [field["name"] for field in record["fields"]]
    assert {"total_size", "magic", "born_ip", "body", "topic", "properties"} <= set(names)
    verdicts = {check["name"]: check["ok"] for check in record["checks"]}
    assert verdicts["body CRC"] is True
    assert verdicts["own offset"] is True
    screen = mqtool("inspect", path, "--offset", "0", "--hex")
    assert "da a3 20 ab" in screen.stdout


def test_physical_offset_and_offset_in_the_file_mean_the_same() -> None:
    path = unpacked("killed-5.5.0") / "commitlog" / "00000000000001048576"
    inside = mqtool("inspect", path, "--offset", "709", "--json").document["items"]
    physical = mqtool("inspect", path, "--offset", str(1048576 + 709), "--json").document["items"]
    assert inside == physical
    assert inside[0]["number"] == 1048576 + 709


@pytest.mark.parametrize(("topic", "field", "bit", "check"), [
    ("TopicA", "sys_flag", 0, "body as flagged"), ("SCHEDULE_TOPIC_XXXX", "REAL_QID", 6, "can be delivered"),
])
def test_a_record_that_nobody_can_read_costs_bit_4(
    topic: str, field: str, bit: int, check: str, tmp_path: Path
) -> None:
    store = real_store("clean-4.5.1", tmp_path)
    place, hit = next(it for it in enumerate(placed_records("clean-4.5.1")) if it[1].record.topic_name == topic)
    in_record = 39 if field == "sys_flag" else hit.raw.rindex(f"{field}\x01".encode()) + len(field) + 1
    log, at = log_place(store, hit.phy_offset + in_record)
    flip(log, at, 1 << bit)
    whole = mqtool("inspect", log, "--limit", place + 2)
    assert whole.code == 4 and check in whole.stdout
    one = mqtool("inspect", log, "--offset", hit.offset, "--limit", 1, "--json")
    (item,) = one.document["items"]
    assert [each["name"] for each in item["checks"] if each["ok"] is False] == [check]


@pytest.mark.parametrize(("field", "value", "check"), [
    ("born_port", 1 << 16, "born port"), ("store_port", -1, "store port"), ("queue_offset", -1, "queue offset"),
])
def test_a_field_that_verify_refuses_fails_its_check(field: str, value: int, check: str, tmp_path: Path) -> None:
    store = real_store("clean-4.5.1", tmp_path)
    hit = placed_records("clean-4.5.1")[3]
    layout = HEADS[hit.record.sys_flag & sysflag.HOSTS_V6]
    log, _ = log_place(store, hit.phy_offset)
    write_at(log, hit.offset + layout.offset(field), value.to_bytes(layout.field(field).size, "big", signed=True))
    (item,) = mqtool("inspect", log, "--offset", hit.offset, "--json").document["items"]
    assert [each["name"] for each in item["checks"] if each["ok"] is False] == [check]


@few("name", ["clean-5.3.3", "killed-v2-ipv6-5.3.3", "clean-propcrc-5.3.3"], quick=(1, 2))
@given(data=st.data())
@settings(max_examples=120)
def test_a_check_of_inspect_fails_if_and_only_if_the_verdict_refuses(name: str, data: st.DataObject) -> None:
    hit = data.draw(st.sampled_from(placed_records(name)[:400]))
    content = bytearray(hit.raw) + bytes(BLANK_SIZE)
    number = b"%s\x0112" % data.draw(st.sampled_from([b"DELAY", b"INNER_NUM", b"INNER_BASE", b"TIMER_OUT_MS"]))
    kind = data.draw(st.sampled_from(["bit", "bytes", "property", "nothing"]))
    at = data.draw(st.integers(0, hit.record.total_size - 1))
    if kind == "bit":
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "bytes":
        changed = data.draw(st.binary(min_size=1, max_size=min(12, hit.record.total_size - at)))
        content[at : at + len(changed)] = changed
    elif kind == "property" and len(hit.record.properties) > len(number):
        start = hit.record.total_size - len(hit.record.properties)
        content[start : start + len(number)] = number

    def read(position: int, size: int) -> bytes:
        return bytes(content[position : position + size])

    end = hit.phy_offset + len(content)
    try:
        record = judge(read, 0, hit.phy_offset, end)
        reason = "" if not unserved(record) and (
            record.property_crc is not None or not sysflag.contradicted_by(record.sys_flag, record.body)
        ) else "rejected"
        item = record_item(read, 0, hit.phy_offset, end, "")
    except FormatError as error:
        reason = error.reason
        item = record_item(read, 0, hit.phy_offset, end, reason)
    failed = [check.name for check in item.checks if check.ok is False]
    assert bool(failed) == bool(reason), (reason, failed)
    assert "verdict" not in failed, reason


def test_the_state_table_of_3x_counts_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "transaction" / "statetable" / offset_to_name(0)
    path.parent.mkdir(parents=True)
    path.write_bytes(STATE_UNIT.encode(StateUnit(8, 9, 1_400_000_000, 1, STATE_PREPARED)) * 3)
    for options in ((), ("--offset", 0)):
        assert "2014-05-13" in mqtool("inspect", path, *options).stdout


def test_magic_that_is_text_is_shown_as_text(tmp_path: Path) -> None:
    store = real_store("clean-5.3.3", tmp_path)
    write_at(store / LOG, 4, b"inMs")
    result = mqtool("inspect", store / LOG, "--offset", "0")
    assert '696E4D73 is the text "inMs"' in result.stdout
    assert "no intact record starts at 0" in result.stdout
    assert result.code == 4


def test_offset_outside_of_the_file_is_16() -> None:
    assert mqtool("inspect", unpacked("clean-5.3.3") / LOG, "--offset", "99999999").code == 16


# --- The broker's configuration names the store and its parts; what the files contradict is a finding with its remedy.


COMMANDS = (("inspect",), ("verify",), ("predict",), ("recover", "--dry-run"), ("rebuild", "--dry-run"))
READING = (("inspect",), ("verify",), ("predict",), ("query", "--phy-offset", "0"))


def _conf(folder: Path, **settings: object) -> Path:
    path = folder / "broker.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


SIZES = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20_000, "maxHashSlotNum": 500,
         "maxIndexNum": 2_000}
"""With what the lab wrote most of its stores."""


@pytest.mark.parametrize("line", READING, ids=lambda line: line[0])
def test_the_store_and_the_folders_of_its_log_are_read_in_the_conf(line: tuple[str, ...], tmp_path: Path) -> None:
    root = real_store("clean-multipath-4.9.7", tmp_path)
    first, second = (root / name for name in LOG_FOLDERS)
    second = second.rename(tmp_path / "disk2")
    sizes = {**SIZES, "mappedFileSizeCommitLog": 128 << 10, "mappedFileSizeConsumeQueue": 2_000}
    conf = _conf(tmp_path, storePathRootDir=root, storePathCommitLog=f"{first},", readOnlyCommitLogStorePaths=second,
                 **sizes)
    named = mqtool(line[0], root, *line[1:], "--commitlog", first, "--commitlog", second, "--json")
    both = _conf(tmp_path, storePathRootDir=root, storePathCommitLog=f"{first},{second}", **sizes)
    for options in ((root, "--broker-conf", conf), ("--broker-conf", conf), ("--broker-conf", both)):
        result = mqtool(line[0], *line[1:], *options, "--json")
        own = {"next", "assumptions", "seconds", "notes", "engine", "summary", "time"}
        assert result.code == named.code == 0, result.stderr
        assert {key: value for key, value in result.document.items() if key not in own} == {
            key: value for key, value in named.document.items() if key not in own}
        steps = result.document["next"]
        assert all("--broker-conf" in step["command"] for step in steps if step["command"].startswith("mqtool"))


@pytest.mark.parametrize("name", ["mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue"])
def test_a_number_with_a_blank_after_it_is_none_to_a_broker(name: str, tmp_path: Path) -> None:
    """MixAll.properties2Object drops what Integer.parseInt does not take: real 4.9.7 and 5.5.0 did not start."""
    root = real_store("clean-4.5.1", tmp_path)
    sizes = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20_000}
    conf = _conf(tmp_path, storePathRootDir=root, **{**sizes, name: f"{sizes[name]} "})
    for command in ("inspect", "verify"):
        (found,) = mqtool(command, root, "--broker-conf", conf, "--json").found("settings-contradict-files")
        assert found["facts"]["setting"] == name and f"'{sizes[name]} '" in found["message"]
    told = mqtool("predict", root, "--broker-conf", conf, "--json")
    assert told.code & exits.MESSAGES and not told.document["starts"]
    assert f"{name}={sizes[name]}" in told.document["next"][0]["command"]


@pytest.mark.parametrize(("version", "finds"), [("4.5.1", False), ("5.1.4", False), ("5.2.0", True), ("5.5.0", True)])
def test_a_blank_after_the_path_of_the_log_is_part_of_its_name_before_5_2_0(
    version: str, finds: bool, tmp_path: Path
) -> None:
    """Real 4.5.1, 4.9.7, 5.0.0 and 5.1.4 found no log there and deleted all queues; 5.2.0, 5.3.3 and 5.5.0 did not."""
    root = real_store("clean-plain-4.9.7", tmp_path)
    sizes = {**SIZES, "mappedFileSizeCommitLog": 128 << 10, "mappedFileSizeConsumeQueue": 2_000}
    conf = _conf(tmp_path, storePathRootDir=root, storePathCommitLog=f"{root}/commitlog ", **sizes)
    assert mqtool("verify", "--broker-conf", conf, "--json").found("commitlog-needs-newer-broker")
    told = mqtool("predict", "--broker-conf", conf, "--broker", version, "--json")
    assert told.code == (0 if finds else exits.MESSAGES)
    assert ("Remove the blank" in told.document["next"][0]["command"]) is not finds
    assert bool(told.document["deleted_files"]) is not finds


def test_a_read_only_folder_beside_a_single_one_is_not_read(tmp_path: Path) -> None:
    root = real_store("clean-plain-4.9.7", tmp_path)
    files = sorted((root / "commitlog").iterdir())
    read_only = tmp_path / "read-only"
    read_only.mkdir()
    files[0].rename(read_only / files[0].name)
    conf = _conf(tmp_path, storePathRootDir=root, readOnlyCommitLogStorePaths=read_only)
    found = mqtool("predict", "--broker-conf", conf, "--broker", "4.9.7", "--json")
    assert found.document["min_phy"] == int(files[1].name), "as a real 4.9.7 and 5.3.3 have it"
    assert any("readOnlyCommitLogStorePaths is ignored" in text for text in found.document["assumptions"])
    assert "commitlog-begins-late" in mqtool("verify", "--broker-conf", conf, "--json").codes


def test_a_space_between_two_folders_is_part_of_a_name(tmp_path: Path) -> None:
    root = real_store("clean-multipath-4.9.7", tmp_path)
    first, second = (root / name for name in LOG_FOLDERS)
    sizes = {**SIZES, "mappedFileSizeCommitLog": 128 << 10, "mappedFileSizeConsumeQueue": 2_000}
    conf = _conf(tmp_path, storePathRootDir=root, storePathCommitLog=f"{first}, {second}", **sizes)
    found = mqtool("predict", "--broker-conf", conf, "--broker", "4.9.7", "--json")
    assert found.code == exits.MESSAGES and found.found("commitlog-missing-file")
    assert found.document["max_phy"] == 917237, "as a real 4.9.7 and 5.3.3 have it"
    assert any("with the space in its name" in text for text in found.document["assumptions"])
    assert f"--commitlog {second}" in found.document["next"][0]["command"]


def test_a_copy_is_not_judged_by_the_log_of_the_original(tmp_path: Path) -> None:
    root = real_store("clean-plain-4.9.7", tmp_path)
    copy = copy_store(root, tmp_path / "copy")
    for path in (root / "commitlog").iterdir():
        path.write_bytes(b"")
    conf = _conf(tmp_path, storePathRootDir=root, storePathCommitLog=root / "commitlog")
    assert mqtool("verify", copy, "--broker-conf", conf).code == 0


def test_no_store_and_no_conf_is_a_usage_error(tmp_path: Path) -> None:
    result = mqtool("verify", "--broker-conf", _conf(tmp_path, brokerName="a"), "--json")
    assert result.code == 16
    assert "storePathRootDir" in result.document["error"]["remedy"]
    assert mqtool("verify").code == 16


def test_a_log_folder_of_the_conf_that_is_not_mounted_is_a_log_that_is_gone(tmp_path: Path) -> None:
    root = real_store("clean-plain-4.9.7", tmp_path)
    (root / "commitlog").rename(tmp_path / "elsewhere")
    conf = _conf(tmp_path, storePathRootDir=root, storePathCommitLog=tmp_path / "unmounted")
    result = mqtool("verify", "--broker-conf", conf, "--json")
    assert result.code & 4
    assert "commitlog-empty-queues-left" in result.codes
    assert mqtool("recover", "--broker-conf", conf, "--yes").code & 8


@few(("line", "key", "value", "right"), [
    *((line, "mappedFileSizeCommitLog", 1 << 30, 1 << 20) for line in COMMANDS),
    (("verify",), "mappedFileSizeConsumeQueue", 6_000_000, 20_000), (("verify",), "maxHashSlotNum", 5_000_000, 500),
], quick=(0, 2, 5, 6))
def test_a_size_that_the_files_contradict_is_told_with_its_own_remedy(
    line: tuple[str, ...], key: str, value: int, right: int, tmp_path: Path,
) -> None:
    root = real_store("clean-5.3.3", tmp_path)
    others = {**SIZES, "enableLmq": "true"}
    conf = _conf(tmp_path, **{**others, key: value})
    result = mqtool(line[0], root, *line[1:], "--broker-conf", conf, "--json")
    (found,) = result.found("settings-contradict-files")
    assert found["remedy"].startswith(f"Set {key}={right} ")
    assert result.code & 2 or result.code & 4
    if line[0] != "inspect":
        commands = [step["command"] for step in result.document["next"]]
        assert commands == [found["remedy"]]
    sound = mqtool(line[0], root, *line[1:], "--broker-conf", _conf(tmp_path, **{**others, key: right}))
    assert sound.code == (2 if line[0] == "predict" else 0), "half messages that come a second time"


def test_a_setting_that_would_cut_the_log_is_to_be_switched_off(tmp_path: Path) -> None:
    root = real_store("clean-5.3.3", tmp_path)
    for name in ("verify", "predict"):
        result = mqtool(name, root, "--broker", "5.3.3", "--set", "forceVerifyPropCRC=true", "--json")
        assert [step["command"].split()[0] for step in result.document["next"]] == ["Leave"]
    assert result.code == 4


def test_a_downgrade_is_answered_with_the_release_to_use(tmp_path: Path) -> None:
    root = real_store("clean-v2-5.5.0", tmp_path)
    result = mqtool("predict", root, "--broker", "4.9.7", "--json")
    assert result.code & 4
    assert [step["command"] for step in result.document["next"]] == ["Start release 5.1.0 or later on this store."]
    newest = mqtool("predict", root, "--broker", "5.5.0", "--json")
    assert [step["command"] for step in newest.document["next"]] == [START_BROKER]


@pytest.mark.parametrize("name", [
    name for name, it in KNOWN.items() if it.default.isdecimal() or it.default in ("true", "false")])
def test_a_value_of_another_type_is_a_usage_error(name: str, tmp_path: Path) -> None:
    root = real_store("clean-plain-4.9.7", tmp_path)
    result = mqtool("verify", root, "--set", f"{name}=abc", "--json")
    assert result.code == 16
    assert f"{name}=abc" in result.document["error"]["message"]


def test_a_size_that_is_no_number_is_told_as_the_default_that_a_broker_takes(tmp_path: Path) -> None:
    root = real_store("clean-5.3.3", tmp_path)
    conf = _conf(tmp_path, **{**SIZES, "enableLmq": "true", "mappedFileSizeCommitLog": "1M"})
    for bit, line in ((2, ("verify",)), (4, ("predict", "--broker", "5.3.3"))):
        result = mqtool(line[0], root, *line[1:], "--broker-conf", conf, "--json")
        (found,) = result.found("settings-contradict-files")
        assert result.code & bit and "'1M'" in found["message"] and "1073741824" in found["message"]
        assert result.document["next"][0]["command"].startswith("Set mappedFileSizeCommitLog=1048576")


def test_a_size_that_the_conf_leaves_out_is_told_before_the_start(tmp_path: Path) -> None:
    root = real_store("clean-5.3.3", tmp_path)
    conf = _conf(tmp_path, enableLmq="true", **{key: value for key, value in SIZES.items() if key != "maxIndexNum"})
    # the start has half messages that come a second time
    for code, line in ((0, ("verify",)), (2, ("predict", "--broker", "5.3.3"))):
        result = mqtool(line[0], root, *line[1:], "--broker-conf", conf, "--json")
        (found,) = result.found("settings-leave-out-size")
        assert (result.code - code, found["severity"], found["facts"]["setting"]) == (0, "info", "maxIndexNum")
    assert result.document["next"][0]["command"] == START_BROKER
    assert "maxIndexNum=2000, which it does not set" in result.document["next"][0]["why"]
    assert "settings-leave-out-size" not in mqtool("verify", root, "--set", "brokerName=a", "--json").codes
    # 4.5.1 and 5.3.3 do not start on a log or queues of another length, and without LMQ queues forget all offsets
    for name in ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "enableLmq"):
        settings = {"enableLmq": "true", **SIZES}
        right = settings.pop(name)
        conf = _conf(tmp_path, **settings)
        result = mqtool("predict", root, "--broker", "5.3.3", "--broker-conf", conf, "--json")
        assert (result.code, result.document["starts"]) == (4, name == "enableLmq")
        assert result.document["next"][0]["command"].startswith(f"Set {name}={right} in the broker's configuration")
        assert name in result.document["reason"]
        assert mqtool("verify", root, "--broker-conf", conf, "--json").code == 0
    conf.write_text("# the brokers' defaults\n")
    assert "mappedFileSizeCommitLog" in [item["facts"]["setting"] for item in mqtool(
        "verify", root, "--broker-conf", conf, "--json").found("settings-leave-out-size")]


@pytest.mark.parametrize(("head", "code"), [
    (b"", exits.MESSAGES), (b"<html>", exits.MESSAGES), (b"\0\0\0\x66\xda\xa3\x20\xa7", exits.DERIVED)])
def test_a_log_of_noise_is_named(head: bytes, code: int, tmp_path: Path) -> None:
    """Other bytes than records in every log file: inspect and verify name them. What begins like a record
    may be the very first write of a broker, and only verify asks the queues."""
    root = real_store("clean-plain-4.9.7", tmp_path)
    noise = random.Random(5)
    for file in (root / "commitlog").iterdir():
        size = file.stat().st_size
        write_at(file, 0, (head + noise.randbytes(size))[:size])
    shown = mqtool("inspect", root, "--json")
    named = {item["file"] for item in shown.document["findings"] if item["severity"] != "info"}
    assert shown.code & code and "commitlog/00000000000000000000" in named
    assert mqtool("verify", root).code & exits.MESSAGES


def test_sizes_are_shown_as_lengths_and_as_they_are_on_the_disk(tmp_path: Path) -> None:
    root = real_store("clean-plain-4.9.7", tmp_path)
    last = max((root / "commitlog").iterdir())
    os.truncate(last, 64 << 20)
    part = next(part for part in mqtool("inspect", root, "--json").document["parts"] if part["name"] == "commitlog")
    held = sum(path.stat().st_blocks * 512 for path in (root / "commitlog").iterdir())
    assert part["bytes"] == sum(path.stat().st_size for path in (root / "commitlog").iterdir())
    assert part["on_disk"] == held < part["bytes"] // 100
    assert "64.1 MiB" in mqtool("inspect", root).stdout
    assert f"{last.stat().st_blocks * 512:,} bytes" in mqtool("inspect", last).stdout


@pytest.mark.parametrize("off", ["commitlog", "consumequeue", ".."])
def test_a_path_one_level_off_leads_to_the_store(off: str, tmp_path: Path) -> None:
    root = real_store("clean-plain-4.9.7", tmp_path)
    refused = mqtool("verify", root / off)
    assert refused.code == exits.USAGE and f"The store seems to be {root}." in refused.stderr


def test_where_no_broker_starts_the_headline_says_so(tmp_path: Path) -> None:
    root = real_store("clean-plain-4.9.7", tmp_path)
    assert "No broker" not in mqtool("verify", root).stdout
    os.truncate(min((root / "commitlog").iterdir()), 1000)
    said = mqtool("verify", root, "--json").document["summary"]
    assert said.startswith("No broker from 4.9.4 on starts on it: ") and "intact messages" in said
    for version in ("4.9.4", "5.5.0"):
        assert mqtool("predict", root, "--broker", version, "--json").document["starts"] is False
