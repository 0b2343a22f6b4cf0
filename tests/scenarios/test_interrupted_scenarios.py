"""T36 and T37: disks that fill and kills in the middle of a repair; stores of many files and queues."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from fixtures import shapes
from fixtures.synth import StoreWriter
from mqtool import exits
from recover.change import disk
from tests.cli.runner import mqtool
from tests.scenarios.drill import MANY_FILES, Drill, messages
from tests.scenarios.interrupted import points, recovering
from tests.support.plans import failing, killed_at
from tests.support.trees import assert_same_tree, assert_unchanged, contents, tree_digest

ROOT = Path(__file__).parents[2]


# --- T36: disks and kills in the middle -----------------------------------------------------------------------


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "from then on"])
def test_t36_disk_that_fills_during_the_repair_leaves_the_store_as_it_was(broken: Drill, for_good: bool) -> None:
    before = tree_digest(broken.root)
    names = {"write", "append", "fsync", "create", "truncate", "mkdir"}
    refused = 0
    for stop in points(broken, 5, names):
        def full(number: int, operation: disk.Operation, stop: int = stop) -> bool:
            return (number >= stop if for_good else number == stop) and operation.name in names

        with failing(full, errno.ENOSPC):
            result = mqtool("recover", broken.root, "--yes", "--json")
        assert result.code & exits.BUG == 0
        if not result.code & exits.OPERATIONAL:
            assert mqtool("undo", broken.root, "--yes").code & exits.OPERATIONAL == 0
            continue
        refused += 1
        assert "No space left" in result.stderr
        states = [run["state"] for run in mqtool("journal", broken.root, "--json").document["runs"]]
        if states and states[-1] in ("unfinished", "undoing"):
            assert for_good
            assert mqtool("undo", broken.root, "--yes").code & exits.OPERATIONAL == 0
        settle(broken.root)
        assert_same_tree(before, tree_digest(broken.root))
    assert refused >= 4


def test_t36_small_disk_is_noticed_before_the_first_write(folder: Path) -> None:
    disk_folder = folder / "disk"
    disk_folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk_folder)], capture_output=True,
                      check=False).returncode:
        pytest.skip("NOT RUN: mounting needs root")
    try:
        store = Drill.start(MANY_FILES, disk_folder)
        store.strike("log-middle-short")
        shutil.rmtree(store.root / "consumequeue")
        free = os.statvfs(disk_folder)
        (disk_folder / "ballast").write_bytes(bytes(max(0, free.f_bavail * free.f_frsize - 30_000)))
        with assert_unchanged(store.root):
            refused = store.run("recover", "--yes")
        assert refused.code & exits.OPERATIONAL
        assert "space" in refused.stderr or "room" in refused.stderr
        (disk_folder / "ballast").unlink()
        with store.recovered(starts=False):
            pass
    finally:
        subprocess.run(["umount", str(disk_folder)], check=True)


def settle(root: Path) -> None:
    """Recover and undo: clears away what a run that never began has left, and shows that the store can be changed."""
    assert mqtool("recover", root, "--yes").code == exits.CORRECTED | exits.MESSAGES
    assert mqtool("undo", root, "--yes").code & exits.OPERATIONAL == 0


@pytest.mark.parametrize("way", ["resume", "undo"])
def test_t36_killed_during_the_repair(broken: Drill, way: str) -> None:
    before = tree_digest(broken.root)
    unfinished = 0
    stops = points(broken, 5)
    whole = contents(broken.root.with_name("to-count"))
    for number, stop in enumerate(stops):
        root = broken.root.with_name(f"kill-{number}")
        shutil.copytree(broken.root, root, symlinks=True)
        assert killed_at(stop, recovering(root))
        states = [run["state"] for run in mqtool("journal", root, "--json").document["runs"]]
        if "unfinished" in states:
            unfinished += 1
            codes = {item["code"] for item in mqtool("verify", root, "--json").document["findings"]}
            assert "run-unfinished" in codes
            assert mqtool("recover", root, "--yes").code & exits.OPERATIONAL, "a second run on top of half of one"
            done = mqtool(way, root, "--yes")
            assert done.code & (exits.OPERATIONAL | exits.USAGE | exits.BUG) == 0, done.stderr
        else:
            # Killed before it began or after it ended; what it had made by then is cleared away by the next run.
            mqtool("recover", root, "--yes")
        if way == "resume" or "unfinished" not in states:
            assert contents(root) == whole
            assert mqtool("undo", root, "--yes").code & exits.OPERATIONAL == 0
        assert_same_tree({**before, ".": before["."]._replace(mtime_ns=0)}, tree_digest(root))
    assert unfinished >= 3


def test_t36_sigterm_stops_between_two_steps_and_can_be_resumed(broken: Drill) -> None:
    stop = points(broken, 3)[1]
    script = (
        "import os, signal, sys\nfrom recover.change import disk\nfrom mqtool.cli import main\n"
        "left = [int(sys.argv[1])]\n"
        "def hook(operation):\n    left[0] -= 1\n    left[0] or os.kill(os.getpid(), signal.SIGTERM)\n"
        "disk.set_hook(hook)\nsys.exit(main(['recover', sys.argv[2], '--yes']))\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(stop), str(broken.root)], capture_output=True, text=True,
                          check=False, cwd=ROOT)
    assert done.returncode & exits.INTERRUPTED, done.stderr
    assert "mqtool resume" in done.stderr
    assert mqtool("resume", broken.root, "--yes").code == exits.CORRECTED | exits.MESSAGES
    assert mqtool("verify", broken.root).code == 0
    assert broken.intact <= messages(broken.root)


# --- T37 ------------------------------------------------------------------------------------------------


def anonymous_memory(arguments: Sequence[object]) -> tuple[int, int, str]:
    """Exit code of an mqtool process, the most anonymous memory (bytes) that was seen in it, and its stderr."""
    # a line of progress whenever there is one: a quick command is done before the next is due
    code = "import sys, mqtool.progress as p; p._PLAIN_EVERY = 0; from mqtool.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        done = threading.Event()

        def watch() -> None:
            nonlocal peak
            while not done.wait(0.02):
                try:
                    text = Path(f"/proc/{process.pid}/status").read_text()
                except OSError:
                    return
                if found := re.search(r"RssAnon:\s+(\d+) kB", text):
                    peak = max(peak, int(found[1]) * 1024)

        thread = threading.Thread(target=watch)
        thread.start()
        _, stderr = process.communicate(timeout=300)
        done.set()
        thread.join()
    return process.returncode, peak, stderr


def large_log(root: Path, files: int) -> Path:
    """A store of log files of one MiB each, with bodies of 20 KB and a few small ones."""
    writer = StoreWriter(root, mapped_file_size=1 << 20, queue_file_size=20_000)
    body = bytes(range(256)) * 80
    while writer.position < files << 20:
        for number in range(12):
            writer.put(f"Topic{number}", body if number < 10 else b"small", {"KEYS": f"k{number}"})
    writer.close()
    return root


@pytest.mark.slow
def test_t37_memory_does_not_grow_with_the_log(folder: Path) -> None:
    few, many = large_log(folder / "few", 5), large_log(folder / "many", 100)
    peaks = []
    for root in (few, many):
        code, peak, stderr = anonymous_memory(["verify", root, "--threads", 2, "--memory", "32M"])
        assert code == 0, stderr
        peaks.append(peak)
    assert peaks[1] < peaks[0] + (48 << 20)
    assert max(peaks) < 400 << 20


@pytest.mark.parametrize("queues", [2_000, pytest.param(20_000, marks=pytest.mark.deep)])
def test_t37_twenty_thousand_queues_with_progress(folder: Path, queues: int) -> None:
    made = shapes.many_queues(folder / "s", queues)
    assert len(made.queues) == queues
    code, peak, stderr = anonymous_memory(["verify", folder / "s", "--progress"])
    assert code == 0, stderr
    assert peak < 400 << 20
    assert "queues checked" in stderr


def test_t37_hundred_files_and_many_queues_are_recovered_and_resumed(folder: Path) -> None:
    shapes.many_files(folder / "files")
    files = Drill.of(folder / "files")
    files.strike("size-huge")
    files.strike("log-middle-empty")
    with files.recovered(starts=False):
        pass
    shapes.many_queues(folder / "queues", 600)
    queues = Drill.of(folder / "queues")
    shutil.rmtree(queues.root / "consumequeue" / "Topic00002")
    before = tree_digest(queues.root)
    assert queues.verify().document["consumequeue"]["missing"] == 100
    assert killed_at(points(queues, 2)[1], recovering(queues.root))
    assert mqtool("resume", queues.root, "--yes").code == exits.CORRECTED
    assert queues.verify().code == 0
    assert mqtool("undo", queues.root, "--yes").code & exits.OPERATIONAL == 0
    assert_same_tree(before, tree_digest(queues.root))
