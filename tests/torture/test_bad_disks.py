"""Disks that fail, fill up or lose power: reads, writes, and what was not synced."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mqtool import exits
from recover.change import carry_out as apply, disk
from recover.change.carry_out import apply_plan, resume, undo
from recover.change.journal import journal
from recover.findings.code import Refusal
from recover.log.scan import LocalEngine
from recover.store.store import Store
from tests.cli.runner import mqtool
from tests.scenarios.drill import Drill, messages
from tests.support.counts import Count
from tests.support.plans import PLANS, failing, make_old, sealed, small_store
from tests.support.sampling import sampled
from tests.support.stores import write_at
from tests.support.system import in_a_child, small_disk
from tests.support.trees import assert_same_tree, assert_unchanged, contents, tree_digest
from tests.torture.case import Case, refused
from tests.torture.power import Disk, Noted, recorded
from tests.torture.trouble import failing_reads, inside, short_reads

# --- Reads that fail, give too little, or find another file than a moment ago: findings and refusals, never guesses.


ROOT = Path(__file__).parents[2]
PLAIN = "clean-plain-4.9.7"
LOG = "commitlog/00000000000000000000"
QUEUE = "consumequeue/Orders/0/00000000000000000000"
CHANGING = (("recover",), ("rebuild",), ("rebuild-consumequeue",), ("rebuild-index",),
            ("truncate", "--to", "0", "--max-loss", "all"))


@pytest.fixture
def store(folder: Path) -> Drill:
    return Drill.start(PLAIN, folder)


def parts(root: Path) -> list[str]:
    """One file of each part that recover works from."""
    return [LOG, QUEUE, next((root / "index").iterdir()).relative_to(root).as_posix(), "checkpoint"]


def test_unreadable_sector_is_a_finding_of_no_more_than_its_block(store: Drill) -> None:
    with failing_reads(inside(store.root / LOG, 40_000, 40_512)):
        result = mqtool("verify", store.root, "--json")
    found = result.found("commitlog-unreadable")
    assert [(item["offset"], item["facts"]["wanted"]) for item in found] == [(36_864, 4096)]
    assert result.code & (exits.OPERATIONAL | exits.MESSAGES) == exits.OPERATIONAL | exits.MESSAGES
    hidden = {m for m in store.messages if m.phy_offset < 40_960 and m.phy_offset + 2000 > 36_864}
    assert len(store.messages) - result.document["commitlog"]["messages"] <= len(hidden)


@pytest.mark.parametrize("part", range(4))
def test_nothing_is_changed_on_what_cannot_be_read(store: Drill, part: int, count: Count) -> None:
    name = parts(store.root)[part]
    (store.root / "checkpoint").write_bytes(bytes(4096))
    for command, *options in CHANGING:
        with assert_unchanged(store.root), failing_reads(inside(store.root / name, 0, 100)):
            refused = mqtool(command, store.root, *options, "--yes")
        assert refused.code & exits.OPERATIONAL and not refused.code & exits.BUG, (command, refused)
        count("failing reads", 1)


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("which", [pytest.param(n, marks=pytest.mark.long if n > 1 else ()) for n in range(8)])
def test_read_that_fails_once_costs_no_message(store: Drill, part: int, which: int, count: Count) -> None:
    """The disk gives an error at one read of a place and then no more: what was taken for zeros must not become so."""
    file = store.root / parts(store.root)[part]
    (store.root / "checkpoint").write_bytes(bytes(4096))
    fails, left = inside(file, 0, 4096), [which]

    def once(path: str, offset: int, length: int) -> bool:
        if not fails(path, offset, length):
            return False
        # a try with less of the same place is the same read for the disk
        left[0] -= length <= 4096
        return left[0] in ((-1, 0) if length <= 4096 else (0,))

    for command in ("recover", "rebuild"):
        left[0] = which
        with failing_reads(once):
            result = mqtool(command, store.root, "--yes")
        assert not result.code & exits.BUG, result.stderr
        assert store.intact <= messages(store.root)
        assert store.verify().code in (exits.CLEAN, exits.DERIVED)
        count("failing reads", 1)


@pytest.mark.parametrize("most", [12, pytest.param(1000, marks=pytest.mark.long)])
def test_error_at_any_read_is_never_a_clean_verdict_and_never_a_crash(store: Drill, most: int, count: Count) -> None:
    reads: list[tuple[str, int]] = []

    def note(path: str, offset: int, length: int) -> bool:
        reads.append((path, offset))
        return False

    with failing_reads(note):
        assert mqtool("verify", store.root).code == exits.CLEAN
    places = sorted({(path, offset) for path, offset in reads if path.startswith(str(store.root))})
    for path, offset in random.sample(places, min(most, len(places))):
        with failing_reads(inside(Path(path), offset, offset + 1)):
            result = mqtool("verify", store.root)
        assert result.code & exits.OPERATIONAL and not result.code & exits.BUG, (path, offset, result)
        count("failing reads", 1)
    assert len(places) > 15


_READS = "read,pread64,readv,preadv,preadv2"


@pytest.mark.parametrize(("name", "calls"), [
    pytest.param(name, calls, marks=[pytest.mark.deep if name == LOG else pytest.mark.long]) for name, calls in (
        (LOG, "openat"), (LOG, _READS), (QUEUE, "openat"), (QUEUE, _READS), ("index/*", "openat"), ("index/*", _READS),
        ("checkpoint", "openat"), ("checkpoint", _READS), ("config/topics.json", "openat"),
        ("config/topics.json", _READS), ("commitlog", "getdents64"), ("consumequeue", "getdents64"),
        ("consumequeue/Orders", "getdents64"), ("consumequeue/Orders/0", "getdents64"), ("index", "getdents64"),
        (".", "getdents64"),
    )
])
@pytest.mark.parametrize("code", ["EIO", "EMFILE"])
def test_error_that_the_kernel_itself_gives(store: Drill, name: str, calls: str, code: str, count: Count) -> None:
    """strace makes the system calls on one file or folder fail, whatever way they are made."""
    if shutil.which("strace") is None:
        pytest.skip("NOT RUN: needs strace")
    (store.root / "config").mkdir(exist_ok=True)
    (store.root / "config" / "topics.json").write_bytes(b"{}")
    (path,) = store.root.glob(name) if name != "." else (store.root,)
    trace = store.root.with_name("trace")
    with assert_unchanged(store.root):
        done = subprocess.run(
            ["strace", "-f", "-qq", "-o", str(trace), "-P", str(path), "-e", f"inject={calls}:error={code}",
             sys.executable, "-m", "mqtool", "verify", str(store.root)],
            capture_output=True, text=True, check=False, cwd=ROOT,
        )
    if "ptrace" in done.stderr and "not permitted" in done.stderr:
        pytest.skip("NOT RUN: may not trace")
    assert "INJECTED" in trace.read_text(errors="replace"), "nothing failed"
    assert done.returncode & exits.OPERATIONAL and not done.returncode & exits.BUG, done.stdout + done.stderr
    assert "ll is well" not in done.stdout
    count("failing reads", 1)


@pytest.mark.parametrize("name", [PLAIN, "killed-ext-5.5.0"])
def test_short_reads_change_no_answer(name: str, folder: Path) -> None:
    store = Drill.start(name, folder)
    expected = store.verify().document
    for seed in range(3):
        with short_reads(random.Random(seed)):
            said = mqtool("verify", store.root, "--json").document
            for each in (said, expected):
                each["seconds"], each["summary"] = 0, ""
                each.pop("time", None)
            assert said == expected


CHANGES: dict[str, Callable[[Path], object]] = {
    "is cut": lambda path: os.truncate(path, path.stat().st_size // 2), "is emptied": lambda path: os.truncate(path, 0),
    "grows": lambda path: write_at(path, path.stat().st_size, b"\x01" * 50_000),
    "is overwritten": lambda path: write_at(path, 1000, os.urandom(500)), "goes": Path.unlink,
}


@pytest.mark.parametrize("part", [
    0, pytest.param(1, marks=pytest.mark.deep), *(pytest.param(part, marks=pytest.mark.long) for part in (2, 3)),
])
@pytest.mark.parametrize("change", CHANGES)
def test_file_that_changes_under_the_scan(store: Drill, part: int, change: str, count: Count) -> None:
    path = store.root / parts(store.root)[part]
    content, status = path.read_bytes(), path.stat()
    for command, *options in (("verify",), ("recover", "--yes"), ("inspect",), ("predict",)):
        for at in (1, 3, 9):
            path.write_bytes(content)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
            left = [at]

            def then(_path: str, _offset: int, _length: int, left: list[int] = left) -> bool:
                left[0] -= 1
                if left[0] == 0:
                    CHANGES[change](path)
                return False

            with failing_reads(then):
                result = mqtool(command, store.root, *options)
            assert not result.code & exits.BUG, (command, at, result.stderr)
            assert left[0] > 0 or not result.code & exits.CORRECTED, (command, at, result)
            assert -left[0] < 5000, (command, at, "a place that is no more is looked at byte by byte")
            count("files changed under a scan", 1)


def test_log_that_a_live_broker_appends_to_is_read_without_a_signal(store: Drill) -> None:
    path = store.root / LOG
    queue = Store.open(store.root).commitlog
    sizes = iter((100_000, 50_000, 0, 131_072))
    scan = LocalEngine().scan_log(queue, progress=lambda *_: os.truncate(path, next(sizes, 131_072)))
    assert scan.log_end >= 0


# --- Disks that fail under apply and undo, at each operation in turn: nothing half done, and always a way back.


CODES = {name: getattr(errno, name) for name in ("ENOSPC", "EIO", "EROFS", "EACCES", "EMFILE", "EDQUOT")}
CASES = sampled(sorted(CODES), sorted(PLANS), ["once", "from then on"], quick=1, one_in=20)


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


@pytest.mark.deep
@pytest.mark.parametrize("name", ["everything", "whole-files"])
def test_a_disk_that_is_really_full_after_each_page(
    name: str, folder: Path, count: Count, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for one page more each time; the check of free space, which would refuse all of it, is left out."""
    monkeypatch.setattr(apply, "check_space", lambda *_: None)
    with small_disk(folder / "disk", "4m") as at:
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
    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        # what earlier tests of this process hold open is none of the work's
        os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        resource.setrlimit(kind, (limit, resource.getrlimit(kind)[1]))
        os._exit(8 if refused(work) else 0)

    return in_a_child(limited)


@pytest.mark.parametrize("kind", [resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE], ids=["file size", "open files"])
def test_a_limit_of_the_system_leaves_a_way_back(kind: int, folder: Path, count: Count) -> None:
    case = Case(folder, "everything")
    limits = range(0, 140_000, 18_001) if kind == resource.RLIMIT_FSIZE else range(3, 40, 3)
    answers = set()
    for limit in limits:
        case.fresh()
        answers.add(_limited(kind, limit, case.apply))
        case.taken_back()
        count("operations failed", 1)
    assert answers == {0, 8}


# --- The power fails after any operation of apply or undo, and what was not synced is gone, or there, or in part.
#
# Whatever comes back, resume ends at the bytes of an undisturbed run, and undo at the store as it was.


ALL = [(name, lock) for name in sorted(PLANS) for lock in (True, False)]


class PoweredCase:
    """One plan over one store. Trees come back at the store's own path, for a run is bound to it."""

    def __init__(self, folder: Path, name: str, lock: bool) -> None:
        self.store, self.trees = small_store(folder / "store"), 0
        if lock:
            (self.store / "lock").write_bytes(b"lock")
            make_old(self.store)
        self.before = tree_digest(self.store)
        plan = sealed(name, self.store)
        self.sound = Disk(self.store)
        self.applying = recorded(lambda: apply_plan(self.store, plan))
        self.after = contents(self.store)
        self.applied = Disk(self.store)
        self.undoing = recorded(lambda: undo(self.store))
        assert_same_tree(self.before, tree_digest(self.store))

    def replay(self, model: Disk, notes: Sequence[Noted], chance: random.Random, one_in: int, each: int) -> None:
        """Let the power fail between operations, at one place in so many, and see what comes back."""
        for note in [None, *notes]:
            if note is not None:
                model.take(note)
            if chance.randrange(one_in) == 0:
                for kept in (0.0, 1.0, *[0.5] * each):
                    seed = chance.random()
                    for check in (self.resumed, self.undone):
                        shutil.rmtree(self.store)
                        model.come_back(self.store, random.Random(seed), kept)
                        check()
                    self.trees += 1

    def resumed(self) -> None:
        """Complete what there is, whatever it was; without a run the store is as before."""
        there = bool(journal(self.store))
        _try(lambda: resume(self.store))
        states = [run.state for run in journal(self.store)]
        assert states in ([["applied"], ["undone"]] if there else [[]])
        if states == ["applied"]:
            assert contents(self.store) == self.after
        else:
            assert_same_tree(self.before, tree_digest(self.store))

    def undone(self) -> None:
        """Take back what there is."""
        _try(lambda: undo(self.store))
        assert all(run.state == "undone" for run in journal(self.store))
        assert_same_tree(self.before, tree_digest(self.store))


def _try(work: Callable[[], object]) -> None:
    """Do it, unless there is nothing to do."""
    try:
        work()
    except Refusal as refusal:
        if not any(text in refusal.message for text in _NOTHING_TO_DO):
            raise


_NOTHING_TO_DO = ("no unfinished run", "no run was applied", "no run had changed")


@pytest.mark.parametrize(("name", "lock", "one_in", "each"), [
    ("everything", True, 12, 1), pytest.param("whole-files", False, 12, 1, marks=pytest.mark.long),
    *(pytest.param(*case, 14, 1, marks=pytest.mark.deep) for number, case in enumerate(ALL) if number % 4 in (0, 3)),
    *(pytest.param(*case, 1, 8, marks=pytest.mark.long) for case in ALL),
])
def test_power_that_fails_after_each_operation(
    name: str, lock: bool, one_in: int, each: int, folder: Path, count: Count
) -> None:
    """Let it fail in one run of apply and one of undo."""
    case, chance = PoweredCase(folder, name, lock), random.Random(one_in)
    case.replay(case.sound, case.applying, chance, one_in, each)
    case.replay(case.applied, case.undoing, chance, one_in, each)
    count("prefixes replayed", case.trees)
