"""What a user installs: a wheel of packages and the modules that Spark looks for, entry point, licence, bounds."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name as canonical

from formats.native import build
from mqtool import version

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = ("mqtool", "formats", "recover")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    target = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)], cwd=ROOT, check=True,
                   capture_output=True)
    return zipfile.ZipFile(next(target.glob("*.whl")))


def test_wheel_holds_the_packages_and_the_modules_of_data_sources_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    sources = {f"pyspark_rocketmq_{name}.py" for name in ("commitlog", "consumequeue", "index", "findings")}
    assert tops == {*PACKAGES, *sources, f"mqtool-{PROJECT['version']}.dist-info"}


def test_wheel_holds_every_module(wheel: zipfile.ZipFile) -> None:
    modules = {path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert modules <= set(wheel.namelist())


def test_wheel_holds_catalogues_of_texts_compiled_and_not_as_they_are_edited(wheel: zipfile.ZipFile) -> None:
    compiled = {path.relative_to(ROOT).as_posix() for path in (ROOT / "mqtool" / "locale").rglob("*.mo")}
    assert {name for name in wheel.namelist() if "/locale/" in name} == compiled != set()


def test_type_checkers_of_users_read_the_types(wheel: zipfile.ZipFile) -> None:
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(wheel.namelist())


def test_wheel_holds_the_kernels_of_its_sources_for_any_python_of_this_machine(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    wheel.extractall(tmp_path)
    assert build.is_fresh(tmp_path / "formats" / "native")
    assert wheel.filename is not None and "-py3-none-linux" in wheel.filename


def test_wheel_names_its_command_and_carries_the_licence(wheel: zipfile.ZipFile) -> None:
    info = f"mqtool-{PROJECT['version']}.dist-info"
    assert "mqtool = mqtool.__main__:run" in wheel.read(f"{info}/entry_points.txt").decode()
    assert "Apache License" in wheel.read(f"{info}/licenses/LICENSE").decode()


@pytest.mark.parametrize("requirement", PROJECT["dependencies"])
def test_every_dependency_has_a_lower_bound(requirement: str) -> None:
    assert ">=" in requirement


@pytest.mark.parametrize(("lock", "extra"), [("dev.lock", "dev"), ("local.lock", "")])
def test_a_lock_names_a_fitting_version_with_its_checksum_of_every_dependency(lock: str, extra: str) -> None:
    text = (ROOT / "packaging" / lock).read_text()
    locked = [Requirement(line.rstrip(" \\")) for line in text.splitlines() if "==" in line and line[0] not in " #"]
    assert text.count("--hash=sha256:") > len(locked)
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"].get(extra, [])]
    wanted += [one for name in ("spark", "connect", "send") if extra for one in PROJECT["optional-dependencies"][name]]
    for requirement in map(Requirement, wanted):
        if requirement.name == PROJECT["name"]:
            continue
        found = [one for one in locked if canonical(one.name) == canonical(requirement.name)]
        assert found, f"{requirement}: run make lock"
        for one in found:
            (version_of,) = one.specifier
            assert requirement.specifier.contains(version_of.version), f"{requirement}: run make lock"


@pytest.mark.skipif(version() == "unknown", reason="mqtool is not installed")
def test_version_is_stated_once() -> None:
    answer = subprocess.run([sys.executable, "-m", "mqtool", "--version"], capture_output=True, text=True, cwd=ROOT)
    assert answer.stdout.strip() == f"mqtool {PROJECT['version']}"
