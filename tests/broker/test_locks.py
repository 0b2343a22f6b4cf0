"""One at a time: no broker starts while the lock is ours, and we keep off while a broker runs."""

from __future__ import annotations

import fcntl
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.broker.judge import REFUSED, mqtool
from tests.support.brokers import VERSIONS, oracle
from tests.support.stores import real_store
from tests.support.trees import assert_unchanged

pytestmark = [pytest.mark.broker, pytest.mark.deep]

_FLOCK = "hhqqi4x"
_REFUSAL = "Lock failed"


@contextmanager
def held(path: Path) -> Iterator[None]:
    """An exclusive lock on the first byte of the file, owned by the open file as mqtool's is."""
    with path.open("r+b") as handle:
        fcntl.fcntl(handle, 37, struct.pack(_FLOCK, fcntl.F_WRLCK, 0, 0, 1, 0))  # 37: F_OFD_SETLK, nameless in 3.11
        yield


@pytest.mark.parametrize("version", VERSIONS)
def test_broker_does_not_start_while_the_lock_is_held(version: str, tmp_path: Path) -> None:
    store = real_store("clean-4.5.1", tmp_path)
    with held(store / "lock"):
        seen = oracle(version).start(store)
    assert seen.loaded and not seen.started
    assert _REFUSAL in (seen.error or "")
    assert oracle(version).start(store).starts


@pytest.mark.parametrize("version", VERSIONS)
def test_changing_commands_refuse_while_a_broker_runs(version: str, tmp_path: Path) -> None:
    store = real_store("clean-4.5.1", tmp_path)
    with oracle(version).running(store):
        answer = mqtool("recover", store, "--yes")
        assert answer.code & REFUSED
        assert not (store / ".mqtool").exists()
    assert oracle(version).start(store).starts


@pytest.mark.parametrize("version", VERSIONS)
def test_inspect_names_the_broker_that_holds_the_lock(version: str, tmp_path: Path) -> None:
    store = real_store("clean-4.5.1", tmp_path)
    with oracle(version).running(store) as pid:
        answer = mqtool("inspect", store)
    assert str(pid) in str(answer.document)


@pytest.mark.parametrize("version", VERSIONS)
def test_reading_a_live_store_changes_nothing_in_it(version: str, tmp_path: Path) -> None:
    store = real_store("clean-4.5.1", tmp_path)
    with (
        oracle(version).running(store),
        assert_unchanged(store / "commitlog"),
        assert_unchanged(store / "consumequeue"),
    ):
        mqtool("verify", store)
