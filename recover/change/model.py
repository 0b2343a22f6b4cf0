"""A plan: the steps that change a store, as data that can be shown, saved, reviewed, refused and applied.

There are three families of steps: in-place steps overwrite a range of a file and keep everything else of it; replacing
steps put a new file in place, or remove the file; one kind removes a whole folder. What each family does is in
`recover.change.steps`.
"""

from __future__ import annotations

import json
import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import numpy as np
from msgspec import Meta, Struct, convert, field, structs, to_builtins

from formats.basics import Buffer
from recover.change import disk
from recover.change.content import (
    INLINE_LIMIT,
    BytesContent,
    Content,
    FileContent,
    LazyContent,
    content_from_json,
    inline_json,
    make,
    stop_if,
)
from recover.findings.code import Refusal
from recover.findings.model import Phrase
from recover.store.reader import FileReader
from recover.store.reading import Piece, crc32c, crc_of, zeros
from recover.store.source import open_file
from recover.store.store import JOURNAL_DIR, StoreOptions


class Step(Struct, frozen=True):
    """One change of one file. `file` is relative to the store root, or absolute for a part kept elsewhere."""

    kind: ClassVar[str]
    file: str

    @property
    def content(self) -> Content | None:
        """The bytes this step writes; None for zeros, or for a removed file."""
        return None

    def json(self) -> dict[str, Any]:
        """Kind, file and numbers, without the content."""
        return {"kind": self.kind, "file": self.file}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.json()})"


class InPlace(Step, frozen=True):
    """Changes [start, stop) of a file (bytes) and nothing else; a `stop` after the end lengthens the file."""

    start: int

    @property
    def stop(self) -> int:
        assert self.content is not None
        return self.start + self.content.size

    def json(self) -> dict[str, Any]:
        return {**super().json(), "start": self.start, "stop": self.stop}

    def new_bytes(self) -> Iterator[Buffer]:
        """The bytes of the range after the step."""
        return zeros(self.stop - self.start) if self.content is None else self.content.chunks()

    def new_crc(self) -> int:
        """CRC-32C of `new_bytes`."""
        known = self.content.crc32c if self.content is not None else None
        return crc_of(self.new_bytes())[1] if known is None else known


class ZeroRange(InPlace, frozen=True):
    """Zeroes [start, stop) without allocating blocks."""

    kind: ClassVar[str] = "zero-range"
    stop: int


class _Given:
    """Mixin for the content of a step, `given` as bytes or as content."""

    __slots__ = ()
    given: Content | bytes

    def __post_init__(self) -> None:
        if not isinstance(self.given, Content):
            structs.force_setattr(self, "given", BytesContent(bytes(self.given)))  # type: ignore[arg-type]

    @property
    def content(self) -> Content:
        return cast(Content, self.given)


class WriteRange(_Given, InPlace, frozen=True):
    """Overwrites the bytes from `start` on with its content."""

    kind: ClassVar[str] = "write-range"
    given: Content | bytes


class Retire(Step, frozen=True):
    """Moves a file out of the store into the journal's `retired` folder."""

    kind: ClassVar[str] = "retire"


class RetireFolder(Step, frozen=True):
    """Moves a folder with its content into the journal's `retired` folder; to another file system only an empty one."""

    kind: ClassVar[str] = "retire-folder"


class Install(_Given, Step, frozen=True):
    """Puts a whole file in place of the old one, or where none was; missing directories are created.

    It is staged, read back and compared before it gets its name. It takes owner, mode and xattrs from the file it
    replaces, else owner and mode from its neighbours, so that the broker can still open it.
    """

    kind: ClassVar[str] = "install"
    given: Content | bytes


class WriteFile(Install, frozen=True):
    """A small file written whole, such as the checkpoint or a config file. Carried out like `Install`."""

    kind: ClassVar[str] = "write-file"


STEP_KINDS: dict[str, type[Step]] = {
    kind.kind: kind for kind in (ZeroRange, WriteRange, WriteFile, Install, Retire, RetireFolder)
}


def step_from_json(value: dict[str, Any], content: Content | None) -> Step:
    """The reverse of `Step.json`; `ValueError` or `KeyError` if a field is missing or invalid."""
    kind = STEP_KINDS.get(value["kind"])
    if kind is None:
        raise ValueError(f"unknown step kind {value['kind']!r}")
    if issubclass(kind, _Given) and content is None:
        raise ValueError("content is missing")
    given: dict[str, Any] = {"file": str(value["file"]), "given": content}
    given |= {name: int(value[name]) for name in ("start", "stop") if name in value}
    step = kind(**{name: given[name] for name in kind.__struct_fields__})
    if isinstance(step, InPlace) and step.stop != given["stop"]:
        raise ValueError(f"range of {step.file} does not fit its content")
    return step


def replacing(steps: Iterable[Step]) -> list[Step]:
    """Drop steps that remove what another step replaces, such as an odd entry under the name of a queue file."""
    steps = list(steps)
    replaced = {step.file for step in steps if isinstance(step, Install)}
    return [step for step in steps if not (isinstance(step, (Retire, RetireFolder)) and step.file in replaced)]


class FileState(Struct, frozen=True, omit_defaults=True):
    """The state of a file that a plan is based on: times in ns since the epoch, `crc32c` of [start, stop) of the file.

    `ctime_ns` (0 if not recorded) reveals a change that keeps the mtime. For a `folder`, `size` is that of all files in
    it, and `crc32c` that of their names, sizes and times.
    """

    file: str
    exists: bool
    size: int = 0
    mtime_ns: int = 0
    start: int = 0
    stop: int | None = None
    crc32c: int | None = None
    folder: bool = False
    ctime_ns: int = 0


class StoreIdentity(Struct, frozen=True):
    """The store that a plan is for: its real path, the inode of its root, a digest of its commitlog's file names."""

    root: str
    inode: int
    commitlog: int


class Plan(Struct, frozen=True):
    """Steps in execution order, with their cost and the state they were planned on.

    `loss` has one dict per topic, queue and time span that loses messages; `summary` is free for the command.
    `parts` are the absolute directories outside of the root that steps may touch. `store`, `preconditions` (one per
    step) and `watched` are set by `recover.change.preconditions.seal`.
    """

    command: str
    steps: Sequence[Step]
    loss: Sequence[dict[str, Any]] = ()
    summary: dict[str, Any] = field(default_factory=dict)
    parts: Sequence[str] = ()
    id: str = field(default_factory=lambda: os.urandom(4).hex())
    created_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    store: StoreIdentity | None = None
    preconditions: Sequence[FileState] = ()
    watched: Sequence[FileState] = ()

    def __post_init__(self) -> None:
        check_steps(self.steps, self.parts)


def check_steps(steps: Sequence[Step], parts: Sequence[str] = ()) -> None:
    """`Refusal` for a path outside of the store; `ValueError` for steps that conflict.

    Each precondition describes the store before the first step, so no step may touch what another one wrote.
    """
    ranges: dict[str, list[tuple[int, int]]] = {}
    whole: set[str] = set()
    for step in steps:
        check_path(step.file, parts)
        if isinstance(step, InPlace):
            if not 0 <= step.start <= step.stop:
                raise ValueError(f"{step.kind} of {step.file}: range {step.start}..{step.stop}")
            ranges.setdefault(step.file, []).append((step.start, step.stop))
        elif step.file in whole:
            raise ValueError(f"two steps replace {step.file}")
        else:
            whole.add(step.file)
    for file, spans in ranges.items():
        spans.sort()
        if file in whole or any(after[0] < before[1] for before, after in pairwise(spans)):
            raise ValueError(f"steps on {file} overlap")


def check_path(file: str, parts: Sequence[str] = ()) -> None:
    """`Refusal` unless `file` is a plain path below the store root or below one of `parts`."""
    names = file.split("/")
    plain = bool(file) and "\0" not in file and not {"..", ".", ""} & set(names[1:] if file[0] == "/" else names)
    if plain and file[0] == "/":
        plain = any(file.startswith(part.rstrip("/") + "/") for part in parts) and JOURNAL_DIR not in names
    elif plain:
        plain = names[0] != JOURNAL_DIR and file != "lock"
    if not plain:
        raise Refusal(Phrase("the plan changes {file}, which is outside of the store's files", file=repr(file)),
                      "create the plan again")


def existing_folders(root: Path) -> Callable[[str], str]:
    """Return a function from a step's file to the nearest existing folder above it; each folder is looked up once."""

    @cache
    def nearest(folder: str) -> str:
        return folder if os.path.isdir(root / folder) else nearest(os.path.dirname(folder) or ".")

    return lambda file: nearest(os.path.dirname(file) or ".")


# --- Plans as JSON documents: a body, the CRC-32C of its canonical form, and a format version.
#
# Small content is stored in the document, larger content in files of a folder next to it, each with size and CRC-32C.


FORMAT = "mqtool-plan"
VERSION = 1
_LARGEST = 512 << 20


def canonical(value: object) -> bytes:
    """The canonical bytes of a JSON value, over which checksums are computed (ASCII, sorted keys, no blanks)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def document(plan: Plan, contents: Sequence[dict[str, Any] | None], sidecar: str) -> bytes:
    """The plan file's bytes; `contents` says for each step where its content is kept."""
    steps = []
    for number, step in enumerate(plan.steps):
        value = step.json()
        if (content := contents[number]) is not None:
            value["content"] = content
        if plan.preconditions:
            value["before"] = to_builtins(plan.preconditions[number])
        steps.append(value)
    body = {
        "id": plan.id, "command": plan.command, "created_ms": plan.created_ms, "sidecar": sidecar,
        "store": to_builtins(plan.store), "parts": list(plan.parts), "loss": list(plan.loss),
        "summary": plan.summary, "steps": steps, "watched": to_builtins(plan.watched),
    }
    whole = {"format": FORMAT, "version": VERSION, "crc32c": crc32c(canonical(body)), "body": body}
    return json.dumps(whole, indent=1, sort_keys=True, allow_nan=False).encode("ascii") + b"\n"


def stage(
    folder: Path, steps: Sequence[Step], is_kept: Callable[[Step], bool], interrupted: Callable[[], bool],
    like: os.stat_result | None = None, file_like: Callable[[Step], disk.Like | None] = lambda step: None,
) -> tuple[list[dict[str, Any] | None], dict[Path, tuple[int, int]]]:
    """Write the content of the steps for which `is_kept` holds into files of a folder; they are not synced yet. What
    this process writes gets owner and mode by `file_like`.

    Returns the document's entry for the content of each step, None for a step without; and (size, CRC-32C) of each
    file. `OSError`, `Interrupted`, `Refusal` as of `make`; `like` is the folder's neighbour.
    """
    wanted = {folder / f"{number:06d}": step.content for number, step in enumerate(steps) if is_kept(step)}
    made = make(folder / "making", wanted, interrupted=interrupted, like=like)
    said: list[dict[str, Any] | None] = []
    for number, step in enumerate(steps):
        path, content = folder / f"{number:06d}", step.content
        if content is None or path not in wanted:
            said.append(None if content is None else inline_json(content))
            continue
        if path not in made:
            made[path] = disk.create_from_pieces(
                path, _until(interrupted, content.pieces()), sync=False, like=file_like(step))
        size, crc = made[path]
        said.append({"size": size, "crc32c": crc, "file": path.name})
    return said, made


def _until(interrupted: Callable[[], bool], pieces: Iterable[Piece]) -> Iterator[Piece]:
    for piece in pieces:
        stop_if(interrupted)
        yield piece


def refuse_existing(path: Path) -> None:
    """`Refusal` if the path of a new file exists already."""
    if os.path.lexists(path):
        raise Refusal(Phrase("{path} exists already", path=path), "Name a new file, or remove this one.",
                      path=str(path))


def save_plan(plan: Plan, path: Path) -> Path | None:
    """Write a plan file and a folder for its large contents, if any; return that folder. `Refusal` if the disk fails,
    or if the file exists."""
    refuse_existing(path)
    sidecar, part = path.with_name(f"{path.name}.{plan.id}.content"), path.with_name(f".{path.name}.{plan.id}")

    def is_large(step: Step) -> bool:
        return step.content is not None and step.content.size > INLINE_LIMIT

    has_large = any(map(is_large, plan.steps))
    try:
        disk.remove_tree(sidecar)
        if has_large:
            disk.mkdir(sidecar)
        contents, made = stage(sidecar, plan.steps, is_large, lambda: False)
        disk.sync_all(made)
        disk.write_whole(path, document(plan, contents, sidecar.name), part)
    except OSError as error:
        with suppress(OSError):
            disk.remove_tree(sidecar)
            disk.unlink(part)
        raise Refusal(Phrase("the plan cannot be saved to {path}: {error}", path=path, error=error.strerror),
                      "choose another place") from error
    return sidecar if has_large else None


# the types of a plan's fields; of `loss` and `summary`, of those that commands read


class _Loss(Struct):
    messages: int = 0
    begin: int | None = None
    end: int | None = None


class _ConfigChoice(Struct):
    file: str
    action: str
    text: str


class _Summary(Struct):
    valid_to: int = 0
    config: list[_ConfigChoice] = []
    assumptions: list[str] = []
    assumed_settings: dict[str, Any] = {}
    mendable_messages: int = 0
    store_options: StoreOptions | None = None


class _Body(Struct):
    id: Annotated[str, Meta(pattern=r"^[0-9A-Za-z]{1,32}\Z")]  # becomes part of a directory name
    command: str
    created_ms: int
    sidecar: str
    store: StoreIdentity | None
    parts: tuple[str, ...]
    loss: list[_Loss]
    summary: _Summary
    watched: tuple[FileState, ...]


def load_plan(path: Path, *, sidecar: str | None = None, beside: Path | None = None) -> Plan:
    """Read a plan file; `Refusal` if it is invalid, damaged, or of another format version. `sidecar`: the only folder
    beside it, or in `beside`, that may hold content."""
    try:
        if path.stat().st_size > _LARGEST:
            raise Refusal(Phrase("{path} is too large for a plan", path=path), "check the file name")
        data = path.read_bytes()
    except OSError as error:
        raise Refusal(Phrase("the plan {path} cannot be read: {error}", path=path, error=error.strerror),
                      "check the file name") from error
    try:
        return _parse(json.loads(data), path, sidecar, beside or path.parent)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Refusal(Phrase("{path} is not a plan: {error}", path=path, error=error),
                      "create the plan again") from error


def _parse(whole: dict[str, Any], path: Path, only: str | None, beside: Path) -> Plan:
    if whole["format"] != FORMAT:
        raise ValueError("it has another format")
    if whole["version"] != VERSION:
        raise Refusal(Phrase("{path} has plan format {version}, this mqtool knows {known}", path=path,
                             version=whole["version"], known=VERSION), "create the plan again")
    body = whole["body"]
    if crc32c(canonical(body)) != whole["crc32c"]:
        raise Refusal(Phrase("{path} was changed after it was saved: its checksum does not match", path=path),
                      "create the plan again")
    typed = convert(body, _Body, dec_hook=lambda kind, value: kind(value))  # folders are paths
    os.fsencode(json.dumps(body, ensure_ascii=False))  # ValueError for a name that no file can have
    sidecar = typed.sidecar
    if "/" in sidecar or sidecar in ("", ".", "..") or (only is not None and sidecar != only):
        raise ValueError(f"content directory {sidecar!r}")
    folder = beside / sidecar
    steps = [step_from_json(value, content_from_json(value["content"], folder) if "content" in value else None)
             for value in body["steps"]]
    missing = [step.content.path for step in steps
               if only is None and isinstance(step.content, FileContent) and not step.content.path.is_file()]
    if missing:
        raise Refusal(Phrase("{missing} is missing: parts of this plan are in the folder {sidecar} next to it",
                             missing=missing[0], sidecar=sidecar),
                      Phrase("copy that folder along with {name}, or create the plan again", name=path.name),
                      file=str(missing[0]))
    before = [convert(value["before"], FileState) for value in body["steps"] if "before" in value]
    if len(before) not in (0, len(steps)):
        raise ValueError("a step has no precondition")
    return Plan(
        command=typed.command, steps=tuple(steps), loss=tuple(body["loss"]), summary=body["summary"],
        parts=typed.parts, id=typed.id, created_ms=typed.created_ms, store=typed.store, preconditions=tuple(before),
        watched=typed.watched,
    )


# --- Differences between a file and its desired content, as steps.


_JOIN_DISTANCE = 4096
_CHUNK = 1 << 20


def patches(file: str, old: bytes, new: bytes) -> Iterator[Step]:
    """Yield steps on the ranges of `file` that differ, near ones joined. After their ends both contents are zeros."""
    size = max(len(old), len(new))
    a = np.frombuffer(old.ljust(size, b"\0"), dtype=np.uint8)
    b = np.frombuffer(new.ljust(size, b"\0"), dtype=np.uint8)
    differing = np.flatnonzero(a != b)
    if not differing.size:
        return
    cuts = np.flatnonzero(np.diff(differing) > _JOIN_DISTANCE) + 1
    for run in np.split(differing, cuts):
        start, stop = int(run[0]), int(run[-1]) + 1
        content = b[start:stop].tobytes()
        yield WriteRange(file, start, content) if any(content) else ZeroRange(file, start, stop)


def zeroes(file: str, path: Path, start: int) -> Iterator[Step]:
    """Yield a step that zeroes the file at `path` from `start` to its last nonzero byte; `OSError` from reading."""
    stop = start
    with open_file(path) as reader:
        for first, last in reader.data_ranges(start, reader.length):
            for at in range(first, last, _CHUNK):
                content = reader.read(at, min(_CHUNK, last - at)).rstrip(b"\0")
                stop = at + len(content) if content else stop
    if stop > start:
        yield ZeroRange(file, start, stop)


def changed_file(path: Path, size: int, changes: Sequence[InPlace], allocated: int | None = None) -> LazyContent:
    """The first `size` bytes of the file at `path` with these changes; zeros where neither has any.

    What changes write from `size` on is left out. `ValueError` if two of them overlap.
    """
    ordered = sorted(changes, key=lambda change: change.start)
    if any(one.stop > other.start for one, other in pairwise(ordered)):
        raise ValueError("changes overlap")

    def pieces() -> Iterator[Buffer]:
        position = 0
        with open_file(path) as reader:
            for change in ordered:
                yield from _as_it_is(reader, position, min(change.start, size))
                left = max(0, size - change.start)
                for piece in change.new_bytes() if left else ():
                    yield piece[:left]
                    left -= min(left, len(piece))
                position = change.stop
            yield from _as_it_is(reader, position, size)

    return LazyContent(size, pieces, allocated=allocated)


def _as_it_is(reader: FileReader, start: int, stop: int) -> Iterator[bytes]:
    for at in range(start, stop, _CHUNK):
        length = min(_CHUNK, stop - at)
        yield reader.read(at, length).ljust(length, b"\0")


class Overlaid(FileReader):
    """A file with changes laid over it; a read touches only the changes in its range."""

    def __init__(self, below: FileReader, changes: Iterable[InPlace]) -> None:
        self._changes = sorted(changes, key=lambda change: change.start)
        self._starts = [change.start for change in self._changes]
        self._reached = [*accumulate((change.stop for change in self._changes), max)]
        self._below = below

    @property
    def length(self) -> int:
        return max(self._below.length, self._reached[-1])

    def read(self, offset: int, length: int) -> bytes:
        found = bytearray(max(0, min(offset + length, self.length) - offset))
        self.read_into(memoryview(found), offset)
        return bytes(found)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        stop = min(offset + len(buffer), self.length)
        if stop <= offset:
            return 0
        got = self._below.read_into(buffer[: stop - offset], offset)
        buffer[got : stop - offset] = bytes(stop - offset - got)
        for change in self._changes[bisect_right(self._reached, offset) : bisect_left(self._starts, stop)]:
            first, last = max(offset, change.start), min(stop, change.stop)
            if first < last:
                buffer[first - offset : last - offset] = self.written(change, first, last)
        return stop - offset

    def written(self, change: InPlace, first: int, last: int) -> bytes:
        """The bytes [first, last) of the file that a change writes."""
        if change.content is None:
            return bytes(last - first)
        return change.content.part(first - change.start, last - change.start)

    def data_ranges(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        written = [(max(start, each.start), min(stop, each.stop)) for each in self._changes
                   if each.start < stop and each.stop > start]
        at = start
        for first, last in sorted([*self._below.data_ranges(start, min(stop, self._below.length)), *written]):
            if max(at, first) < last:
                yield max(at, first), last
                at = last

    def announce(self, start: int, stop: int) -> None:
        self._below.announce(start, stop)

    def close(self) -> None:
        self._below.close()
