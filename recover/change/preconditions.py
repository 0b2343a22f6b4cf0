"""The state that a plan is based on, recorded when it is sealed and compared before its first step.

For every touched file: whether it exists, its size and mtime, and the CRC-32C of what the step touches (the range of an
in-place step, all of a replaced file). In addition, files that a starting broker always changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import structs

from recover.change.content import LazyContent
from recover.change.journal import runs
from recover.change.lock import is_own_lock_file
from recover.change.model import FileState, InPlace, Install, Plan, RetireFolder, Step, StoreIdentity, changed_file
from recover.findings.code import BY_HAND, N_, Refusal
from recover.findings.model import Phrase
from recover.store.memo import Stamp, stamp_of
from recover.store.reading import READ, crc32c, file_crc, kind_of
from recover.store.source import open_file


def detach(plan: Plan, root: Path) -> Plan:
    """Return the plan with the in-place steps of each hard-linked or symbolic file joined into one `Install` of its
    changed copy. Call with the lock held and the preconditions checked: the whole file is recorded as it is now."""
    patches: dict[str, list[InPlace]] = defaultdict(list)
    for step in plan.steps:
        path = root / step.file
        if isinstance(step, InPlace) and (path.is_symlink() or os.stat(path).st_nlink > 1):
            patches[step.file].append(step)
    if not patches:
        return plan
    steps: list[Step] = []
    states: list[FileState] = []
    for step, sealed in zip(plan.steps, plan.preconditions, strict=True):
        if step.file not in patches:
            steps.append(step)
            states.append(sealed)
        elif patches[step.file]:
            install = Install(step.file, _patched(root / step.file, patches[step.file]))
            steps.append(install)
            states.append(structs.replace(observe_step(root, install), mtime_ns=sealed.mtime_ns))
            patches[step.file] = []
    return structs.replace(plan, steps=tuple(steps), preconditions=tuple(states))


def _patched(path: Path, steps: list[InPlace]) -> LazyContent:
    with open_file(path) as reader:
        old = reader.length
        data = sum(last - first for first, last in reader.data_ranges(0, old))
    written = sum(step.stop - step.start for step in steps if step.content is not None)
    return changed_file(path, max(old, *(step.stop for step in steps)), steps, allocated=data + written + READ)


class StaleRefusal(Refusal):
    """The store has changed since it was read."""

    def __init__(self, message: str, **facts: object) -> None:
        remedy = N_("the store was changed since it was read; `{again}` makes a plan for its present state")
        super().__init__(message, remedy, **facts)


_TOUCHED = N_("was changed after the plan was made, although its mtime did not change")


def seal(plan: Plan, root: Path, *, seen: Mapping[str, Stamp] | None = None) -> Plan:
    """Bind the plan to this store as it is now. `seen`: files and folders as the scan found them; `Refusal` if one has
    changed since, now or when the plan is carried out."""
    seen = seen or {}
    refuse_if_changed(root, seen)
    preconditions = tuple(observe_step(root, step) for step in plan.steps)
    touched = {step.file for step in plan.steps}
    gone = {step.file for step in plan.steps if isinstance(step, RetireFolder)}
    # a starting broker writes its lock file, creates `abort`, and sooner or later syncs its checkpoint
    watched_by_default = {"lock", "abort", "checkpoint", *_commitlog_names(root, plan.parts)}
    names = sorted((watched_by_default | set(seen)) - touched)
    watched = tuple(observe(root, name, watched=True) for name in names
                    if not gone or gone.isdisjoint(folders_above(name)))
    sealed = structs.replace(plan, store=identify(root, plan.parts), preconditions=preconditions, watched=watched)
    return structs.replace(sealed, id=_id_of(sealed))


def refuse_if_changed(root: Path, seen: Mapping[str, Stamp]) -> None:
    """`Refusal` naming the first of the files and folders that is not as the scan found it."""
    for file, stamp in seen.items():
        if stamp_of(root / file) != stamp:
            raise StaleRefusal(Phrase("{file} changed while the store was read", file=file), file=file)


def _id_of(plan: Plan) -> str:
    """An id that is the same for the same plan of an unchanged store, whenever it is made."""
    contents = [None if step.content is None else [step.content.size, step.content.crc32c] for step in plan.steps]
    said = [
        plan.command, [step.json() for step in plan.steps], contents, plan.loss, plan.summary, plan.parts,
        structs.asdict(plan.store), [structs.asdict(state) for state in (*plan.preconditions, *plan.watched)],
    ] if plan.store is not None else []
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:8]


def identify(root: Path, parts: Iterable[str] = ()) -> StoreIdentity:
    digest = 0
    for name in sorted(_commitlog_names(root, parts)):
        digest = crc32c(os.fsencode(os.path.basename(name)) + b"\0", digest)
    return StoreIdentity(str(root.resolve()), root.stat().st_ino, digest)


def _commitlog_names(root: Path, parts: Iterable[str]) -> Iterator[str]:
    for directory in ("commitlog", *parts):
        try:
            names = os.listdir(root / directory)
        except OSError:
            continue
        yield from (f"{directory}/{name}" for name in names if name.isdecimal() and len(name) >= 20)


def observe(root: Path, file: str, *, folder: bool = False, watched: bool = False) -> FileState:
    """Return existence, size and times of a file now; `Refusal` if it is not a regular file, or cannot be read.

    `folder`: of a folder (or a symbolic link to one), with its entries; no file is opened. `watched`: of anything that
    a plan was derived from.
    """
    path = root / file
    try:
        if folder:
            return _observe_folder(path, file)
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return FileState(file, False, folder=folder)
    except OSError as error:
        raise _unreadable(file, error) from error
    if not watched and not stat.S_ISREG(status.st_mode):
        raise Refusal(Phrase("{file} is not a file but {kind}", file=file, kind=kind_of(status.st_mode)),
                      Phrase(BY_HAND, file=file), file=file)
    if file == "lock" and is_own_lock_file(path):
        return FileState(file, False)
    return FileState(file, True, status.st_size, status.st_mtime_ns, ctime_ns=status.st_ctime_ns)


def _unreadable(file: str, error: OSError) -> Refusal:
    return Refusal(Phrase("{file} cannot be read: {error}", file=file, error=error.strerror),
                   N_("check the disk first"),
                   file=file)


def _observe_folder(path: Path, file: str) -> FileState:
    status = os.lstat(path)
    if not path.is_dir():
        raise Refusal(Phrase("{file} is not a folder", file=file), file=file)
    size, digest = 0, crc32c(os.fsencode(os.readlink(path)) if stat.S_ISLNK(status.st_mode) else b"")
    for entry in _below(path) if stat.S_ISDIR(status.st_mode) else ():
        inside = entry.stat(follow_symlinks=False)
        length = inside.st_size if stat.S_ISREG(inside.st_mode) else 0
        name = os.fsencode(os.path.relpath(entry.path, path))
        digest = crc32c(b"%s\0%o %d %d\0" % (name, inside.st_mode, length, inside.st_mtime_ns), digest)
        size += length
    return FileState(file, True, size, status.st_mtime_ns, crc32c=digest, folder=True)


def _below(path: Path) -> Iterator[os.DirEntry[str]]:
    """Everything in a folder, at any depth, in an order that does not depend on the file system."""
    waiting = [str(path)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        yield from found
        waiting += [entry.path for entry in found if entry.is_dir(follow_symlinks=False)]


def observe_step(root: Path, step: Step) -> FileState:
    """The state that one step depends on, with the checksum of what it touches."""
    if isinstance(step, RetireFolder):
        return observe(root, step.file, folder=True)
    state = observe(root, step.file)
    if not state.exists:
        if isinstance(step, InPlace):
            raise StaleRefusal(Phrase("{file} does not exist, {kind} needs it", file=step.file, kind=step.kind),
                               file=step.file)
        return state
    start, stop = (step.start, min(step.stop, state.size)) if isinstance(step, InPlace) else (0, state.size)
    ctime_ns = os.lstat(root / step.file).st_ctime_ns
    return structs.replace(
        state, start=start, stop=stop, crc32c=_checksum(root, step.file, start, stop), ctime_ns=ctime_ns
    )


def _checksum(root: Path, file: str, start: int, stop: int) -> int:
    try:
        return file_crc(root / file, start, stop)[1]
    except OSError as error:
        raise _unreadable(file, error) from error


def check(plan: Plan, root: Path) -> None:
    """`Refusal` naming the first thing that is not as the plan found it. Read-only."""
    planned = check_same_store(plan, root)
    earlier = {run.state: run.path.name for run in runs(root) if run.header["plan"] == plan.id}
    if "applied" in earlier:
        raise Refusal(Phrase("this plan was carried out already, by run {run}", run=earlier["applied"]),
                      N_("`mqtool journal {store}` shows what was done."), run=earlier["applied"])
    if identify(root, plan.parts).commitlog != planned.commitlog:
        raise StaleRefusal(N_("the commitlog files differ from those when the plan was made"))
    # a file that this plan changed and undo restored has another ctime, and is the same
    was_undone = "undone" in earlier
    for step, sealed in zip(plan.steps, plan.preconditions, strict=True):
        now = compare(root, sealed, whole_file=not isinstance(step, InPlace))
        if sealed.ctime_ns and not was_undone and os.lstat(root / step.file).st_ctime_ns != sealed.ctime_ns:
            raise _stale(sealed, now, _TOUCHED)
    check_watched(plan, root, at_first=True)


def _stale(sealed: FileState, now: FileState, what: str) -> StaleRefusal:
    return StaleRefusal(Phrase("{file} {what}", file=sealed.file, what=what), file=sealed.file,
                        planned_size=sealed.size, size=now.size)


def _check_existence(sealed: FileState, now: FileState) -> None:
    if now.exists != sealed.exists:
        raise _stale(sealed, now, N_("appeared since the plan was made") if now.exists else
                     N_("is gone since the plan was made"))


def check_same_store(plan: Plan, root: Path) -> StoreIdentity:
    """`Refusal` if this is neither the path nor the directory that the plan was made for."""
    if plan.store is None:
        raise Refusal("the plan was not bound to a store", "create the plan again")
    now = identify(root, plan.parts)
    if now.root != plan.store.root and now.inode != plan.store.inode:
        raise Refusal(
            Phrase("the plan was made for {planned}, not for {root}", planned=plan.store.root, root=now.root),
            N_("apply it there, or make a plan for this store"), planned=plan.store.root,
        )
    return plan.store


def check_watched(plan: Plan, root: Path, *, at_first: bool = False) -> None:
    """`Refusal` if a file or folder that the plan was derived from changed.

    `at_first`: before the first step ctimes count too, and folders that its steps change. (A copy has new ctimes, and
    may be completed like the store itself.)
    """
    own = {folder for step in plan.steps for folder in folders_above(step.file)}
    for sealed in plan.watched:
        is_own = sealed.file in own
        if is_own and not (at_first and sealed.exists and sealed.ctime_ns):
            continue
        now = observe(root, sealed.file, watched=True)
        _check_existence(sealed, now)
        if now.mtime_ns != sealed.mtime_ns or (now.size != sealed.size and not is_own):
            raise _stale(sealed, now, N_("was written after the plan was made"))
        if at_first and sealed.ctime_ns != now.ctime_ns and sealed.ctime_ns and not is_own:
            raise _stale(sealed, now, _TOUCHED)


def folders_above(file: str) -> list[str]:
    """The folders above a file, as plans name them."""
    return [str(folder) for folder in Path(file).parents]


def compare(root: Path, sealed: FileState, *, whole_file: bool = False) -> FileState:
    """Return the state of a file now; `Refusal` naming the difference to the recorded one."""
    now = observe(root, sealed.file, folder=sealed.folder)
    _check_existence(sealed, now)
    if not now.exists:
        return now
    if now.size != sealed.size:
        raise _stale(sealed, now, Phrase("has {size} bytes, {planned} when the plan was made", size=now.size,
                                         planned=sealed.size))
    if now.mtime_ns != sealed.mtime_ns:
        raise _stale(sealed, now, N_("was written after the plan was made"))
    if sealed.folder and now.crc32c != sealed.crc32c:
        raise _stale(sealed, now, N_("holds different files than when the plan was made"))
    stop = None if sealed.folder else sealed.stop
    if stop is not None and _checksum(root, sealed.file, sealed.start, stop) != sealed.crc32c:
        raise _stale(sealed, now, N_("holds different bytes than when the plan was made") if whole_file else Phrase(
            "holds different bytes in {start}..{stop} than when the plan was made", start=sealed.start, stop=stop))
    return now
