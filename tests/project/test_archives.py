"""What `make dist` builds, run where a broker's host may be bare: without Python, network, or a place to write.

Without the files in dist/ the tests of them say that they were not run: an interpreter takes minutes to compile.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from mqtool import version
from tests.support import roots
from tests.support.stores import real_store
from tests.support.trees import contents

pytestmark = pytest.mark.deep

DIST = roots.ROOT / "dist"
NAME = f"mqtool-{version()}-linux-x86_64"
ARCHIVE = DIST / f"{NAME}.tar.xz"
SECONDS = 60
needs_archive = pytest.mark.skipif(not ARCHIVE.exists(), reason="NOT RUN: no archive was built (make dist)")
needs_roots = pytest.mark.skipif(roots.why_not() is not None, reason=f"NOT RUN: {roots.why_not()}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("unpacked")
    target.chmod(0o755)
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(target, filter="tar")
    for above in target.parents:  # pytest's own folders are closed to others
        if above != above.parent and above.stat().st_uid == os.getuid():
            above.chmod(above.stat().st_mode | 0o111)
    return target / NAME


@pytest.fixture(scope="module", params=["bookworm", "bullseye"])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return roots.bare_root(tmp_path_factory.mktemp("root"), request.param)


def _damaged(folder: Path) -> Path:
    """A store of a real broker with a damaged record in the log, owned by nobody."""
    store = real_store("clean-5.3.3", folder).rename(folder / "store")
    log = store / "commitlog" / "00000000000000000000"
    with log.open("r+b") as file:
        file.seek(500_000)
        file.write(b"\xff" * 40)
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, roots.NOBODY, roots.NOBODY)
    return store


@needs_archive
def test_the_archive_is_small_and_its_bytes_depend_on_nothing_but_its_content() -> None:
    assert ARCHIVE.stat().st_size <= 45e6
    with tarfile.open(ARCHIVE) as archive:
        members = archive.getmembers()
    assert {(item.uid, item.gid, item.uname) for item in members} == {(0, 0, "root")}
    assert len({item.mtime for item in members}) == 1
    assert {item.name.split("/")[0] for item in members} == {NAME}
    content = lzma.decompress(ARCHIVE.read_bytes())
    assert str(roots.ROOT).encode() not in content


@needs_archive
def test_no_binary_of_it_needs_a_newer_glibc_than_2_17_or_a_library_that_is_not_inside(folder: Path) -> None:
    count, inside = 0, {path.name for path in folder.rglob("*.so*")}
    of_glibc = {f"lib{name}" for name in ("c.so.6", "m.so.6", "pthread.so.0", "dl.so.2", "rt.so.1", "util.so.1")}
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_file() or path.open("rb").read(4) != b"\x7fELF":
            continue
        count += 1
        text = subprocess.run(["readelf", "-VdW", path], capture_output=True, text=True, check=True).stdout
        needs = text.partition("Version needs section")[2]
        newest = max((tuple(map(int, word.strip("_,").split("."))) for line in needs.splitlines()
                      if "Name: GLIBC_" in line for word in [line.split("GLIBC_")[1].split()[0]]), default=(0,))
        assert newest <= (2, 17), path
        needed = {line.split("[")[1].rstrip("]") for line in text.splitlines() if "(NEEDED)" in line}
        assert needed <= of_glibc | inside | {"ld-linux-x86-64.so.2"}, path
    assert count > 15


@needs_archive
@needs_roots
def test_a_damaged_store_is_recovered_in_a_root_with_glibc_alone_and_undone(
    root: Path, folder: Path, tmp_path: Path
) -> None:
    """As nobody, without network, HOME closed, all but the store read-only; in less than a minute."""
    data = tmp_path / "data"
    data.mkdir()
    store = _damaged(data)
    before = contents(store)
    began = time.monotonic()
    found = roots.run_inside(root, folder, data, "/app/mqtool", "verify", "/data/store", "--json")
    assert found.returncode & 4, found.stderr
    repaired = roots.run_inside(root, folder, data, "/app/mqtool", "recover", "/data/store", "--yes", "--json")
    assert json.loads(repaired.stdout)["applied"] is True, repaired.stderr
    after = roots.run_inside(root, folder, data, "/app/mqtool", "verify", "/data/store", "--json")
    assert not after.returncode & 4, after.stderr
    assert time.monotonic() - began < SECONDS
    assert json.loads(after.stdout)["commitlog"]["messages"] == json.loads(found.stdout)["commitlog"]["messages"]
    undone = roots.run_inside(root, folder, data, "/app/mqtool", "undo", "/data/store", "--yes")
    assert undone.returncode & ~6 in (0, 1), undone.stderr
    assert {name: data for name, data in contents(store).items() if not name.startswith(".mqtool")} == before


@needs_archive
@needs_roots
def test_its_answers_are_those_of_this_python_with_the_same_kernels(root: Path, folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    store = _damaged(data)
    for line in (["verify"], ["predict"], ["recover", "--dry-run"], ["inspect"]):
        there = roots.run_inside(root, folder, data, "/app/mqtool", line[0], "/data/store", *line[1:], "--json")
        here = subprocess.run([sys.executable, "-m", "mqtool", line[0], str(store), *line[1:], "--json"],
                              capture_output=True, text=True, cwd=roots.ROOT)
        assert there.returncode == here.returncode, there.stderr
        theirs, ours = json.loads(there.stdout), json.loads(here.stdout)
        assert theirs["findings"] == ours["findings"]
        assert theirs.get("engine", {}).get("crc") == ours.get("engine", {}).get("crc")


@needs_archive
@needs_roots
def test_it_names_the_extra_that_it_does_not_have_and_runs_through_a_link(
    root: Path, folder: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    _damaged(data)
    (data / "mqtool").symlink_to("/app/mqtool")
    done = roots.run_inside(root, folder, data, "/data/mqtool", "verify", "/data/store", "--engine", "spark")
    assert done.returncode == 8
    assert "mqtool[spark]" in done.stderr
    zone = roots.run_inside(root, folder, data, "/data/mqtool", "rebuild-index", "/data/store", "--dry-run",
                            "--timezone", "Asia/Shanghai")
    assert not zone.returncode & ~6, zone.stderr


@needs_archive
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


@needs_archive
def test_the_packages_of_systems_bring_the_same_folder_the_command_and_its_man_page(
    folder: Path, tmp_path: Path
) -> None:
    deb, rpm = DIST / f"mqtool_{version()}_amd64.deb", DIST / f"mqtool-{version()}.x86_64.rpm"
    subprocess.run(["dpkg-deb", "-x", deb, tmp_path / "deb"], check=True)
    system = tmp_path / "deb" / "usr"
    assert (system / "bin" / "mqtool").readlink() == Path("/usr/lib/mqtool/mqtool")
    for path in folder.rglob("*"):
        if path.is_file():
            assert (system / "lib" / "mqtool" / path.relative_to(folder)).read_bytes() == path.read_bytes()
    page = (system / "share" / "man" / "man1" / "mqtool.1").read_text()
    assert "rebuild\\-consumequeue" in page and ".SH EXIT STATUS" in page
    for name in ("bash-completion/completions/mqtool", "zsh/site-functions/_mqtool"):
        assert "_MQTOOL_COMPLETE" in (system / "share" / name).read_text()
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


@pytest.mark.skipif(not (DIST / "SHA256SUMS").exists(), reason="NOT RUN: nothing was built (make dist)")
def test_every_file_of_the_release_has_its_checksum() -> None:
    sums = dict(reversed(line.split()) for line in (DIST / "SHA256SUMS").read_text().splitlines())
    assert len(sums) >= 7
    for name, digest in sums.items():
        assert hashlib.sha256((DIST / name).read_bytes()).hexdigest() == digest, name


@pytest.mark.skipif(not list(DIST.glob("*-musllinux*.whl")), reason="NOT RUN: no wheel was built (make dist)")
def test_one_wheel_a_platform_serves_all_pythons_and_has_the_kernels_of_the_same_sources() -> None:
    wheels = sorted(DIST.glob(f"mqtool-{version()}-py3-none-*.whl"))
    assert len(wheels) == 3
    libraries = set()
    for path in wheels:
        with zipfile.ZipFile(path) as wheel:
            library = wheel.read("formats/native/kernels.bin")
            assert b"mqtool kernels of sources " in library
            libraries.add(library)
            others = [name for name in wheel.namelist() if name.endswith(".bin")]
        assert others == ["formats/native/kernels.bin"]
    assert len(libraries) == 3
