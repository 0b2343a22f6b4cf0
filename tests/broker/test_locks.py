"""One at a time: no broker starts while the lock is ours, and we keep off while a broker runs."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fixtures.damage import damage
from fixtures.lab.report import OracleReport
from tests.broker.cases import one_deep
from tests.broker.judge import REFUSED, mqtool
from tests.support.brokers import VERSIONS, oracle
from tests.support.counts import Count
from tests.support.plans import count_operations, killed_at
from tests.support.stores import EXPECTED, copy_store, real_store
from tests.support.trees import assert_unchanged

pytestmark = pytest.mark.broker
every_version = pytest.mark.parametrize("version", one_deep(VERSIONS, "5.3.3"))

_FLOCK = "hhqqi4x"
_REFUSAL = "Lock failed"


@contextmanager
def held(path: Path) -> Iterator[None]:
    """An exclusive lock on the first byte of the file, owned by the open file as mqtool's is."""
    with path.open("r+b") as handle:
        fcntl.fcntl(handle, 37, struct.pack(_FLOCK, fcntl.F_WRLCK, 0, 0, 1, 0))  # 37: F_OFD_SETLK, nameless in 3.11
        yield


@every_version
def test_broker_does_not_start_while_the_lock_is_held(version: str, tmp_path: Path) -> None:
    store = real_store("clean-4.5.1", tmp_path)
    with held(store / "lock"):
        seen = oracle(version).start(store)
    assert seen.loaded and not seen.started
    assert _REFUSAL in (seen.error or "")
    assert oracle(version).start(store).starts


@every_version
def test_broker_has_cut_the_log_before_it_asks_for_the_lock(version: str, tmp_path: Path) -> None:
    """Why a broker must not even be tried while mqtool works: docs/broker-start.md says so."""
    store = real_store("clean-4.5.1", tmp_path)
    damage("crash-bit-without-checkpoint", store, 0)
    end = EXPECTED["clean-4.5.1"]["log_end"]
    with held(store / "lock"):
        seen = oracle(version).start(store)
    assert seen.loaded and not seen.started
    assert seen.after_load is not None and seen.after_load.max_phy < end
    assert any(path.startswith("commitlog") for path in seen.deleted_files)


@every_version
def test_broker_does_not_start_while_a_change_is_on_its_way(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mqtool stops at its first write to a data file until a broker has tried to start on the store."""
    store = real_store("clean-4.5.1", tmp_path)
    damage("queue-file-zeroed", store, 0)
    tried: list[OracleReport] = []
    sync = os.fsync

    def try_a_start(descriptor: int) -> None:
        sync(descriptor)
        if not tried and "consumequeue" in os.readlink(f"/proc/self/fd/{descriptor}"):
            tried.append(oracle(version).start(store))

    monkeypatch.setattr(os, "fsync", try_a_start)
    answer = mqtool("recover", store, "--yes")
    assert answer.document["applied"] and not answer.code & REFUSED
    assert [(seen.loaded, seen.started) for seen in tried] == [(True, False)]
    assert _REFUSAL in (tried[0].error or "")
    assert oracle(version).start(store).starts


@every_version
def test_a_real_broker_between_kill_and_resume_is_noticed(version: str, tmp_path: Path, count: Count) -> None:
    """recover is killed half way, and somebody starts a broker on what it left."""
    store = real_store("clean-4.5.1", tmp_path)
    damage("queue-file-zeroed", store, 0)
    damage("checkpoint-zero", store, 0)
    copy = copy_store(store, tmp_path / "copy")
    operations = len(count_operations(lambda: mqtool("recover", copy, "--yes")))
    # before the first file is changed, between two of them, and after the last
    for stop in (operations * 3 // 5, operations * 3 // 4, operations * 9 // 10):
        root = copy_store(store, tmp_path / str(stop))
        assert killed_at(stop, lambda root=root: mqtool("recover", root, "--yes"))  # type: ignore[misc]
        assert [run["state"] for run in mqtool("journal", root).document["runs"]] == ["unfinished"]
        assert oracle(version).start(root).loaded
        with assert_unchanged(root):
            assert mqtool("resume", root, "--yes").code & REFUSED
        count("starts of a real broker between kill and resume refused", 1)


@every_version
def test_changing_commands_refuse_while_a_broker_runs(version: str, tmp_path: Path) -> None:
    store = real_store("clean-4.5.1", tmp_path)
    with oracle(version).running(store):
        answer = mqtool("recover", store, "--yes")
        assert answer.code & REFUSED
        assert not (store / ".mqtool").exists()
    assert oracle(version).start(store).starts


@every_version
def test_inspect_names_the_broker_that_holds_the_lock(version: str, tmp_path: Path) -> None:
    store = real_store("clean-4.5.1", tmp_path)
    with oracle(version).running(store) as pid:
        answer = mqtool("inspect", store)
    assert str(pid) in str(answer.document)


@every_version
def test_reading_a_live_store_changes_nothing_in_it(version: str, tmp_path: Path) -> None:
    store = real_store("clean-4.5.1", tmp_path)
    with (
        oracle(version).running(store),
        assert_unchanged(store / "commitlog"),
        assert_unchanged(store / "consumequeue"),
    ):
        mqtool("verify", store)
