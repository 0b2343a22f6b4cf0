"""New trees: copies of whole stores, so that recover can work on a copy and leave the original alone, and new stores.

1. A new tree belongs to whoever runs the command, and nobody else can enter it while it is filled (`new_folder`).
2. A copy has no link to its original, neither hard nor symbolic: later changes to it cannot reach the source. Content,
   owner and mode of a copied file are those of one open file, whatever becomes of its name meanwhile.
3. Owners are given when everything else is done, the deepest first and the tree itself last. Setuid and setgid bits are
   not copied. A tree that a kill left behind stays closed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from msgspec import structs

from recover.change import disk
from recover.change.content import stop_if
from recover.change.journal import FRESH_JOURNAL
from recover.change.lock import is_own_lock_file
from recover.change.model import Plan, Retire, Step
from recover.findings.code import N_, Refusal
from recover.findings.model import Phrase, shell_line
from recover.store.reader import FileReader
from recover.store.reading import Piece
from recover.store.source import StorePath, is_empty, names_in, open_file, remove_below, url_of
from recover.store.store import (
    CHECKPOINT,
    COMMITLOG,
    CONSUMEQUEUE,
    CONSUMEQUEUE_EXT,
    INDEX,
    JOURNAL_DIR,
    STAGING,
    Store,
)

_RANGE = 8 << 20
_DERIVED = frozenset({CONSUMEQUEUE, CONSUMEQUEUE_EXT, INDEX, CHECKPOINT})


def copy_store(
    sources: Sequence[tuple[Path, str]], target: Path, *, interrupted: Callable[[], bool] = lambda: False,
    progress: Callable[[str], None] | None = None, without: Collection[Path] = (),
) -> None:
    """Copy `(folder, name in the copy)` pairs; `(root, ".")` is the store itself. Several may share a name.

    Not copied from the store itself are a name of another pair (`(d, "commitlog")` replaces all of `root/commitlog`),
    and a folder of another pair; of none the files `without`.

    Blocks are shared where the file system can; holes, owners, modes, mtimes and xattrs are kept, journals left out.
    A store on a server is fetched: bytes and times. `Refusal` if the target is not empty, if a source changes
    meanwhile, or if the server or the disk fails; the copy is then removed.
    """
    target = target.absolute()
    check_target(sources, target)
    folders: list[tuple[Path, Path]] = []
    with new_folder(target) as tree, staged_folder(target) as made:
        for source, name in sources:
            disk.mkdir(made / name)
            folders.append((source, made / name))
            others = [item for item in sources if item[1] != "."] if name == "." else []
            names = {JOURNAL_DIR, *(other for _, other in others)}
            parts = {_identity(folder.stat()) for folder, _ in others if url_of(folder) is None}
            for path, copy in _walk(source, made / name, names, parts):
                stop_if(interrupted, N_("stopped; what was copied so far was removed"))
                if path in without:
                    continue
                if progress is not None:
                    progress(str(path if url_of(path) is None else copy.relative_to(made)))
                _copy(path, copy, folders, tree, made)
        for source, copy in reversed(folders):
            if url_of(source) is None:
                tree.will_be(copy, made, disk.like_of(source))
                disk.set_times(copy, os.stat(source).st_mtime_ns)
            disk.fsync_dir(copy)
        for source, name in sources:
            if name == "." and url_of(source) is None:
                tree.top, tree.mtime_ns = disk.like_of(source), os.stat(source).st_mtime_ns


def copy_file(path: Path, copy: Path) -> os.stat_result | None:
    """Create a file with the bytes and time of a local file (its mode too), or of one on a server. The status of the
    local one."""
    if url_of(path) is None:
        return disk.copy_file(path, copy, is_new=True)
    with closing(open_file(path)) as file:
        disk.create_from_pieces(copy, _fetched(file), disk.MODE)
    disk.set_times(copy, path.stat().st_mtime_ns)
    return None


@contextmanager
def remote_folder(target: StorePath) -> Iterator[StorePath]:
    """Yield an empty place on a server for a block to fill; after a failure nothing stays there. `OSError` becomes
    `Refusal`."""
    try:
        yield target
    except BaseException as error:
        with suppress(OSError, Refusal):
            remove_below(target)
        if isinstance(error, OSError):
            raise _unwritable(target, error) from error
        raise


def _unwritable(target: Path, error: OSError) -> Refusal:
    return Refusal(Phrase("{target} cannot be written: {error}", target=_shown(target), error=error),
                   "Check the address and its credentials.")


def _shown(target: Path) -> str:
    return (url_of(target) or str(target)).partition("?")[0]


def _fetched(file: FileReader) -> Iterator[Piece]:
    for at in range(0, file.length, _RANGE):
        file.announce(at, file.length)
        yield at, file.read(at, _RANGE)


class NewTree:
    """A folder that is being filled. `top`: what it is going to be like; `mtime_ns`: its time, if it is to have one.
    With `stays`, a failure leaves it as it is, closed."""

    def __init__(self, path: Path, top: disk.Like) -> None:
        self.path, self.top = path, top
        self.mtime_ns: int | None = None
        self.stays = self._is_open = False
        self._by_inode: dict[tuple[int, int], disk.Like] = {}
        self._by_name: dict[str, disk.Like] = {}

    def will_be(self, path: Path, below: Path, like: disk.Like) -> None:
        """Give a file or folder in there this owner and mode at the end: wherever it is then, and what replaces it."""
        status = os.lstat(path)
        self._by_inode[_identity(status)] = self._by_name[path.relative_to(below).as_posix()] = like

    def open_up(self) -> None:
        """Give owners and modes: the tree is complete."""
        if self._is_open:
            return
        self._is_open = True
        disk.hand_over(self.path, lambda name, status: self._by_inode.get(_identity(status)) or self._by_name.get(name),
                       self.top, only_top=not self._by_inode and self.top.uid == os.geteuid())
        if self.mtime_ns is not None:
            disk.set_times(self.path, self.mtime_ns)


_being_filled: dict[str, NewTree] = {}


@contextmanager
def new_folder(target: Path) -> Iterator[NewTree]:
    """Provide a folder, new or empty, for a block to fill; nobody else can enter it before the block ends (within
    another one for the same folder: before that ends). After a failure it is as before, unless the tree `stays`.
    `OSError` becomes `Refusal`."""
    whole = os.path.abspath(target)
    if whole in _being_filled:
        yield _being_filled[whole]
        return
    made, was, tree = not target.exists(), None, None
    with ExitStack() as opened:
        try:
            if made:
                disk.mkdir(target, mode=0o700)
            opened.enter_context(disk.within(target))
            was = disk.close_off(target)
            if made:
                was = structs.replace(was, mode=0o755 & ~_umask())
            tree = _being_filled[whole] = NewTree(target, was)
            yield tree
            tree.open_up()
        except BaseException as error:
            stays = tree is not None and tree.stays
            with suppress(OSError):
                if target.is_dir() and not stays:
                    _clear(target)
                if made and not stays:
                    disk.rmdir(target)
                elif was is not None and not stays:
                    disk.hand_over(target, lambda name, status: None, was, only_top=True)
            if isinstance(error, OSError):
                what = N_("is incomplete") if stays else N_("cannot be written")
                raise Refusal(Phrase("{target} {what}: {error}{removed}", target=target, what=what,
                                     error=error.strerror,
                                     removed="" if stays else N_("; what was written was removed")),
                              "Make room, or choose another place.", errno=error.errno) from error
            raise
        finally:
            _being_filled.pop(whole, None)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def staged_folder(target: Path) -> Iterator[Path]:
    """Yield a folder whose content moves to `target` (see `check_target`) when the block ends; see `new_folder`.

    The log moves last: until then, what a kill leaves in `target` is not a store.
    """
    with new_folder(target):
        _clear(target)
        made = target / STAGING
        disk.mkdir(made)
        yield made
        for path in sorted(made.iterdir(), key=lambda path: path.name.startswith(COMMITLOG)):
            disk.rename(path, target / path.name)
        disk.rmdir(made)
        disk.fsync_dir(target)


def _clear(folder: Path) -> None:
    # the staging folder last: without it nothing shows that the rest is a part of a copy
    for path in sorted(folder.iterdir(), key=lambda path: path.name == STAGING):
        if path.is_dir() and not path.is_symlink():
            disk.remove_tree(path)
        else:
            disk.unlink(path)


def sources_of(store: Store) -> list[tuple[Path, str]]:
    """The arguments of `copy_store` for a whole store, parts kept elsewhere included."""
    options = store.options
    named = ((options.consumequeue, "consumequeue"), (options.index, "index"))
    return [(store.root, "."), *((part, "commitlog") for part in options.commitlog),
            *((part, name) for part, name in named if part is not None)]


def twins_retired(plan: Plan, store: Store) -> set[Path]:
    """Log files that a plan retires because another folder has one of that name: a copy has room for one."""
    names = {twin.name for twin in store.commitlog.duplicates}
    return {path for step in plan.steps if isinstance(step, Retire)
            for path in [store.path(step.file)] if path.name in names and path.parent in store.commitlog_dirs}


def relocated(plan: Plan, store: Store, gone: Collection[Path]) -> Plan:
    """Turn a plan for a store into one for its copy of `sources_of(store)` without the files `gone`, not yet sealed."""
    parts = [(source.as_posix(), name) for source, name in sources_of(store) if name != "."]

    def file(step: Step) -> str:
        path = store.path(step.file).as_posix()
        return next((f"{name}{path.removeprefix(source)}" for source, name in parts if path.startswith(f"{source}/")),
                    step.file)

    steps = tuple(structs.replace(step, file=file(step)) for step in plan.steps if store.path(step.file) not in gone)
    return structs.replace(plan, steps=steps, parts=(), store=None, preconditions=(), watched=())


def check_target(sources: Sequence[tuple[Path, str]], target: Path) -> None:
    """`Refusal` unless `target` is apart from all sources, in a directory that exists, and is new, empty, or holds only
    what a killed copy of them left. A place on a server must be empty."""
    if isinstance(target, StorePath):
        try:
            if not is_empty(target):
                raise Refusal(Phrase("{target} is not empty", target=_shown(target)), "Name a new prefix.")
        except OSError as error:
            raise _unwritable(target, error) from error
        return
    real = target.resolve()
    for source, _ in sources:
        if url_of(source) is not None:
            continue
        origin = source.resolve()
        if real == origin or real.is_relative_to(origin) or origin.is_relative_to(real):
            raise Refusal(Phrase("the output must be outside the store: {target}", target=target),
                          "choose another place for the copy")
    try:
        there = set(os.listdir(target)) - {STAGING} if target.exists() else set()
        if there and (target / STAGING).is_dir() and any((target / STAGING).iterdir()):
            there -= _DERIVED.union(*((name, *names_in(source)) for source, name in sources))
        if there:
            whole = Phrase("; if it is the copy of a killed command, `mqtool recover {target}` continues there",
                           target=shell_line(target))
            raise Refusal(Phrase("{target} is not an empty directory", target=target),
                          Phrase("name an empty or a new one{whole}", whole=whole if COMMITLOG in there else ""))
        if not target.parent.is_dir():
            raise Refusal(Phrase("{path} does not exist", path=target.parent), "create it, or choose another place")
    except OSError as error:
        raise Refusal(Phrase("{target} cannot be read: {error}", target=target, error=error.strerror),
                      "choose another place") from error


def _walk(
    source: Path, copy: Path, without: Collection[str], parts: Collection[tuple[int, int]],
    above: frozenset[tuple[int, int]] = frozenset(),
) -> Iterator[tuple[Path, Path]]:
    """Yield files and folders below a folder, folders before their content; symbolic links to folders are followed.

    Left out are the names `without` at the top, and the folders `parts` anywhere.
    """
    is_here, here = url_of(source) is None, _identity(source.stat())
    if is_here and here in above:
        raise Refusal(Phrase("{source} leads back to a folder above it", source=source), "remove that symbolic link")
    for name in names_in(source):
        path = source / name
        if name == "..":
            raise Refusal(Phrase("{path} would lead out of the copy", path=path),
                          "No broker creates such a name: remove it.")
        if not above and (name in without or name.startswith(FRESH_JOURNAL)):
            continue
        if name == "lock" and is_here and is_own_lock_file(path):
            continue
        is_folder = path.is_dir()
        if is_folder and is_here and _identity(path.stat()) in parts:
            continue
        yield path, copy / name
        if is_folder:
            yield from _walk(path, copy / name, without, parts, above | {here})


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _copy(path: Path, copy: Path, folders: list[tuple[Path, Path]], tree: NewTree, made: Path) -> None:
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        disk.mkdir(copy)
        folders.append((path, copy))
        return
    if not stat.S_ISREG(status.st_mode):
        raise Refusal(Phrase("{path} is neither a file nor a folder", path=path), "move it out of the store first")
    if copy.exists():
        raise Refusal(Phrase("two commitlog paths hold {name}", name=path.name),
                      "`mqtool recover {store}` keeps the one with more of the log.")
    copied = copy_file(path.resolve() if url_of(path) is None else path, copy)
    if copied is not None:
        tree.will_be(copy, made, disk.Like.of(copied))
    after = path.stat()
    if (after.st_size, after.st_mtime_ns) != (status.st_size, status.st_mtime_ns):
        raise Refusal(Phrase("{path} changed while it was copied", path=path),
                      "stop the process that writes to the store")
