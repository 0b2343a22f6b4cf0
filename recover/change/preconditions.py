"""What a plan was made on, noted when it is sealed and compared before its first step.

Every touched file: whether it exists, its size and mtime, and the CRC-32C of what the step touches (the range of an
in-place step, all of a file that is replaced). Beyond those, files that a starting broker always changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct, structs

from formats.layout import Buffer
from recover.change.content import LazyContent
from recover.change.journal import runs
from recover.change.lock import is_own_lock_file
from recover.change.model import FileState, InPlace, Install, Plan, RetireFolder, Step, StoreIdentity, resolve
from recover.change.plan_file import observe_folder
from recover.findings.refusal import Refusal
from recover.store.memo import Stamp, stamp_of
from recover.store.reading import READ, crc32c, data_extents, file_crc, kind_of, open_file, read_chunks, zeros


def detach(plan: Plan, root: Path) -> Plan:
    """The plan with the in-place steps of each shared file joined into one `Install` of its changed copy.

    Call with the lock held and the preconditions checked: the whole file is noted as it is now.
    """
    patches: dict[str, list[InPlace]] = defaultdict(list)
    for step in plan.steps:
        if isinstance(step, InPlace) and _shared(resolve(root, step.file)):
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
            install = Install(step.file, _patched(resolve(root, step.file), patches[step.file]))
            steps.append(install)
            states.append(structs.replace(observe_step(root, install), mtime_ns=sealed.mtime_ns))
            patches[step.file] = []
    return plan.with_steps(steps, states)


def _shared(path: Path) -> bool:
    return path.is_symlink() or os.stat(path).st_nlink > 1


class _Patched(Struct, frozen=True):
    path: Path
    size: int
    steps: tuple[InPlace, ...]

    def __call__(self) -> Iterator[Buffer]:
        position = 0
        for step in self.steps:
            yield from self._old(position, step.start)
            yield from zeros(step.stop - step.start) if step.content is None else step.content.chunks()
            position = step.stop
        yield from self._old(position, self.size)

    def _old(self, start: int, stop: int) -> Iterator[bytes]:
        size = max(0, min(stop, self.path.stat().st_size) - start)
        yield from read_chunks(self.path, start, start + size)
        yield from zeros(stop - start - size)


def _patched(path: Path, steps: list[InPlace]) -> LazyContent:
    size = max(path.stat().st_size, *(step.stop for step in steps))
    ordered = tuple(sorted(steps, key=lambda step: step.start))
    fd = open_file(path)
    try:
        data = sum(last - first for first, last in data_extents(fd, 0, size))
    finally:
        os.close(fd)
    written = sum(step.stop - step.start for step in ordered if step.content is not None)
    return LazyContent(size, _Patched(path, size, ordered), allocated=data + written + READ)


STALE = "something changed the store since it was looked at; run the command again to plan on what is there now"


def seal(
    plan: Plan, root: Path, *, watch: Iterable[str] = (), seen: Mapping[str, Stamp] | None = None
) -> Plan:
    """The plan bound to this store as it is now.

    `watch`: further files the plan was derived from; a change refuses it. `seen`: files and folders as the scan found
    them; one that changed between scan and seal is refused here, and one that changes later when the plan is carried
    out.
    """
    seen = seen or {}
    for file, stamp in seen.items():
        if stamp_of(resolve(root, file)) != stamp:
            raise Refusal(f"{file} changed while the store was read", STALE, file=file)
    preconditions = tuple(observe_step(root, step) for step in plan.steps)
    touched = {step.file for step in plan.steps}
    gone = {step.file for step in plan.steps if isinstance(step, RetireFolder)}
    names = sorted((set(_default_watch(root, plan.parts)) | set(watch) | set(seen)) - touched)
    watched = tuple(_glance(root, name) for name in names if not gone or gone.isdisjoint(folders_above(name)))
    sealed = structs.replace(plan, store=identify(root, plan.parts), preconditions=preconditions, watched=watched)
    return structs.replace(sealed, id=_id_of(sealed))


def _id_of(plan: Plan) -> str:
    """The same for the same plan of an unchanged store, whenever it is made."""
    contents = [None if step.content is None else [step.content.size, step.content.crc32c] for step in plan.steps]
    said = [
        plan.command, plan.json()["steps"], contents, plan.loss, plan.summary, plan.parts, structs.asdict(plan.store),
        [state.json() for state in (*plan.preconditions, *plan.watched)],
    ] if plan.store is not None else []
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:8]


def _glance(root: Path, file: str) -> FileState:
    """Existence, size and times of what a plan was derived from, a folder included."""
    try:
        status = os.stat(resolve(root, file))
    except (FileNotFoundError, NotADirectoryError):
        return FileState(file, False)
    except OSError as error:
        raise Refusal(f"{file} cannot be looked at: {error.strerror}", file=file) from error
    if file == "lock" and is_own_lock_file(resolve(root, file)):
        return FileState(file, False)
    return FileState(file, True, status.st_size, status.st_mtime_ns, ctime_ns=status.st_ctime_ns)


def identify(root: Path, parts: Iterable[str] = ()) -> StoreIdentity:
    """Which store this is."""
    digest = 0
    for name in sorted(_commitlog_names(root, parts)):
        digest = crc32c(os.fsencode(os.path.basename(name)) + b"\0", digest)
    return StoreIdentity(str(root.resolve()), root.stat().st_ino, digest)


def _commitlog_names(root: Path, parts: Iterable[str]) -> Iterator[str]:
    for directory in ("commitlog", *parts):
        try:
            names = os.listdir(resolve(root, directory))
        except OSError:
            continue
        yield from (f"{directory}/{name}" for name in names if name.isdecimal() and len(name) >= 20)


def _default_watch(root: Path, parts: Iterable[str]) -> Iterator[str]:
    # A broker that starts writes its lock file, makes `abort`, and sooner or later syncs its checkpoint.
    yield from ("lock", "abort", "checkpoint")
    yield from _commitlog_names(root, parts)


def observe(root: Path, file: str) -> FileState:
    """Existence, size and mtime of a file now; `Refusal` if it is something other than a file."""
    try:
        status = os.stat(resolve(root, file))
    except (FileNotFoundError, NotADirectoryError):
        return FileState(file, False)
    except OSError as error:
        raise Refusal(f"{file} cannot be looked at: {error.strerror}", file=file) from error
    if not stat.S_ISREG(status.st_mode):
        raise Refusal(f"{file} is no file but {kind_of(status.st_mode)}",
                      "move it out of the store, then run the command again", file=file)
    if file == "lock" and is_own_lock_file(resolve(root, file)):
        return FileState(file, False)
    return FileState(file, True, status.st_size, status.st_mtime_ns)


def observe_step(root: Path, step: Step) -> FileState:
    """The state that one step depends on, with the checksum of what it touches."""
    if isinstance(step, RetireFolder):
        return observe_folder(root, step.file)
    state = observe(root, step.file)
    if state.exists:
        state = structs.replace(state, ctime_ns=os.lstat(resolve(root, step.file)).st_ctime_ns)
    if not state.exists:
        if isinstance(step, InPlace):
            raise Refusal(f"{step.file} does not exist, {step.kind} needs it", STALE, file=step.file)
        return state
    start, stop = (step.start, min(step.stop, state.size)) if isinstance(step, InPlace) else (0, state.size)
    return structs.replace(state, start=start, stop=stop, crc32c=checksum(root, step.file, start, stop))


def checksum(root: Path, file: str, start: int, stop: int) -> int:
    """CRC-32C of a range; `Refusal` if it cannot be read."""
    try:
        return file_crc(resolve(root, file), start, stop)[1]
    except OSError as error:
        raise Refusal(f"{file} cannot be read: {error.strerror}", "check the disk first", file=file) from error


def check(plan: Plan, root: Path) -> None:
    """`Refusal` naming the first thing that is not as the plan found it; reads only."""
    check_identity(plan, root)
    # what this very plan changed and undo put back has another time of change, and is the same
    was_undone = any(run.header["plan"] == plan.id and run.state == "undone" for run in runs(root))
    for step, sealed in zip(plan.steps, plan.preconditions, strict=True):
        compare(root, sealed, whole_file=not isinstance(step, InPlace))
        if sealed.ctime_ns and not was_undone and os.lstat(resolve(root, step.file)).st_ctime_ns != sealed.ctime_ns:
            raise Refusal(f"{step.file} was changed after the plan was made, though its time of writing says otherwise",
                          STALE, file=step.file)
    for folder in plan.watched:
        own = _glance(root, folder.file)
        if folder.exists and folder.ctime_ns and (own.mtime_ns, own.exists) != (folder.mtime_ns, True):
            raise Refusal(f"{folder.file} was written after the plan was made", STALE, file=folder.file)
    check_watched(plan, root)


def check_identity(plan: Plan, root: Path) -> None:
    """`Refusal` if the plan is for another store, for other commitlog files, or was never bound to a store."""
    planned = check_same_store(plan, root)
    if identify(root, plan.parts).commitlog != planned.commitlog:
        raise Refusal("the commitlog has other files than when the plan was made", STALE)


def check_same_store(plan: Plan, root: Path) -> StoreIdentity:
    """`Refusal` if this is neither the path nor the directory that the plan was made for."""
    if plan.store is None:
        raise Refusal("the plan was not bound to a store", "make the plan again")
    now = identify(root, plan.parts)
    if now.root != plan.store.root and now.inode != plan.store.inode:
        raise Refusal(
            f"the plan was made for {plan.store.root}, not for {now.root}",
            "apply it there, or make a plan for this store", planned=plan.store.root,
        )
    return plan.store


def check_watched(plan: Plan, root: Path, *, same_inodes: bool = True) -> None:
    """`Refusal` if a file or folder that the plan was derived from changed, but for what its own steps change.

    `same_inodes`: times of change count, too. They are new in a copy, which may be completed like the store itself.
    """
    own = {folder for step in plan.steps for folder in folders_above(step.file)}
    for sealed in plan.watched:
        if sealed.file in own:
            continue
        now = _glance(root, sealed.file)
        name, facts = sealed.file, {"file": sealed.file, "planned_size": sealed.size, "size": now.size}
        if now.exists != sealed.exists:
            raise Refusal(f"{name} {'appeared' if now.exists else 'is gone'} since the plan was made", STALE, **facts)
        if (now.size, now.mtime_ns) != (sealed.size, sealed.mtime_ns):
            raise Refusal(f"{name} was written after the plan was made", STALE, **facts)
        if same_inodes and sealed.ctime_ns and now.ctime_ns != sealed.ctime_ns:
            raise Refusal(f"{name} was changed after the plan was made, though its time of writing says otherwise",
                          STALE, **facts)


def folders_above(file: str) -> list[str]:
    """The folders above a file, as plans name them."""
    return [str(folder) for folder in Path(file).parents]


def compare(root: Path, sealed: FileState, *, whole_file: bool = False) -> None:
    """`Refusal` naming what differs between the noted state of a file and its state now."""
    now = observe_folder(root, sealed.file) if sealed.folder else observe(root, sealed.file)
    name, sizes = sealed.file, {"file": sealed.file, "planned_size": sealed.size, "size": now.size}
    if now.exists != sealed.exists:
        raise Refusal(f"{name} {'appeared' if now.exists else 'is gone'} since the plan was made", STALE, **sizes)
    if not now.exists:
        return
    if now.size != sealed.size:
        raise Refusal(f"{name} has {now.size} bytes, {sealed.size} when the plan was made", STALE, **sizes)
    if now.mtime_ns != sealed.mtime_ns:
        raise Refusal(f"{name} was written after the plan was made", STALE, **sizes)
    if sealed.folder and now.crc32c != sealed.crc32c:
        raise Refusal(f"{name} holds other files than when the plan was made", STALE, **sizes)
    if sealed.crc32c is not None and sealed.stop is not None:
        crc = checksum(root, name, sealed.start, sealed.stop)
        if crc != sealed.crc32c:
            where = "" if whole_file else f" in {sealed.start}..{sealed.stop}"
            raise Refusal(f"{name} holds other bytes{where} than when the plan was made", STALE, **sizes)
