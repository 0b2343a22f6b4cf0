"""What was done to a store: `STORE/.mqtool/runs/<id>/`, read only (writing is `recover.apply.run`).

A run holds `plan.json`, `journal.ndjson`, `staged/` (content to come), `preimages/` (bytes that were overwritten) and
`retired/` (files that were replaced or taken away). Journal lines start with a newline and carry the CRC-32C of their
body, so a line torn by a kill is passed over and never hides the next one. The format version of the whole folder is
that of its plan.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field

from recover.crc import crc32c
from recover.disk.lock import ROOT_MTIME
from recover.errors import Refusal
from recover.findings import Finding, finding
from recover.plan.model import JOURNAL_DIR, Plan
from recover.plan.plan_file import canonical, load_plan

State = Literal["applied", "unfinished", "undone", "undoing"]
StepStatus = Literal["untouched", "begun", "done", "reverting", "reverted"]
FRESH_RUN = ".new-"
FRESH_JOURNAL = f"{JOURNAL_DIR}-new-"
_STATUS: dict[str, StepStatus] = {"begin": "begun", "done": "done", "revert": "reverting", "reverted": "reverted"}
_STATES: dict[str, State] = {"finish": "applied", "undo": "undoing", "undone": "undone"}


class RunInfo(Struct, frozen=True):
    """One run as the journal tells it. Times in ms since the epoch; `plan_path` is relative to the store root."""

    id: str
    plan_id: str
    command: str
    state: State
    started_ms: int
    ended_ms: int | None
    steps: int
    steps_done: int
    plan_path: str
    reason: str | None = None

    def json(self) -> dict[str, Any]:
        """The run as `mqtool journal` shows it."""
        return {
            "id": self.id, "plan_id": self.plan_id, "command": self.command, "state": self.state,
            "started_ms": self.started_ms, "ended_ms": self.ended_ms, "steps": self.steps,
            "steps_done": self.steps_done, "plan": self.plan_path, "reason": self.reason,
        }


class Run(Struct, dict=True):
    """A run's folder and what its journal says so far (`records`, added to with `add`).

    `statuses`: how far each step is; `promised`: the directories that begun steps make. `compared`: staged files that
    this process read back, as `identity` knows them.
    """

    root: Path
    path: Path
    records: list[dict[str, Any]] = field(default_factory=list)
    statuses: list[StepStatus] = field(default_factory=list)
    promised: set[str] = field(default_factory=set)
    compared: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _begins: dict[int, dict[str, Any]] = field(default_factory=dict)

    def add(self, record: dict[str, Any]) -> None:
        """Take in the next record."""
        self.records.append(record)
        event = record["event"]
        if event == "start":
            self.statuses = ["untouched"] * int(record["steps"])
        if event in _STATUS:
            self.statuses[record["step"]] = _STATUS[event]
        if event == "begin":
            self._begins[record["step"]] = record
            self.promised.update(record.get("mkdirs", ()))

    @property
    def id(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def journal(self) -> Path:
        """The journal file."""
        return self.path / "journal.ndjson"

    @cached_property
    def plan(self) -> Plan:
        """The plan as it is carried out, its content in `staged`.

        `Refusal` if it cannot be read, or if the journal names directories that none of its steps has to do with.
        """
        plan = load_plan(self.path / "plan.json")
        own = {str(path) for step in plan.steps for path in Path(step.file).parents} | {"."}
        made = (name for facts in self._begins.values() for name in facts.get("mkdirs", ()))
        for name in (*self.header["directories"], *made):
            if name not in own:
                raise Refusal(f"the journal of run {self.id} names {name!r}, where its plan changes nothing",
                              "somebody changed it; nothing was changed now", run=self.id)
        return plan

    def staged(self, step: int) -> Path:
        """Where the new content of a step is."""
        return self.path / f"staged/{step:06d}"

    def preimage(self, step: int) -> Path:
        """Where the bytes are that an in-place step overwrites."""
        return self.path / f"preimages/{step:06d}"

    def retired(self, step: int) -> Path:
        """Where the file is that a step replaced or took away."""
        return self.path / f"retired/{step:06d}"

    @property
    def header(self) -> dict[str, Any]:
        """The first record: plan, command, number of steps, mtimes of the directories that the steps change."""
        return self.records[0]

    def begin_record(self, step: int) -> dict[str, Any]:
        """What was noted just before a step began."""
        return self._begins[step]

    @property
    def state(self) -> State:
        """How the run stands."""
        state: State = "unfinished"
        for record in self.records:
            state = _STATES.get(record["event"], state)
        return state

    def info(self) -> RunInfo:
        """The run as a value."""
        state = self.state
        last = self.records[-1]
        reasons = [record["reason"] for record in self.records if "reason" in record]
        return RunInfo(
            id=self.id, plan_id=str(self.header["plan"]), command=str(self.header["command"]), state=state,
            started_ms=int(self.header["at"]), ended_ms=int(last["at"]) if state in ("applied", "undone") else None,
            steps=int(self.header["steps"]), steps_done=self.statuses.count("done"),
            plan_path=(self.path / "plan.json").relative_to(self.root).as_posix(),
            reason=str(reasons[-1]) if reasons else None,
        )


def encode_record(body: dict[str, Any]) -> bytes:
    """A journal line: newline, JSON of body and checksum, newline."""
    return b"\n" + canonical({"body": body, "crc32c": crc32c(canonical(body))}) + b"\n"


def decode_records(data: bytes) -> list[dict[str, Any]]:
    """The records of a journal, torn lines left out; `Refusal` if a record in the middle is missing."""
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
            raise Refusal(f"the journal lacks a record: number {len(records)}, found {body.get('seq')}")
        records.append(body)
    return records


def open_run(root: Path, path: Path) -> Run:
    """Read one run; `Refusal` if its journal cannot be used."""
    run = Run(root, path)
    try:
        for record in decode_records(run.journal.read_bytes()):
            run.add(record)
        if not run.records or run.header["event"] != "start":
            raise Refusal("it has no start")
        run.info()
        if not all(isinstance(mtime_ns, int) for mtime_ns in run.header["directories"].values()):
            raise Refusal("a time is no number")
    except OSError as error:
        raise Refusal(f"the journal of run {path.name} cannot be read: {error.strerror}", run=path.name) from error
    except Refusal as error:
        raise Refusal(
            f"the journal of run {path.name} is damaged: {error.message}",
            f"its saved bytes are in {JOURNAL_DIR}/runs/{path.name}; nothing was changed now", run=path.name,
        ) from error
    except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        raise Refusal(f"the journal of run {path.name} is damaged: {error!r}", run=path.name) from error
    return run


def runs(root: Path) -> list[Run]:
    """All runs, oldest first."""
    return [open_run(root, path) for path in _run_paths(root)]


def _run_paths(root: Path) -> Iterator[Path]:
    folder = root / JOURNAL_DIR / "runs"
    try:
        paths = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise Refusal(f"the journal cannot be read: {error.strerror}", "run as the user who made it") from error
    yield from (path for path in paths if not path.name.startswith(".") and path.is_dir())


def journal(root: Path) -> list[RunInfo]:
    """What was done to this store, oldest first; empty if nothing ever was. Reads only."""
    return [run.info() for run in runs(root)]


def open_runs(root: Path) -> list[Run]:
    """The runs that were neither finished nor undone: at most one, unless somebody copied journals."""
    return [run for run in runs(root) if run.state in ("unfinished", "undoing")]


def run_findings(root: Path) -> list[Finding]:
    """What a reading command says of earlier runs: one that is not complete, a journal that cannot be used."""
    try:
        return [
            finding(
                "run-unfinished", info.plan_path, run=info.id, command=info.command, state=info.state,
                steps=info.steps, steps_done=info.steps_done,
            )
            for info in (run.info() for run in open_runs(root))
        ]
    except Refusal as refusal:
        return [finding("run-journal-damaged", JOURNAL_DIR, reason=refusal.message)]


def leftovers(root: Path) -> list[Path]:
    """What `recover.apply.run.tidy` clears away: runs killed before they touched the store, a note of an mtime."""
    found = [*root.glob(f"{FRESH_JOURNAL}*"), *(root / JOURNAL_DIR / "runs").glob(f"{FRESH_RUN}*")]
    return found + [path for path in [root / ROOT_MTIME] if path.exists()]
