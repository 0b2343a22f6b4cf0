"""`python -m formats.native.build`: compile the kernels into a library beside their sources, if they have changed.

Needs a C compiler ($CC, cc, gcc, clang) or the package `ziglang`, but no Python headers. Imports only the standard
library: the package build runs this file alone.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

SOURCES = ("kernels.h", "layout.h", "crc.c", "walk.c", "rows.c", "index.c", "lines.c")
LIBRARY = "kernels.bin"
"""Not `.so`: Python would take it for an extension module."""
FLAGS = ("-std=gnu11", "-O3", "-fwrapv", "-fPIC", "-shared", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra")
ZIG = "ziglang"
ZIG_FLAGS = {"x86_64": ("-mcpu=x86_64+evex512",)}
"""By processor: without it, functions for AVX-512 are not compiled as zig calls clang."""
_MARK = "mqtool kernels of sources "


class BuildError(Exception):
    """There is no compiler, or its error output."""


def mark(read: Callable[[str], bytes]) -> bytes:
    """Return the mark of a library built from these sources; `read` returns the content of a source by name."""
    state = 0
    for name in SOURCES:
        state = zlib.crc32(read(name), state)
    return f"{_MARK}{state:08x}".encode()


def mark_of(folder: Path) -> bytes:
    return mark(lambda name: (folder / name).read_bytes())


def is_fresh(folder: Path) -> bool:
    """Whether a folder has a library built from the sources next to it."""
    try:
        return mark_of(folder) + b"\0" in (folder / LIBRARY).read_bytes()
    except OSError:
        return False


def compiler() -> list[str] | None:
    """Return the command of a C compiler: $CC, the system's, or the package ziglang; None if there is none."""
    chosen = shlex.split(os.environ.get("CC", ""))
    for command in (chosen, ["cc"], ["gcc"], ["clang"]):
        if command and shutil.which(command[0]):
            return command
    zig = [sys.executable, "-m", ZIG, "cc", *ZIG_FLAGS.get(platform.machine(), ())]
    return zig if importlib.util.find_spec(ZIG) else None


def build(folder: Path, flags: Sequence[str] = (), target: Path | None = None) -> Path:
    """Compile the sources in a folder; return the library, which replaces the old one atomically. `BuildError`."""
    command = compiler()
    if command is None:
        raise BuildError("there is no C compiler: install one or the package ziglang, or set $CC")
    target = target or folder / LIBRARY
    made = target.with_name(f".{target.name}.{os.getpid()}")
    define = f'-DMQTOOL_MARK="{mark_of(folder).decode()}"'
    files = [str(folder / name) for name in SOURCES if name.endswith(".c")]
    try:
        line = [*command, *FLAGS, *flags, define, *files, "-o", str(made)]
        done = subprocess.run(line, capture_output=True, text=True)
        if done.returncode:
            raise BuildError(f"{shlex.join(command)}: {done.stderr.strip()[-2000:]}")
        os.replace(made, target)
    except OSError as error:
        raise BuildError(str(error)) from error
    finally:
        with contextlib.suppress(OSError):
            made.unlink(missing_ok=True)
    return target


def ensure(folder: Path) -> None:
    """Build the library unless it matches the sources. `BuildError` if it cannot be built."""
    if not is_fresh(folder):
        build(folder)


def main() -> int:
    """Build the library of this package unless it is up to date; return the exit code."""
    folder = Path(__file__).resolve().parent
    try:
        ensure(folder)
    except BuildError as error:
        print(f"kernels were not built: {error}", file=sys.stderr)
        return 1
    print(folder / LIBRARY)
    return 0


if __name__ == "__main__":
    sys.exit(main())
