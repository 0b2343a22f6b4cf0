"""The source archive and the wheels: one wheel a platform for all Pythons, each built twice with the same bytes.

1. The source archive comes first; wheels are built out of it, so that it is known to be complete.
2. zig compiles the kernels for the oldest C library that a platform's wheels are for; the machine's own has no part.
3. Archives of wheels (`wheelhouse`) have mqtool and all that it needs, for a pip without network.
"""

from __future__ import annotations

import runpy
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from common import BUILD, ROOT, VERSION, epoch, fresh, kept, pack, run, tools, zig

ZIG_FLAGS = runpy.run_path(str(ROOT / "formats" / "native" / "build.py"))["ZIG_FLAGS"]

PYTHONS = ("3.11", "3.12", "3.13")


class Platform(NamedTuple):
    """A platform tag of wheels, the target that zig compiles for, and the tags of wheels that run there, too."""

    tag: str
    target: str
    accepts: tuple[str, ...]

    @property
    def compiler(self) -> list[str]:
        """The command that compiles the kernels."""
        return zig("cc", "-target", self.target, "-s", *ZIG_FLAGS.get(self.target.split("-")[0], ()))


PLATFORMS = (
    Platform("manylinux_2_17_x86_64.manylinux2014_x86_64", "x86_64-linux-gnu.2.17",
             ("manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_12_x86_64", "manylinux_2_5_x86_64")),
    Platform("manylinux_2_17_aarch64.manylinux2014_aarch64", "aarch64-linux-gnu.2.17",
             ("manylinux_2_17_aarch64", "manylinux2014_aarch64")),
    Platform("musllinux_1_2_x86_64", "x86_64-linux-musl", ("musllinux_1_2_x86_64", "musllinux_1_1_x86_64")),
)


def sdist(work: Path) -> Path:
    """Build the source archive in a folder; return it."""
    run([tools() / "python", "-m", "hatchling", "build", "-t", "sdist", "-d", work], ROOT,
        {"SOURCE_DATE_EPOCH": str(epoch())})
    return work / f"mqtool-{VERSION}.tar.gz"


def wheel(source: Path, platform: Platform, work: Path, cache: Path) -> Path:
    """Build the wheel of a platform out of the source archive, with the compiler's `cache`; return it."""
    tree = fresh(work / platform.target)
    run(["tar", "xf", source, "--strip-components=1"], tree)
    run([tools() / "python", "-m", "hatchling", "build", "-t", "wheel", "-d", work], tree, {
        "SOURCE_DATE_EPOCH": str(epoch()), "MQTOOL_PLATFORM": platform.tag,
        "CC": " ".join(platform.compiler), "ZIG_GLOBAL_CACHE_DIR": str(cache),
    })
    made = work / f"mqtool-{VERSION}-py3-none-{platform.tag}.whl"
    if not made.exists():
        sys.exit(f"no {made.name}: {[path.name for path in work.glob('*.whl')]}")
    return made


def build_all(work: Path, cache: Path | None = None) -> list[Path]:
    """Build the source archive and all wheels in a folder; without a `cache`, everything is compiled anew."""
    source = sdist(fresh(work))
    return [source, *(wheel(source, platform, work, cache or work / "zig-cache") for platform in PLATFORMS)]


def download(platform: Platform, python: str, target: Path) -> None:
    """Download what mqtool needs on a platform, as locked, once a machine; every file is checked against the lock."""
    lock = ROOT / "packaging" / "local.lock"

    def fetch(folder: Path) -> None:
        run([tools() / "python", "-m", "pip", "download", "--quiet", "--require-hashes", "--only-binary", ":all:",
             "--no-deps", "--python-version", python, "--implementation", "cp", "--abi", f"cp{python.replace('.', '')}",
             "--abi", "abi3", "--abi", "none", *(word for tag in platform.accepts for word in ("--platform", tag)),
             "-r", lock, "-d", folder], ROOT)

    shutil.copytree(kept("locked", lock.read_bytes(), python, *platform.accepts, make=fetch), target,
                    dirs_exist_ok=True)


def wheelhouse(platform: Platform, own: Path, target: Path, pythons: Sequence[str] = PYTHONS) -> Path:
    """Pack a platform's wheels of mqtool and of all that it needs, for these Pythons, in a folder."""
    name = f"mqtool-{VERSION}-wheelhouse-{platform.tag.split('.')[0]}"
    folder = fresh(BUILD / name)
    for python in pythons:
        download(platform, python, folder)
    (folder / own.name).write_bytes(own.read_bytes())
    (folder / "README").write_text(f"pip install --no-index --find-links {name} mqtool\n")
    return pack(folder, target / f"{name}.tar")


def wheels(target: Path) -> list[Path]:
    """Build the source archive and the wheels twice, compare, and leave them in a folder; return the files."""
    first, second = build_all(BUILD / "wheels-1"), build_all(BUILD / "wheels-2")
    for one, other in zip(first, second, strict=True):
        if one.read_bytes() != other.read_bytes():
            sys.exit(f"{one.name} has other bytes when it is built again")
    return [path.rename(target / path.name) for path in first]
