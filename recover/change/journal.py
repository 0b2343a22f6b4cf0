"""The journal of a store: `STORE/.mqtool/runs/<id>/`, read and written.

1. A run holds `plan.json`, `journal.ndjson`, `staged/` (content to come), `preimages/` (overwritten bytes) and
   `retired/` (files that were replaced or removed). The format version of the whole folder is that of its plan.
2. Journal lines start with a newline and carry the CRC-32C of their body, so a line torn by a kill is skipped and never
   hides the next one.
3. With `--journal DIR` the three folders of contents, the undo data, are in a folder of DIR, which the start record
   names. It names its store and run in return: one that does not is not touched. Folders that leave the store whole
   (`RetireFolder`) stay in the store's own `retired/`, where that is a rename.
4. A run is built aside and appears by one rename; what a killed one left before that, `tidy` removes, in DIR too.
5. Pruning a run that has ended removes its undo data for good, after a record that says so.
"""

from __future__ import annotations

import json
import os
import platform
import pwd
import shlex
import stat
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field

from recover import version
from recover.change import disk
from recover.change.content import INLINE_LIMIT, DeferredContent, Writes
from recover.change.lock import ROOT_MTIME
from recover.change.model import InPlace, Plan, Step, canonical, document, existing_folders, load_plan, stage
from recover.change.owner import acting_owner, oneself
from recover.change.places import RESERVE, Places
from recover.findings.code import N_, Refusal
from recover.findings.model import Finding, Phrase, finding, without_secrets
from recover.store.reading import crc32c, file_crc, identity
from recover.store.source import read_small, url_of
from recover.store.store import JOURNAL_DIR, check_journal_folder

State = Literal["applied", "unfinished", "undone", "undoing"]
StepStatus = Literal["untouched", "begun", "done", "reverting", "reverted"]
FRESH_RUN = ".new-"
FRESH_JOURNAL = f"{JOURNAL_DIR}-new-"
_FOLDERS = ("staged", "preimages", "retired")
_PLACE, _BOND = "undo-data-in", "run.json"
"""In a run's folder, the place of its undo data; in that place, the store and the run that it belongs to."""
_STATUS: dict[str, StepStatus] = {"begin": "begun", "done": "done", "revert": "reverting", "reverted": "reverted"}
_STATES: dict[str, State] = {"finish": "applied", "undo": "undoing", "undone": "undone"}


class RunInfo(Struct, frozen=True, rename={"plan_path": "plan"}):
    """One run according to its journal. Times in ms since the epoch; `plan_path` is relative to the store root.

    `undo_data`: the folder that `--journal` put them in; None in the store. `pruned_ms`: when they were removed.
    """

    id: str
    plan_id: str
    command: str
    state: State
    started_ms: int
    ended_ms: int | None
    steps: int
    steps_done: int
    steps_begun: int
    plan_path: str
    reason: str | None = None
    user: str = ""
    host: str = ""
    tool: str = ""
    command_line: str = ""
    undo_data: str | None = None
    pruned_ms: int | None = None

    @property
    def journal(self) -> str:
        """Folder of the run, relative to the store root."""
        return self.plan_path.removesuffix("/plan.json")


class Run(Struct, dict=True):
    """A run's folder and its journal so far (`records`, extended by `add`).

    `statuses`: progress of each step; `begins`: the facts recorded before each step began; `promised`: directories that
    begun steps create. `parts`: folders outside of the root that the command was given. `read_back`: identity of the
    file staged for a step that this process or its executors have read back. `elsewhere`: the folder of its undo data,
    if that is not its own.
    """

    root: Path
    path: Path
    parts: tuple[str, ...] = ()
    records: list[dict[str, Any]] = field(default_factory=list)
    state: State = "unfinished"
    statuses: list[StepStatus] = field(default_factory=list)
    promised: set[str] = field(default_factory=set)
    read_back: dict[int, tuple[int, ...]] = field(default_factory=dict)
    begins: dict[int, dict[str, Any]] = field(default_factory=dict)
    elsewhere: Path | None = None
    pruned_ms: int | None = None

    def add(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        event = record["event"]
        self.state = _STATES.get(event, self.state)
        if event == "start":
            self.statuses = ["untouched"] * int(record["steps"])
            self.elsewhere = Path(record["undo_data"]) if "undo_data" in record else None
        if event == "prune":
            self.pruned_ms = int(record["at"])
        if event in _STATUS:
            self.statuses[record["step"]] = _STATUS[event]
        if event == "begin":
            self.begins[record["step"]] = record
            self.promised.update(record.get("mkdirs", ()))

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def journal(self) -> Path:
        return self.path / "journal.ndjson"

    @cached_property
    def plan(self) -> Plan:
        """The plan as it is carried out, its content in `staged`.

        `Refusal` if it cannot be read, if it or the journal names anything but what its steps concern in the store's
        own parts, or if the run's folder contains anything that leads out of it.
        """
        if self.elsewhere is not None and self.pruned_ms is None:
            self._check_bond(self.elsewhere)
        plan = load_plan(self.path / "plan.json", sidecar="staged", beside=self.data)
        if len(plan.steps) != len(self.statuses):
            raise self._made_up(Phrase("has {n} steps, its plan {planned}", n=len(self.statuses),
                                       planned=len(plan.steps)))
        own = {"."}
        places = Places(self.root, self.parts)
        places.check_plan(plan)
        for step in plan.steps:
            own.update(places.folders_of(step))
        for name in (*self.header["directories"], *self.promised):
            if name not in own:
                raise self._made_up(Phrase("names {name}, which its plan does not change", name=repr(name)))
        self._check_folder()
        return plan

    def _check_folder(self) -> None:
        for folder in [place / name for place in self.places for name in _FOLDERS]:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if folder.name != "retired" and not entry.is_file(follow_symlinks=False):
                        raise self._made_up(Phrase("has {folder}/{file}, which is not a file", folder=folder.name,
                                                   file=entry.name))
                    if not (entry.name.isascii() and entry.name.isdecimal()):
                        raise self._made_up(Phrase("has {folder}/{file}, which no step created", folder=folder.name,
                                                   file=entry.name))
        if os.lstat(self.journal).st_nlink > 1:
            raise self._made_up(N_("has a journal file with another name elsewhere"))

    def _check_bond(self, data: Path) -> None:
        """`Refusal` unless the folder of the undo data is there, and says that it belongs to this run."""
        try:
            for name in ("", *_FOLDERS):
                if not stat.S_ISDIR(os.lstat(data / name).st_mode):
                    raise self._made_up(Phrase("has its undo data in {folder}, which is not a folder",
                                           folder=data / name))
        except OSError as error:
            raise Refusal(Phrase("the undo data of run {id} are in {data}, and cannot be read there: {error}",
                                 id=self.id, data=data, error=error.strerror),
                          "mount that disk in its place again, or put a link there to where it is now; then run the "
                          "command again", run=self.id, file=str(data)) from error
        if not is_bound(data, self.root, self.id):
            raise self._made_up(Phrase("names {data} as the place of its undo data, and that folder belongs to another "
                                       "run",
                                       data=data))

    def _made_up(self, what: str) -> Refusal:
        return Refusal(Phrase("the run {id} {what}: it is not as mqtool left it; nothing was changed by this command",
                              id=self.id, what=what),
                       Phrase("move {folder} out of the store to work without it",
                              folder=self.path.relative_to(self.root)), run=self.id)

    @property
    def data(self) -> Path:
        """The folder of its undo data."""
        return self.elsewhere or self.path

    @property
    def places(self) -> list[Path]:
        """The folders that hold something of it: its own, and that of its undo data while they are there."""
        return [self.path] if self.elsewhere is None or self.pruned_ms else [self.path, self.elsewhere]

    def staged(self, step: int) -> Path:
        return self.data / f"staged/{step:06d}"

    def preimage(self, step: int) -> Path:
        """The file with the bytes that an in-place step overwrites."""
        return self.data / f"preimages/{step:06d}"

    def retired(self, step: int) -> Path:
        return self.data / f"retired/{step:06d}"

    def retired_folder(self, step: int) -> Path:
        return self.path / f"retired/{step:06d}"

    def kept(self) -> list[Path]:
        """The possible places of the new and the replaced files of its steps."""
        every = (self.staged, self.retired, self.retired_folder) if self.elsewhere else (self.staged, self.retired)
        return [place(number) for number in range(len(self.statuses)) for place in every]

    @property
    def header(self) -> dict[str, Any]:
        """The first record: plan, command, number of steps, mtimes of the directories that the steps change."""
        return self.records[0]

    def info(self) -> RunInfo:
        state, last = self.state, self.records[-1]
        reasons = [record["reason"] for record in self.records if "reason" in record]
        return RunInfo(
            id=self.id, plan_id=str(self.header["plan"]), command=str(self.header["command"]), state=state,
            started_ms=int(self.header["at"]), ended_ms=int(last["at"]) if state in ("applied", "undone") else None,
            steps=int(self.header["steps"]), steps_done=self.statuses.count("done"),
            steps_begun=sum(status in ("begun", "reverting") for status in self.statuses),
            plan_path=(self.path / "plan.json").relative_to(self.root).as_posix(),
            reason=str(reasons[-1]) if reasons else None, pruned_ms=self.pruned_ms,
            undo_data=None if self.elsewhere is None else str(self.elsewhere),
            **{name: str(self.header.get(name, "")) for name in ("user", "host", "tool", "command_line")},
        )


def encode_record(body: dict[str, Any]) -> bytes:
    """A journal line: newline, JSON of body and checksum, newline."""
    text = canonical(body)
    return b'\n{"body":%b,"crc32c":%d}\n' % (text, crc32c(text))


def decode_records(data: bytes) -> list[dict[str, Any]]:
    """Return the records of a journal without torn lines; `Refusal` if a record in the middle is missing."""
    records: list[dict[str, Any]] = []
    for line in data.split(b"\n"):
        try:
            value = json.loads(line)
            body = value["body"]
            if not isinstance(body, dict) or crc32c(canonical(body)) != value["crc32c"]:
                continue
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        if body.get("seq") != len(records):
            raise Refusal(Phrase("the journal lacks a record: number {n}, found {found}", n=len(records),
                                 found=body.get("seq")))
        records.append(body)
    return records


def open_run(root: Path, path: Path, parts: Iterable[Path | str] = ()) -> Run:
    """Read one run; `Refusal` if its journal is unusable. `parts`: folders outside of the root that the command was
    given."""
    run = Run(root, path, tuple(map(str, parts)))
    try:
        _check_shape(path)
        for record in decode_records(read_small(run.journal, run.journal.stat().st_size)):
            run.add(record)
        if not run.records or run.header["event"] != "start":
            raise Refusal("it has no start")
        if run.elsewhere is not None and not run.elsewhere.is_absolute():
            raise Refusal("the place of its undo data is not an absolute path")
        run.info()
        if not all(isinstance(mtime_ns, int) for mtime_ns in run.header["directories"].values()):
            raise Refusal("a time is not a number")
    except OSError as error:
        raise Refusal(Phrase("the journal of run {name} cannot be read: {error}", name=path.name, error=error.strerror),
                      run=path.name) from error
    except Refusal as error:
        raise Refusal(Phrase("the journal of run {name} is damaged: {message}", name=path.name, message=error.message),
                      Phrase("its saved bytes are in {folder}/runs/{name}; nothing was changed by this command",
                             folder=JOURNAL_DIR, name=path.name), run=path.name) from error
    except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        raise Refusal(Phrase("the journal of run {name} is damaged: {error}", name=path.name, error=repr(error)),
                      run=path.name) from error
    return run


def _check_shape(path: Path) -> None:
    """`Refusal` if a run's folder, a folder in it, or its plan or journal is a link or of another type."""
    for name in ("", *_FOLDERS, "plan.json", "journal.ndjson"):
        is_document = "." in name
        mode = (path / name).lstat().st_mode
        if not (stat.S_ISREG(mode) if is_document else stat.S_ISDIR(mode)):
            raise Refusal(Phrase("{file} is not a file" if is_document else "{file} is not a folder",
                                 file=name or path.name))


def runs(root: Path, parts: Iterable[Path | str] = ()) -> list[Run]:
    """All runs, oldest first. `parts`: folders outside of the root that the command was given."""
    parts = tuple(parts)
    check_journal_folder(root)
    try:
        paths = sorted((root / JOURNAL_DIR / "runs").iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise Refusal(Phrase("the journal cannot be read: {error}", error=error.strerror),
                      "run as the user who created it") from error
    return [open_run(root, path, parts) for path in paths
            if not path.name.startswith(".") and (path.is_symlink() or path.is_dir())]


def journal(root: Path) -> list[RunInfo]:
    """The history of this store, oldest run first; empty if there is none. Read-only."""
    return [run.info() for run in runs(root)]


def open_runs(root: Path, parts: Iterable[Path | str] = ()) -> list[Run]:
    """The runs that were neither finished nor undone: at most one, unless journals were copied."""
    return [run for run in runs(root, parts) if run.state in ("unfinished", "undoing")]


def run_findings(root: Path, parts: Iterable[Path | str] = ()) -> list[Finding]:
    """Findings about earlier runs: one that is not complete, a journal that is unusable."""
    found = []
    try:
        for run in open_runs(root, parts):
            if url_of(root) is None:
                _ = run.plan  # do not recommend resume or undo where they would refuse
            info = run.info()
            found.append(finding(
                "run-unfinished", info.plan_path, run=info.id, command=info.command, state=info.state,
                steps=info.steps, steps_done=info.steps_done, steps_begun=info.steps_begun,
            ))
        return found
    except Refusal as refusal:
        return [finding("run-journal-damaged", JOURNAL_DIR, reason=refusal.message)]


def leftovers(root: Path) -> list[Path]:
    """What `recover.change.journal.tidy` removes: runs killed before they touched the store, a recorded mtime."""
    check_journal_folder(root)
    found = [*root.glob(f"{FRESH_JOURNAL}*"), *(root / JOURNAL_DIR / "runs").glob(f"{FRESH_RUN}*")]
    return found + [path for path in [root / ROOT_MTIME] if path.exists()]


# --- Writing: a run is built aside, with all its content, and then appears by one rename.


def record(run: Run, event: str, **facts: Any) -> None:
    """Append a record to the journal and sync it."""
    record_all(run, event, [facts])


def record_all(run: Run, event: str, facts: Iterable[dict[str, Any]]) -> None:
    """Append several records of one event with one write and one sync."""
    now = time.time_ns() // 1_000_000
    bodies = [
        {"event": event, "seq": number, "at": now, **each} for number, each in enumerate(facts, len(run.records))
    ]
    if bodies:
        try:
            disk.append(run.journal, b"".join(encode_record(body) for body in bodies))
        except OSError:
            # records that reached the file count, synced or not: later ones must not repeat their numbers
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
        for note in (path / _PLACE, *path.glob(f"runs/*/{_PLACE}")):
            _remove_undo_data(root, note)
        disk.remove_tree(path)
        mtime = path.name.removeprefix(FRESH_JOURNAL)
        if mtime.isdecimal():
            disk.set_times(root, int(mtime))


def _remove_undo_data(root: Path, note: Path) -> None:
    """Remove the undo data of a run that never began, if the folder that its `note` names is its own."""
    if note.is_symlink() or not note.is_file():
        return
    data, run = Path(os.fsdecode(note.read_bytes())), note.parent.name.removeprefix(FRESH_RUN)
    with suppress(FileNotFoundError, NotADirectoryError):
        # one without a bond was made a moment before the kill: it holds nothing
        is_bare = data.is_absolute() and set(os.listdir(data)) <= {_BOND} and f"-{run}" in data.name
        if is_bare or is_bound(data, root, run):
            disk.remove_tree(data)


def is_bound(data: Path, root: Path, run: str) -> bool:
    """Whether a folder of undo data says that it belongs to this run of this store, by the path or inode of its
    root."""
    try:
        with os.fdopen(os.open(data / _BOND, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
            said = json.loads(file.read(_LARGEST_BOND))
        is_same = said["store"] == str(root.resolve()) or said["inode"] == root.stat().st_ino
        return bool(said["run"] == run and is_same)
    except (OSError, ValueError, TypeError, KeyError):
        return False


_LARGEST_BOND = 64 << 10


def _make_elsewhere(run: Run, name: str, journal: Path, status: os.stat_result) -> None:
    """Make the folder for the undo data of a new run, which names the run and its store; note it in the run first."""
    store = run.root.resolve()
    names = (f"{store.name}-{name}{more}" for more in ("", *(f"-{number}" for number in range(2, 1000))))
    run.elsewhere = next(journal / each for each in names if not os.path.lexists(journal / each))
    disk.create_file(run.path / _PLACE, [os.fsencode(run.elsewhere)])
    disk.sync_all([run.path, run.path.parent, run.path.parent.parent, run.root])
    disk.mkdir(run.elsewhere, status)
    bond = {"run": name, "store": str(store), "inode": run.root.stat().st_ino}
    disk.create_file(run.elsewhere / _BOND, [canonical(bond)])
    for folder in _FOLDERS:
        disk.mkdir(run.elsewhere / folder, status)


def prune(run: Run) -> None:
    """Remove the undo data of a run that has ended, for good."""
    data = run.elsewhere
    if run.pruned_ms is None:
        _ = run.plan  # whose undo data are not as mqtool left them: a refusal
        record(run, "prune")
    if data is not None and is_bound(data, run.root, run.id):
        disk.remove_tree(data)
    for folder in _FOLDERS:
        for name in sorted(os.listdir(run.path / folder)):
            disk.remove_tree(run.path / folder / name)
        disk.fsync_dir(run.path / folder)


def kept_bytes(run: Run) -> int:
    """How many bytes on disk go with the undo data of a run: not those that a file of the store still holds."""
    total = 0
    for place in {run.path, run.data}:
        for folder in _FOLDERS:
            for path in (place / folder).rglob("*"):
                with suppress(OSError):
                    status = path.lstat()
                    total += status.st_blocks * 512 if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 else 0
    return total


def start(
    root: Path, plan: Plan, interrupted: Callable[[], bool], parts: Iterable[str] = (), journal: Path | None = None
) -> Run:
    """Build a run for a plan and register it; `journal`: the folder that takes its undo data, if not the store. After a
    failure only what `tidy` removes is left."""
    status = os.stat(root)
    name = f"{max([0, *(_number(run.id) for run in runs(root))]) + 1:06d}-{plan.id}"
    existing = existing_folders(root)
    # the folders in which steps create or remove names
    touched = sorted({".", *(existing(step.file) for step in plan.steps if not isinstance(step, InPlace))})
    directories = {path: os.stat(root / path).st_mtime_ns for path in touched}
    first = not (root / JOURNAL_DIR).exists()
    # the name keeps the root's mtime, which creating this directory changes, for `tidy`
    home = root / (f"{FRESH_JOURNAL}{status.st_mtime_ns}" if first else JOURNAL_DIR)
    disk.mkdir(home, status)
    disk.mkdir(home / "runs", status)
    run = Run(root, home / "runs" / (name if first else FRESH_RUN + name), tuple(parts))
    for path in (run.path, *(run.path / folder for folder in _FOLDERS)):
        disk.mkdir(path, status)
    if journal is not None:
        _make_elsewhere(run, name, journal, status)
    contents = _stage(run, plan.steps, interrupted)
    disk.create_file(run.path / "plan.json", [document(plan, contents, "staged")])
    # freed when the disk is full, so that reverting the steps can still be recorded
    disk.create_file(run.path / "reserve", [b"\xff" * (RESERVE + 1024 * len(plan.steps))])
    record(
        run, "start", plan=plan.id, command=plan.command, steps=len(plan.steps), directories=directories,
        store=str(root.resolve()), **_who(), **({"undo_data": str(run.elsewhere)} if run.elsewhere else {}),
    )
    if run.elsewhere is not None:
        disk.sync_all([run.elsewhere / "staged", run.elsewhere, run.elsewhere.parent])
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
    """User, host, tool and command line, for the journal."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    login = os.environ.get("SUDO_USER", "")
    return {
        "user": f"{user} ({login})" if login else user, "host": platform.node(), "tool": f"mqtool {version()}",
        "command_line": shlex.join(["mqtool", *without_secrets(sys.argv[1:])]),
    }


def _number(run_id: str) -> int:
    head = run_id.split("-")[0]
    return int(head) if head.isdecimal() else 0


def _stage(run: Run, steps: Sequence[Step], interrupted: Callable[[], bool]) -> list[dict[str, Any] | None]:
    """Return where the content of each step is kept, None for a step without; all is synced. Whole files are staged.

    `OSError`; `Refusal` if content reads back differently; `Interrupted`. After any of these nothing more is written.
    """

    def is_staged(step: Step) -> bool:
        return step.content is not None and not (isinstance(step, InPlace) and step.content.size <= INLINE_LIMIT)

    neighbour, existing = cache(_neighbour), existing_folders(run.root)

    def like(step: Step) -> disk.Like | None:
        """Owner and mode as the broker left them on the old file or its neighbours, and the old file's xattrs."""
        target = run.root / step.file
        if isinstance(step, InPlace):
            return None
        return disk.like_of(target) if target.exists() else neighbour(run.root / existing(step.file))

    kept, made = stage(run.data / "staged", steps, is_staged, interrupted, os.stat(run.root), like)
    elsewhere: dict[Writes, dict[Path, tuple[int, int]]] = {}
    for number, step in enumerate(steps):
        if isinstance(step.content, DeferredContent):
            path = run.staged(number)
            run.read_back[number] = identity(path)
            elsewhere.setdefault(step.content.producer, {})[path] = made[path]
    for producer, files in elsewhere.items():
        with oneself():
            producer.read_back(files, interrupted)
    for number, step in enumerate(steps):
        path, content = run.staged(number), step.content
        if content is None or path not in made:
            continue
        if isinstance(content, DeferredContent) and (own := like(step)) is not None:
            if (owner := acting_owner()) is not None and os.stat(path).st_uid != owner.uid:
                raise Refusal(Phrase("executors wrote as uid {uid}, and the store belongs to {owner}",
                                     uid=os.stat(path).st_uid, owner=owner),
                              "Run Spark's workers as that user, or with --engine local.")
            disk.dress(path, own)
        if number not in run.read_back:
            run.read_back[number] = identity(path)
            if file_crc(path) != made[path] or made[path][0] != content.size:
                raise Refusal(Phrase("what was written for {file} reads back differently", file=step.file),
                              "check the disk", file=step.file)
    disk.sync_all(made)
    return kept


def _neighbour(directory: Path) -> disk.Like:
    """The owner and mode that a new file in a directory gets."""
    parent = os.stat(directory)
    for name in sorted(os.listdir(directory)):
        status = os.lstat(directory / name)
        if stat.S_ISREG(status.st_mode) and status.st_uid == parent.st_uid:
            return disk.Like.of(status)
    return disk.Like(parent.st_uid, parent.st_gid, disk.MODE)
