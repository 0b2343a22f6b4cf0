"""What `make dist` builds, installed and run where a broker's host may be bare: without Python, network, or a place to
write. The files are those of this work tree, built for these tests around an interpreter that an earlier `make dist`
compiled; where none did, the tests say that they were not run.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqtool import exits, version
from tests.cli.runner import Result, mqtool
from tests.support import roots
from tests.support.roots import Host
from tests.support.stores import real_store
from tests.support.trees import contents

pytestmark = [pytest.mark.deep, pytest.mark.patient]

NAME = f"mqtool-{version()}-linux-x86_64"
SECONDS = 60
GLIBC = (2, 17)
_COMPLETE = 'source "$1"; COMP_WORDS=(mqtool reb) COMP_CWORD=1; _mqtool_completion mqtool; echo "${COMPREPLY[@]}"'
_OF_GLIBC = {f"lib{name}" for name in ("c.so.6", "m.so.6", "pthread.so.0", "dl.so.2", "rt.so.1", "util.so.1")}


@pytest.fixture(scope="module")
def dist() -> Path:
    return roots.released()


@pytest.fixture(scope="module")
def content(dist: Path) -> bytes:
    """What xz has packed."""
    return lzma.decompress((dist / f"{NAME}.tar.xz").read_bytes())


@pytest.fixture(scope="module")
def folder(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(target, filter="tar")
    return target / NAME


@pytest.fixture(scope="module", params=[
    "folder on bullseye", "deb on bookworm", "rpm on bullseye",
    pytest.param("folder on bookworm", marks=pytest.mark.long)])
def host(request: pytest.FixtureRequest, dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Host:
    """A root with glibc of a Debian alone, and what was unpacked or installed there."""
    if reason := roots.why_not():
        pytest.skip(f"NOT RUN: {reason}")
    kind, _, release = request.param.split()
    work = tmp_path_factory.mktemp("host")
    app = work / "app"
    app.mkdir()
    root = roots.bare_root(work, release)
    if kind == "folder":
        return Host(root, request.getfixturevalue("folder"), ("/app/mqtool",))
    if kind == "deb":
        (root / "var/lib/dpkg/updates").mkdir(parents=True)
        (root / "var/lib/dpkg/status").touch()
        _install("dpkg", f"--root={root}", "--force-depends", "--install", dist / f"mqtool_{version()}_amd64.deb")
    else:
        _install("rpm", "--root", root, "--dbpath", "/var/rpm", "--nodeps", "--ignorearch", "--install",
                 dist / f"mqtool-{version()}.x86_64.rpm")
    return Host(root, app, ("/usr/bin/mqtool",))


def _install(program: str, *words: object) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"NOT RUN: there is no {program}")
    subprocess.run([program, *map(str, words)], check=True, capture_output=True)


def _unpack_wheels(house: Path, target: Path) -> None:
    with tarfile.open(house) as archive:
        archive.extractall(target.parent, filter="data")
    for wheel in target.parent.glob("*/*.whl"):
        with zipfile.ZipFile(wheel) as content:
            content.extractall(target)
    roots.compiled(target)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with a store of a real broker with a damaged record in the log, owned by nobody."""
    folder = tmp_path / "data"
    folder.mkdir()
    store = real_store("clean-5.3.3", folder).rename(folder / "store")
    with (store / "commitlog" / "00000000000000000000").open("r+b") as file:
        file.seek(500_000)
        file.write(b"\xff" * 40)
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, roots.NOBODY, roots.NOBODY)
    return folder


def test_a_damaged_store_is_recovered_on_a_bare_host_and_undone(host: Host, data: Path) -> None:
    """As nobody, without network, HOME closed, all but the store read-only; in less than a minute, of the processor's
    time, as other tests run beside this one."""
    assert _recovered(host, data) < SECONDS


def test_the_wheels_for_aarch64_recover_a_damaged_store_too(dist: Path, data: Path, tmp_path: Path) -> None:
    """Emulated, and therefore not timed. This processor looks at the store before and after."""
    if reason := roots.why_not():
        pytest.skip(f"NOT RUN: {reason}")
    root = roots.emulated_root(tmp_path / "host", "bookworm")
    app = tmp_path / "app"
    app.mkdir()
    _unpack_wheels(next(dist.glob("*-wheelhouse-*aarch64.tar")), app)
    start = "import sys; sys.path.insert(0, '/app'); from mqtool.__main__ import run; run()"
    host = Host(root, app, ("/qemu", "/usr/bin/python3", "-B", "-c", start))
    _recovered(host, data, lambda: mqtool("verify", data / "store", "--json"))


def _recovered(host: Host, data: Path, verify: Callable[[], Result] | None = None) -> float:
    """Verify, recover, verify and undo; return the processor seconds of all but the undo."""
    if verify is None:
        def verify() -> Result:
            done = host.run(data, "verify", "/data/store", "--json")
            return Result(done.returncode, done.stdout, done.stderr)

    before, began = contents(data / "store"), _spent()
    found = verify()
    assert found.code & exits.MESSAGES, found.stderr
    repaired = host.run(data, "recover", "/data/store", "--yes", "--json")
    assert json.loads(repaired.stdout)["applied"] is True, repaired.stderr
    after = verify()
    assert not after.code & exits.MESSAGES, after.stderr
    spent = _spent() - began
    assert after.document["commitlog"]["messages"] == found.document["commitlog"]["messages"]
    undone = host.run(data, "undo", "/data/store", "--yes")
    assert undone.returncode & ~6 in (0, 1), undone.stderr
    now = contents(data / "store")
    assert {name: content for name, content in now.items() if not name.startswith(".mqtool")} == before
    return spent


def _spent() -> float:
    """Processor seconds of all processes that were started here and ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.today
def test_its_answers_are_those_of_this_python_with_kernels(host: Host, data: Path) -> None:
    store = str(data / "store")
    for line in (["verify"], ["predict"], ["recover", "--dry-run"], ["inspect"]):
        there = host.run(data, line[0], "/data/store", *line[1:], "--json")
        here = mqtool(line[0], store, *line[1:], "--json")
        assert there.returncode == here.code, there.stderr
        theirs, ours = json.loads(there.stdout.replace("/data/store", store)), here.document
        assert theirs["findings"] == ours["findings"]
        if "engine" in ours:
            assert theirs["engine"]["crc"] == ours["engine"]["crc"]


def test_it_names_the_extra_that_it_does_not_have_and_knows_time_zones(host: Host, data: Path) -> None:
    done = host.run(data, "verify", "/data/store", "--engine", "spark")
    assert done.returncode == exits.OPERATIONAL
    assert "mqtool[spark]" in done.stderr
    zone = host.run(data, "rebuild-index", "/data/store", "--dry-run", "--timezone", "Asia/Shanghai")
    assert not zone.returncode & ~6, zone.stderr


def test_the_folder_runs_through_a_link(folder: Path, data: Path) -> None:
    (data / "mqtool").symlink_to(folder / "mqtool")
    done = subprocess.run([data / "mqtool", "inspect", data / "store"], capture_output=True, text=True, env={})
    assert not done.returncode & ~6, done.stderr


def test_a_wheelhouse_serves_a_pip_without_network(dist: Path, data: Path, tmp_path: Path) -> None:
    with tarfile.open(next(dist.glob("*-wheelhouse-*x86_64.tar"))) as archive:
        archive.extractall(tmp_path / "house", filter="data")
    house = next((tmp_path / "house").iterdir())
    venv.create(tmp_path / "env")
    words = (house / "README").read_text().split()
    assert words[:2] == ["pip", "install"]
    subprocess.run(["unshare", "--net", sys.executable, "-m", "pip", "--python", tmp_path / "env/bin/python",
                    *words[1:], "--no-compile"], cwd=house.parent, check=True, capture_output=True)
    done = subprocess.run([tmp_path / "env/bin/mqtool", "verify", data / "store"], capture_output=True, text=True)
    assert done.returncode & exits.MESSAGES, done.stderr


def test_the_archive_is_small_and_its_bytes_depend_on_nothing_but_its_content(dist: Path, content: bytes) -> None:
    assert (dist / f"{NAME}.tar.xz").stat().st_size <= 45e6
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        members = archive.getmembers()
    assert {(item.uid, item.gid, item.uname) for item in members} == {(0, 0, "root")}
    assert len({item.mtime for item in members}) == 1
    assert {item.name.split("/")[0] for item in members} == {NAME}
    # numpy's own wheel has names of its compiler's files, which may begin as the folder of this work tree does
    for place in (*roots.ROOT.iterdir(), Path.home() / ".cache"):
        assert os.fsencode(place) not in content, place


def _elf(folder: Path) -> Iterator[tuple[Path, str]]:
    """The programs and libraries below a folder, and what `readelf` says of each."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.open("rb").read(4) == b"\x7fELF":
            yield path, subprocess.run(["readelf", "-VdW", path], capture_output=True, text=True, check=True).stdout


def _needs(text: str) -> tuple[tuple[int, ...], set[str]]:
    """The newest glibc whose symbols are asked for, and the libraries that are loaded."""
    asked = re.findall(r"Name: GLIBC_(\S+)", text.partition("Version needs section")[2])
    newest = max((tuple(map(int, name.split("."))) for name in asked), default=(0,))
    return newest, set(re.findall(r"\(NEEDED\).*\[(.+)\]", text))


def test_no_binary_of_it_needs_a_newer_glibc_than_2_17_or_a_library_that_is_not_inside(folder: Path) -> None:
    inside = {path.name for path in folder.rglob("*.so*")}
    found = {path: _needs(text) for path, text in _elf(folder)}
    assert len(found) > 15
    for path, (newest, libraries) in found.items():
        assert newest <= GLIBC, path
        assert libraries <= _OF_GLIBC | inside | {"ld-linux-x86-64.so.2"}, path


def test_licences_and_a_bill_of_materials_of_every_part_are_inside(folder: Path) -> None:
    bill = json.loads((folder / "sbom.cdx.json").read_text())
    assert (bill["bomFormat"], bill["metadata"]["component"]["version"]) == ("CycloneDX", version())
    named = {part["name"].lower().replace("-", "_").replace(".", "_") for part in bill["components"]}
    site = next(folder.glob("python/lib/python3.*/site-packages"))
    installed = {path.name.partition("-")[0].lower().replace(".", "_") for path in site.glob("*.dist-info")}
    assert installed <= named
    assert {"python3_13", "zlib", "libffi", "libgcc_s1"} <= named
    licensed = {path.name.partition(".txt")[0] for path in (folder / "licenses").iterdir()}
    assert {"mqtool", "numpy", "python3.13", "zlib", "libffi", "libgcc"} <= licensed


def test_the_packages_of_systems_bring_the_same_folder_the_command_and_its_man_page(
    dist: Path, folder: Path, tmp_path: Path
) -> None:
    deb, rpm = dist / f"mqtool_{version()}_amd64.deb", dist / f"mqtool-{version()}.x86_64.rpm"
    subprocess.run(["dpkg-deb", "-x", deb, tmp_path / "deb"], check=True)
    system = tmp_path / "deb" / "usr"
    assert (system / "bin" / "mqtool").readlink() == Path("/usr/lib/mqtool/mqtool")
    for path in folder.rglob("*"):
        if path.is_file():
            assert (system / "lib" / "mqtool" / path.relative_to(folder)).read_bytes() == path.read_bytes()
    page = (system / "share" / "man" / "man1" / "mqtool.1").read_text()
    assert "rebuild\\-consumequeue" in page and ".SH EXIT STATUS" in page
    assert "_MQTOOL_COMPLETE" in (system / "share" / "zsh" / "site-functions" / "_mqtool").read_text()
    words = subprocess.run(["bash", "-c", _COMPLETE, "bash", system / "share" / "bash-completion/completions/mqtool"],
                           capture_output=True, text=True, check=True, env={"PATH": f"{folder}:{os.environ['PATH']}"})
    assert words.stdout.split() == ["rebuild", "rebuild-consumequeue", "rebuild-index"]
    units = system / "lib" / "systemd" / "system"
    assert {path.name for path in units.iterdir()} == {"mqtool-verify@.service", "mqtool-verify@.timer"}
    if shutil.which("systemd-analyze"):
        service = tmp_path / "mqtool-verify@data.service"
        text = (units / "mqtool-verify@.service").read_text()
        service.write_text(text.replace("/usr/bin/mqtool", str(folder / "mqtool")))
        subprocess.run(["systemd-analyze", "verify", "--man=no", service], check=True, timeout=60)
    if shutil.which("rpm"):
        listed = subprocess.run(["rpm", "-qlp", rpm], capture_output=True, text=True, check=True).stdout.splitlines()
        assert {"/usr/bin/mqtool", "/usr/lib/mqtool/mqtool", "/usr/share/man/man1/mqtool.1"} <= set(listed)
        made_on = subprocess.run(["rpm", "-qp", "--queryformat", "%{BUILDHOST}", rpm], capture_output=True, text=True)
        assert made_on.stdout == "localhost"


def test_every_file_of_the_release_has_its_checksum(dist: Path) -> None:
    sums = dict(reversed(line.split()) for line in (dist / "SHA256SUMS").read_text().splitlines())
    assert set(sums) == {path.name for path in dist.iterdir()} - {"SHA256SUMS", "made-of"}
    assert len(sums) == 9
    for name, digest in sums.items():
        assert hashlib.sha256((dist / name).read_bytes()).hexdigest() == digest, name


def test_one_wheel_a_platform_serves_all_pythons_and_has_the_kernels_of_the_same_sources(
    dist: Path, tmp_path: Path
) -> None:
    wheels = sorted(dist.glob(f"mqtool-{version()}-py3-none-*.whl"))
    assert len(wheels) == 3
    libraries = set()
    for path in wheels:
        with zipfile.ZipFile(path) as wheel:
            assert [name for name in wheel.namelist() if name.endswith(".bin")] == ["formats/native/kernels.bin"]
            wheel.extract("formats/native/kernels.bin", tmp_path / path.stem)
        ((library, text),) = _elf(tmp_path / path.stem)
        content = library.read_bytes()
        libraries.add(content)
        assert b"mqtool kernels of sources " in content
        newest, needed = _needs(text)
        assert newest <= GLIBC, path
        assert needed <= ({"libc.so"} if "musl" in path.name else _OF_GLIBC), path
    assert len(libraries) == 3
