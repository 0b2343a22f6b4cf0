"""`make dist`: all files of a release, in dist/, with their checksums. `dist.py wheels` leaves out the folder.

Wheels, source archive and wheelhouses need a Python and the packages' registry; the folder needs apt of a Debian, too,
and compiles an interpreter: some minutes, once a machine.

`dist.py tested FOLDER` is for tests, which have no such minutes. It names the folder with the files to test: dist/
where that is of this work tree, else FOLDER, with the same files, packed quickly, with wheelhouses for one Python,
around the interpreter that is there; it ends with 77 if there is none.
"""

from __future__ import annotations

import fcntl
import hashlib
import sys
from pathlib import Path

from common import BUILD, CACHE, DIST, ROOT, fresh, write_sums
from folder import archives
from interpreter import place
from wheels import PLATFORMS, build_all, wheelhouse, wheels

_NONE = 77
_MARK = "made-of"
_PARTS = ("mqtool", "formats", "recover", "packaging", "pyproject.toml", "hatch_build.py", "README.md")


def _stamp() -> str:
    """Tell work trees apart by all files that a release is made of."""
    files = sorted(path for name in _PARTS for path in [ROOT / name, *(ROOT / name).rglob("*")]
                   if path.is_file() and path.suffix not in (".pyc", ".bin"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def released(*, folder: bool) -> int:
    """Make dist/; return the exit code."""
    (BUILD / _MARK).unlink(missing_ok=True)
    made = wheels(fresh(DIST))
    if folder:
        made += archives(made[1], DIST)
    # lz4 has no wheels for musl: a pip there needs a compiler and the network
    made += [wheelhouse(platform, wheel, DIST) for platform, wheel in zip(PLATFORMS, made[1:], strict=False)
             if "musl" not in platform.tag]
    write_sums(made, DIST / "SHA256SUMS")
    if folder:
        (BUILD / _MARK).write_text(_stamp())
    for path in made:
        print(f"{path.stat().st_size / 1e6:8.1f} MB  {path.relative_to(ROOT)}")
    return 0


def tested(target: Path) -> int:
    """Make what tests run, and name its folder; return the exit code."""
    stamp = _stamp()
    of_release, mark = BUILD / _MARK, target / _MARK
    if of_release.exists() and of_release.read_text() == stamp and DIST.exists():
        print(DIST)
        return 0
    if not place().exists():
        return _NONE
    if not mark.exists() or mark.read_text() != stamp:
        fresh(target)
        made = [path.rename(target / path.name) for path in build_all(BUILD / "wheels-tested", CACHE / "zig")]
        made += archives(made[1], target, quickly=True)
        # for the Python of the tests, and for that of Debian 12, which is there for aarch64
        pythons = (".".join(map(str, sys.version_info[:2])), "3.11")
        made += [wheelhouse(platform, wheel, target, [python])
                 for platform, wheel, python in zip(PLATFORMS, made[1:], pythons, strict=False)]
        write_sums(made, target / "SHA256SUMS")
        mark.write_text(stamp)
    print(target)
    return 0


if __name__ == "__main__":
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one at a time: processes of a test run ask at once
        words = sys.argv[1:]
        sys.exit(tested(Path(words[1])) if words[:1] == ["tested"] else released(folder="wheels" not in words))
