"""The lock byte, against real POSIX record locks of other processes, and against a Java `FileChannel.tryLock`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from recover.change import disk
from recover.change.lock import UNKNOWN_HOLDER, is_own_lock_file, probe, store_lock
from recover.findings.code import Refusal
from tests.support.plans import killed_at, make_old, small_store
from tests.support.stores import write_at
from tests.support.trees import assert_same_tree, assert_unchanged, tree_digest

_HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(sys.argv[2]))
except OSError:
    print("refused", flush=True)
    sys.exit()
print("held", flush=True)
sys.stdin.read()
"""
_JAVA = """
import java.io.RandomAccessFile;
public class Hold {
    public static void main(String[] args) throws Exception {
        RandomAccessFile file = new RandomAccessFile(args[0], "rw");
        Object lock = file.getChannel().tryLock(0, 1, false);
        System.out.println(lock == null ? "refused" : "held");
        System.in.read();
    }
}
"""


@contextmanager
def held(command: list[str]) -> Iterator[tuple[int, str]]:
    """A process that tries for the lock: its pid and what it says."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield process.pid, process.stdout.readline().strip()
        finally:
            process.stdin.close()
            process.wait(30)


def record_lock(store: Path, start: int = 0) -> list[str]:
    """The command of a process that takes a record lock on one byte."""
    return [sys.executable, "-c", _HOLD, str(store / "lock"), str(start)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = small_store(tmp_path / "s")
    (root / "lock").write_bytes(b"lock")
    make_old(root)
    return root


def test_a_holder_is_seen_with_its_pid_and_nothing_is_touched(store: Path) -> None:
    with assert_unchanged(store):
        assert probe(store) is None
        with held(record_lock(store)) as (pid, said):
            assert said == "held"
            assert probe(store) == pid
            with pytest.raises(Refusal, match=f"process {pid} holds") as refused, store_lock(store):
                pass
            assert refused.value.facts["pid"] == pid and "stop the broker" in refused.value.remedy
        assert probe(store) is None


def test_a_lock_on_another_byte_is_none_of_ours(store: Path) -> None:
    with held(record_lock(store, 1)) as (_, said):
        assert said == "held"
        assert probe(store) is None
        with store_lock(store):
            pass


def test_nobody_gets_the_byte_while_we_hold_it(store: Path) -> None:
    with assert_unchanged(store), store_lock(store):
        assert probe(store) == UNKNOWN_HOLDER
        # Closing another descriptor of the file would drop a POSIX lock of this process.
        (store / "lock").read_bytes()
        with held(record_lock(store)) as (_, said):
            assert said == "refused"
        with pytest.raises(Refusal, match="another mqtool"), store_lock(store):
            pass
    with held(record_lock(store)) as (_, said):
        assert said == "held"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("java") is None, reason="needs Java")
def test_a_java_broker_and_we_exclude_each_other(store: Path, tmp_path: Path) -> None:
    (tmp_path / "Hold.java").write_text(_JAVA)
    command = ["java", "-Xshare:auto", str(tmp_path / "Hold.java"), str(store / "lock")]
    with held(command) as (pid, said):
        assert said == "held"
        assert probe(store) == pid
        with pytest.raises(Refusal), store_lock(store):
            pass
    with store_lock(store), held(command) as (_, said):
        assert said == "refused"


def test_a_missing_lock_file_is_made_held_and_removed(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    before, mtime = tree_digest(store), store.stat().st_mtime_ns
    assert probe(store) is None
    with store_lock(store):
        assert is_own_lock_file(store / "lock")
        assert (store / "lock").stat().st_mode & 0o777 == 0o644
        with held(record_lock(store)) as (_, said):
            assert said == "refused"
    assert_same_tree(before, tree_digest(store))
    assert store.stat().st_mtime_ns == mtime


def test_a_lock_file_left_by_a_killed_mqtool_is_cleared_away_by_the_next(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    before, mtime = tree_digest(store), store.stat().st_mtime_ns

    def work() -> None:
        with store_lock(store):
            disk.fsync_dir(store)

    number = lost = 0
    while killed_at(number, work):
        assert probe(store) is None, "the lock of a dead process is gone"
        gone = not (store / "lock").exists()
        with store_lock(store):
            pass
        if store.stat().st_mtime_ns != mtime:
            # Without a journal folder nothing holds the root's own mtime while it is not yet put back.
            assert gone
            lost += 1
            os.utime(store, ns=(mtime, mtime))
        assert_same_tree(before, tree_digest(store))
        number += 1
    assert number > 5 and lost == 1


def test_a_lock_file_that_a_broker_took_over_stays(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    (store / "lock").write_bytes(b"mqtool")
    write_at(store / "lock", 0, b"lock")
    with assert_unchanged(store), store_lock(store):
        assert not is_own_lock_file(store / "lock")


def test_a_lock_file_that_is_swapped_is_locked_anew(store: Path) -> None:
    other = store / "other"
    other.write_bytes(b"lock")
    with store_lock(store):
        os.replace(other, store / "lock")
        with store_lock(store):
            assert probe(store) == UNKNOWN_HOLDER


def test_the_lock_goes_with_a_killed_process(store: Path) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with store_lock(store):
            os.write(write, b"x")
            signal.pause()
    os.read(read, 1)
    assert probe(store) == UNKNOWN_HOLDER
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert probe(store) is None
    with store_lock(store):
        pass
