"""The owner of a store against root, who changes it: nothing of root's is given away, removed, read out or written.

Another user watches the store with inotify and swaps what root makes in it for links to root's files, as fast as it
can; or has left a run in the journal that nobody ever began.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mqtool import exits
from recover.change import disk, owner
from recover.change.journal import encode_record, journal
from recover.change.model import Plan, WriteRange, document, inline_json
from recover.change.preconditions import identify, observe_step
from tests.cli.runner import mqtool
from tests.support.counts import Count
from tests.support.plans import count_operations, killed_at
from tests.support.sampling import few, sampled
from tests.support.stores import copy_store, real_store, write_at
from tests.support.system import in_a_child
from tests.support.trees import Node, assert_same_tree, tree_digest
from tests.torture.racer import OWNER, SWAPS, Victim, become, give, racing, reaction

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: a second user needs root")

_LOG = "commitlog/00000000000000000000"
_QUEUE = "consumequeue/Orders/0/00000000000000000000"
_TRIES = 20


@pytest.fixture
def store(folder: Path) -> Path:
    """A store of the other user, in a folder of his: a damaged message, a queue that is gone, one that is wrong."""
    return damaged(folder / "around")


@pytest.fixture
def victim(folder: Path) -> Victim:
    return Victim(folder / "victim")


@pytest.fixture(autouse=True)
def many_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pieces: there is more time between the first of a file and its owner."""
    monkeypatch.setattr(disk, "CHUNK", 2048)


def damaged(around: Path) -> Path:
    root = real_store("clean-plain-4.9.7", around)
    write_at(root / _LOG, 2000, b"\xee" * 900)
    shutil.rmtree(root / "consumequeue/Orders/1")
    write_at(root / _QUEUE, 20, b"\xee" * 200)
    os.chown(around, OWNER, OWNER)
    return give(root)


def owners(root: Path) -> set[int]:
    return {path.lstat().st_uid for path in (root, *root.rglob("*"))}


# --- Races.


def _recover(root: Path) -> tuple[object, ...]:
    return "recover", root, "--yes"


def _aside(root: Path) -> tuple[object, ...]:
    place = root.with_name("undo")
    place.mkdir(exist_ok=True)
    give(place)
    return "recover", root, "--yes", "--journal", place


def _undo_aside(root: Path) -> tuple[object, ...]:
    assert not mqtool(*_aside(root)).code & exits.OPERATIONAL
    assert owners(root.with_name("undo")) == {OWNER}
    return "undo", root, "--yes"


def _prune_aside(root: Path) -> tuple[object, ...]:
    _undo_aside(root)
    return "journal", root, "--prune", "--yes"


def _rebuild(root: Path) -> tuple[object, ...]:
    return "rebuild", root, "--yes"


def _truncate(root: Path) -> tuple[object, ...]:
    return "truncate", root, "--to", 131072, "--max-loss", "all", "--yes"


def _undo(root: Path) -> tuple[object, ...]:
    assert not mqtool(*_recover(root)).code & exits.OPERATIONAL
    return "undo", root, "--yes"


def _resume(root: Path) -> tuple[object, ...]:
    copy = copy_store(root, root.with_name("copy"))
    operations = len(count_operations(lambda: mqtool(*_recover(give(copy)))))
    shutil.rmtree(copy)
    assert killed_at(operations * 2 // 3, lambda: mqtool(*_recover(root)))
    assert journal(root)[0].state == "unfinished"
    return "resume", root, "--yes"


def _apply(root: Path) -> tuple[object, ...]:
    plan = root.parent.parent / "plan.json"
    shutil.rmtree(plan.with_name("plans"), ignore_errors=True)
    plan.unlink(missing_ok=True)
    mqtool("recover", root, "--dry-run", "--plan-out", plan)
    return "apply", plan, "--yes"


def _copy(root: Path) -> tuple[object, ...]:
    return "recover", root, "--yes", "--output", root.with_name("out")


def _beside(root: Path) -> tuple[object, ...]:
    return "rebuild", root, "--yes", "--output", root.with_name("out")


def _export(root: Path) -> tuple[object, ...]:
    return "export", root, "--format", "store", "-o", root.with_name("out")


_COMMANDS = (
    _recover, _aside, _undo_aside, _prune_aside, _rebuild, _truncate, _undo, _resume, _apply, _copy, _beside, _export)


@pytest.mark.parametrize("tries", [1, pytest.param(_TRIES * len(SWAPS), marks=pytest.mark.long)])
@few("line", _COMMANDS, quick=(1, 2, 7, 9, 11))
def test_a_racer_gets_nothing_of_roots(
    line: Callable[[Path], tuple[object, ...]], tries: int, folder: Path, victim: Victim, count: Count
) -> None:
    won = 0
    for number in range(tries):
        around = folder / f"around{number}"
        root = damaged(around)
        words = line(root)
        with racing(around, reaction([*SWAPS.values()][number % len(SWAPS)], victim)) as swapped:
            done = mqtool(*words)
        assert not done.code & exits.BUG, done
        victim.assert_untouched(around)
        if line not in (_copy, _beside, _export):
            assert owners(root) == {OWNER}, "nothing in there was written as root"
        won += bool(swapped)
        shutil.rmtree(around)
        count("races for root's files", 1)
    count("of them with a link put into the place of something", won)
    # new trees he cannot enter
    assert won or tries == 1 or line in (_copy, _beside, _export), "he was too slow to prove anything"


@pytest.mark.parametrize("tries", [1, pytest.param(_TRIES, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", [".mqtool/runs/.new-x", ".mqtool-new-17"])
def test_what_a_killed_run_left_is_removed_there_and_nowhere_else(
    name: str, tries: int, folder: Path, victim: Victim, count: Count
) -> None:
    for number in range(900):
        (victim.folder / f"{number:06d}").touch()
    victim.kept = tree_digest(victim.folder)
    won = 0
    for number in range(tries):
        root = real_store("clean-plain-4.9.7", folder / f"around{number}")
        left = root / name / "leftover"
        left.mkdir(parents=True)
        for each in range(900):
            (left / f"{each:06d}").touch()
        give(root)
        with racing(root, reaction(SWAPS["each folder in which something is made or removed"], victim)) as swapped:
            assert not mqtool("resume", root, "--yes").code & exits.BUG
        victim.assert_untouched(root)
        won += bool(swapped)
        shutil.rmtree(root.parent)
        count("races for root's files", 1)
    count("of them with a link put into the place of something", won)
    assert won or tries == 1, "he was too slow to prove anything"


# --- Runs that nobody began.


def _forged(root: Path, mode: int) -> Path:
    """A run of the owner's own making: one step on his own program, which root had (it says) and which had that
    mode."""
    shell = root / "config/shell"
    shell.write_bytes(b"#!" + bytes(100))
    give(root)
    shell.chmod(mode)
    step = WriteRange("config/shell", 0, b"#!")
    plan = Plan("recover", (step,), store=identify(root), preconditions=(observe_step(root, step),))
    run = root / f".mqtool/runs/000001-{plan.id}"
    for name in ("staged", "preimages", "retired"):
        (run / name).mkdir(parents=True)
    (run / "plan.json").write_bytes(document(plan, [inline_json(step.content)], "staged"))
    (run / "preimages/000000").write_bytes(b"#!")
    status = shell.stat()
    records = [
        {"event": "start", "plan": plan.id, "command": "recover", "steps": 1, "directories": {}, "store": str(root)},
        {"event": "begin", "step": 0, "size": status.st_size, "mtime_ns": status.st_mtime_ns, "mode": 0o104755,
         "uid": 0, "gid": 0, "blocks": [0, 4096], "extents": [[0, 4096]]},
    ]
    (run / "journal.ndjson").write_bytes(
        b"".join(encode_record({"seq": number, "at": 1, **record}) for number, record in enumerate(records)))
    give(root)
    shell.chmod(mode)
    return shell


@pytest.mark.parametrize(("command", "mode", "of_root"), sampled(
    ["undo", "resume"], [0o755, 0o4755, 0o6755], [False, True], quick=4,
))
def test_owner_and_mode_never_come_from_a_journal(command: str, mode: int, of_root: bool, store: Path) -> None:
    shell = _forged(store, mode)
    if of_root:  # what acts as the owner would not come to the question
        give(store, 0)
        os.chown(shell, OWNER, OWNER)
        shell.chmod(mode)
    assert not mqtool(command, store, "--yes").code & exits.BUG
    status = shell.stat()
    assert status.st_uid == OWNER and status.st_mode & 0o6000 <= mode & 0o6000


# --- As which user.


def test_root_changes_a_store_as_its_owner_and_says_so(store: Path) -> None:
    for words in (_recover(store), ("undo", store, "--yes")):
        done = mqtool(*words)
        assert not done.code & exits.OPERATIONAL, done
        assert f"uid {OWNER}" in done.stderr
        assert os.geteuid() == 0 == os.getegid()
    assert owners(store) == {OWNER}
    assert f"uid {OWNER}" not in mqtool("verify", store).stderr + mqtool("predict", store).stderr


def test_the_owner_does_it_himself_with_the_same_result(folder: Path) -> None:
    trees: list[dict[str, Node]] = []
    for by in ("root", "owner"):
        root = damaged(folder / by)
        words = _recover(root)
        if by == "root":
            assert not mqtool(*words).code & exits.OPERATIONAL
        else:
            mqtool(*_recover(damaged(folder / "loading")))  # Python itself can lie in root's home

            def work(words: tuple[object, ...] = words) -> None:
                become()
                done = mqtool(*words)
                assert not done.code & exits.OPERATIONAL and "changed as that user" not in done.stderr, done

            assert in_a_child(work) == 0
        trees.append({name: node._replace(mtime_ns=0) for name, node in tree_digest(root).items()})
    assert trees[0] == trees[1]


@pytest.mark.parametrize("uid", [0, OWNER])
def test_undo_leaves_owners_modes_times_and_attributes_as_they_were(uid: int, store: Path) -> None:
    give(store, uid)
    (store / _LOG).chmod(0o640)
    (store / _QUEUE).chmod(0o604)
    for name in (_LOG, _QUEUE):
        os.setxattr(store / name, "user.note", b"kept")
    before = tree_digest(store)
    done = mqtool(*_recover(store))
    assert not done.code & exits.OPERATIONAL, done
    assert (store / _QUEUE).stat().st_mode & 0o777 == 0o604
    assert mqtool("undo", store, "--yes").code == 0
    assert_same_tree(before, tree_digest(store))
    assert os.getxattr(store / _QUEUE, "user.note") == b"kept"


def test_what_the_owner_may_not_do_is_refused_with_the_command(store: Path) -> None:
    for name in (_LOG, "consumequeue/Orders", "."):
        path = store / name
        os.chown(path, 0, 0)
        before = tree_digest(store)
        done = mqtool(*_recover(store))
        assert done.code & exits.OPERATIONAL, name
        assert f"chown -h {OWNER}:{OWNER} {path.resolve()}" in done.stderr.replace("\n", " "), done.stderr
        assert_same_tree(before, tree_digest(store))
        os.chown(path, OWNER, OWNER)
    assert not mqtool(*_recover(store)).code & exits.OPERATIONAL


def test_a_folder_for_undo_data_that_the_owner_cannot_write_is_refused_with_the_command(
    store: Path, folder: Path
) -> None:
    place = folder / "undo"
    place.mkdir()
    words = ("recover", store, "--yes", "--journal", place)
    before = tree_digest(store)
    refused = mqtool(*words)
    assert refused.code & exits.OPERATIONAL and f"chown -h {OWNER}:{OWNER} {place}" in refused.stderr
    assert tree_digest(store) == before and not list(place.iterdir())
    subprocess.run(["chown", "-h", f"{OWNER}:{OWNER}", place], check=True)
    assert not mqtool(*words).code & exits.OPERATIONAL
    assert owners(place) == {OWNER}
    assert mqtool("undo", store, "--yes").code == 0
    give(store.parent, 0)
    refused = mqtool(*words, "--as-root")
    assert refused.code & exits.OPERATIONAL and str(place) in refused.stderr


def test_a_run_that_root_wrote_itself_is_handed_over_with_the_command(store: Path) -> None:
    assert not mqtool(*_recover(store)).code & exits.OPERATIONAL
    for path in (store / ".mqtool").rglob("*"):
        if path.is_file():
            os.chown(path, 0, 0)
            path.chmod(0o600)
    done = mqtool("undo", store, "--yes")
    command = f"chown -hR {OWNER}:{OWNER} {store}/.mqtool"
    assert done.code & exits.OPERATIONAL and command in done.stderr.replace("\n", " ")
    subprocess.run(command.split(), check=True)
    assert mqtool("undo", store, "--yes").code == 0


def test_a_store_that_its_owner_cannot_reach_is_refused_with_a_way(store: Path) -> None:
    store.parent.chmod(0o700)
    os.chown(store.parent, 0, 0)
    before = tree_digest(store)
    done = mqtool(*_recover(store))
    assert done.code & exits.OPERATIONAL and "mount --bind" in done.stderr and str(store.parent) in done.stderr
    assert_same_tree(before, tree_digest(store))


@pytest.mark.parametrize("open_one", ["store", "inside", "above", "group", "none"])
def test_as_root_is_refused_where_others_can_write_above_or_inside(open_one: str, store: Path) -> None:
    give(store, 0)
    os.chown(store.parent, 0, 0)
    os.chown(store / _LOG, OWNER, OWNER)  # a file alone leads root nowhere
    folder = {"store": store, "inside": store / "index", "above": store.parent, "group": store / "consumequeue",
              "none": store}[open_one]
    if open_one == "group":
        os.chown(folder, 0, OWNER)
        folder.chmod(0o775)
    elif open_one == "above":
        folder.chmod(0o757)
    elif open_one != "none":
        os.chown(folder, OWNER, OWNER)
    done = mqtool("recover", store, "--as-root", "--yes")
    assert bool(done.code & exits.OPERATIONAL) == (open_one != "none"), done
    if open_one != "none":
        assert "--as-root" in done.stderr and str(folder.resolve()) in done.stderr.replace("\n", " ")


def test_a_file_that_only_root_may_read_does_not_come_out(store: Path, folder: Path) -> None:
    """The log is a link to a file of root's: what root reads must not be written where the owner can read it."""
    kept = folder / "kept"
    shutil.move(store / _LOG, kept)
    os.chown(kept, 0, 0)
    kept.chmod(0o600)
    (store / _LOG).symlink_to(kept)
    before = tree_digest(store)
    done = mqtool("rebuild", store, "--yes")
    assert done.code & exits.OPERATIONAL and _LOG in done.stderr
    assert_same_tree(before, tree_digest(store))


# --- Copies and new stores.


@pytest.mark.parametrize("exists", [False, True])
def test_a_copy_is_closed_until_it_is_complete_and_then_the_owners(exists: bool, store: Path) -> None:
    out = store.with_name("out")
    (store / "index").chmod(0o2775)
    (store / _LOG).chmod(0o4644)
    if exists:
        out.mkdir()
        os.chown(out, OWNER, OWNER)
    seen: set[tuple[int, int]] = set()

    def look(operation: disk.Operation) -> None:
        if str(out) in operation.path and operation.name not in ("mkdir", "set-owner", "set-mode") and out.exists():
            seen.add((out.stat().st_uid, out.stat().st_mode & 0o7777))

    disk.set_hook(look)
    try:
        done = mqtool(*_copy(store))
    finally:
        disk.set_hook(None)
    assert not done.code & exits.OPERATIONAL, done
    assert seen - {(OWNER, 0o755)} == {(0, 0o700)}, "its time is set at the very end"
    assert owners(out) == {OWNER} and out.stat().st_mode & 0o7777 == 0o755
    assert (out / "index").stat().st_mode & 0o7777 == 0o775 and (out / _LOG).stat().st_mode & 0o7777 == 0o644
    assert mqtool("verify", out).code & exits.DERIVED == 0
    assert mqtool("undo", out, "--yes").code == 0
    assert owners(out) == {OWNER}


@pytest.mark.parametrize("line", [_beside, _export])
def test_new_trees_belong_to_who_runs_the_command(line: Callable[[Path], tuple[object, ...]], store: Path) -> None:
    done = mqtool(*line(store))
    out = store.with_name("out")
    assert not done.code & exits.OPERATIONAL, done
    assert owners(out) == {0} and out.stat().st_mode & 0o7777 == 0o755


# --- What the kernel sees.


_BY_PATH = re.compile(r"(?:chown|lchown|chmod|unlink|rmdir|rename|link|symlink|mkdir|utime|utimes|creat|truncate)\(")
_AT = re.compile(r"(?:fchownat|fchmodat2?|unlinkat|renameat2?|linkat|symlinkat|mkdirat|utimensat|futimesat)\(")


def by_path(trace: str, root: Path) -> list[str]:
    """The calls of a trace that change a name, owner, mode or time by a path that leads into the store."""
    found = []
    for line in trace.splitlines():
        call = re.sub(r"^\d+ +", "", line)
        names = re.findall(r'"([^"]*)"', call)
        leads_there = any(name.startswith(str(root)) for name in names)
        if (_BY_PATH.match(call) or _AT.match(call)) and leads_there:
            found.append(line)
        if re.match(r"(?:fchownat|fchmodat2?|utimensat)\(", call) and f"<{root}" in call and names:
            found.append(line)
        deep = any("/" in name and not name.startswith("/proc/self/fd/") for name in names)
        if _AT.match(call) and f"<{root}" in call and deep:
            found.append(line)
    return found


def test_nothing_in_a_store_is_changed_by_its_path(store: Path, tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("NOT RUN: needs strace")
    trace = tmp_path / "trace"
    calls = ("chown,lchown,fchown,fchownat,chmod,fchmod,fchmodat,unlink,unlinkat,rmdir,rename,renameat,renameat2,link,"
             "linkat,symlink,symlinkat,mkdir,mkdirat,utime,utimes,utimensat,futimesat,truncate,creat")
    program = "import sys; from mqtool.cli import main; sys.exit(main(sys.argv[1:]))"
    for words in (_recover(store), ("undo", store, "--yes")):
        done = subprocess.run(
            ["strace", "-f", "-qq", "-y", "-s", "300", "-e", f"trace={calls}", "-o", str(trace), sys.executable, "-c",
             program, *map(str, words)], capture_output=True, text=True, check=False, timeout=300)
        if "ptrace" in done.stderr and "not permitted" in done.stderr:
            pytest.skip("NOT RUN: may not trace")
        assert not done.returncode & exits.OPERATIONAL, done.stderr
        text = trace.read_text(errors="replace")
        assert f"<{store}" in text, "the tracer saw the store changed"
        assert by_path(text, store) == []


def test_the_tracer_sees_a_path() -> None:
    root = Path("/s")
    for line in ('12 unlink("/s/abort") = 0', '12 chown("/s/a", 1, 1) = 0', '12 rename("/s/a", "/t") = 0',
                 '12 unlinkat(AT_FDCWD</>, "/s/a", 0) = 0', '12 utimensat(5</s/index>, "a", [], 0) = 0',
                 '12 unlinkat(5</s>, "index/a", 0) = 0', '12 mkdir("/s/.mqtool", 0755) = 0'):
        assert by_path(line, root) == [line]
    for line in ('12 unlinkat(5</s/index>, "a", 0) = 0', "12 fchown(5</s/index/a>, 1, 1) = 0",
                 '12 renameat(5</s>, "a", 6</s/b>, "c") = 0', '12 mkdir("/tmp/x", 0755) = 0'):
        assert by_path(line, root) == []


@pytest.mark.parametrize("how", ["openat2", "component by component"])
def test_a_folder_that_becomes_a_link_is_not_passed(
    how: str, store: Path, victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how != "openat2":
        monkeypatch.setattr(disk, "has_openat2", lambda: False)
    elif not disk.has_openat2():
        pytest.skip("NOT RUN: this kernel has no openat2")
    with disk.within(store):
        shutil.move(store / "index", store / "aside")
        (store / "index").symlink_to(victim.folder)
        for work in (
            lambda: disk.unlink(store / "index/secret"), lambda: disk.set_times(store / "index/secret", 1),
            lambda: disk.create_file(store / "index/new", [b"x"]), lambda: disk.mkdir(store / "index/new"),
            lambda: disk.rename(store / "index/secret", store / "taken"), lambda: disk.fsync_dir(store / "index"),
            lambda: disk.write_range(store / "index/secret", 0, [b"x"]), lambda: disk.remove_tree(store / "index/x"),
            lambda: disk.link(store / "index/secret", store / "taken"),
        ):
            with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
                work()
        disk.remove_tree(store / "index")
        assert not (store / "index").is_symlink()
    victim.assert_untouched(store)


def test_a_file_of_somebody_else_is_not_given_away(store: Path) -> None:
    """Root finds another file in the place of the one it made: a second name of one of its own, or one of a third
    user's."""
    like = disk.Like(OWNER, OWNER, 0o644)
    path = store / "index/made"
    disk.create_file(path, [b"x"])
    os.link(path, store / "index/other")
    with pytest.raises(OSError, match="another file in its place"):
        disk.dress(path, like)
    assert path.stat().st_uid == 0


def test_the_owner_is_the_one_of_the_parts_where_the_root_is_roots(store: Path) -> None:
    os.chown(store, 0, 0)
    found = owner.owner_of(store)
    assert found is not None and found.uid == OWNER
    give(store, 0)
    assert owner.owner_of(store) is None

