"""Machine code on disk: beside the package, else below the home; never where others could have put it.

A file is believed when its owner is this user, root, or whoever owns our own source, nobody else can write it or
its folder, it was made for this machine and these versions from this source, and its checksum fits.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from functools import cache

from formats.compiled.digests import SIZE, digest_of

VARIABLE = "NUMBA_CACHE_DIR"
_MAGIC = b"mqtool kernel 2\n"
_HEAD = len(_MAGIC) + 3 * SIZE
_LARGEST = 8 << 20
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def read(name: str, environment: str, key: bytes) -> bytes | None:
    """The code of a kernel, None if no folder has it whole and for this source and environment."""
    file = _file_name(name, environment)
    for folder in trusted_folders(make=False):
        content = _content(os.path.join(folder, file))
        if content is not None and content[:_HEAD] == _head(environment, key, content[_HEAD:]):
            return content[_HEAD:]
    return None


def write(name: str, environment: str, key: bytes, code: bytes) -> None:
    """Keep the code of a kernel in the first folder that takes it.

    Where none does, a private one serves this process and those that it starts, and ends with it.
    """
    file, content = _file_name(name, environment), _head(environment, key, code) + code
    if _keep(file, content) or VARIABLE in os.environ:
        return
    import shutil
    import tempfile

    with contextlib.suppress(OSError):
        folder = tempfile.mkdtemp(prefix="mqtool-kernels-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ[VARIABLE] = folder
        _keep(file, content)


def folders() -> Iterator[str]:
    """Where kernels may be kept, the best place first: the one the user chose alone, if there is one."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        yield os.path.join(chosen, "mqtool")
        return
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    yield os.path.join(package, "__pycache__", "kernels")
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    if os.path.isabs(caches):
        yield os.path.join(caches, "mqtool", "kernels")


def trusted_folders(*, make: bool) -> Iterator[str]:
    """Those of `folders` that nobody else can write, the best place first; made if need be, and then writable."""
    for folder in folders():
        with contextlib.suppress(OSError):
            if make:
                os.makedirs(folder, mode=0o755, exist_ok=True)
            if _trusted(os.lstat(folder), stat.S_ISDIR) and (not make or os.access(folder, os.W_OK)):
                yield folder


def is_trusted_file(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file, no link, that nobody else could have written."""
    try:
        return _trusted(os.lstat(path), stat.S_ISREG)
    except OSError:
        return False


def _file_name(name: str, environment: str) -> str:
    # machines that share a home keep files of their own
    return f"{name}-{digest_of(environment.encode()).hex()[:16]}.kernel"


def _head(environment: str, key: bytes, code: bytes) -> bytes:
    return b"".join((_MAGIC, digest_of(environment.encode()), key, digest_of(code)))


def _content(path: str) -> bytes | None:
    """The bytes of a file that nobody else could have written; it is the opened one that is looked at."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(file, "rb") as stream:
            if not _trusted(os.fstat(file), stat.S_ISREG):
                return None
            return stream.read(_LARGEST)
    except OSError:
        return None


def _trusted(status: os.stat_result, is_kind: Callable[[int], bool]) -> bool:
    """Of the right kind, of an owner whose code we run anyway, and nobody else can write it."""
    return is_kind(status.st_mode) and not status.st_mode & _OTHERS and status.st_uid in _owners()


@cache
def _owners() -> frozenset[int]:
    owners = {0, os.geteuid()}
    with contextlib.suppress(OSError):  # there is no such file where we were imported from an archive
        owners.add(os.stat(__file__).st_uid)
    return frozenset(owners)


def _keep(name: str, content: bytes) -> bool:
    """Put a file into the first trusted folder that takes it; False where none does."""
    return any(_put(folder, name, content) for folder in trusted_folders(make=True))


def _put(folder: str, name: str, content: bytes) -> bool:
    """Put a whole file there at once; others who do the same are not disturbed. False if it cannot be."""
    made = os.path.join(folder, f".{name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        file = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with open(file, "wb") as stream:
            os.fchmod(file, 0o644)
            stream.write(content)
        os.replace(made, os.path.join(folder, name))
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(made)
        return False
    return True
