"""CPython for glibc 2.17 (x86-64), compiled by zig from Debian's sources, and the libraries that numpy wants of a
system: for the folder that needs no Python.

1. The sources come by apt, out of a list of our own, so that the machine's stays as it is. Upstream's archives are
   pinned by checksum; of Debian's changes to them, only those for CVEs are applied, which apt's signature vouches for.
2. zlib and libffi become static libraries, and every extension module a part of the interpreter: one file, which needs
   nothing but glibc. Modules without a use here (ssl, sqlite3, curses and so on) are left out.
3. The libraries are zlib, Debian's libgcc_s, and a libstdc++ of the two functions that numpy calls.
4. The standard library is compiled ahead, and its bytecode never checked again.
5. All this is made once a machine and version of this file, outside of the work tree, as no commit of ours changes it.
   What `configure` asks of the machine is answered here, so that every machine makes the same bytes.

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

from common import CACHE, PYTHON, ROOT, TOOLS, apt, check_sum, compile_ahead, fresh, run, zig

TARGET = "x86_64-linux-gnu.2.17"
LIBGCC = ("libgcc-s1_10.2.1-6_amd64.deb",
          "e478f2709d8474165bb664de42e16950c391f30eaa55bc9b3573281d83a29daf")
"""Of Debian 11, the newest that glibc 2.17 can load."""
_CXX_VERSIONS = "CXXABI_1.3 {}; GLIBCXX_3.4 { global: _Znwm; _ZdlPv; local: *; };"
_CXX = ROOT / "packaging" / "cxx.c"
_BUILT = "1750000000"
"""The time that it says it was built at: it is the same for all commits."""


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
           "curses", "sqlite3", "dbm", "_pyrepl")
_ASKED_OF_THE_MACHINE = ("ac_cv_broken_nice=no", "ac_cv_file__dev_ptmx=yes", "ac_cv_file__dev_ptc=no",
                         "ac_cv_posix_semaphores_enabled=yes", "ac_cv_broken_sem_getvalue=no",
                         "ac_cv_buggy_getaddrinfo=no")
"""What `configure` finds out by what it may do where it runs (its own niceness, /dev, the network), as Linux has it:
otherwise `nice make dist` makes another interpreter."""
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
         *_ASKED_OF_THE_MACHINE,
         f"ZLIB_CFLAGS=-I{made}/include", f"ZLIB_LIBS=-L{made}/lib -lz",
         f"LIBFFI_CFLAGS=-I{made}/include", f"LIBFFI_LIBS=-L{made}/lib -lffi",
         *(f"py_cv_module_{name}=n/a" for name in _LEFT_OUT)], source, environment)
    run(["make", "-j", str(os.cpu_count())], source, environment)
    prefix = fresh(folder / "python")
    library = prefix / "lib" / f"python{PYTHON}"
    shutil.copytree(source / "Lib", library, ignore=shutil.ignore_patterns("__pycache__", *_UNUSED))
    shutil.copy(next((source / (source / "pybuilddir.txt").read_text()).glob("_sysconfigdata_*.py")), library)
    (prefix / "bin").mkdir()
    shutil.copy(source / "python", prefix / "bin" / f"python{PYTHON}")
    return prefix


def strip(prefix: Path, folder: Path) -> None:
    """Leave out what names this machine, and say why a folder is empty."""
    library = prefix / "lib" / f"python{PYTHON}"
    (library / "lib-dynload").mkdir()
    (library / "lib-dynload" / "README").write_text("Python looks for this folder; all its modules are in bin/.\n")
    data = next(library.glob("_sysconfigdata_*.py"))
    known: dict[str, dict[str, object]] = {}
    exec(data.read_text(), known)
    kept = {name: value for name, value in sorted(known["build_time_vars"].items())
            if not (isinstance(value, str) and (str(folder) in value or "ziglang" in value))}
    data.write_text(f"build_time_vars = {kept!r}\n")


def build_shared(folder: Path, archive: Path, target: Path, environment: dict[str, str]) -> None:
    """Put libgcc_s, zlib and a libstdc++ of two functions into a folder, and a licence: a root may lack them."""
    work = fresh(folder / "libgcc")
    name, sha256 = LIBGCC
    run([*apt(work / "apt", "deb", "bullseye"), "download", "libgcc-s1", "gcc-10-base"], work)
    check_sum(work / name, sha256)
    for path in sorted(work.glob("*.deb")):  # the second has the licence
        run(["dpkg-deb", "-x", path, work], work)
    libraries = fresh(target / "libraries")
    shutil.copy(next(work.glob("**/libgcc_s.so.1")), libraries)
    shutil.copyfile(work / "usr" / "share" / "doc" / "gcc-10-base" / "copyright", target / "licenses" / "libgcc.txt")
    (work / "versions").write_text(_CXX_VERSIONS)
    for name, words in (
        ("libstdc++.so.6", [f"-Wl,--version-script={work / 'versions'}", str(_CXX)]),
        ("libz.so.1", ["-Wl,--whole-archive", str(archive), "-Wl,--no-whole-archive"]),
    ):
        run(zig("cc", "-target", TARGET, "-O2", "-s", "-shared", "-fPIC", f"-Wl,-soname,{name}", *words, "-o",
                str(libraries / name)), work, environment)


def place() -> Path:
    """Return the folder of the interpreter that this file and the pinned compiler make, whether or not it is there."""
    made_of = Path(__file__).read_bytes() + _CXX.read_bytes() + TOOLS[0].encode()
    return CACHE / f"interpreter-{hashlib.sha256(made_of).hexdigest()[:12]}"


def interpreter() -> Path:
    """Return a folder with `python` (its prefix), `libraries` and `licenses`, made if it is not there."""
    target = place()
    if target.exists():
        return target
    work = fresh(target.with_name(f"{target.name}.making"))
    fetch(work)
    environment = {
        "CC": " ".join(zig("cc", "-target", TARGET)), "AR": " ".join(zig("ar")), "RANLIB": " ".join(zig("ranlib")),
        "CFLAGS": "-O2 -fPIC", "OPT": "-DNDEBUG -O3 -g0 -fwrapv -Wno-error=date-time", "LDFLAGS": "-s",
        "PKG_CONFIG": "false", "SOURCE_DATE_EPOCH": _BUILT, "LC_ALL": "C", "TZ": "UTC",
        "ZIG_GLOBAL_CACHE_DIR": str(work / "cache"),
    }
    made = build_libraries(work, environment)
    prefix = build_python(work, made, environment)
    strip(prefix, work)
    kept = fresh(work / "kept")
    library = prefix / "lib" / f"python{PYTHON}"
    compile_ahead(prefix / "bin" / f"python{PYTHON}", library, [library])
    prefix.rename(kept / "python")
    (kept / "licenses").mkdir()
    for source in SOURCES:
        licence = work / source.package / "LICENSE"
        shutil.copyfile(licence if licence.exists() else licence.with_name("README"),
                        kept / "licenses" / f"{source.package}.txt")
    build_shared(work, made / "lib" / "libz.a", kept, environment)
    kept.rename(target)
    shutil.rmtree(work)
    return target


if __name__ == "__main__":
    print(interpreter())
