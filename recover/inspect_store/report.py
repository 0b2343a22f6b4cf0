"""One screen's worth of facts about a store, without reading all of it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from formats import abort
from formats.checkpoint import EMPTY
from formats.config import BACKUP_SUFFIX, CONFIG_FILES
from formats.errors import FormatError
from recover.broker.recovery import Mode, start_file
from recover.broker.settings import BrokerSettings
from recover.broker.versions import BrokerVersion, boundaries
from recover.disk.lock import holder_text, probe
from recover.files.config_files import ConfigText, read_config
from recover.files.reader import read_small
from recover.files.store import COMMITLOG, Store
from recover.files.unread import held_elsewhere
from recover.index.files import index_geometry
from recover.inspect_store.evidence import Evidence, Generation, find_generation
from recover.inspect_store.parts import Part, list_parts
from recover.inspect_store.pointers import Pointers, find_pointers
from recover.inspect_store.starts import LogFiles

__all__ = ["ConfigHealth", "Evidence", "ExitState", "Generation", "Part", "Pointers", "Start", "StoreReport",
           "inspect_store"]


class ExitState(Struct, frozen=True):
    """How the last broker stopped. `holder` is the pid that has the lock (-1: unknown), None if nobody has."""

    abort: bool
    abort_pid: int | None
    crashed_before: bool
    lock_file: bool
    holder: int | None
    holder_text: str = ""

    @property
    def verdict(self) -> str:
        """running, unclean or clean."""
        if self.holder is not None:
            return "running"
        return "unclean" if self.abort else "clean"

    def json(self) -> dict[str, object]:
        """The keys of the document."""
        return {
            "verdict": self.verdict, "abort": self.abort, "abort_pid": self.abort_pid,
            "crashed_before_last_start": self.crashed_before, "lock_file": self.lock_file, "lock_holder": self.holder,
            "lock_holder_is": self.holder_text or None,
        }


class ConfigHealth(Struct, frozen=True):
    """One config file: `state` is "whole", "missing", or what is wrong; `backup` the same for its .bak."""

    name: str
    state: str
    backup: str
    if_lost: str

    def json(self) -> dict[str, str]:
        """The keys of the document."""
        return {"name": self.name, "state": self.state, "backup": self.backup}


class Start(Struct, frozen=True):
    """What a release (and the later ones up to the next in the list) would do first: mode and file."""

    broker: BrokerVersion
    mode: Mode
    file: str | None
    matched: bool

    def json(self) -> dict[str, object]:
        """The keys of the document."""
        return {"mode": self.mode, "file": self.file, "matched": self.matched}


class StoreReport(Struct):
    """All of it."""

    root: str
    parts: list[Part]
    sizes: dict[str, int | None]
    generation: Generation
    pointers: Pointers
    exit_state: ExitState
    config: list[ConfigHealth]
    starts: list[Start]
    log_files: int
    gaps: list[tuple[int, int]]
    elsewhere: frozenset[str] = frozenset()

    @property
    def log_is_gone(self) -> bool:
        """Queues or index without any log: the log's disk may not be mounted, and a start would delete them."""
        left = self.pointers.queues or self.pointers.index_files
        return not self.log_files and COMMITLOG not in self.elsewhere and bool(left)

    def json(self) -> dict[str, object]:
        """The keys of the document."""
        queues = self.pointers.queues
        return {
            "parts": [part.json() for part in self.parts], "sizes": self.sizes, "generation": self.generation.json(),
            "offsets": self.pointers.json(), "exit_state": self.exit_state.json(),
            "start_file": {str(start.broker): start.json() for start in self.starts},
            "config": [item.json() for item in self.config],
            "topics": {topic: {str(number): end for number, end in ends.items()} for topic, ends in queues.items()},
            "index_files": [{"name": name, **header._asdict()} for name, header in self.pointers.index_files],
            "log_files": self.log_files, "gaps": [list(gap) for gap in self.gaps],
        }


def inspect_store(store: Store, versions: Sequence[BrokerVersion] = ()) -> StoreReport:
    """Look at every part once; `versions` are the releases whose start file is asked for (default: each generation)."""
    pointers = find_pointers(store)
    geometry = index_geometry(store) if pointers.index_files else None
    sizes = {
        "mapped_file_size": store.mapped_file_size, "queue_file_size": store.queue_file_size,
        "index_slots": geometry.slots if geometry else None, "index_entries": geometry.entries if geometry else None,
    }
    return StoreReport(
        str(store.root), list_parts(store), sizes, find_generation(store, pointers.checkpoint), pointers,
        exit_state(store), config_health(store), list(_starts(store, pointers, versions or boundaries())),
        len(store.commitlog.files), store.commitlog.gaps(), frozenset(held_elsewhere(store)),
    )


def exit_state(store: Store) -> ExitState:
    """How the store was stopped, or by whom it is held. `Refusal` when the lock file may not be read."""
    pid = _abort_pid(store.abort_path)
    before = _abort_pid(store.root / abort.BACKUP_NAME)
    holder = probe(store.root)
    who = "" if holder is None else holder_text(store.root, holder)
    return ExitState(store.has_abort, pid, before is not None, store.lock_path.exists(), holder, who)


def _abort_pid(path: Path) -> int | None:
    with contextlib.suppress(OSError, FormatError):
        return abort.decode(read_small(path, 64))
    return None


def config_health(store: Store) -> list[ConfigHealth]:
    """Every known config file that is there, or whose backup is."""
    found = []
    for known in CONFIG_FILES:
        path = store.config_dir / known.name
        state = _config_state(read_config(path, known))
        backup = _config_state(read_config(path.with_name(known.name + BACKUP_SUFFIX), known))
        if (state, backup) != ("missing", "missing"):
            found.append(ConfigHealth(known.name, state, backup, known.lost))
    return found


def _config_state(text: ConfigText) -> str:
    if text.error:
        return f"cannot be read: {text.error}"
    if not text.missing and text.parsed.error is not None:
        return text.parsed.error.reason
    return "whole" if text.state == "sound" else text.state


def _starts(store: Store, pointers: Pointers, versions: Sequence[BrokerVersion]) -> list[Start]:
    mode: Mode = "abnormal" if store.has_abort else "normal"
    log = LogFiles(store)
    starts = []
    for version in versions:
        if not log.files:
            starts.append(Start(version, mode, None, False))
            continue
        dispatched = -1 if pointers.dispatched_to is None else pointers.dispatched_to
        found = start_file(log, mode, BrokerSettings(version), pointers.checkpoint or EMPTY, dispatched)
        starts.append(Start(version, mode, log.files[found.index].name, found.matched))
    return starts
