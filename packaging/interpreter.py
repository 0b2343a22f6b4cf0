"""CPython for glibc 2.17 (x86-64), compiled by zig from Debian's sources: for the folder that needs no Python.

1. The sources come by apt, out of a list of our own, so that the machine's stays as it is. Upstream's archives are
   pinned by checksum; of Debian's changes to them, only those for CVEs are applied, which apt's signature vouches for.
2. zlib and libffi become static libraries, and every extension module a part of the interpreter: one file, which needs
   nothing but glibc. Modules without a use here (ssl, sqlite3, curses and so on) are left out.
3. The library is stripped to what runs, and compiled to bytecode that is never checked or written again.

It protects from a newer glibc of the machine that builds: zig has the headers and the symbols of 2.17 alone.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from common import BUILD, PYTHON, apt, check_sum, epoch, fresh, run, zig

TARGET = "x86_64-linux-gnu.2.17"


class Source(NamedTuple):
    """A source package of Debian: its release, upstream's archive, and the archive's checksum."""

    package: str
    release: str
    archive: str
    sha256: str

    @property
    def version(self) -> str:
        found = re.search(r"_([\d.]+\d)(?=[.+])", self.archive.replace("really", ""))
        return found[1] if found else ""


SOURCES = (
    Source("python3.13", "trixie", "python3.13_3.13.5.orig.tar.xz",
           "93e583f243454e6e9e4588ca2c2662206ad961659863277afcdb96801647d640"),
    Source("zlib", "trixie", "zlib_1.3.dfsg+really1.3.1.orig.tar.gz",
           "60dd315c07f616887caa029408308a018ace66e3d142726a97db164b3b8f69fb"),
    # the last that comes with its `configure`
    Source("libffi", "bookworm", "libffi_3.4.4.orig.tar.gz",
           "d66c56ad259a82cf2a9dfc408b32bf5da52371500b84745f7fb8b645712df676"),
)
_LEFT_OUT = ("_tkinter", "_curses", "_curses_panel", "readline", "_gdbm", "_dbm", "_bz2", "_lzma", "_sqlite3", "_ssl",
             "_hashlib", "_uuid")
_UNUSED = ("test", "idlelib", "tkinter", "turtledemo", "turtle.py", "ensurepip", "pydoc_data", "venv", "__phello__",
           "curses", "sqlite3", "dbm", "_pyrepl", "lib-dynload", f"config-{PYTHON}-x86_64-linux-gnu")
_PREADV2 = """
#include <sys/syscall.h>
/* glibc has preadv2 since 2.26; it tells whether the page cache holds a page */
static ssize_t preadv2_of_kernel(int fd, const struct iovec *vector, int count, off_t offset, int flags) {
    return syscall(SYS_preadv2, fd, vector, count, (long)offset, 0L, flags);
}
#define preadv2 preadv2_of_kernel
"""


def fetch(folder: Path) -> None:
    """Have apt fetch the sources of Debian into a folder, and check them."""
    command = apt(folder / "apt", "deb-src", *sorted({source.release for source in SOURCES}))
    for source in SOURCES:
        kinds = ("--tar-only", "--diff-only") if source.package.startswith("python") else ("--tar-only",)
        for kind in kinds:
            run([*command, "source", "--download-only", kind, "-t", source.release, source.package], folder)
        check_sum(folder / source.archive, source.sha256)
        run(["tar", "xf", source.archive, "--one-top-level=" + source.package, "--strip-components=1"], folder)
    changes = next(folder.glob("python3*.debian.tar.*"))
    run(["tar", "xf", changes, "--one-top-level=changes"], folder)


def build_libraries(folder: Path, environment: dict[str, str]) -> Path:
    """Compile zlib and libffi; return the prefix with their headers and archives."""
    made = folder / "made"
    run(["./configure", "--static", f"--prefix={made}"], folder / "zlib", environment)
    run(["make", "install", "-j", str(os.cpu_count())], folder / "zlib", environment)
    run(["./configure", "--build=x86_64-pc-linux-gnu", "--host=x86_64-linux-gnu", f"--prefix={made}",
         "--disable-shared", "--enable-static", "--disable-exec-static-tramp", "--disable-multi-os-directory",
         "--disable-docs"], folder / "libffi", environment)
    run(["make", "install", "-j", str(os.cpu_count())], folder / "libffi", environment)
    return made


def build_python(folder: Path, made: Path, environment: dict[str, str]) -> Path:
    """Compile CPython with its modules inside; return its prefix."""
    source = folder / "python3.13"
    series = (folder / "changes" / "debian" / "patches" / "series").read_text().split()
    for name in series:
        if name.startswith("CVE-"):
            run(["patch", "-p1", "-s", "-i", folder / "changes" / "debian" / "patches" / name], source)
    module = source / "Modules" / "posixmodule.c"
    mark = "#ifdef HAVE_SYS_UIO_H\n#  include <sys/uio.h>\n#endif\n"
    text = module.read_text()
    if mark not in text:
        sys.exit("posixmodule.c has another shape")
    module.write_text(text.replace(mark, mark + _PREADV2, 1))
    run(["./configure", "--build=x86_64-pc-linux-gnu", "--prefix=/python", "--disable-test-modules",
         "--with-ensurepip=no", "--without-doc-strings", "--disable-shared", "MODULE_BUILDTYPE=static",
         "ac_cv_func_memfd_create=no", "ac_cv_func_copy_file_range=no", "ac_cv_func_preadv2=yes",
         f"ZLIB_CFLAGS=-I{made}/include", f"ZLIB_LIBS=-L{made}/lib -lz",
         f"LIBFFI_CFLAGS=-I{made}/include", f"LIBFFI_LIBS=-L{made}/lib -lffi",
         *(f"py_cv_module_{name}=n/a" for name in _LEFT_OUT)], source, environment)
    run(["make", "-j", str(os.cpu_count())], source, environment)
    out = fresh(folder / "out")
    run(["make", "install", f"DESTDIR={out}"], source, environment)
    return out / "python"


def strip(prefix: Path, folder: Path) -> None:
    """Leave what runs: the interpreter, and the library without what has no use here or names this machine."""
    library = prefix / "lib" / f"python{PYTHON}"
    for name in _UNUSED:
        path = library / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    (library / "lib-dynload").mkdir()
    (library / "lib-dynload" / "README").write_text("Python looks for this folder; all its modules are in bin/.\n")
    for path in [*prefix.rglob("__pycache__"), prefix / "share", prefix / "include", prefix / "lib" / "pkgconfig"]:
        shutil.rmtree(path, ignore_errors=True)
    for path in [*prefix.glob("lib/*.a"), *(prefix / "bin").iterdir()]:
        if path.name != f"python{PYTHON}":
            path.unlink()
    data = next(library.glob("_sysconfigdata_*.py"))
    known: dict[str, dict[str, object]] = {}
    exec(data.read_text(), known)
    kept = {name: value for name, value in sorted(known["build_time_vars"].items())
            if not (isinstance(value, str) and (str(folder) in value or "ziglang" in value))}
    data.write_text(f"build_time_vars = {kept!r}\n")


def interpreter() -> Path:
    """Return the prefix of the interpreter, built once for each version of this file and of the pinned tools."""
    made_of = hashlib.sha256(Path(__file__).read_bytes() + " ".join(zig()).encode()).hexdigest()[:12]
    folder = BUILD / f"interpreter-{made_of}"
    if not (folder / "ready").exists():
        fresh(folder)
        fetch(folder)
        environment = {
            "CC": " ".join(zig("cc", "-target", TARGET)), "AR": " ".join(zig("ar")), "RANLIB": " ".join(zig("ranlib")),
            "CFLAGS": "-O2 -fPIC", "OPT": "-DNDEBUG -O3 -g0 -fwrapv -Wno-error=date-time", "LDFLAGS": "-s",
            "PKG_CONFIG": "false", "SOURCE_DATE_EPOCH": str(epoch()), "LC_ALL": "C", "TZ": "UTC",
            "ZIG_GLOBAL_CACHE_DIR": str(folder / "cache"),
        }
        strip(build_python(folder, build_libraries(folder, environment), environment), folder)
        (folder / "ready").touch()
    return folder / "out" / "python"


if __name__ == "__main__":
    print(interpreter())
