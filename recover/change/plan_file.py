"""Plans as JSON documents: a body, the CRC-32C of its canonical form, and a format version.

Small content stands in the document, larger content in files of a directory next to it, each with its size and CRC-32C.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from recover.change import disk
from recover.change.content import INLINE_LIMIT, Content, FileContent, content_from_json, inline_json, make, pieces_of
from recover.change.model import STEP_KINDS, FileState, InPlace, Plan, RetireFolder, Step, StoreIdentity, resolve
from recover.findings.model import Finding
from recover.findings.refusal import Refusal
from recover.store.reading import crc32c, laid_out
from recover.store.store import JOURNAL_DIR, Store

FORMAT = "mqtool-plan"
VERSION = 1
_LARGEST = 512 << 20


def canonical(value: object) -> bytes:
    """The one byte form of a JSON value that checksums are taken over (ASCII, sorted keys, no blanks)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def document(plan: Plan, contents: Sequence[dict[str, Any] | None], sidecar: str) -> bytes:
    """The plan file's bytes; `contents` says of each step where its content is kept."""
    steps = []
    for number, step in enumerate(plan.steps):
        value = step.json()
        if (content := contents[number]) is not None:
            value["content"] = content
        if plan.preconditions:
            value["before"] = plan.preconditions[number].json()
        steps.append(value)
    body = {
        "id": plan.id, "command": plan.command, "created_ms": plan.created_ms, "sidecar": sidecar,
        "store": structs.asdict(plan.store) if plan.store else None, "parts": list(plan.parts), "loss": list(plan.loss),
        "summary": plan.summary, "steps": steps, "watched": [_short(state) for state in plan.watched],
    }
    whole = {"format": FORMAT, "version": VERSION, "crc32c": crc32c(canonical(body)), "body": body}
    return laid_out(whole, 1, sort_keys=True, allow_nan=False).encode("ascii") + b"\n"


def _short(state: FileState) -> dict[str, Any]:
    """A state without what is as it is by default: plans watch every file of a store."""
    bare = structs.asdict(FileState("", False))
    return {name: value for name, value in state.json().items() if name in ("file", "exists") or value != bare[name]}


def stands_inline(step: Step, content: Content) -> bool:
    """Whether content is kept in the document. Whole files of a run are always staged, see `recover.change.staging`."""
    return content.size <= INLINE_LIMIT and isinstance(step, InPlace)


def refuse_taken(path: Path) -> None:
    """`Refusal` if something is there already where a plan file is to be."""
    if os.path.lexists(path):
        raise Refusal(f"{path} exists already", "apply that plan, or name another file")


def save_plan(plan: Plan, path: Path) -> Path | None:
    """Write a plan file and the folder of its large contents, if it has any: that folder.

    `Refusal` if the disk will not take it, or one is there already.
    """
    refuse_taken(path)
    sidecar = path.with_name(f"{path.name}.{plan.id}.content")
    contents: list[dict[str, Any] | None] = []
    large = {
        number: step.content for number, step in enumerate(plan.steps)
        if step.content is not None and step.content.size > INLINE_LIMIT
    }
    try:
        if large:
            disk.mkdir(sidecar)
        for number in large:
            disk.unlink(_kept(sidecar, number))
        made = make(sidecar / "making", {_kept(sidecar, number): content for number, content in large.items()},
                    interrupted=lambda: False)
        disk.sync_all(made)
        for number, step in enumerate(plan.steps):
            content = step.content
            if content is None:
                contents.append(None)
            elif number not in large:
                contents.append(inline_json(content))
            else:
                kept = _kept(sidecar, number)
                size, crc = made.get(kept) or disk.create_from_pieces(kept, pieces_of(content))
                contents.append({"size": size, "crc32c": crc, "file": kept.name})
        temporary = path.with_name(f".{path.name}.{plan.id}")
        disk.unlink(temporary)
        disk.create_file(temporary, [document(plan, contents, sidecar.name)], 0o644)
        disk.rename(temporary, path)
        disk.fsync_dir(path.parent)
    except OSError as error:
        raise Refusal(f"the plan cannot be saved to {path}: {error.strerror}", "choose another place") from error
    return sidecar if large else None


def _kept(sidecar: Path, number: int) -> Path:
    return sidecar / f"{number:06d}"


def load_plan(path: Path, *, sidecar: str | None = None) -> Plan:
    """Read a plan file; `Refusal` with the reason if it is none, damaged, or of another format version.

    `sidecar`: the only folder beside it that may hold content.
    """
    try:
        if path.stat().st_size > _LARGEST:
            raise Refusal(f"{path} is too large for a plan", "check the file name")
        data = path.read_bytes()
    except OSError as error:
        raise Refusal(f"the plan {path} cannot be read: {error.strerror}", "check the file name") from error
    try:
        return _parse(json.loads(data), path, sidecar)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Refusal(f"{path} is not a plan: {error}", "make the plan again") from error


def _parse(whole: dict[str, Any], path: Path, only: str | None) -> Plan:
    if whole["format"] != FORMAT:
        raise ValueError("it has another format")
    if whole["version"] != VERSION:
        raise Refusal(
            f"{path} has plan format {whole['version']}, this mqtool knows {VERSION}", "make the plan again"
        )
    body = whole["body"]
    if crc32c(canonical(body)) != whole["crc32c"]:
        raise Refusal(f"{path} was changed after it was saved: its checksum does not fit", "make the plan again")
    sidecar = str(body["sidecar"])
    if "/" in sidecar or sidecar in ("", ".", "..") or (only is not None and sidecar != only):
        raise ValueError(f"content directory {sidecar!r}")
    steps = [_step(value, path.with_name(sidecar)) for value in body["steps"]]
    missing = [step.content.path for step in steps
               if only is None and isinstance(step.content, FileContent) and not step.content.path.is_file()]
    if missing:
        raise Refusal(
            f"{missing[0]} is missing: contents of this plan are in the folder {sidecar} next to it",
            f"copy that folder along with {path.name}, or make the plan again", file=str(missing[0]),
        )
    before = [FileState(**value["before"]) for value in body["steps"] if "before" in value]
    if len(before) not in (0, len(steps)):
        raise ValueError("a step has no precondition")
    return Plan(
        command=str(body["command"]), steps=tuple(steps), loss=tuple(body["loss"]), summary=dict(body["summary"]),
        parts=tuple(map(str, body["parts"])), id=_plain_id(body["id"]), created_ms=int(body["created_ms"]),
        store=StoreIdentity(**body["store"]) if body["store"] else None, preconditions=tuple(before),
        watched=tuple(FileState(**value) for value in body["watched"]),
    )


def _plain_id(value: str) -> str:
    # The id becomes part of a directory name.
    if not (isinstance(value, str) and value.isascii() and value.isalnum() and len(value) <= 32):
        raise ValueError(f"plan id {value!r}")
    return value


def _step(value: dict[str, Any], sidecar: Path) -> Step:
    content = content_from_json(value["content"], sidecar) if "content" in value else None
    kind = STEP_KINDS.get(value["kind"])
    if kind is None:
        raise ValueError(f"unknown step kind {value['kind']!r}")
    return kind.from_json(value, content)


# --- Where a command may write: the parts of the store as its own command line names them, and nothing else.
#
# A store is hostile input, and so are its journal and a plan that somebody hands over: both name files, and neither
# may
# widen what the command was given. No folder between a part and a file may be a link, or the link would widen it.
# A part's own folder may be one if the command line names that part (commitlog on another disk, say).


_FOLDERS = ("commitlog", "consumequeue", "consumequeue_ext", "index", "config")
_FILES = ("checkpoint", "abort")
_OPTIONS = {"commitlog": "--commitlog", "consumequeue": "--consumequeue", "index": "--index"}


class Places:
    """The folders that may be written below `root` and in the parts that are `given` (paths), looked at when asked.

    What was looked at once is not looked at again: make a new one for the next look.
    """

    def __init__(self, root: Path, given: Iterable[Path | str] = ()) -> None:
        self.root = Path(os.path.abspath(root))
        self.given = tuple(Path(os.path.abspath(part)) for part in given)
        self._bases = {self.root / name for name in _FOLDERS} | set(self.given)
        self._known: set[Path] = set()

    def check_plan(self, plan: Plan) -> None:
        """`Refusal` naming the first path of a plan that the command was not given, or that leads through a link."""
        for part in plan.parts:
            path = Path(os.path.abspath(part))
            if path not in self.given and not path.is_relative_to(self.root):
                raise _foreign(part)
        self.check(plan.steps)

    def check(self, steps: Iterable[Step]) -> None:
        """The same for some steps."""
        for step in steps:
            self.folders_of(step)

    def folders_of(self, step: Step) -> tuple[str, ...]:
        """The folders, as plans name them, in which a step may make or remove names; `Refusal` for a foreign one."""
        if step.file in _FILES:
            return (".",)
        path = Path(os.path.normpath(self.root / step.file))
        if isinstance(step, RetireFolder) and step.file in _FOLDERS:
            return (".",)
        folders = []
        for folder in path.parents:
            folders.append(folder)
            if folder in self._bases:
                break
        else:
            raise _foreign(step.file)
        for folder in folders:
            self._check_folder(folder)
        names = [str(folder) for folder in folders]
        if step.file.startswith("/"):
            return tuple(names)
        return (*(os.path.relpath(name, self.root) for name in names), ".")

    def _check_folder(self, folder: Path) -> None:
        if folder in self._known:
            return
        if folder not in self.given:
            try:
                is_link = stat.S_ISLNK(os.lstat(folder).st_mode)
            except (FileNotFoundError, NotADirectoryError):
                is_link = False
            if is_link:
                raise self._behind_link(folder)
        self._known.add(folder)

    def _behind_link(self, folder: Path) -> Refusal:
        target = os.path.realpath(folder)
        name = os.path.relpath(folder, self.root) if folder.is_relative_to(self.root) else str(folder)
        option = _OPTIONS.get(name)
        if option is not None:
            remedy = f"if that folder belongs to this store, name it: {option} {target}"
        else:
            remedy = "put the folder itself in its place (move it, or mount it there), or make a copy with --output"
        return Refusal(
            f"{name} is a link to {target}, and nothing is written behind a link of the store", remedy, file=name,
            target=target,
        )


def _foreign(path: str) -> Refusal:
    return Refusal(
        f"{path!r} is outside of the store's files as this command was given them, and nothing is written there",
        "if it belongs to the store, name its folder with --commitlog, --consumequeue or --index; if not, somebody "
        "made this up: do not use it", file=path,
    )


def check_alone(root: Path, file: str) -> None:
    """`Refusal` unless a file that is about to be written in place is a file, and has no other name."""
    try:
        status = os.lstat(root / file)
    except OSError:
        return
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        what = "a link" if stat.S_ISLNK(status.st_mode) else "known by another name, too" if stat.S_ISREG(
            status.st_mode) else "no regular file"
        raise Refusal(
            f"{file} is {what}: a change would reach outside of the store",
            "put a copy of the file in its place (cp -p --sparse=always), then run the command again", file=file,
        )


# --- Folders where only data files belong: how they look, and whether one can be put aside whole.


ODD_NAMES = frozenset({"commitlog-odd-name", "consumequeue-odd-name", "index-odd-name"})


def observe_folder(root: Path, file: str) -> FileState:
    """A folder (or a symbolic link to one) and what is in it, by names, sizes and times; no file is opened.

    `Refusal` if it is something else, or cannot be listed.
    """
    path = resolve(root, file)
    try:
        status = os.lstat(path)
        if not path.is_dir():
            raise Refusal(f"{file} is not a folder", file=file)
        size, digest = 0, crc32c(os.fsencode(os.readlink(path)) if stat.S_ISLNK(status.st_mode) else b"")
        for entry in _below(path) if stat.S_ISDIR(status.st_mode) else ():
            inside = entry.stat(follow_symlinks=False)
            length = inside.st_size if stat.S_ISREG(inside.st_mode) else 0
            name = os.fsencode(os.path.relpath(entry.path, path))
            digest = crc32c(b"%s\0%o %d %d\0" % (name, inside.st_mode, length, inside.st_mtime_ns), digest)
            size += length
    except (FileNotFoundError, NotADirectoryError):
        return FileState(file, False, folder=True)
    except OSError as error:
        raise Refusal(f"{file} cannot be looked at: {error.strerror}", file=file) from error
    return FileState(file, True, size, status.st_mtime_ns, crc32c=digest, folder=True)


def _below(path: Path) -> Iterator[os.DirEntry[str]]:
    """Everything in a folder, at any depth, in an order that does not depend on the file system."""
    waiting = [str(path)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        yield from found
        waiting += [entry.path for entry in found if entry.is_dir(follow_symlinks=False)]


def stray_folders(findings: Iterable[Finding], store: Store) -> list[str]:
    """The folders that findings warn of because only data files belong where they are, as plans name them."""
    return [
        item.file for item in findings
        if item.code in ODD_NAMES and item.severity != "info" and item.file is not None
        and resolve(store.root, item.file).is_dir()
    ]


def can_be_retired(root: Path, file: str) -> bool:
    """Whether a folder can leave the store in one move: on the journal's file system, or if nothing is in it."""
    path = resolve(root, file)
    home = root / JOURNAL_DIR if (root / JOURNAL_DIR).is_dir() else root
    try:
        if path.is_symlink() or not os.path.ismount(path):
            return os.lstat(path).st_dev == home.stat().st_dev or (not path.is_symlink() and not os.listdir(path))
    except OSError:
        pass
    return False
