"""T35 and T36: a running broker, and stores that cannot be read or written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from mqtool import exits
from tests.change.test_lock import held, record_lock
from tests.cli.runner import mqtool
from tests.scenarios.conftest import Start
from tests.scenarios.drill import PLAIN, Drill, messages
from tests.support.trees import assert_same_tree, assert_unchanged, tree_digest

READING = (("verify",), ("inspect",), ("predict",), ("journal",),
           ("query", "--topic", "Orders", "--queue", "0", "--offset", "1"))
CHANGING = (("recover",), ("rebuild",), ("rebuild-consumequeue",), ("rebuild-index",), ("undo",), ("resume",),
            ("truncate", "--to", "0", "--max-loss", "all"))


# --- T35 ------------------------------------------------------------------------------------------------


def test_t35_running_broker_allows_reading_and_refuses_writes(broken: Drill, folder: Path) -> None:
    store, free = broken, broken.verify()
    plan = folder / "plan.json"
    assert store.run("recover", "--dry-run", "--plan-out", plan).code == free.code
    with held(record_lock(store.root)) as (pid, said), assert_unchanged(store.root):
        assert said == "held"
        result = store.verify()
        found = {item["code"]: item for item in result.document["findings"]}
        assert (found["broker-running"]["severity"], found["broker-running"]["facts"]["pid"]) == ("info", pid)
        assert found["abort-present"]["severity"] == "info"
        for command, *options in READING:
            assert store.run(command, *options).code & exits.OPERATIONAL == 0, command
        planned = store.run("recover", "--dry-run")
        assert planned.code == result.code, "the bits that are found"
        assert "abort" not in [step["file"] for step in planned.document["plan"]["steps"]], "a broker runs"
        assert "a broker runs" in planned.stderr
        for command, *options in CHANGING:
            refused = store.run(command, *options, "--yes")
            assert refused.code & exits.OPERATIONAL, command
            if command not in ("undo", "resume"):
                assert str(pid) in refused.stderr, command
        assert mqtool("apply", plan, "--yes").code & exits.OPERATIONAL
    with store.recovered():
        pass


def test_t35_healthy_running_broker_is_clean(drill: Start) -> None:
    store = drill("killed-manyfiles-5.5.0")
    with held(record_lock(store.root)):
        assert store.verify().code == 0, "abort belongs there while the broker runs"
        planned = store.run("recover", "--dry-run")
        assert (planned.code, planned.document["plan"]["steps"]) == (0, [])
    assert store.verify().code == 2


def test_t35_undo_is_refused_while_a_broker_runs(broken: Drill) -> None:
    assert broken.run("recover", "--yes").code & exits.CORRECTED
    with held(record_lock(broken.root)) as (pid, _), assert_unchanged(broken.root):
        refused = broken.run("undo", "--yes")
        assert refused.code & exits.OPERATIONAL
        assert str(pid) in refused.stderr


# --- T36: nothing to write on ----------------------------------------------------------------------------


@contextmanager
def read_only(root: Path, at: Path) -> Iterator[Path]:
    """The store seen through a mount that cannot be written; skips where we may not mount."""
    at.mkdir()
    if subprocess.run(["mount", "--bind", str(root), str(at)], capture_output=True, check=False).returncode:
        pytest.skip("NOT RUN: mounting needs root")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(at)], check=True)
        yield at
    finally:
        subprocess.run(["umount", str(at)], check=True)


def test_t36_read_only_mount_can_be_read_and_copied(broken: Drill, folder: Path) -> None:
    expected, before = broken.verify(), tree_digest(broken.root)
    with read_only(broken.root, folder / "mount") as mount:
        result = mqtool("verify", mount, "--json")
        assert (result.code, result.document["commitlog"]) == (expected.code, expected.document["commitlog"])
        for command, *options in READING:
            assert mqtool(command, mount, *options).code & exits.OPERATIONAL == 0, command
        assert mqtool("recover", mount, "--dry-run").code == expected.code
        refused = mqtool("recover", mount, "--yes")
        assert refused.code == expected.code | exits.OPERATIONAL
        assert "ead-only" in refused.stderr
        copied = mqtool("recover", mount, "--output", folder / "copy", "--yes")
        assert copied.code == exits.CORRECTED | exits.MESSAGES, copied.stderr
    assert_same_tree(before, tree_digest(broken.root))
    assert broken.intact <= messages(folder / "copy")
    assert mqtool("verify", folder / "copy").code == 0


def in_a_child(work: Callable[[], bool]) -> None:
    """Run work in a forked process, whose hooks and rights go with it; fail if it raises or says False."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if work() else 2
        except BaseException as error:
            print(repr(error), file=sys.stderr)
        finally:
            sys.stderr.flush()
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.utime", "os.chmod", "os.chown",
            "os.link", "os.symlink", "os.setxattr", "os.removexattr", "fcntl.lockf", "fcntl.flock"}


def nothing_written(root: Path, work: Callable[[], bool]) -> bool:
    """Do the work with an audit hook that ends it at the first attempt to write, or to lock, below the root."""
    inside = str(root)

    def hook(event: str, arguments: Sequence[object]) -> None:
        name = os.fsdecode(arguments[0]) if arguments and isinstance(arguments[0], str | bytes | Path) else ""
        if event in _CHANGES and (name.startswith(inside) or event.startswith("fcntl.")):
            raise AssertionError(f"{event} {name}")
        if event == "open" and name.startswith(inside) and isinstance(arguments[2], int) and arguments[2] & _WRITING:
            raise AssertionError(f"open for writing: {name}")

    sys.addaudithook(hook)
    return work()


def test_t36_reading_commands_open_nothing_for_writing(broken: Drill) -> None:
    def work() -> bool:
        for command, *options in READING:
            assert mqtool(command, broken.root, *options).code & (exits.OPERATIONAL | exits.BUG) == 0, command
        return mqtool("recover", broken.root, "--dry-run").code & exits.OPERATIONAL == 0

    with assert_unchanged(broken.root):
        in_a_child(lambda: nothing_written(broken.root, work))


def load_everything(folder: Path) -> None:
    """Import what the commands need while we may read it: Python itself can lie in root's home."""
    store = Drill.start(PLAIN, folder / "loading")
    for recipe in ("index-unit-hash", "queue-behind", "checkpoint-zero", "bit-in-body"):
        store.strike(recipe)
    assert store.run("recover", "--yes").code == exits.CORRECTED | exits.MESSAGES
    (store.root / "commitlog").rename(store.root / "elsewhere")
    assert mqtool("recover", store.root, "--yes").code & exits.OPERATIONAL


def without_rights() -> None:
    """Become nobody, where we are root."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)


def test_t36_no_permission_to_write_is_refused_and_reading_works(broken: Drill, folder: Path) -> None:
    load_everything(folder)
    folder.chmod(0o755)
    for path in [broken.root.parent, broken.root, *broken.root.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    expected = broken.verify().code

    def work() -> bool:
        without_rights()
        refused = mqtool("recover", broken.root, "--yes")
        assert refused.code == expected | exits.OPERATIONAL, refused
        assert "ermission" in refused.stderr
        return mqtool("verify", broken.root).code == expected

    with assert_unchanged(broken.root):
        in_a_child(work)


@pytest.mark.parametrize("hidden", [
    "commitlog", "commitlog/0*0", "consumequeue", "consumequeue/*/0/0*0", "index/2*", ".",
])
def test_t36_no_permission_to_read_is_8(drill: Start, folder: Path, hidden: str) -> None:
    store = drill(PLAIN)
    load_everything(folder)
    folder.chmod(0o755)
    store.root.parent.chmod(0o755)
    (max(store.root.glob(hidden)) if "*" in hidden else store.root / hidden).chmod(0)

    def work() -> bool:
        without_rights()
        for command in ("verify", "recover"):
            result = mqtool(command, store.root, *(["--yes"] if command == "recover" else []))
            assert result.code & exits.OPERATIONAL, (command, result)
            assert result.code & (exits.BUG | exits.USAGE | exits.CORRECTED) == 0, (command, result)
        return True

    with assert_unchanged(store.root):
        in_a_child(work)


def test_t36_store_behind_symbolic_links(broken: Drill, folder: Path) -> None:
    other_disk = folder / "disk2"
    other_disk.mkdir()
    for part in ("commitlog", "consumequeue"):
        (broken.root / part).rename(other_disk / part)
        (broken.root / part).symlink_to(other_disk / part)
    link = folder / "link"
    link.symlink_to(broken.root)
    before, elsewhere = tree_digest(broken.root), tree_digest(other_disk)
    assert mqtool("verify", link).code == broken.verify().code
    for line in (["--dry-run"], ["--yes"]):
        refused = mqtool("recover", link, *line)
        assert refused.code & exits.OPERATIONAL and str(other_disk) in refused.stderr
    assert_same_tree(elsewhere, tree_digest(other_disk))
    parts = [word for part in ("commitlog", "consumequeue") for word in (f"--{part}", other_disk / part)]
    done = mqtool("recover", link, *parts, "--yes")
    assert done.code == exits.CORRECTED | exits.MESSAGES, done.stderr
    assert (broken.root / "commitlog").is_symlink()
    assert broken.intact <= messages(broken.root)
    assert mqtool("verify", broken.root).code == 0
    assert mqtool("undo", link, *parts, "--yes").code & exits.OPERATIONAL == 0
    assert_same_tree(before, tree_digest(broken.root))
    assert_same_tree(elsewhere, tree_digest(other_disk))
