"""What `make dist` builds, of this work tree, and roots with little in them to run it: no network, another user,
nothing that can be written.

A bare root has glibc of a release of Debian and nothing else: no shell, no Python, no other library. Apt fetches it,
once a run of tests, with a state of its own; without it the tests say that they were not run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
_ENTER = """
set -eu
root=$1 app=$2 data=$3; shift 3
mount --make-rprivate /
mount --bind "$root" "$root"
mount --bind "$app" "$root/app"
mount --bind "$data" "$root/data"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
mount -o remount,ro,bind "$root"
mount -o remount,ro,bind "$root/app"
exec env -i HOME=/root PATH=/usr/bin:/usr/sbin:/bin chroot --userspec=%(user)d:%(user)d "$root" "$@"
"""


def why_not() -> str | None:
    """Why no root can be made here; None if one can."""
    if os.geteuid():
        return "only root can make a root"
    lacking = [name for name in ("unshare", "chroot", "apt-get", "dpkg-deb", "readelf") if shutil.which(name) is None]
    return f"there is no {lacking[0]}" if lacking else None


def released() -> Path:
    """Return a folder with the files of a release of this work tree, built if an earlier build was of another one. Skip
    the test where no `make dist` has compiled an interpreter, which takes minutes."""
    folder = ROOT / "build" / "tested"
    script = ROOT / "packaging" / "dist.py"
    done = subprocess.run([sys.executable, "-B", script, "tested", folder], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("NOT RUN: no interpreter was compiled on this machine (make dist)")
    assert not done.returncode, done.stderr[-3000:]
    return folder


def _fetched(folder: Path, release: str, architecture: str, *words: str) -> list[Path]:
    """Have apt fetch packages of a release of Debian; skip the test if it cannot."""
    script = (f"import sys; sys.path.insert(0, {str(ROOT / 'packaging')!r}); import common, pathlib; "
              f"work = pathlib.Path({str(folder)!r}); "
              f"apt = common.apt(work / 'apt', 'deb', {release!r}, architecture={architecture!r}); "
              f"common.run([*apt, *{words!r}], work)")
    done = subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, text=True, timeout=240)
    if done.returncode:
        pytest.skip(f"NOT RUN in a root of {release}: {done.stderr[-300:]}")
    return sorted(folder.rglob("*.deb"))


def bare_root(folder: Path, release: str) -> Path:
    """Make a root with glibc of a release of Debian alone, in a folder."""
    return _root(folder / "root", _fetched(folder, release, "amd64", "download", "libc6"))


def emulated_root(folder: Path, release: str) -> Path:
    """Make a root of Debian for aarch64 with its Python and the emulator `/qemu`, in a folder; skip the test if there
    is none."""
    emulator = shutil.which("qemu-aarch64-static")
    if emulator is None:
        pytest.skip("NOT RUN: there is no qemu-aarch64-static")
    folder.mkdir()
    packages = _fetched(folder, release, "arm64", "install", "--download-only", "--yes", "--no-install-recommends",
                        "python3-minimal", "libpython3-stdlib")
    root = _root(folder / "root", packages)
    shutil.copy(emulator, root / "qemu")
    return root


def _root(root: Path, packages: list[Path]) -> Path:
    for package in packages:
        subprocess.run(["dpkg-deb", "-x", package, root], check=True)
    for name in ("app", "data", "proc", "root", "tmp"):
        (root / name).mkdir(exist_ok=True)
    (root / "root").chmod(0o700)
    return root


class Host(NamedTuple):
    """A root, what is to be seen in it as /app, and the words that start mqtool there."""

    root: Path
    app: Path
    command: tuple[str, ...]

    def run(self, data: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """Run mqtool as nobody, without network. The root is read-only and so is /app; `data` is there as /data, and an
        empty /tmp: the only places that can be written. HOME is root's."""
        return subprocess.run(
            ["unshare", "--net", "--mount", "--pid", "--fork", "sh", "-c", _ENTER % {"user": NOBODY}, "sh", self.root,
             self.app, data, *self.command, *words], capture_output=True, text=True, timeout=900)
