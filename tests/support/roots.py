"""What `make dist` builds, of this work tree, and roots with little in them to run it: no network, another user,
nothing that can be written.

A bare root has glibc of a release of Debian and nothing else: no shell, no Python, no other library. Apt fetches it,
once a work tree, with a state of its own; without it the tests say that they were not run.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
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
    """Return a folder with the files of a release of this work tree: dist/ itself after `make dist`, else one that is
    built if an earlier build was of another work tree. Skip the test where no `make dist` has compiled an interpreter,
    which takes minutes."""
    script = ROOT / "packaging" / "dist.py"
    done = subprocess.run([sys.executable, "-B", script, "tested", ROOT / "build" / "tested"], capture_output=True,
                          text=True)
    if done.returncode == 77:
        pytest.skip("NOT RUN: no interpreter was compiled on this machine (make dist)")
    assert not done.returncode, done.stderr[-3000:]
    return Path(done.stdout.strip())


def _fetched(release: str, architecture: str, *words: str) -> list[Path]:
    """Have apt fetch packages of a release of Debian, once a work tree; skip the test if it cannot."""
    folder = ROOT / "build" / "roots" / f"{release}-{architecture}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as made:
                script = (f"import sys; sys.path.insert(0, {str(ROOT / 'packaging')!r}); import common, pathlib; "
                          f"work = pathlib.Path({made!r}); "
                          f"apt = common.apt(work / 'apt', 'deb', {release!r}, architecture={architecture!r}); "
                          f"common.run([*apt, *{words!r}], work)")
                done = subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, text=True, timeout=240)
                if done.returncode:
                    pytest.skip(f"NOT RUN in a root of {release}: {done.stderr[-300:]}")
                packages = Path(made) / "packages"
                packages.mkdir()
                for path in list(Path(made).rglob("*.deb")):
                    path.rename(packages / path.name)
                packages.rename(folder)
    return sorted(folder.iterdir())


def bare_root(folder: Path, release: str) -> Path:
    """Make a root with glibc of a release of Debian alone, in a folder."""
    return _root(folder / "root", _fetched(release, "amd64", "download", "libc6"))


def emulated_root(folder: Path, release: str) -> Path:
    """Make a root of Debian for aarch64 with its Python, compiled if this one is of the same version, and the emulator
    `/qemu`, in a folder; skip the test if there is none."""
    emulator = shutil.which("qemu-aarch64-static")
    if emulator is None:
        pytest.skip("NOT RUN: there is no qemu-aarch64-static")
    folder.mkdir()
    packages = _fetched(release, "arm64", "install", "--download-only", "--yes", "--no-install-recommends",
                        "python3-minimal", "libpython3-stdlib")
    root = _root(folder / "root", packages)
    shutil.copy(emulator, root / "qemu")
    for library in root.glob(f"usr/lib/python{sys.version_info.major}.{sys.version_info.minor}"):
        compiled(library)
    return root


def compiled(library: Path) -> None:
    """Compile modules for this version of Python, as an installation does: an emulated one takes minutes for it."""
    subprocess.run([sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", library],
                   check=True, capture_output=True)


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
