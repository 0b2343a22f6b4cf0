"""T35 to T37: running brokers, stores that cannot be read or written, full disks, kills in mid-repair, large stores."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from fixtures import shapes
from fixtures.synth import StoreWriter
from mqtool import exits
from mqtool.next_steps import START_BROKER
from tests.change.test_lock import held, record_lock
from tests.cli.runner import mqtool
from tests.scenarios.conftest import Start
from tests.scenarios.drill import MANY_FILES, PLAIN, Drill, messages
from tests.scenarios.interrupted import points, recovering
from tests.support.plans import count_operations, killed_at
from tests.support.sampling import few
from tests.support.system import in_a_child, small_disk
from tests.support.trees import assert_same_tree, assert_unchanged, contents, tree_digest

# --- T36 and T37: disks that fill and kills in the middle of a repair; stores of many files and queues.


ROOT = Path(__file__).parents[2]


@few(("command", "each"), [("recover", 4), ("rebuild", 4), ("recover", 1), ("rebuild", 1)], quick=2)
def test_what_a_killed_copy_leaves_is_no_store_and_the_next_copy_takes_its_place(
    broken: Drill, folder: Path, command: str, each: int
) -> None:
    whole, copy = folder / "whole", folder / "copy"
    operations = count_operations(lambda: mqtool(command, broken.root, "--output", whole, "--yes"))
    moves = [number for number, operation in enumerate(operations)
             if operation.name == "rename" and "/.mqtool-copy/" in operation.path]
    for stop in (moves[0] // 3, *moves[::each]):
        assert killed_at(stop, lambda: mqtool(command, broken.root, "--output", copy, "--yes"))
        moved = {path.name for path in copy.iterdir()} - {".mqtool-copy"}
        assert len(moved) == sum(number < stop for number in moves)
        assert mqtool("verify", copy).code == exits.USAGE
        assert not mqtool(command, broken.root, "--output", copy, "--yes").code & exits.OPERATIONAL
        assert contents(copy).keys() == contents(whole).keys()
        shutil.rmtree(copy)


def test_a_killed_copy_beside_other_files_is_not_removed(broken: Drill, folder: Path) -> None:
    copy = folder / "copy"
    operations = count_operations(lambda: mqtool("recover", broken.root, "--output", folder / "whole", "--yes"))
    moved = next(number for number, operation in enumerate(operations) if operation.name == "rename")
    assert killed_at(moved + 2, lambda: mqtool("recover", broken.root, "--output", copy, "--yes"))
    (copy / "notes").write_text("not of the store")
    left = tree_digest(copy)
    assert mqtool("recover", broken.root, "--output", copy, "--yes").code & exits.OPERATIONAL
    assert_same_tree(left, tree_digest(copy))


def test_recover_continues_in_a_whole_copy_of_a_killed_command(broken: Drill, folder: Path) -> None:
    copy = folder / "copy"
    operations = count_operations(lambda: mqtool("recover", broken.root, "--output", folder / "whole", "--yes"))
    moved = next(number for number, operation in enumerate(operations) if operation.name == "rmdir")
    assert killed_at(moved, lambda: mqtool("recover", broken.root, "--output", copy, "--yes"))
    again = mqtool("recover", broken.root, "--output", copy, "--yes", "--json")
    assert again.code & exits.OPERATIONAL
    assert f"`mqtool recover {copy}`" in again.document["error"]["remedy"]
    assert mqtool("recover", copy, "--yes").code & exits.CORRECTED


# --- T36: disks and kills in the middle -----------------------------------------------------------------------


def test_t36_small_disk_is_noticed_before_the_first_write(folder: Path) -> None:
    with small_disk(folder / "disk", "4m") as place:
        store = Drill.start(MANY_FILES, place)
        store.strike("log-middle-short")
        shutil.rmtree(store.root / "consumequeue")
        free = os.statvfs(place)
        (place / "ballast").write_bytes(bytes(max(0, free.f_bavail * free.f_frsize - 30_000)))
        with assert_unchanged(store.root):
            refused = store.run("recover", "--yes")
        assert refused.code & exits.OPERATIONAL
        assert "space" in refused.stderr or "room" in refused.stderr
        (place / "ballast").unlink()
        with store.recovered(starts=False):
            pass


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
    command = [sys.executable, "-m", "mqtool", *map(str, arguments)]
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
        code, peak, stderr = anonymous_memory(["verify", root, "--threads", 2, "--memory", "1M"])
        assert code == 0, stderr
        peaks.append(peak)
    assert peaks[1] < peaks[0] + (16 << 20)
    assert max(peaks) < (80 + 10 + 1.05) * 1e6, "what the help says of a verify with two threads"


@pytest.mark.parametrize("queues", [2_000, pytest.param(20_000, marks=pytest.mark.deep)])
def test_t37_twenty_thousand_queues_with_progress(folder: Path, queues: int) -> None:
    made = shapes.many_queues(folder / "s", queues)
    assert len(made.queues) == queues
    code, peak, stderr = anonymous_memory(["verify", folder / "s", "--progress"])
    assert code == 0, stderr
    assert peak < 400 << 20
    assert "queues checked" in stderr


@few("number", [300, 600], quick=1)
def test_t37_hundred_files_and_many_queues_are_recovered_and_resumed(folder: Path, number: int) -> None:
    shapes.many_files(folder / "files")
    files = Drill.of(folder / "files")
    files.strike("size-huge")
    files.strike("log-middle-empty")
    with files.recovered(starts=False):
        pass
    shapes.many_queues(folder / "queues", number)
    queues = Drill.of(folder / "queues")
    shutil.rmtree(queues.root / "consumequeue" / "Topic00002")
    before = tree_digest(queues.root)
    assert queues.verify().document["consumequeue"]["missing"] == 100
    assert killed_at(points(queues, 2)[1], recovering(queues.root))
    assert mqtool("resume", queues.root, "--yes").code == exits.CORRECTED
    assert queues.verify().code == 0
    assert mqtool("undo", queues.root, "--yes").code & exits.OPERATIONAL == 0
    assert_same_tree(before, tree_digest(queues.root))


# --- T35 and T36: a running broker, and stores that cannot be read or written.


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
        seen = store.run("inspect").document["exit_state"]
        assert (seen["verdict"], seen["lock_holder"]) == ("running", pid)
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
        planned = mqtool("recover", mount, "--dry-run")
        assert planned.code == expected.code and "would be refused" in planned.stderr and "ead-only" in planned.stderr
        refused = mqtool("recover", mount, "--yes")
        assert refused.code == expected.code | exits.OPERATIONAL
        assert "ead-only" in refused.stderr
        copied = mqtool("recover", mount, "--output", folder / "copy", "--yes")
        assert copied.code == exits.CORRECTED | exits.MESSAGES, copied.stderr
    assert_same_tree(before, tree_digest(broken.root))
    assert broken.intact <= messages(folder / "copy")
    assert mqtool("verify", folder / "copy").code == 0


_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.utime", "os.chmod", "os.chown",
            "os.link", "os.symlink", "os.setxattr", "os.removexattr", "fcntl.lockf", "fcntl.flock"}


def nothing_written(root: Path, work: Callable[[], object]) -> None:
    """Do the work with an audit hook that ends it at the first attempt to write, or to lock, below the root."""
    inside = str(root)

    def hook(event: str, arguments: Sequence[object]) -> None:
        name = os.fsdecode(arguments[0]) if arguments and isinstance(arguments[0], str | bytes | Path) else ""
        if event in _CHANGES and (name.startswith(inside) or event.startswith("fcntl.")):
            raise AssertionError(f"{event} {name}")
        if event == "open" and name.startswith(inside) and isinstance(arguments[2], int) and arguments[2] & _WRITING:
            raise AssertionError(f"open for writing: {name}")

    sys.addaudithook(hook)
    work()


def test_t36_reading_commands_open_nothing_for_writing(broken: Drill) -> None:
    def work() -> None:
        for command, *options in READING:
            assert mqtool(command, broken.root, *options).code & (exits.OPERATIONAL | exits.BUG) == 0, command
        assert mqtool("recover", broken.root, "--dry-run").code & exits.OPERATIONAL == 0

    with assert_unchanged(broken.root):
        assert in_a_child(lambda: nothing_written(broken.root, work)) == 0


def load_everything(folder: Path) -> None:
    """Import what the commands need while we may read it: Python itself can lie in root's home."""
    store = Drill.start(PLAIN, folder / "loading")
    for recipe in ("index-unit-hash", "queue-behind", "checkpoint-zero", "bit-in-body"):
        store.strike(recipe)
    assert store.run("recover", "--yes").code == exits.CORRECTED | exits.MESSAGES
    assert store.run("predict").code == 0
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

    def work() -> None:
        without_rights()
        refused = mqtool("recover", broken.root, "--yes")
        assert refused.code == expected | exits.OPERATIONAL, refused
        assert "ermission" in refused.stderr
        assert mqtool("verify", broken.root).code == expected

    with assert_unchanged(broken.root):
        assert in_a_child(work) == 0


@few("hidden", [
    "commitlog", "commitlog/0*0", "consumequeue", "consumequeue/*/0/0*0", "index/2*", ".",
    "abort", "timerwheel", "config/timercheck", "config/timermetrics.bak",
], quick=(1, 3, 9))
def test_t36_no_permission_to_read_is_8(drill: Start, folder: Path, hidden: str) -> None:
    store = drill(PLAIN)
    load_everything(folder)
    folder.chmod(0o755)
    store.root.parent.chmod(0o755)
    path = max(store.root.glob(hidden)) if "*" in hidden else store.root / hidden
    if not path.exists():
        path.touch()
    path.chmod(0)

    def work() -> None:
        without_rights()
        for command, *options in (("verify",), ("recover", "--yes"), ("predict", "--broker", "5.3.3")):
            result = mqtool(command, store.root, *options)
            of = exits.OPERATIONAL if command != "predict" else exits.OPERATIONAL | exits.UNSUPPORTED
            assert result.code & of, (command, result)
            assert result.code & (exits.BUG | exits.USAGE | exits.CORRECTED) == 0, (command, result)
        assert mqtool("inspect", store.root).code & exits.OPERATIONAL or hidden in ("timerwheel", "config/timercheck")

    with assert_unchanged(store.root):
        assert in_a_child(work) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root makes a file that it may not read itself")
def test_t36_one_unreadable_log_file_is_a_finding_and_the_rest_is_judged(drill: Start, folder: Path) -> None:
    store = drill("clean-manyfiles-5.3.3")
    store.strike("index-unit-hash")
    load_everything(folder)
    folder.chmod(0o755)
    store.root.parent.chmod(0o755)
    file = sorted((store.root / "commitlog").iterdir())[3]
    whole = mqtool("verify", store.root, "--json").document
    file.chmod(0)
    name = f"commitlog/{file.name}"

    def work() -> None:
        without_rights()
        checked = mqtool("verify", store.root, "--json")
        (found,) = checked.found("commitlog-unreadable")
        assert (found["file"], found["offset"], found["facts"]["wanted"]) == (name, 0, file.stat().st_size)
        assert "Run as the user" in found["remedy"], found
        # its messages count as damaged, and everything else is judged: no message is left out or named missing
        assert checked.code & exits.OPERATIONAL and checked.code & exits.MESSAGES and not checked.code & exits.BUG
        assert not checked.found("commitlog-missing-file")
        assert {"index-wrong-units", "index-wrong-chain"} & checked.codes
        (damage,) = checked.document["commitlog"]["damaged"]
        assert (damage["start"], damage["reason"]) == (int(file.name), "unreadable")
        log = checked.document["commitlog"]
        assert log["messages"] + log["damaged_messages"] == whole["commitlog"]["messages"]
        played = mqtool("predict", store.root, "--broker", "5.3.3", "--json")
        assert played.code & exits.UNSUPPORTED and played.found("commitlog-unreadable"), played
        assert START_BROKER not in [step["command"] for step in played.document["next"]]
        assert mqtool("recover", store.root, "--dry-run").code & exits.OPERATIONAL

    with assert_unchanged(store.root):
        assert in_a_child(work) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root makes a file that it may not read itself")
def test_t36_a_last_log_file_that_cannot_be_opened_does_not_end_inspect(drill: Start, folder: Path) -> None:
    store = drill("clean-manyfiles-5.3.3")
    load_everything(folder)
    folder.chmod(0o755)
    store.root.parent.chmod(0o755)
    file = max((store.root / "commitlog").iterdir())
    file.chmod(0)

    def work() -> None:
        without_rights()
        shown = mqtool("inspect", store.root, "--json")
        (found,) = shown.found("commitlog-unreadable")
        assert found["file"] == f"commitlog/{file.name}" and shown.code & exits.OPERATIONAL
        assert shown.document["offsets"]["log_end"] <= int(file.name) and shown.document["topics"]
        # the recovery of a start reads the last files: nothing is known of it
        played = mqtool("predict", store.root, "--broker", "5.3.3", "--json")
        assert played.document["starts"] is None and played.code & exits.UNSUPPORTED, played

    assert in_a_child(work) == 0


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
