"""What an installation without extras does: the local engine works, and a command that needs an extra names it.

Each command runs in a process that finds the packages of pyproject's `dependencies`, with all that these require, and
no other: as in a new environment after `pip install .`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from recover.findings.code import EXTRAS
from tests.cli.runner import mqtool
from tests.support.sampling import few
from tests.support.stores import unpacked

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PATH = "import sys; sys.path[1:] = sys.argv.pop(1).split(':'); "
RUN = PATH + "from mqtool.__main__ import run; run()"
#: Runs lines of words, one after the other, and prints the exit code and both streams of each.
EACH = """
import contextlib, io, json, sys
from mqtool.cli import main
found = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
        code = main(words)
    found.append((code, out.getvalue(), errors.getvalue()))
print(json.dumps(found))
"""


def _required(names: list[str]) -> dict[str, Distribution]:
    """The distributions that requirements bring, by name, with theirs; those for another Python are not installed."""
    found: dict[str, Distribution] = {}
    while names:
        requirement = names.pop()
        wanted = Requirement(requirement)
        if wanted.name not in found and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            found[wanted.name] = distribution(wanted.name)
            names += found[wanted.name].requires or []
    return found


@pytest.fixture(scope="module")
def slim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages of the local engine alone, as links."""
    folder = tmp_path_factory.mktemp("slim")
    for package in ("mqtool", "formats", "recover"):
        (folder / package).symlink_to(ROOT / package)
    for one in _required(list(PROJECT["dependencies"])).values():
        for file in one.files or ():
            top = file.parts[0]
            place = Path(str(one.locate_file(top)))
            if top not in ("..", "__pycache__") and place.exists() and not (folder / top).exists():
                (folder / top).symlink_to(place)
    return folder


def _run(slim: Path, *arguments: str, script: str = RUN) -> subprocess.CompletedProcess[str]:
    standard = [path for path in sys.path if path and "site-packages" not in path and Path(path) != ROOT]
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, ":".join([*standard, str(slim)]), *arguments],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=100,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
    )


NEEDS = {
    "spark": [
        "verify STORE --engine spark", "verify STORE --master local[1]", "recover STORE --dry-run --engine spark",
        "rebuild STORE --yes --engine spark", "fleet verify STORE --into OUT",
    ],
    "parquet": ["export STORE --format parquet -o OUT"],
    "s3": ["verify s3://bucket/store", "inspect s3a://bucket/store", "predict hdfs://name/store",
           "rebuild STORE --yes --output s3://bucket/new", "export s3://bucket/store -o OUT"],
    "connect": ["verify STORE --master sc://localhost:15002"],
    "send": ["send STORE --endpoints localhost:8081 --yes"],
}


@few(("extra", "line"), [(extra, line) for extra, lines in NEEDS.items() for line in lines], quick=(1, 5, 7, 11, 12))
def test_a_command_that_needs_an_extra_names_it_ends_with_8_and_leaves_nothing(
    extra: str, line: str, slim: Path, tmp_path: Path
) -> None:
    store = unpacked("clean-5.3.3")
    before = sorted(path.name for path in store.iterdir())
    words = [word.replace("STORE", str(store)).replace("OUT", str(tmp_path / "out")) for word in line.split()]
    done = _run(slim, *words, "--json")
    assert (done.returncode, done.stderr.count("Traceback")) == (8, 0), done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["remedy"] == f"Install it: pip install 'mqtool[{extra}]'"
    assert any(name in error["message"] for name in EXTRAS[extra])
    assert sorted(path.name for path in store.iterdir()) == before
    assert not any(tmp_path.iterdir())


def test_the_local_engine_needs_none(slim: Path, tmp_path: Path) -> None:
    store = unpacked("killed-compressed-5.3.3")
    lines = [(command, str(store), *options) for command, *options in map(str.split, (
        "verify", "predict", "recover --dry-run", f"export -o {tmp_path / 'messages.ndjson'}",
        f"report -o {tmp_path / 'report.html'}"))]
    done = _run(slim, json.dumps(lines), script=PATH + EACH)
    for code, _, errors in json.loads(done.stdout):
        assert not code & ~6, errors
    for body in map(json.loads, (tmp_path / "messages.ndjson").read_text().splitlines()):
        assert body["body_problem"] is None


def test_an_old_python_is_told_which_one_is_needed_and_not_of_a_dependency_that_has_no_version_for_it() -> None:
    """pip looks for dependencies first: none may be asked for by a Python that we do not support."""
    needed = PROJECT["requires-python"].removeprefix(">=")
    for requirement in PROJECT["dependencies"]:
        marker = Requirement(requirement).marker
        assert marker is not None and not marker.evaluate({"python_version": "3.10"})
        assert f'python_version >= "{needed}"' in str(marker)


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_that_is_asked_for_is_one_that_can_be_installed(extra: str) -> None:
    assert PROJECT["optional-dependencies"][extra]
    assert any(extra in each for each in PROJECT["optional-dependencies"]["all"])


@pytest.mark.deep
@pytest.mark.today
def test_a_new_environment_with_the_oldest_numpy_is_small_and_answers_as_this_one(tmp_path: Path) -> None:
    """`pip install .`, then `verify` at once; numpy 2.2.6 is the last with wheels for glibc 2.17."""
    venv.create(tmp_path / "env", with_pip=True)
    before = _size(tmp_path / "env")
    python = str(tmp_path / "env" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-cache-dir", ROOT,
                    "numpy==2.2.6"], check=True)
    assert _size(tmp_path / "env") - before <= 130e6
    store = str(unpacked("clean-5.3.3"))
    first = subprocess.run([tmp_path / "env" / "bin" / "mqtool", "verify", store], capture_output=True, cwd=tmp_path)
    assert first.returncode == mqtool("verify", store).code, first.stderr
    names = ("clean-5.3.3", "killed-compressed-5.3.3", "killed-lmq-4.9.7", "clean-v2-5.5.0")
    lines = [(command, str(unpacked(name)), *options, "--json") for name in names
             for command, *options in (["verify"], ["predict"], ["recover", "--dry-run"])]
    done = subprocess.run([python, "-c", EACH, json.dumps(lines)], capture_output=True, text=True, cwd=tmp_path)
    for line, (code, document, errors) in zip(lines, json.loads(done.stdout), strict=True):
        here = mqtool(*line)
        assert code == here.code, errors
        assert json.loads(document)["findings"] == here.document["findings"]


def _size(folder: Path) -> int:
    """Bytes on the disk below a folder."""
    return sum(512 * path.lstat().st_blocks for path in folder.rglob("*"))
