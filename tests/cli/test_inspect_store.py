"""`mqtool inspect STORE`: one screen, nothing written, sensible words for odd stores."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from formats.record import OFFSET_SYS_FLAG
from formats.sysflag import COMPRESSION_ZLIB
from recover.change.lock import StoreLock
from tests.cli.runner import mqtool
from tests.support.stores import EXPECTED, STORES, real_store, unpacked
from tests.support.trees import assert_unchanged


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


def test_broker_option_asks_for_that_release_only() -> None:
    document = mqtool("inspect", unpacked("clean-5.3.3"), "--broker", "5.3.3", "--json").document
    assert list(document["start_file"]) == ["5.3.3"]


def test_traces_of_5_4_and_later_are_seen() -> None:
    document = mqtool("inspect", unpacked("killed-5.5.0"), "--json").document
    assert document["generation"]["at_least"] == "5.4.0"


def test_compression_of_the_clients_tells_nothing_of_the_broker(tmp_path: Path) -> None:
    """A producer of 5.x names its compression in the sysFlag, and a 4.9.7 stores what it was sent."""
    store = real_store("clean-plain-4.9.7", tmp_path)
    path = next(iter(sorted((store / "commitlog").iterdir())))
    content = bytearray(path.read_bytes())
    content[OFFSET_SYS_FLAG : OFFSET_SYS_FLAG + 4] = COMPRESSION_ZLIB.to_bytes(4, "big")
    path.write_bytes(content)
    before = mqtool("inspect", unpacked("clean-plain-4.9.7"), "--json").document["generation"]
    assert mqtool("inspect", store, "--json").document["generation"] == before
    assert mqtool("verify", store).code == 0


@pytest.mark.parametrize(("broken", "bits", "code"), [
    ("config/topics.json*", 2, "config-topics-guessed"), ("checkpoint", 2, "checkpoint-missing"),
    ("commitlog/*131072", 4, "commitlog-missing-file"),
])
def test_inspect_ends_with_the_bits_of_what_it_shows(broken: str, bits: int, code: str, tmp_path: Path) -> None:
    store = real_store("clean-manyfiles-5.3.3" if "log" in broken else "clean-5.3.3", tmp_path)
    for path in store.glob(broken):
        path.write_bytes(b"{") if "config" in broken else path.unlink()
    result = mqtool("inspect", store, "--json")
    assert result.code == bits
    assert code in {item["code"] for item in result.document["findings"]}


def test_another_mqtool_that_holds_the_lock_is_no_broker(tmp_path: Path) -> None:
    store = real_store("clean-plain-4.9.7", tmp_path)
    (store / "lock").unlink(missing_ok=True)
    with StoreLock(store):
        script = "import sys; from mqtool.cli import main; sys.exit(main(sys.argv[1:]))"
        done = subprocess.run([sys.executable, "-c", script, "inspect", store], check=False, capture_output=True,
                              text=True)
    assert "another mqtool" in done.stdout
    assert "broker holds" not in done.stdout and "running broker" not in done.stdout


def test_damaged_config_is_listed(tmp_path: Path) -> None:
    store = real_store("clean-5.3.3", tmp_path)
    (store / "config" / "topics.json").write_bytes(b"")
    result = mqtool("inspect", store)
    assert "topics.json" in result.stdout
    assert "config files that are not whole" in result.stdout


def test_config_that_brokers_take_for_something_else_is_listed(tmp_path: Path) -> None:
    store = real_store("clean-4.5.1", tmp_path)
    for name, right, wrong in (("topics.json", b"ConfigTable", b"ConfigTabme"), ("delayOffset.json", b"{1:", b"{q:")):
        path = store / "config" / name
        path.write_bytes(path.read_bytes().replace(right, wrong))
    states = {item["name"]: item["state"] for item in mqtool("inspect", store, "--json").document["config"]}
    assert (states["topics.json"], states["delayOffset.json"]) == ("flipped-name", "odd-offset")
    assert {state for name, state in states.items() if name[0] in "cs"} == {"whole"}


def test_t18_queues_without_a_log_warn_of_a_start(tmp_path: Path) -> None:
    store = real_store("clean-5.3.3", tmp_path)
    for path in (store / "commitlog").iterdir():
        path.unlink()
    assert "Do not start the broker" in mqtool("inspect", store).stdout


def test_running_broker_is_named(tmp_path: Path) -> None:
    store = real_store("clean-5.3.3", tmp_path)
    script = (
        "import fcntl, os, sys\nfd = os.open(sys.argv[1], os.O_RDWR)\nfcntl.lockf(fd, fcntl.LOCK_EX, 1, 0)\n"
        "print('held', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(store / "lock")], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        document = mqtool("inspect", store, "--json").document
        holder.communicate("")
    assert document["exit_state"]["verdict"] == "running"
    assert document["exit_state"]["lock_holder"] == holder.pid


def test_empty_store_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    result = mqtool("inspect", tmp_path, "--json")
    assert result.code == 0
    assert result.document["offsets"]["log_end"] == 0


def test_folder_that_is_no_store_is_16(tmp_path: Path) -> None:
    assert mqtool("inspect", tmp_path).code == 16


def test_options_for_files_are_refused_for_a_store() -> None:
    assert mqtool("inspect", unpacked("clean-5.3.3"), "--offset", "3").code == 16


@pytest.mark.parametrize("place", ["s3://bucket/store", "s3a://bucket/store", "hdfs://name/store"])
@pytest.mark.parametrize("line", [("recover", "--dry-run"), ("rebuild-index", "--output", "x"), ("undo",)])
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


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission_is_8(tmp_path: Path) -> None:
    store = real_store("clean-5.3.3", tmp_path)
    (store / "commitlog").chmod(0)
    try:
        assert mqtool("inspect", store).code == 8
    finally:
        (store / "commitlog").chmod(0o755)


def test_lock_file_is_probed_not_taken() -> None:
    store = unpacked("clean-5.3.3")
    with (store / "lock").open("rb") as lock:
        mqtool("inspect", store)
        fcntl.lockf(lock, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0)


def test_findings_out_may_not_lie_inside_the_store() -> None:
    store = unpacked("clean-5.3.3")
    assert mqtool("inspect", store, "--findings-out", store / "out.ndjson").code == 16
    assert not (store / "out.ndjson").exists()


def test_findings_out_is_written_outside(tmp_path: Path) -> None:
    target = tmp_path / "out.ndjson"
    assert mqtool("inspect", unpacked("clean-5.3.3"), "--findings-out", target).code == 0
    assert target.read_text() == ""


def test_queues_that_reach_further_than_the_log_show_that_files_are_missing(tmp_path: Path) -> None:
    root = real_store("clean-5.3.3", tmp_path)
    max((root / "commitlog").iterdir()).unlink()
    shown = " ".join(mqtool("inspect", root).stdout.split())
    assert "bytes after the end of the log: files of it are missing" in shown
