"""The folder that needs no Python, packed (`mqtool-VERSION-linux-x86_64.tar.xz`), and the .deb and .rpm around it.

1. The interpreter for glibc 2.17 (interpreter.py), and the wheels of the local engine as locked, all for glibc 2.17.
2. Bytecode is compiled ahead and never checked again: nothing is written where it runs, also as root. That of what
   mqtool needs is kept for the next build.
3. `mqtool` (launcher.c) starts it, from wherever it was unpacked, through links, and whatever the environment says.
4. What numpy needs of a system besides glibc is put where its libraries look first. The programs are tested in a root
   that has glibc and nothing else.
5. Licences and a bill of materials of all parts are inside; man page, completions and systemd units under `share/`.

The symbol versions of every binary are checked: none may need a newer glibc.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from common import BUILD, CACHE, PYTHON, ROOT, VERSION, compile_ahead, epoch, fresh, kept, pack, run, tools, zig
from interpreter import LIBGCC, SOURCES, TARGET, interpreter
from wheels import PLATFORMS, download

GLIBC = (2, 17)
NAME = f"mqtool-{VERSION}-linux-x86_64"
_UNUSED = ("*/tests", "numpy/fft", "numpy/f2py", "numpy/distutils", "numpy/_core/include", "numpy/_core/lib",
           "numpy/random/lib", "numpy/typing", "numpy/_pyinstaller", "numpy/*/*.pyi", "numpy/*.pyi")
_ZIG = {"ZIG_GLOBAL_CACHE_DIR": str(CACHE / "zig")}
_SHELLS = {"bash": "bash-completion/completions/mqtool", "zsh": "zsh/site-functions/_mqtool",
           "fish": "fish/vendor_completions.d/mqtool.fish"}


def newest_glibc(path: Path) -> tuple[int, ...]:
    """Return the newest version of glibc whose symbols a binary needs; (0,) if none."""
    text = subprocess.run(["readelf", "--version-info", "--wide", path], capture_output=True, text=True).stdout
    needs = text.partition("Version needs section")[2]
    return max((tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([\d.]+)", needs)), default=(0,))


def binaries(folder: Path) -> Iterator[Path]:
    """Yield the ELF files below a folder."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.open("rb").read(4) == b"\x7fELF":
            yield path


def install(wheels: Iterable[Path], site: Path) -> None:
    """Unpack wheels into a folder, without what never runs."""
    for path in wheels:
        run([sys.executable, "-m", "zipfile", "-e", path, site], ROOT)
    for pattern in _UNUSED:
        for path in sorted(site.glob(pattern)) + (sorted(site.glob(f"*/{pattern}")) if pattern == "*/tests" else []):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def needed() -> Path:
    """Return a library with the locked wheels of what mqtool needs, compiled, made once a machine and lock."""
    def make(folder: Path) -> None:
        wheels = fresh(BUILD / "folder-wheels")
        download(PLATFORMS[0], PYTHON, wheels)
        site = folder / "site-packages"
        install(sorted(wheels.iterdir()), site)
        shutil.copytree(interpreter() / "libraries", site / "numpy.libs", dirs_exist_ok=True)
        compile_ahead(interpreter() / "python" / "bin" / f"python{PYTHON}", folder, [site])

    lock = ROOT / "packaging" / "local.lock"
    return kept("needed", Path(__file__).read_bytes(), lock.read_bytes(), interpreter().name, make=make)


def licences(site: Path, folder: Path) -> None:
    """Copy the licences of all parts into a folder: one file or folder a part."""
    for info in sorted(site.glob("*.dist-info")):
        for path in info.rglob("*"):
            if not path.is_file() or not re.match(r"(?i)licen|copying|notice", path.name):
                continue
            target = folder / info.name.partition("-")[0] / path.relative_to(info)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    shutil.copytree(interpreter() / "licenses", folder, dirs_exist_ok=True)


def folder(own: Path) -> Path:
    """Put the folder together, for mqtool's own wheel; return it."""
    top = fresh(BUILD / "folder") / NAME
    shutil.copytree(interpreter() / "python", top / "python", symlinks=True)
    library = top / "python" / "lib" / f"python{PYTHON}"
    site = library / "site-packages"
    shutil.copytree(needed() / "site-packages", site, dirs_exist_ok=True)
    own_parts = fresh(BUILD / "folder-own")
    install([own], own_parts)
    shutil.copytree(own_parts, site, dirs_exist_ok=True)
    licences(site, top / "licenses")
    python = top / "python" / "bin" / f"python{PYTHON}"
    compile_ahead(python, library, (site / part.name for part in own_parts.iterdir() if "-info" not in part.name))
    run(zig("cc", "-target", TARGET, "-O2", "-s", f'-DPYTHON="{PYTHON}"', str(ROOT / "packaging" / "launcher.c"), "-o",
            str(top / "mqtool")), ROOT, _ZIG)
    for path in binaries(top):
        if newest_glibc(path) > GLIBC:
            sys.exit(f"{path.relative_to(top)} needs glibc {'.'.join(map(str, newest_glibc(path)))}")
    share(top)
    parts = [f"{source.package}={source.version}" for source in SOURCES] + [f"libgcc-s1={LIBGCC[0].split('_')[1]}"]
    run([tools() / "python", ROOT / "packaging" / "sbom.py", site, top / "sbom.cdx.json", NAME, VERSION, *parts], ROOT,
        {"SOURCE_DATE_EPOCH": str(epoch())})
    shutil.copyfile(ROOT / "LICENSE", top / "LICENSE")
    (top / "README").write_text(
        f"mqtool {VERSION} for Linux on x86-64 with glibc {'.'.join(map(str, GLIBC))} or newer. Run ./mqtool, from\n"
        "here or through a link, as any user: it needs no Python and writes nothing here. `mqtool --help`.\n")
    return top


def share(top: Path) -> None:
    """Make man page, completions and systemd units."""
    for shell, place in _SHELLS.items():
        target = top / "share" / place
        target.parent.mkdir(parents=True)
        target.write_text(run([top / "mqtool"], ROOT, {"_MQTOOL_COMPLETE": f"source_{shell}"}))
    (top / "share" / "man" / "man1").mkdir(parents=True)
    python = top / "python" / "bin" / f"python{PYTHON}"
    run([python, "-B", "-I", ROOT / "packaging" / "manpage.py", top / "share" / "man" / "man1" / "mqtool.1", VERSION,
         str(epoch())], ROOT)
    shutil.copytree(ROOT / "packaging" / "systemd", top / "share" / "systemd")


def system_packages(top: Path, target: Path, compression: Mapping[str, str]) -> list[Path]:
    """Build .deb and .rpm in a folder: `top` as /usr/lib/mqtool, and links to where a system looks for its parts."""
    share_of = [("man/man1/mqtool.1", "/usr/share/man/man1/mqtool.1"),
                *((place, f"/usr/share/{place}") for place in _SHELLS.values()),
                *((f"systemd/{path.name}", f"/usr/lib/systemd/system/{path.name}")
                  for path in sorted((ROOT / "packaging" / "systemd").iterdir()))]
    config = {
        "name": "mqtool", "arch": "amd64", "platform": "linux", "version": VERSION, "section": "admin",
        "priority": "optional", "maintainer": "mqtool <mqtool@localhost>", "license": "Apache-2.0",
        "description": "Forensics and recovery for Apache RocketMQ stores\nReads, verifies and repairs what is on a "
                       "broker's disk, without the broker.",
        "depends": ["libc6 (>= 2.17)"], "mtime": f"{_iso(epoch())}",
        "contents": [
            {"src": str(top), "dst": "/usr/lib/mqtool", "type": "tree"},
            {"src": "/usr/lib/mqtool/mqtool", "dst": "/usr/bin/mqtool", "type": "symlink"},
            *({"src": str(top / "share" / place), "dst": where} for place, where in share_of),
        ],
        "overrides": {"rpm": {"depends": ["glibc >= 2.17"]}},
        "deb": {"compression": compression["deb"]},
        "rpm": {"compression": compression["rpm"], "buildhost": "localhost"},  # else it names the machine
    }
    described = BUILD / "nfpm.json"
    described.write_text(json.dumps(config))
    made = [target / f"mqtool_{VERSION}_amd64.deb", target / f"mqtool-{VERSION}.x86_64.rpm"]
    for path in made:
        run([tools() / "nfpm", "package", "--config", described, "--packager", path.suffix[1:], "--target", path], ROOT,
            {"SOURCE_DATE_EPOCH": str(epoch())})
    return made


def _iso(seconds: int) -> str:
    return run(["date", "-u", "-d", f"@{seconds}", "+%Y-%m-%dT%H:%M:%SZ"], ROOT, dict(os.environ)).strip()


def archives(own: Path, target: Path, *, quickly: bool = False) -> list[Path]:
    """Build the folder around mqtool's own wheel; return its archive and the packages, in a folder. `quickly`: the same
    content in larger files, as most of the time goes into their compression."""
    top = folder(own)
    # packages take the times of the files, as they are on the disk
    for path in (top, *top.rglob("*")):
        os.utime(path, (epoch(), epoch()), follow_symlinks=False)
    compression = {"deb": "none", "rpm": "gzip:1"} if quickly else {"deb": "xz", "rpm": "xz"}
    return [pack(top, target / f"{NAME}.tar.xz", quickly=quickly), *system_packages(top, target, compression)]
