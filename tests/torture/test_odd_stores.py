"""Pipes, folders, sockets, devices and links to nothing where a file belongs: no command waits, and none breaks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mqtool import exits
from recover.change.content import inline_json
from recover.change.journal import encode_record
from recover.change.model import (
    FileState,
    Install,
    Plan,
    Retire,
    RetireFolder,
    Step,
    WriteRange,
    ZeroRange,
    document,
    save_plan,
)
from recover.change.preconditions import identify
from tests.cli.runner import mqtool
from tests.support.sampling import few, sampled
from tests.support.stores import real_store, write_at
from tests.support.trees import assert_unchanged

SECONDS = 30
QUEUE = "consumequeue/Orders/0/00000000000000000000"


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


KINDS: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo, "folder": Path.mkdir, "socket": _socket,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
}
PLACES = (
    "checkpoint", "abort", "lock", "config/topics.json", "config/topics.json.bak", "config/timercheck",
    "index/FIRST", "index/20300101000000000", QUEUE, "consumequeue/Orders/0/00000000000000006000", "commitlog/FIRST",
    "commitlog/99999999999999999999", "consumequeue_ext/Orders/0/00000000000000000000", ".mqtool",
)
COMMANDS = (
    ("verify",), ("inspect",), ("predict",), ("recover", "--yes"), ("rebuild", "--yes"), ("undo", "--yes"),
    ("resume", "--yes"), ("journal",), ("query", "--topic", "Orders", "--queue", "0", "--offset", "0"),
)


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """`TimeoutError` in whatever waits longer."""
    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def put(kind: str, path: Path) -> None:
    """Something of that kind in the place of a file."""
    if path.name == "FIRST":
        path = min(path.parent.iterdir())
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    KINDS[kind](path)


@pytest.mark.parametrize(("place", "kind"), sampled(PLACES, KINDS, quick=5))
def test_no_command_waits_or_breaks_where_a_file_is_none(place: str, kind: str, folder: Path) -> None:
    source = real_store("clean-plain-4.9.7", folder)
    (source / QUEUE).with_name("00000000000000000020").write_bytes(b"")  # something to change
    put(kind, source / place)
    for command, *rest in COMMANDS:
        with limited(SECONDS):
            done = mqtool(command, source, *rest)
        assert not done.code & exits.BUG, (command, done.stderr[-2000:])


@pytest.mark.parametrize("place", ["config/topics.json", "checkpoint", "commitlog/FIRST"])
def test_what_it_is_instead_is_said(place: str, folder: Path) -> None:
    store = real_store("clean-plain-4.9.7", folder)
    put("pipe", store / place)
    done = mqtool("verify", store, "--json")
    assert done.code and not done.code & exits.BUG
    if place != "commitlog/FIRST":
        assert "a pipe" in done.stdout


# --- A `.mqtool/` that somebody made up, and links within a store: nothing outside of the store is written, ever.


LOG = "commitlog/00000000000000000000"


@pytest.fixture
def store(folder: Path) -> Path:
    return real_store("clean-plain-4.9.7", folder / "around")


@pytest.fixture
def outside(folder: Path) -> Path:
    """What a store has nothing to do with: a folder that is read by others, with a file in it."""
    place = folder / "cron.d"
    place.mkdir()
    (place / "job").write_text("nothing to see\n" * 400)
    return place


def forge(
    store: Path, steps: list[Step], *, parts: list[Path] = [], event: str = "", aside: Path | None = None  # noqa: B006
) -> Path:
    """A run that was never one of ours, checksums and all, killed before its first step (or `event` in it); `aside`:
    where it says that its undo data are."""
    before = [FileState(step.file, False) for step in steps]
    for number, step in enumerate(steps):
        path = store / step.file
        if path.is_file():
            status, stop = path.stat(), 0
            before[number] = FileState(step.file, True, status.st_size, status.st_mtime_ns, 0, stop, 0)
    plan = Plan("recover", tuple(steps), parts=tuple(map(str, parts)), store=identify(store),
                preconditions=tuple(before), summary={"store_options": {"commitlog": [str(p) for p in parts]}})
    run = store / f".mqtool/runs/000001-{plan.id}"
    for name in ("staged", "preimages", "retired"):
        (run / name).mkdir(parents=True)
    contents: list[dict[str, Any] | None] = []
    for number, step in enumerate(steps):
        if isinstance(step, Install):
            data = b"".join(step.content.chunks())
            (run / f"staged/{number:06d}").write_bytes(data)
            contents.append({"size": len(data), "crc32c": step.content.crc32c, "file": f"{number:06d}"})
        else:
            contents.append(None if step.content is None else inline_json(step.content))
    (run / "plan.json").write_bytes(document(plan, contents, "staged"))
    records: list[dict[str, Any]] = [{
        "event": "start", "plan": plan.id, "command": "recover", "steps": len(steps), "directories": {},
        "store": str(store), **({"undo_data": str(aside)} if aside else {}),
    }]
    if event:
        facts = {"aside": None, "mkdirs": [], "size": 1, "mtime_ns": 1, "mode": 0o104755, "uid": 0, "gid": 0,
                 "blocks": [0, 4096], "extents": []}
        records += [{"event": event, "step": number, **facts} for number in range(len(steps))]
    (run / "journal.ndjson").write_bytes(
        b"".join(encode_record({"seq": n, "at": 1, **record}) for n, record in enumerate(records)))
    return run


def nothing_moves(store: Path, around: Path, *names: object) -> None:
    """Every command that could act on the run refuses, says the path, sends nobody to resume, and changes nothing."""
    with assert_unchanged(around):
        for line in (["resume"], ["undo"], ["resume", "--dry-run"], ["undo", "--dry-run"], ["recover"]):
            command, *rest = line
            done = mqtool(command, store, *(rest or ["--yes"]))
            assert done.code & exits.OPERATIONAL and not done.code & exits.BUG, (line, done)
            for name in names:
                assert str(name) in done.stderr, (line, done.stderr)
            if command == "recover":
                assert "mqtool resume" not in done.stderr, "which refuses"
        checked = mqtool("verify", store, "--json")
        assert not checked.code & exits.BUG
        codes = [item["code"] for item in checked.document["findings"]]
        assert "run-journal-damaged" in codes and "run-unfinished" not in codes


@pytest.mark.parametrize("event", ["", "begin"])
def test_parts_of_a_made_up_run_are_not_believed(event: str, store: Path, outside: Path, folder: Path) -> None:
    forge(store, [Install(str(outside / "evil"), b"* * * * * root id\n")], parts=[outside], event=event)
    nothing_moves(store, folder, outside)


@pytest.mark.parametrize(("link", "event"), [
    ("commitlog", ""), ("consumequeue", "begin"), ("consumequeue/Evil", ""), ("index", "begin"), ("config", ""),
])
def test_a_made_up_run_does_not_go_through_a_link(
    link: str, event: str, store: Path, outside: Path, folder: Path
) -> None:
    if (store / link).exists():
        shutil.move(store / link, folder / "aside")
    (store / link).symlink_to(outside)
    forge(store, [Install(f"{link}/evil", b"* * * * * root id\n")], event=event)
    nothing_moves(store, folder, link)


@pytest.mark.parametrize("name", ["other", "../cron.d/evil", "spool/cron/root", "lock", ".mqtool/x"])
def test_a_made_up_run_names_the_stores_own_files_alone(
    name: str, store: Path, outside: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("recover.change.model.check_path", lambda file, parts: None)
        forge(store, [Install(name, b"evil")])
    nothing_moves(store, folder, name)


@pytest.mark.parametrize("event", ["", "begin"])
@pytest.mark.parametrize("make", [os.symlink, os.link], ids=["symbolic link", "hard link"])
@pytest.mark.parametrize("step", [ZeroRange(LOG, 0, 300), WriteRange(LOG, 0, b"root::0:0")], ids=["zero", "write"])
def test_bytes_are_not_written_through_the_name_of_a_log_file(
    step: Step, make: Callable[[Path, Path], None], event: str, store: Path, outside: Path, folder: Path
) -> None:
    (store / LOG).unlink()
    make(outside / "job", store / LOG)
    run = forge(store, [step], event=event)
    (run / "preimages/000000").write_bytes(b"evil")
    with assert_unchanged(outside):
        for command in ("resume", "undo"):
            done = mqtool(command, store, "--yes")
            assert not done.code & exits.BUG, done
        assert (outside / "job").stat().st_mode & 0o7777 == 0o644


@pytest.mark.parametrize("name", ["", "runs", "run", "staged", "retired", "preimages", "plan.json", "journal.ndjson"])
def test_no_part_of_the_journals_folder_leads_elsewhere(name: str, store: Path, outside: Path, folder: Path) -> None:
    run = forge(store, [Install("consumequeue/Evil/0/00000000000000000000", b"evil")])
    place = {"": store / ".mqtool", "runs": run.parent, "run": run}.get(name, run / name)
    shutil.move(place, outside / "moved")
    place.symlink_to(outside / "moved")
    with assert_unchanged(folder):
        for line in (["resume", store, "--yes"], ["undo", store, "--yes"], ["recover", store, "--yes"]):
            done = mqtool(*line)
            assert done.code & exits.OPERATIONAL and not done.code & exits.BUG, (line, done)


def test_what_a_killed_run_left_is_not_removed_through_a_link(store: Path, outside: Path) -> None:
    (store / ".mqtool-new-17").symlink_to(outside)
    (store / ".mqtool/runs").mkdir(parents=True)
    (store / ".mqtool/runs/.new-x").symlink_to(outside)
    with assert_unchanged(outside):
        assert not mqtool("resume", store, "--yes").code & exits.BUG
    assert not (store / ".mqtool-new-17").is_symlink()


@pytest.mark.parametrize("bond", ["", "{}", '{"run": "another", "store": "STORE", "inode": 0}'])
def test_a_folder_that_does_not_name_the_run_is_not_its_undo_data(
    bond: str, store: Path, outside: Path, folder: Path
) -> None:
    for name in ("staged", "preimages", "retired"):
        (outside / name).mkdir()
    (outside / "retired/000000").write_bytes(b"a file of somebody else")
    if bond:
        (outside / "run.json").write_text(bond.replace("STORE", str(store)))
    run = forge(store, [Install("config/evil", b"evil")], event="begin", aside=outside)
    left = run.with_name(".new-000002-12345678")
    left.mkdir()
    (left / "undo-data-in").write_text(str(outside))
    nothing_moves(store, folder, outside)
    shutil.rmtree(run)
    with assert_unchanged(outside):
        assert not mqtool("resume", store, "--yes").code & exits.BUG
    assert not left.exists(), "what is in the store is removed"


@pytest.mark.parametrize("entry", ["staged/000000", "preimages/000000", "staged/evil"])
def test_a_runs_folders_hold_files_alone(entry: str, store: Path, outside: Path, folder: Path) -> None:
    run = forge(store, [Install("consumequeue/Evil/0/00000000000000000000", b"evil")])
    (run / entry).unlink(missing_ok=True)
    (run / entry).symlink_to(outside / "job")
    nothing_moves(store, folder, entry)


def test_a_plan_does_not_choose_its_root(outside: Path, store: Path, folder: Path) -> None:
    """A folder that merely has a name in common with a store's is not one to write anything to."""
    (outside / "lock").mkdir()
    plan = Plan("recover", (Install("config/evil", b"evil"), Retire("job")), store=identify(outside),
                preconditions=(FileState("config/evil", False), FileState("job", True)))
    save_plan(plan, folder / "plan.json")
    with assert_unchanged(folder):
        assert mqtool("apply", folder / "plan.json", "--yes").code & exits.OPERATIONAL


@few("link", ["consumequeue/Orders/0", "index", "commitlog"], quick=(0, 2))
def test_recover_and_rebuild_leave_alone_what_a_link_to_a_folder_leads_to(
    link: str, store: Path, outside: Path, folder: Path
) -> None:
    log = next((store / "commitlog").iterdir())
    write_at(log, 2000, b"\xee" * 900)
    for queue in (store / "consumequeue/Orders").rglob("0*0"):
        queue.write_bytes(bytes(queue.stat().st_size))
    (store / "config").mkdir(exist_ok=True)
    (store / "config/topics.json").write_text('{"topicConfigTable":{"Orders":{"topicName":"Orders",')
    for number in (store / "index").iterdir():
        number.write_bytes(b"\xff" * 60 + number.read_bytes()[60:])
    shutil.move(store / link, outside / "moved")
    (store / link).symlink_to(outside / "moved")
    with assert_unchanged(outside):
        with assert_unchanged(folder):
            dry = mqtool("recover", store, "--dry-run")
            done = mqtool("recover", store, "--yes")
            assert done.code & exits.OPERATIONAL and not done.code & exits.BUG, done
            assert dry.code == done.code and str(outside / "moved") in done.stderr
        assert not mqtool("rebuild", store, "--yes").code & exits.BUG
    copy = folder / "copy"
    assert not mqtool("recover", store, "--yes", "--output", copy).code & exits.OPERATIONAL
    assert not mqtool("verify", copy).code & exits.MESSAGES


def test_the_dry_run_of_resume_shows_every_file(store: Path) -> None:
    name = "consumequeue/Orders/0/00000000000000000000"
    forge(store, [RetireFolder("index"), Install(name, b"evil")])
    shown = mqtool("resume", store, "--dry-run", "--json")
    assert [step["file"] for step in shown.document["plan"]["steps"]] == ["index", name]
    assert json.loads(shown.stdout)


# --- Stores with next to nothing in them.


@pytest.mark.parametrize("log", [None, 0, 1 << 20], ids=["no file", "an empty file", "a file of zeros"])
def test_a_store_without_a_record_is_clean_to_every_command(log: int | None, tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / "commitlog").mkdir(parents=True)
    if log is not None:
        (store / "commitlog" / f"{0:020}").write_bytes(bytes(log))
    with assert_unchanged(store):
        for line in (
            ("inspect",), ("verify",), ("predict",), ("groups",), ("recover", "--dry-run"), ("rebuild", "--dry-run"),
            ("truncate", "--to", 0, "--dry-run"), ("query", "--topic", "T"), ("query", "--phy-offset", 0),
            ("export", "-o", tmp_path / "out.ndjson"), ("report", "-o", tmp_path / "page.md"),
        ):
            done = mqtool(line[0], store, *line[1:], "--json")
            assert done.code == 0 and not done.notable, (line, done.stdout, done.stderr)
            assert not done.document.get("damaged") and not done.document.get("reason"), (line, done.stdout)
    past = mqtool("truncate", store, "--to", (log or 0) + 5, "--dry-run")
    assert past.code == exits.USAGE and "the nearest is 0" in past.stderr
