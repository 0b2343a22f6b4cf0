"""Stores on s3:// and hdfs://: small and derived files are fetched, the log is read where it is, range by range.

The store gets a folder of its own in the temporary folder. There its log files are names and lengths without a byte;
whoever opens one with a `FileReader` reads the object after it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from formats.names import offset_in_name
from recover.findings.refusal import NotAStore, Refusal
from recover.store.reader import Elsewhere, read_elsewhere
from recover.store.store import COMMITLOG

SCHEMES = ("s3://", "s3a://", "s3n://", "hdfs://")
_AT_ONCE = 8
_CHUNK = 8 << 20
_PRIVATE = 0o700
_opened: dict[str, Path] = {}
_urls: dict[str, str] = {}


def is_remote(place: str) -> bool:
    """True for what is no path of this machine."""
    return place.startswith(SCHEMES)


def refuse_change(place: str) -> None:
    """`Refusal` (8): nothing is changed in place on an object store, which knows neither locks nor renames."""
    raise Refusal(f"{place}: a store on s3:// or hdfs:// is read, but never changed",
                  "Copy it to a disk, change it there, and copy it back while no broker uses it.")


def local_root(place: str) -> Path:
    """The folder that stands for a remote store in this process; made at the first call, removed at the end.

    `NotAStore` (16) when there is nothing at that place, `Refusal` (8) when it cannot be reached or the
    temporary folder has no room for what is not the log.
    """
    place = _normal(place)
    if place not in _opened:
        folder = Path(tempfile.mkdtemp(prefix="mqtool-remote-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _fill(place, folder)
        _opened[place] = folder
    return _opened[place]


def drop_roots() -> None:
    """Remove the folders of this process that stand for remote stores: for one that ends without `atexit`."""
    while _opened:
        shutil.rmtree(_opened.popitem()[1], ignore_errors=True)


def url_of(path: Path) -> str | None:
    """Where the bytes of a log file of a remote store really are; None for files of this machine."""
    return _urls.get(os.fspath(path))


def serve(path: Path, url: str) -> None:
    """From now on a `FileReader` of `path` reads the object at `url`."""
    _urls[os.fspath(path)] = url
    read_elsewhere(path, lambda: RemoteFile(url))


class RemoteFile(Elsewhere):
    """One object, read by ranges. `FileNotFoundError` when it is gone, `Refusal` (8) when it cannot be reached."""

    def __init__(self, url: str) -> None:
        self._url = url
        files, path = _file_system(url)
        try:
            self._file = files.open_input_file(path)
            self.length = int(self._file.size())
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _unreachable(url, error) from error

    def read_at(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes at `offset`. A network that fails is no bad sector: `Refusal`, not zeros."""
        try:
            return bytes(self._file.read_at(max(0, min(length, self.length - offset)), min(offset, self.length)))
        except OSError as error:
            raise _unreachable(self._url, error) from error

    def close(self) -> None:
        """Let go of it."""
        self._file.close()


def _normal(place: str) -> str:
    """The place with the scheme that pyarrow knows: s3a and s3n are Hadoop's names for s3."""
    scheme, _, rest = place.partition("://")
    return f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{rest}"


def _file_system(place: str) -> tuple[Any, str]:
    from pyarrow.fs import FileSystem

    try:
        files, path = FileSystem.from_uri(place)
    except (OSError, ValueError) as error:
        raise _unreachable(place, error) from error
    return files, path


def list_remote(place: str) -> tuple[Any, str, list[Any]]:
    """pyarrow's file system of a place, its root there, and the information of every file and folder below it.

    `NotAStore` (16) when there is nothing at that place, `Refusal` (8) when it cannot be reached.
    """
    from pyarrow.fs import FileSelector

    files, root = _file_system(_normal(place))
    try:
        return files, root, files.get_file_info(FileSelector(root, recursive=True))
    except OSError as error:
        if isinstance(error, FileNotFoundError) or "NO_SUCH_BUCKET" in str(error):
            raise NotAStore(f"{place.partition('?')[0]} does not exist",
                            "Give the store root: the prefix below which commitlog/ is.") from error
        raise _unreachable(place, error) from error


def _fill(place: str, folder: Path) -> None:
    from pyarrow.fs import FileType

    files, root, found = list_remote(place)
    base, question, query = place.partition("?")
    fetched = []
    for info in found:
        name = info.path[len(root) :].strip("/")
        target = folder / name
        if not name or not target.resolve().is_relative_to(folder.resolve()):
            continue
        if info.type == FileType.Directory:
            target.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
            continue
        target.parent.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        if _is_log(name):
            _stand_in(target, info)
            serve(target, f"{base.rstrip('/')}/{name}{question}{query}")
        else:
            fetched.append((info, target))
    needed, free = sum(info.size for info, _ in fetched), shutil.disk_usage(folder).free
    if needed > free:
        raise Refusal(f"queues, index and config of {place} take {needed} bytes, and {folder.parent} has {free}",
                      "Set TMPDIR to a larger disk.")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(lambda item: _fetch(files, *item), fetched):
            pass


def _is_log(name: str) -> bool:
    folder, _, file = name.rpartition("/")
    return offset_in_name(file) is not None and folder.split("/")[-1].startswith(COMMITLOG)


def _stand_in(target: Path, info: Any) -> None:
    with target.open("wb") as file:
        file.truncate(info.size)
    _date(target, info)


def _fetch(files: Any, info: Any, target: Path) -> None:
    try:
        with files.open_input_stream(info.path) as source, target.open("wb") as file:
            while piece := source.read(_CHUNK):
                file.write(piece)
    except OSError as error:
        raise _unreachable(info.path, error) from error
    _date(target, info)


def _date(target: Path, info: Any) -> None:
    if info.mtime_ns is not None:
        os.utime(target, ns=(info.mtime_ns, info.mtime_ns))


def _unreachable(place: str, error: Exception) -> Refusal:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
    return Refusal(
        f"{place.partition('?')[0]} cannot be read: {reason}",
        "Credentials and region come from the environment (AWS_ACCESS_KEY_ID, AWS_REGION), another endpoint from the "
        "place: s3://bucket/store?endpoint_override=host:9000&scheme=http. hdfs:// needs libhdfs and CLASSPATH.",
    )
