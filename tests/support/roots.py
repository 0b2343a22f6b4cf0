"""Roots with little in them, to run what a release brings: no network, another user, nothing that can be written.

A bare root has glibc of a release of Debian and nothing else: no shell, no Python, no other library. Apt fetches it,
once a run of tests, with a state of its own; without it the tests say that they were not run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

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


def bare_root(folder: Path, release: str) -> Path:
    """Make a root with glibc of a release of Debian alone, in a folder; skip the test if apt cannot."""
    script = (f"import sys; sys.path.insert(0, {str(ROOT / 'packaging')!r}); import common, pathlib; "
              f"work = pathlib.Path({str(folder)!r}); "
              f"common.run([*common.apt(work / 'apt', 'deb', {release!r}), 'download', 'libc6'], work)")
    done = subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, text=True, timeout=240)
    if done.returncode:
        pytest.skip(f"NOT RUN in a root of {release}: {done.stderr[-300:]}")
    root = folder / "root"
    subprocess.run(["dpkg-deb", "-x", next(folder.glob("libc6_*.deb")), root], check=True)
    for name in ("app", "data", "proc", "root", "tmp"):
        (root / name).mkdir(exist_ok=True)
    (root / "root").chmod(0o700)
    return root


def run_inside(root: Path, app: Path, data: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a root, as nobody, without network. `app` is there as /app, read-only as the root itself;
    `data` as /data, and an empty /tmp: the only places that can be written. HOME is root's."""
    return subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "sh", "-c", _ENTER % {"user": NOBODY}, "sh", root, app, data,
         *command], capture_output=True, text=True, timeout=300)
