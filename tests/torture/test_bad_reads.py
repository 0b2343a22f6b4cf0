"""Reads that fail, give too little, or find another file than a moment ago: findings and refusals, never guesses."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mqtool import exits
from recover.log.scan import scan_log
from recover.store.store import Store
from tests.cli.runner import mqtool
from tests.scenarios.drill import Drill, messages
from tests.support.counts import Count
from tests.support.trees import assert_unchanged
from tests.torture.trouble import failing_reads, inside, short_reads

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
    found = [item for item in result.document["findings"] if item["code"] == "commitlog-unreadable"]
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
@pytest.mark.parametrize("which", [pytest.param(n, marks=pytest.mark.deep if n > 3 else ()) for n in range(8)])
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


def test_error_at_any_read_is_never_a_clean_verdict_and_never_a_crash(store: Drill, count: Count) -> None:
    reads: list[tuple[str, int]] = []

    def note(path: str, offset: int, length: int) -> bool:
        reads.append((path, offset))
        return False

    with failing_reads(note):
        assert mqtool("verify", store.root).code == exits.CLEAN
    places = sorted({(path, offset) for path, offset in reads if path.startswith(str(store.root))})
    for path, offset in places:
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


@pytest.mark.parametrize("name", [PLAIN, "killed-ext-5.5.0", "clean-4.5.1"])
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


def _shrink(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\x01" * 50_000)


def _rewrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(1000)
        file.write(os.urandom(500))


def _remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("part", [pytest.param(part, marks=pytest.mark.deep if part else ()) for part in range(4)])
@pytest.mark.parametrize("change", [_shrink, _empty, _grow, _rewrite, _remove])
def test_file_that_changes_under_the_scan(
    store: Drill, part: int, change: Callable[[Path], None], count: Count
) -> None:
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
                    change(path)
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
    scan = scan_log(queue, progress=lambda *_: os.truncate(path, next(sizes, 131_072)))
    assert scan.log_end >= 0
