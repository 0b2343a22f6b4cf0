"""Where a store's files are: on local disks, on s3:// and hdfs://, or in a store as a plan would leave it.

Anything but a local file has a `StorePath`; the system's own calls refuse it, so that no other file is opened by
mistake. Its tree lists it, and opens it as a `FileReader`.
"""

from __future__ import annotations

import errno
import glob
import os
import stat
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache, cached_property
from itertools import chain, count
from pathlib import Path, PosixPath, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from recover.findings.code import NotAStore, Refusal, require
from recover.findings.model import Phrase
from recover.store.reader import FileReader, LocalFile, spend
from recover.store.reading import DANGLING, kind_of

# --- Paths in other trees than the local file system.


class Entry(NamedTuple):
    """One name in a folder. `status` is that of its target, None for a dangling link."""

    name: str
    status: os.stat_result | None

    @property
    def is_file(self) -> bool:
        return self.status is not None and stat.S_ISREG(self.status.st_mode)

    @property
    def is_folder(self) -> bool:
        return self.status is not None and stat.S_ISDIR(self.status.st_mode)

    @property
    def kind(self) -> str:
        """The kind of entry, in words."""
        return DANGLING if self.status is None else kind_of(self.status.st_mode)

    @property
    def length(self) -> int:
        """Length in bytes; 0 for a dangling link."""
        return 0 if self.status is None else self.status.st_size


class Tree:
    """Files and folders under one root; names are relative to it, "" is the root itself."""

    def status(self, name: str) -> os.stat_result:
        """Return the status of a name; `OSError` if it does not exist."""
        raise NotImplementedError

    def entries(self, name: str) -> list[Entry]:
        """Return the entries of a folder, in any order. `OSError`."""
        raise NotImplementedError

    def open(self, name: str) -> FileReader:
        """Open one file. `OSError`."""
        raise NotImplementedError

    def behind(self, name: str) -> Path | None:
        """Return the local path of a name; None if there is none."""
        return None

    def below(self, name: str) -> Path | None:
        """Return the path of the file over which this one is laid; None for a file of its own."""
        return None

    def origin(self, name: str, position: int) -> tuple[Path, int] | None:
        """Return the file that holds a byte of this one, and its position there; None for this file itself."""
        return None


class LocalTree(Tree):
    """The local file system. Names are paths relative to its root."""

    def status(self, name: str) -> os.stat_result:
        return os.stat(self.behind(name))

    def entries(self, name: str) -> list[Entry]:
        return entries(self.behind(name))

    def open(self, name: str) -> FileReader:
        return LocalFile(self.behind(name))

    def behind(self, name: str) -> Path:
        return Path("/", name)


class StorePath(PosixPath):
    """A path in a tree: its first part identifies the tree, the others are the name there."""

    def __fspath__(self) -> str:
        raise TypeError(f"{self} is not a local file; it is read through a FileReader")

    @property
    def tree(self) -> Tree:
        """The tree of the first part. A remote store is identified by its address, in each process."""
        key = self.parts[0] if self.parts else ""
        if key not in _trees and "://" not in unquote(key):
            raise missing(self)  # unmounted, or not in a tree
        return _trees[key] if key in _trees else _remote_tree(unquote(key))

    def __truediv__(self, other: str | os.PathLike[str]) -> Any:
        """Return a path below; an absolute one, as settings have them, is local."""
        return Path(other) if PurePosixPath(other).is_absolute() else super().__truediv__(other)

    @property
    def within(self) -> str:
        """The name in the tree."""
        return "/".join(self.parts[1:])

    @property
    def behind(self) -> Path | None:
        """The local path it stands for; None if there is none."""
        return self.tree.behind(self.within)

    @property
    def below(self) -> Path | None:
        """The path of the file over which this one is laid; None for a file of its own."""
        return self.tree.below(self.within)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return length and times, as far as the tree knows them. `OSError`."""
        return self.tree.status(self.within)

    def lstat(self) -> os.stat_result:
        """Return `stat`: a tree has no links of its own."""
        return self.stat()

    def _mode(self) -> int:
        try:
            return self.stat().st_mode
        except OSError:
            return 0

    def exists(self, **_: Any) -> bool:
        return bool(self._mode())

    def is_dir(self, **_: Any) -> bool:
        return stat.S_ISDIR(self._mode())

    def is_file(self, **_: Any) -> bool:
        return stat.S_ISREG(self._mode())

    def is_symlink(self) -> bool:
        return False

    def iterdir(self) -> Iterator[StorePath]:  # type: ignore[override]
        yield from [self / entry.name for entry in self.tree.entries(self.within)]

    def glob(self, pattern: str, **_: Any) -> Iterator[StorePath]:  # type: ignore[override]
        """Yield the paths that match a pattern of names, without `**`."""
        head, _slash, rest = pattern.rstrip("/").partition("/")
        for path in self.iterdir() if self.is_dir() else ():
            if fnmatchcase(path.name, head):
                if rest:
                    yield from path.glob(rest)
                elif not pattern.endswith("/") or path.is_dir():
                    yield path

    def absolute(self) -> StorePath:
        """Return the path itself: it does not depend on the working directory."""
        return self


_trees: dict[str, Tree] = {}
_numbers = count(1)


def mount(tree: Tree) -> StorePath:
    """Register a tree until `unmount`; return its root, which has a unique name."""
    key = f"tree:{next(_numbers)}"
    _trees[key] = tree
    return StorePath(key)


def unmount(root: Path) -> None:
    """Unregister the tree of a path; nothing in it can be opened any more."""
    del _trees[root.parts[0]]


def status_of(mode: int, size: int, mtime_ns: int) -> os.stat_result:
    """Return a status for something outside the file system; unknown fields are 0."""
    seconds = mtime_ns // 1_000_000_000
    times = {"st_atime_ns": mtime_ns, "st_mtime_ns": mtime_ns, "st_ctime_ns": mtime_ns}
    return os.stat_result((mode, 0, 0, 1, 0, 0, size, seconds, seconds, seconds), times)


def bytes_on_disk(status: os.stat_result) -> int:
    """The bytes that a file holds on its disk, without its holes; its length where that is not known."""
    blocks = getattr(status, "st_blocks", None)
    return status.st_size if blocks is None else blocks * 512


def missing(path: object) -> FileNotFoundError:
    """Return the error for a name that does not exist."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def open_file(path: Path | str) -> FileReader:
    """Open the file at a local or tree path. `OSError`; `Refusal` (8) if a server cannot be reached."""
    if not isinstance(path, StorePath):
        return LocalFile(path)
    opened = path.tree.open(path.within)
    opened.path = path
    return opened


def origin_of(path: Path, position: int) -> tuple[Path, int]:
    """Return the file on the disk, or on a server, that holds a byte of the file at `path`, and its position there."""
    found = path.tree.origin(path.within, position) if isinstance(path, StorePath) else None
    if found is None and isinstance(path, StorePath) and (below := path.below or path.behind) is not None:
        return origin_of(below, position)
    return (path, position) if found is None else found


def read_small(path: Path, limit: int) -> bytes:
    """Return the file's bytes, at most `limit` of them."""
    with open_file(path) as reader:
        return reader.read(0, min(limit, reader.length))


# --- Listing.


def entries(folder: Path) -> list[Entry]:
    """Return the entries of a folder by name, without those a live broker deleted since the listing. `OSError`."""
    if isinstance(folder, StorePath):
        return sorted(folder.tree.entries(folder.within), key=lambda entry: entry.name)
    found = []
    with os.scandir(folder) as listed:
        for item in listed:
            try:
                found.append(Entry(item.name, item.stat()))
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ELOOP):
                    raise
                if item.is_symlink():
                    found.append(Entry(item.name, None))
    return sorted(found, key=lambda entry: entry.name)


def existing_entries(folder: Path) -> list[Entry]:
    """Return `entries`, empty for a missing folder."""
    try:
        return entries(folder)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP):
            raise
        return []


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder, sorted; empty for a missing folder. `OSError`."""
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def files_below(top: Path, *, strict: bool = False, folders: bool = False) -> Iterator[tuple[str, os.stat_result]]:
    """Yield name, relative to `top`, and own status of everything below it, without `folders` except these; links are
    not followed.

    A folder that cannot be listed counts as empty; with `strict` it raises `OSError`.
    """
    if isinstance(top, StorePath):
        for path in sorted(top.iterdir()) if top.is_dir() else ():
            if path.is_dir():
                yield from ((f"{path.name}/{name}", status) for name, status in files_below(path))
            else:
                yield path.name, path.stat()
        return
    left = [""]
    while left:
        folder = left.pop()
        try:
            with os.scandir(top / folder) as listed:
                items = [*listed]
        except OSError:
            if strict:
                raise
            continue
        for item in items:
            with suppress(OSError):
                if item.is_dir(follow_symlinks=False):
                    left.append(f"{folder}{item.name}/")
                    if not folders:
                        continue
                yield folder + item.name, item.stat(follow_symlinks=False)


# --- Stores on s3:// and hdfs://. Only what is read is fetched; sequential reads come in large ranges, several at a
# time.


SCHEMES = ("s3://", "s3a://", "s3n://", "hdfs://")
_RANGE = 8 << 20
_AT_ONCE = 4
_LITTLE = 64 << 10
_FILES_AT_ONCE = 8
_IDLE = 64
_TREES = 16


def is_remote(place: str) -> bool:
    """Whether a place is not a local path."""
    return place.startswith(SCHEMES)


def refuse_change(place: str) -> None:
    """Raise `Refusal` (8): nothing is changed in place on an object store, which has neither locks nor renames."""
    raise Refusal(Phrase("{place}: a store on s3:// or hdfs:// is only read, never changed", place=place),
                  "`mqtool recover` with --output DIR fetches it to a disk and repairs the copy.")


def remote_root(place: str) -> Path:
    """Return the root of a remote store, to be listed afresh; no request is sent yet."""
    url = _normal(place)
    _remote_tree(url, fresh=True)
    return StorePath(quote(url, safe=":?=&"))


def list_remote(place: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield name and status of every file and folder below a place, freshly listed, by folder and name. As
    `RemoteTree`."""
    for folder, inside in sorted(RemoteTree(_normal(place)).listed.items()):
        for name, status in sorted(inside.items()):
            yield f"{folder}/{name}", status


def remote_system(place: str) -> tuple[Any, str]:
    """Return the pyarrow file system of a place, and its path there. `Refusal` (8) if it cannot be reached."""
    return RemoteTree(_normal(place)).system


def remote_matches(pattern: str) -> list[str]:
    """Return the folders on s3:// that match a pattern with * and [...] in the names below the bucket, sorted."""
    address, *query = _normal(pattern).split("?", 1)
    bucket, *names = address.removeprefix("s3://").strip("/").split("/")
    files, _ = remote_system("?".join([f"s3://{bucket}", *query]))
    from pyarrow.fs import FileSelector, FileType

    found = [bucket]
    try:
        for name in names:
            if not glob.has_magic(name):
                found = [f"{folder}/{name}" for folder in found]
                continue
            inside = [files.get_file_info(FileSelector(folder, allow_not_found=True)) for folder in found]
            found = [item.path for item in chain.from_iterable(inside)
                     if item.type == FileType.Directory and fnmatchcase(item.base_name, name)]
        folders = [item.path for item in files.get_file_info(found) if item.type == FileType.Directory]
    except OSError as error:
        raise _unreachable(pattern, error) from error
    return ["?".join([f"s3://{folder}", *query]) for folder in sorted(folders)]


def _normal(place: str) -> str:
    """Return the place with the scheme that pyarrow knows: s3a and s3n are Hadoop's names for s3."""
    scheme, _, rest = place.partition("://")
    return f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{rest}"


def url_of(path: Path) -> str | None:
    """Return the address of a file of a remote store; None for local files."""
    if not isinstance(path, StorePath) or not isinstance(tree := path.tree, RemoteTree):
        return None
    return tree.url_of(path.within)


def list_again(path: Path) -> None:
    """Have the remote store of a path listed, and its files opened, afresh when they are next used."""
    if isinstance(path, StorePath) and isinstance(path.tree, RemoteTree):
        _remote_tree(unquote(path.parts[0]), fresh=True)


class RemoteTree(Tree):
    """All objects below an address, listed once.

    `NotAStore` (16) if there is nothing at that place, `Refusal` (8) if it cannot be reached.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._expected: Iterator[str] = iter(())
        self._coming: dict[str, Future[RemoteFile]] = {}
        self._idle: OrderedDict[str, RemoteFile] = OrderedDict()
        """Open files that are not in use: opening one takes a request, and what it read last may be asked for again."""

    @cached_property
    def system(self) -> tuple[Any, str]:
        """The pyarrow file system, and the root there."""
        require("s3", f"reading {self._url.partition('?')[0]}")
        from pyarrow.fs import FileSystem

        try:
            files, root = FileSystem.from_uri(self._url)
        except (OSError, ValueError) as error:
            raise _unreachable(self._url, error) from error
        return files, root

    @cached_property
    def listed(self) -> dict[str, dict[str, os.stat_result]]:
        """Folder -> name -> status; folders are those with content, and those that the server lists."""
        files, root = self.system
        from pyarrow.fs import FileSelector, FileType

        try:
            found = files.get_file_info(FileSelector(root, recursive=True))
        except OSError as error:
            if isinstance(error, FileNotFoundError) or "NO_SUCH_BUCKET" in str(error):
                raise NotAStore(Phrase("{path} does not exist", path=self._url.partition("?")[0]),
                                "Give the store root: the prefix below which commitlog/ is.") from error
            raise _unreachable(self._url, error) from error
        listed: dict[str, dict[str, os.stat_result]] = {"": {}}
        for info in found:
            is_folder = info.type == FileType.Directory
            name = "/".join(PurePosixPath(info.path[len(root) :].strip("/")).parts)
            mode = stat.S_IFDIR if is_folder else stat.S_IFREG
            status = status_of(mode, 0 if is_folder else info.size, info.mtime_ns or 0)
            if is_folder:
                listed.setdefault(name, {})
            while name:
                folder, _, own = name.rpartition("/")
                listed.setdefault(folder, {}).setdefault(own, status)
                name, status = folder, status_of(stat.S_IFDIR, 0, 0)
        return listed

    def status(self, name: str) -> os.stat_result:
        if name in self.listed:
            return status_of(stat.S_IFDIR, 0, 0)
        folder, _, own = name.rpartition("/")
        if own not in self.listed.get(folder, {}):
            raise missing(name)
        return self.listed[folder][own]

    def entries(self, name: str) -> list[Entry]:
        if name not in self.listed:
            raise missing(name)
        return [Entry(*item) for item in self.listed[name].items()]

    def announce(self, names: Iterator[str]) -> None:
        """See the function `announce`."""
        self._expected = names
        self._ask()

    def _ask(self) -> None:
        while len(self._coming) < _FILES_AT_ONCE and (name := next(self._expected, None)) is not None:
            self._coming[name] = _pool().submit(self._prefetched, name)

    def _prefetched(self, name: str) -> RemoteFile:
        file = self._opened(name)
        file.announce(0, file.length)
        return file

    def open(self, name: str) -> FileReader:
        coming = self._coming.pop(name, None)
        self._ask()
        if coming is not None:
            return coming.result()
        idle = self._idle.pop(name, None)
        return self._opened(name) if idle is None else idle

    def keep(self, name: str, file: RemoteFile) -> None:
        """Keep an open file for the next `open`."""
        self._idle[name] = file
        if len(self._idle) > _IDLE:
            self._idle.popitem(last=False)

    def _opened(self, name: str) -> RemoteFile:
        try:
            files, root = self.system
            return RemoteFile(self, name, files.open_input_file(f"{root.rstrip('/')}/{name}"))
        except FileNotFoundError:
            raise missing(name) from None
        except OSError as error:
            raise _unreachable(self.url_of(name), error) from error

    def url_of(self, name: str) -> str:
        """Return the address of one object."""
        base, question, query = self._url.partition("?")
        return f"{base.rstrip('/')}/{quote(name)}{question}{query}"


_remote: dict[str, RemoteTree] = {}


def _remote_tree(url: str, *, fresh: bool = False) -> RemoteTree:
    """Return the tree at an address; the most recent ones are cached."""
    if fresh or url not in _remote:
        _remote.pop(url, None)
        while len(_remote) >= _TREES:
            del _remote[next(iter(_remote))]
        _remote[url] = RemoteTree(url)
    return _remote[url]


def announce(paths: Iterable[Path]) -> None:
    """Announce that these files are read completely, in this order: remote ones are prefetched, several at a time."""
    first = next(paths := iter(paths), None)
    if isinstance(first, StorePath) and isinstance(tree := first.tree, RemoteTree):
        tree.announce(path.within for path in chain([first], paths) if isinstance(path, StorePath))


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(2 * _AT_ONCE, thread_name_prefix="mqtool-fetch")


# --- Writing to a server: into an empty place only, each object under a name of its own until it is complete.


def is_empty(place: StorePath) -> bool:
    """Whether nothing is at a place on a server. `OSError` if it cannot be asked, as for a bucket that is not there."""
    files, root = _at(place)
    from pyarrow.fs import FileSelector

    return not files.get_file_info(FileSelector(root, allow_not_found=True))


def send(file: Path, to: StorePath) -> None:
    """Upload a local file, or everything in a local folder. `OSError`."""
    files, path = _at(to)
    from pyarrow.fs import LocalFileSystem, copy_files

    copy_files(str(file), path, source_filesystem=LocalFileSystem(), destination_filesystem=files)


def move_objects(pairs: Iterable[tuple[StorePath, StorePath]]) -> None:
    """Give objects their names, several at a time, without a byte through this machine. `OSError`."""
    def move(pair: tuple[StorePath, StorePath]) -> None:
        (files, source), (_, target) = map(_at, pair)
        files.move(source, target)

    for _ in _pool().map(move, pairs):
        pass


def remove_below(place: StorePath) -> None:
    """Remove everything below a place on a server. `OSError`."""
    files, path = _at(place)
    files.delete_dir_contents(path, missing_dir_ok=True)


def _at(path: StorePath) -> tuple[Any, str]:
    """Return the pyarrow file system of a path on a server, and the name there."""
    tree = path.tree
    assert isinstance(tree, RemoteTree)
    files, root = tree.system
    return files, "/".join(filter(None, (root.rstrip("/"), path.within)))


class RemoteFile(FileReader):
    """One object, read by ranges. A network failure is not a bad sector: `Refusal` (8), not zeros."""

    def __init__(self, tree: RemoteTree, name: str, file: Any) -> None:
        self._tree, self._name, self._file = tree, name, file
        self._length = int(file.size())
        self._coming: dict[tuple[int, int], Future[bytes]] = {}
        self._last = 0, b""
        """Start and content of the last request."""

    @property
    def length(self) -> int:
        return self._length

    def announce(self, start: int, stop: int) -> None:
        for span in [span for span in self._coming if span[1] <= start]:
            self._coming.pop(span).cancel()
        at = max([start, *(last for _, last in self._coming)])
        stop = min(stop, self._length)
        while at < stop and len(self._coming) < _AT_ONCE:
            # extend the last range rather than leave a short one
            last = stop if stop - at < 2 * _RANGE else at + _RANGE
            self._coming[at, last] = _pool().submit(self._fetch, at, last)
            at = last

    def read(self, offset: int, length: int) -> bytes:
        parts: list[bytes] = []
        at, stop = offset, min(offset + length, self._length)
        while at < stop:
            span = next((span for span in self._coming if span[0] <= at < span[1]), None)
            if span is None:
                last = min([stop, *(first for first, _ in self._coming if first > at)])
                parts.append(self._read_nearby(at, last))
            else:
                last = min(stop, span[1])
                parts.append(self._coming[span].result()[at - span[0] : last - span[0]])
            at = last
        content = parts[0] if len(parts) == 1 else b"".join(parts)
        spend(len(content))
        return content

    def _read_nearby(self, start: int, stop: int) -> bytes:
        """Return bytes that were not announced; a read shortly after the last one fetches 64 KiB ahead."""
        begin, content = self._last
        if not begin <= start <= stop <= begin + len(content):
            ahead = start + _LITTLE if begin < start < begin + len(content) + _LITTLE else stop
            begin, content = self._last = start, self._fetch(start, min(max(stop, ahead), self._length))
        return content[start - begin : stop - begin]

    def _fetch(self, start: int, stop: int) -> bytes:
        try:
            content = bytes(self._file.read_at(stop - start, start))
        except OSError as error:
            raise _unreachable(self._tree.url_of(self._name), error) from error
        if len(content) != stop - start:
            raise Refusal(Phrase("{place} became shorter while it was read",
                                 place=self._tree.url_of(self._name).partition("?")[0]),
                          "Run the command again when nothing writes there.")
        return content

    def close(self) -> None:
        for coming in self._coming.values():
            coming.cancel()
        self._coming.clear()
        self._tree.keep(self._name, self)


def _unreachable(place: str, error: Exception) -> Refusal:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
    return Refusal(Phrase("{place} cannot be read: {reason}", place=place.partition("?")[0], reason=reason),
                   "Credentials and region come from the environment (AWS_ACCESS_KEY_ID, AWS_REGION), another "
                   "endpoint from the place: s3://bucket/store?endpoint_override=host:9000&scheme=http. hdfs:// needs "
                   "libhdfs and CLASSPATH.")
