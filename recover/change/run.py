"""The writing side of the journal: a run is built aside, with all content it needs, and then appears at once.

So a run that exists can be completed or taken back without anything from outside, and a process that is killed before
has left nothing but a folder to remove.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import pwd
import shlex
import stat
import struct
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

from recover.change import disk, step_folder, step_in_place, step_replace
from recover.change.content import FileContent, allocated, make
from recover.change.journal import FRESH_JOURNAL, FRESH_RUN, Run, decode_records, encode_record, leftovers, runs
from recover.change.lock import ROOT_MTIME
from recover.change.model import InPlace, Plan, Replace, RetireFolder, Step, existing_folders, resolve
from recover.change.plan_file import check_alone, document
from recover.change.preconditions import check_same_store, check_watched, compare, observe
from recover.change.staging import stage
from recover.findings.refusal import Refusal
from recover.store.reading import data_extents, file_crc, laid_out, open_file
from recover.store.store import JOURNAL_DIR

_GET_FLAGS = 0x80086601
"""FS_IOC_GETFLAGS of 64-bit x86 and ARM; where it is another number, or the file system has no flags, none are seen."""
_FLAGS = ((0x10, "immutable", "i"), (0x20, "append-only", "a"))
_LONG = struct.Struct("l")


def check_changeable(root: Path, steps: Iterable[Step], run: Run | None = None) -> None:
    """`Refusal` naming the first file or folder that steps have to write, rename or remove, and the system will not.

    `run`: its journal and what it keeps has to be changed, too.
    """
    steps = list(steps)
    existing = existing_folders(root)
    folders = {root, root / JOURNAL_DIR, root / JOURNAL_DIR / "runs"}
    folders |= {resolve(root, existing(step.file)) for step in steps if not isinstance(step, InPlace)}
    kept: set[Path] = set()
    if run is not None:
        folders |= {run.path, run.path / "staged", run.path / "preimages", run.path / "retired"}
        kept = {run.journal, *(path for number in range(len(run.plan.steps))
                               for path in (run.staged(number), run.retired(number)))}
    for path in sorted(folders):
        _check(root, path, written=True)
    for step in steps:
        _check(root, resolve(root, step.file), written=isinstance(step, InPlace))
    for path in sorted(kept):
        _check(root, path, written=run is not None and path == run.journal)


def _check(root: Path, path: Path, *, written: bool) -> None:
    inside = path.is_relative_to(root)
    name = "the store's root" if path == root else str(path.relative_to(root) if inside else path)
    for what, letter in _flags(path):
        raise Refusal(f"{name} is {what} (chattr +{letter}), so it can be neither changed nor put back",
                      f"chattr -{letter} {path}, then run the command again (a saved plan: make it again)", file=name)
    if written and os.path.lexists(path) and not os.access(path, os.W_OK, effective_ids=True):
        try:
            read_only = os.statvfs(path).f_flag & os.ST_RDONLY
        except OSError:
            read_only = 0
        raise Refusal(
            f"{name} cannot be written: {os.strerror(errno.EROFS if read_only else errno.EACCES)}",
            "mount the file system writable, or make a recovered copy with --output" if read_only else
            "run as the broker's user or as root, or make a recovered copy with --output", file=name,
        )


def _flags(path: Path) -> Iterator[tuple[str, str]]:
    """The flags of a file or folder itself that keep it from being written or renamed, with their letters."""
    try:
        mode = os.lstat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            return
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        value = _LONG.unpack(fcntl.ioctl(fd, _GET_FLAGS, bytes(_LONG.size)))[0]
    except OSError:
        return
    finally:
        os.close(fd)
    yield from ((what, letter) for bit, what, letter in _FLAGS if value & bit)


RESERVE = 64 << 10
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


def write_report(root: Path, run_id: str, report: dict[str, Any]) -> None:
    """Keep what the command reported at the end of a run, as `report.json` in the run's folder."""
    path = root / JOURNAL_DIR / "runs" / run_id / "report.json"
    temporary = path.with_suffix(".new")
    disk.unlink(temporary)
    disk.create_file(temporary, [laid_out(report, 1).encode("ascii") + b"\n"])
    disk.rename(temporary, path)
    disk.fsync_dir(path.parent)


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
    directories = {path: os.stat(resolve(root, path)).st_mtime_ns for path in touched_directories(root, plan.steps)}
    first = not (root / JOURNAL_DIR).exists()
    # The name keeps the root's mtime, which this very directory changes, for `tidy` and for nobody else.
    home = root / (f"{FRESH_JOURNAL}{status.st_mtime_ns}" if first else JOURNAL_DIR)
    disk.mkdir(home, status)
    disk.mkdir(home / "runs", status)
    run = Run(root, home / "runs" / (name if first else FRESH_RUN + name), tuple(parts))
    for path in (run.path, *(run.path / folder for folder in _FOLDERS)):
        disk.mkdir(path, status)
    elsewhere = {run.staged(number): step.content for number, step in enumerate(plan.steps)}
    made = make(run.path / "making", elsewhere, interrupted=interrupted, like=status)
    contents = stage(run, plan.steps, interrupted, made)
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


def make_last(run: Run) -> None:
    """Sync the names that lead to a run; from here on a failure is one of the run and no longer of its making."""
    disk.fsync_dir(run.path.parent)
    disk.fsync_dir(run.root)


def _number(run_id: str) -> int:
    head = run_id.split("-")[0]
    return int(head) if head.isdecimal() else 0


def touched_directories(root: Path, steps: Iterable[Step]) -> list[str]:
    """The existing directories in which steps make or remove names, relative to the root (`.`) or absolute."""
    existing = existing_folders(root)
    return sorted({".", *(existing(step.file) for step in steps if not isinstance(step, InPlace))})


_SLACK = 1 << 20
_PER_STEP = 16 << 10


def check_space(root: Path, plan: Plan) -> None:
    """`Refusal` if a file system that the plan writes to has fewer free bytes than it may need."""
    home = root / JOURNAL_DIR if (root / JOURNAL_DIR).is_dir() else root
    needed: dict[int, int] = defaultdict(int)
    journal = home.stat().st_dev
    places = {journal: home}
    needed[journal] += RESERVE + _SLACK + _PER_STEP * len(plan.steps)
    existing = existing_folders(root)
    for step in plan.steps:
        if isinstance(step, RetireFolder):
            continue
        path = resolve(root, step.file)
        content = allocated(step.content) if step.content is not None else 0
        place = path if path.exists() else resolve(root, existing(step.file))
        device = place.stat().st_dev
        places.setdefault(device, place)
        needed[journal] += content
        if isinstance(step, InPlace):
            needed[journal] += _data_bytes(path, step.start, step.stop)
            needed[device] += content
        elif device != journal:
            needed[device] += content
            needed[journal] += _data_bytes(path, 0, path.stat().st_size) if path.exists() else 0
    for device, place in places.items():
        free = _free(place)
        if free < needed[device]:
            raise Refusal(
                f"{needed[device]:,} bytes are needed on the file system of {place}, {free:,} are free",
                "make room, or write a recovered copy elsewhere with --output", needed=needed[device], free=free,
            )


def _data_bytes(path: Path, start: int, stop: int) -> int:
    fd = open_file(path)
    try:
        return sum(last - first for first, last in data_extents(fd, start, min(stop, os.fstat(fd).st_size)))
    finally:
        os.close(fd)


def _free(path: Path) -> int:
    status = os.statvfs(path)
    return (status.f_bfree if os.geteuid() == 0 else status.f_bavail) * status.f_frsize


# --- Compares a store with what a run's journal says of it, before the run is continued or taken back.


CHANGED = "something else worked on this store since: compare by hand, the saved bytes are in the journal's folder"


class Family(Protocol):
    """What a family of steps knows to do; each module `recover.step_*` is one."""

    def prepare(self, run: Run, number: int, step: Any, promised: set[str]) -> tuple[dict[str, Any], list[Path]]:
        """Save what the step will destroy; facts for the journal, what to sync before it is written."""

    def make_room(self, run: Run, number: int, step: Any) -> list[Path]:
        """Make the directories it needs; may be repeated. What to sync before it is done."""

    def perform(self, run: Run, number: int, step: Any) -> list[Path]:
        """Do it; may be repeated. What to sync."""

    def settle(self, run: Run, number: int, step: Any) -> dict[str, Any]:
        """Check it; size and mtime of the file afterwards."""

    def revert(self, run: Run, number: int, step: Any) -> list[Path]:
        """Take it back; may be repeated. What to sync."""

    def settle_reverted(self, run: Run, number: int, step: Any) -> dict[str, Any]:
        """Check that; size and mtime of the file afterwards."""

    def holds_new(self, run: Run, number: int, step: Any) -> bool:
        """Whether the file is as the step left it."""

    def holds_old(self, run: Run, number: int, step: Any) -> bool:
        """Whether the file is as it was before."""

    def holds_either(self, run: Run, number: int, step: Any) -> bool:
        """Whether a kill in between can have left this."""


def family(step: Step) -> Family:
    """The module that carries out a step."""
    if isinstance(step, InPlace):
        return step_in_place
    if isinstance(step, RetireFolder):
        return step_folder
    assert isinstance(step, Replace)
    return step_replace


def check_for_resume(run: Run, plan: Plan) -> None:
    """`Refusal` unless the store is just as the run left it, what it had not touched yet included."""
    check_same_store(plan, run.root)
    _check_staged(run, plan)
    _progress_check_check(run, plan, only_touched=False)
    check_watched(plan, run.root, same_inodes=False)
    check_changeable(run.root, plan.steps, run)


def check_for_undo(run: Run, plan: Plan) -> None:
    """`Refusal` naming the files that are not as the run left them."""
    if plan.parts:
        # A copied store may be undone where it is now, but not through paths that lead to the original.
        check_same_store(plan, run.root)
    _progress_check_check(run, plan, only_touched=True)
    touched = [step for step, status in zip(plan.steps, run.statuses, strict=True) if status != "untouched"]
    check_changeable(run.root, touched, run)


def _check_staged(run: Run, plan: Plan) -> None:
    """The content that is still to come was verified when it was staged; it may have lain there for long."""
    for number, step in enumerate(plan.steps):
        staged = run.staged(number)
        if step.content is None or (run.statuses[number] != "untouched" and not staged.exists()):
            continue
        known = file_crc(staged) if staged.exists() else None
        inline = isinstance(step, InPlace) and not isinstance(step.content, FileContent)
        if not inline and known != (step.content.size, step.content.crc32c):
            raise Refusal(
                f"the staged content for {step.file} is damaged", "run `mqtool undo`", file=step.file, run=run.id
            )


def _progress_check_check(run: Run, plan: Plan, *, only_touched: bool) -> None:
    statuses = run.statuses
    last = _last_looks(run, plan)
    changed: list[str] = []
    for number, step in enumerate(plan.steps):
        status = statuses[number]
        if isinstance(step, InPlace) and not (only_touched and status == "untouched"):
            check_alone(run.root, step.file)
        if status == "untouched" and (only_touched or step.file not in last):
            if not only_touched:
                compare(run.root, plan.preconditions[number], whole_file=not isinstance(step, InPlace))
            continue
        if step.file not in changed and not _as_left(run, number, step, status, last.get(step.file)):
            changed.append(step.file)
    if changed:
        names = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
        raise Refusal(
            f"{names} {'is' if len(changed) == 1 else 'are'} not as the run {run.id} left "
            f"{'it' if len(changed) == 1 else 'them'}", CHANGED, files=changed, run=run.id,
        )


def _last_looks(run: Run, plan: Plan) -> dict[str, dict[str, Any] | None]:
    """Size and mtime of each touched file after the last record about it; None while a step on it is half done."""
    looks: dict[str, dict[str, Any] | None] = {}
    for record in run.records:
        if "step" in record:
            looks[plan.steps[record["step"]].file] = record.get("after")
    for number, status in enumerate(run.statuses):
        if status in ("begun", "reverting"):
            looks[plan.steps[number].file] = None
    return looks


def _as_left(run: Run, number: int, step: Step, status: str, look: dict[str, Any] | None) -> bool:
    try:
        if isinstance(step, InPlace):
            state = observe(run.root, step.file)
            if not state.exists:
                return False
            if look is not None and (state.size, state.mtime_ns) != (look["size"], look["mtime_ns"]):
                return False
        hands = family(step)
        if status in ("untouched", "reverted"):
            return hands.holds_old(run, number, step)
        if status == "done":
            return hands.holds_new(run, number, step)
        return hands.holds_either(run, number, step)
    except OSError as error:
        raise Refusal(f"{step.file} cannot be read: {error.strerror}", file=step.file) from error
