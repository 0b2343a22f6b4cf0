"""Disks that fail under apply and undo, at each operation in turn: nothing half done, and always a way back."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from recover.change import carry_out as apply
from recover.change import disk
from recover.change.journal import journal
from tests.support.counts import Count
from tests.support.plans import PLANS, failing
from tests.support.sampling import sampled
from tests.support.trees import contents
from tests.torture.case import Case, refused

CODES = {name: getattr(errno, name) for name in ("ENOSPC", "EIO", "EROFS", "EACCES", "EMFILE", "EDQUOT")}
CASES = sampled(sorted(CODES), sorted(PLANS), ["once", "from then on"], one_in=20)


def _from(stop: int, how: str) -> Callable[[int, disk.Operation], bool]:
    """Which operations fail: this one, or all from it on."""
    return lambda at, _: at == stop if how == "once" else at >= stop


@pytest.mark.parametrize(("code", "name", "how"), CASES)
def test_an_error_at_each_operation_of_apply(code: str, name: str, how: str, folder: Path, count: Count) -> None:
    case = Case(folder, name)
    for stop in range(case.applying):
        case.fresh()
        with failing(_from(stop, how), CODES[code]):
            failed = refused(case.apply)
        if not failed:
            assert contents(case.store) == case.after
        elif how == "once":
            states = {run.state for run in journal(case.store)}
            assert states <= {"undone", "applied"}, "a single error is taken back"
        case.taken_back()
        count("operations failed", 1)


@pytest.mark.parametrize(("code", "name", "how"), CASES)
def test_an_error_at_each_operation_of_undo(code: str, name: str, how: str, folder: Path, count: Count) -> None:
    case = Case(folder, name)
    for stop in range(case.undoing):
        case.fresh()
        case.apply()
        with failing(_from(stop, how), CODES[code]):
            refused(case.undo)
        case.taken_back()
        count("operations failed", 1)


@contextmanager
def small_disk(at: Path, size: int) -> Iterator[Path]:
    """A file system of so many bytes; skips where we may not mount."""
    at.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(at)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("NOT RUN: mounting needs root")
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


@pytest.mark.deep
@pytest.mark.parametrize("name", ["everything", "whole-files"])
def test_a_disk_that_is_really_full_after_each_page(
    name: str, folder: Path, count: Count, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for one page more each time; the check of free space, which would refuse all of it, is left out."""
    monkeypatch.setattr(apply, "check_space", lambda *_: None)
    with small_disk(folder / "disk", 4 << 20) as at:
        case = Case(at, name)
        filler, pages, done = at / "filler", 0, False
        while not done:
            filler.unlink(missing_ok=True)
            case.fresh()
            status = os.statvfs(at)
            filler.write_bytes(b"\xff" * max(0, (status.f_bavail - pages) * status.f_frsize))
            done = not refused(case.apply)
            if done:
                assert contents(case.store) == case.after
            elif journal(case.store):
                assert journal(case.store)[-1].state == "undone", "what was reserved is enough to take it back"
            filler.unlink()
            case.taken_back()
            pages += 1
            count("full disks", 1)
    assert pages > 20


def _limited(kind: int, limit: int, work: Callable[[], object]) -> int:
    """Do work in a child under a limit of the system; 0 done, 8 refused, anything else is a fault."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(kind, (limit, resource.getrlimit(kind)[1]))
            code = 8 if refused(work) else 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("kind", [resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE], ids=["file size", "open files"])
def test_a_limit_of_the_system_leaves_a_way_back(kind: int, folder: Path, count: Count) -> None:
    case = Case(folder, "everything")
    limits = range(0, 140_000, 9_001) if kind == resource.RLIMIT_FSIZE else range(3, 40)
    answers = set()
    for limit in limits:
        case.fresh()
        answers.add(_limited(kind, limit, case.apply))
        case.taken_back()
        count("operations failed", 1)
    assert answers == {0, 8}


def _killed_from_outside(number: int, work: Callable[[], object]) -> bool:
    """Work in a child that stops before each operation until it may go on; SIGKILL before operation `number`."""
    asks, tells = os.pipe()
    goes, lets = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(asks)
        os.close(lets)

        def hook(_operation: disk.Operation) -> None:
            os.write(tells, b"?")
            os.read(goes, 1)

        disk.set_hook(hook)
        try:
            work()
        finally:
            os._exit(0)
    os.close(tells)
    os.close(goes)
    try:
        for _ in range(number):
            if not os.read(asks, 1):
                return False
            os.write(lets, b"!")
        if not os.read(asks, 1):
            return False
        os.kill(child, signal.SIGKILL)
        return True
    finally:
        os.close(lets)
        os.close(asks)
        os.waitpid(child, 0)


def _each_kill(case: Case, one_in: int) -> int:
    """SIGKILL before each operation of apply, then of undo; resume and undo both work. How many kills."""
    kills = 0
    for stop in range(0, case.applying, one_in):
        for way in (case.completed, case.taken_back):
            case.fresh()
            assert _killed_from_outside(stop, case.apply)
            kills += 1
            way()
    for stop in range(0, case.undoing, one_in):
        case.fresh()
        case.apply()
        assert _killed_from_outside(stop, case.undo)
        kills += 1
        case.taken_back()
    return kills


def test_sigkill_before_some_operations(folder: Path, count: Count) -> None:
    count("fault points killed by SIGKILL", _each_kill(Case(folder, "everything"), 9))


@pytest.mark.parametrize(("name", "one_in"), [
    pytest.param("everything", 4, marks=pytest.mark.deep),
    *(pytest.param(name, 1, marks=pytest.mark.long) for name in sorted(PLANS)),
])
def test_sigkill_before_every_operation(name: str, one_in: int, folder: Path, count: Count) -> None:
    count("fault points killed by SIGKILL", _each_kill(Case(folder, name), one_in))
