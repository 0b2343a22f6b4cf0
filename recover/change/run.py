"""The writing side of the journal: a run is built aside, with all content it needs, and then appears at once.

So a run that exists can be completed or taken back without anything from outside, and a process that is killed before
has left nothing but a folder to remove. The content of the steps is written into the run's folder, read back, and
dressed for its place, before the run exists.
"""

from __future__ import annotations

import os
import platform
import pwd
import shlex
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from recover.change import disk
from recover.change.content import inline_json, make, pieces_of
from recover.change.journal import FRESH_JOURNAL, FRESH_RUN, Run, decode_records, encode_record, leftovers, runs
from recover.change.lock import ROOT_MTIME
from recover.change.model import InPlace, Plan, Step, existing_folders, resolve
from recover.change.places import RESERVE
from recover.change.plan_file import document, stands_inline
from recover.findings.refusal import Interrupted, Refusal
from recover.store.reading import Piece, file_crc
from recover.store.store import JOURNAL_DIR

_FOLDERS = ("staged", "preimages", "retired")


def record(run: Run, event: str, **facts: Any) -> None:
    """Add a record to the journal and sync it."""
    record_all(run, event, [facts])


def record_all(run: Run, event: str, facts: Iterable[dict[str, Any]]) -> None:
    """Add several records of one event with one write and one sync."""
    now = time.time_ns() // 1_000_000
    bodies = [
        {"event": event, "seq": number, "at": now, **each} for number, each in enumerate(facts, len(run.records))
    ]
    if bodies:
        try:
            disk.append(run.journal, b"".join(encode_record(body) for body in bodies))
        except OSError:
            # What reached the file counts, synced or not: the records that take the run back must not repeat a number.
            for body in decode_records(run.journal.read_bytes())[len(run.records):]:
                run.add(body)
            raise
    for body in bodies:
        run.add(body)


def tidy(root: Path) -> None:
    """Remove what runs left that were killed before they began or after they ended. Needs the store's lock."""
    for path in leftovers(root):
        if path == root / ROOT_MTIME:
            text = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            if text.endswith(b"\n") and text.strip().isdigit():
                disk.set_times(root, int(text))
            disk.unlink(path)
            continue
        disk.remove_tree(path)
        mtime = path.name.removeprefix(FRESH_JOURNAL)
        if mtime.isdecimal():
            disk.set_times(root, int(mtime))


def start(root: Path, plan: Plan, interrupted: Callable[[], bool], parts: Iterable[str] = ()) -> Run:
    """Build a run for a plan and register it. On failure nothing stays but what `tidy` removes."""
    status = os.stat(root)
    name = f"{max([0, *(_number(run.id) for run in runs(root))]) + 1:06d}-{plan.id}"
    existing = existing_folders(root)
    # the folders in which steps make or remove names
    touched = sorted({".", *(existing(step.file) for step in plan.steps if not isinstance(step, InPlace))})
    directories = {path: os.stat(resolve(root, path)).st_mtime_ns for path in touched}
    first = not (root / JOURNAL_DIR).exists()
    # The name keeps the root's mtime, which this very directory changes, for `tidy` and for nobody else.
    home = root / (f"{FRESH_JOURNAL}{status.st_mtime_ns}" if first else JOURNAL_DIR)
    disk.mkdir(home, status)
    disk.mkdir(home / "runs", status)
    run = Run(root, home / "runs" / (name if first else FRESH_RUN + name), tuple(parts))
    for path in (run.path, *(run.path / folder for folder in _FOLDERS)):
        disk.mkdir(path, status)
    contents = _stage(run, plan.steps, interrupted)
    disk.create_file(run.path / "plan.json", [document(plan, contents, "staged")])
    # Freed when the disk is full, so that taking the steps back can still be recorded.
    disk.create_file(run.path / "reserve", [b"\xff" * (RESERVE + 1024 * len(plan.steps))])
    record(
        run, "start", plan=plan.id, command=plan.command, steps=len(plan.steps), directories=directories,
        store=str(root.resolve()), **_who(),
    )
    for folder in (run.path / "staged", run.path, home / "runs", home):
        disk.fsync_dir(folder)
    final = root / JOURNAL_DIR / "runs" / name
    if first:
        disk.rename(home, root / JOURNAL_DIR)
    else:
        disk.rename(run.path, final)
    run.path = final
    return run


def _who() -> dict[str, Any]:
    """Who runs this, with what: for the journal."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    login = os.environ.get("SUDO_USER", "")
    return {
        "user": f"{user} ({login})" if login else user, "host": platform.node(), "tool": _tool(),
        "command_line": shlex.join(["mqtool", *sys.argv[1:]]),
    }


def _tool() -> str:
    try:
        return f"mqtool {version('mqtool')}"
    except PackageNotFoundError:
        return "mqtool"


def _number(run_id: str) -> int:
    head = run_id.split("-")[0]
    return int(head) if head.isdecimal() else 0


def _stage(
    run: Run, steps: tuple[Step, ...], interrupted: Callable[[], bool]
) -> list[dict[str, Any] | None]:
    """Where the content of each step is kept, None for a step without; all of it is synced.

    `OSError`; `Refusal` for what reads back differently; `Interrupted`. Then nothing more is being written.
    """
    wanted = {run.staged(number): step.content for number, step in enumerate(steps)}
    made = make(run.path / "making", wanted, interrupted=interrupted, like=os.stat(run.root))
    neighbour, existing = cache(_neighbour), existing_folders(run.root)
    kept: list[dict[str, Any] | None] = []
    for step, (path, content) in zip(steps, wanted.items(), strict=True):
        if content is None or (stands_inline(step, content) and path not in made):
            kept.append(None if content is None else inline_json(content))
            continue
        if path not in made:
            made[path] = disk.create_from_pieces(path, _until(interrupted, pieces_of(content)), sync=False)
        size, crc = made[path]
        if not isinstance(step, InPlace):
            # owner and mode as the broker left them on the old file or on its neighbours, and the old file's xattrs
            target = resolve(run.root, step.file)
            if target.exists():
                disk.set_owner(path, os.stat(target))
                disk.copy_xattrs(target, path)
            else:
                disk.set_owner(path, neighbour(resolve(run.root, existing(step.file))))
        if file_crc(path) != (size, crc) or size != content.size:
            raise Refusal(f"what was written for {step.file} reads back differently", "check the disk", file=step.file)
        kept.append({"size": size, "crc32c": crc, "file": path.name})
    disk.sync_all(made)
    return kept


def _until(interrupted: Callable[[], bool], pieces: Iterable[Piece]) -> Iterator[Piece]:
    for piece in pieces:
        if interrupted():
            raise Interrupted("stopped before anything was changed", "run the command again")
        yield piece


def _neighbour(directory: Path) -> os.stat_result:
    """Stat whose owner and mode a new file in a directory takes."""
    parent = os.stat(directory)
    for name in sorted(os.listdir(directory)):
        status = os.lstat(directory / name)
        if stat.S_ISREG(status.st_mode) and status.st_uid == parent.st_uid:
            return status
    fields = list(parent)
    fields[stat.ST_MODE] = stat.S_IFREG | 0o644
    return os.stat_result(fields)
