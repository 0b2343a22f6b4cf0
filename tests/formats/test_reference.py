"""Without compiled kernels: the same answers, later, and one line that says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage import damage
from fixtures.synth import synth_store
from formats.native.walk import crc_name
from tests.cli.runner import mqtool
from tests.cluster.twice import plain
from tests.formats.test_native import KERNELS
from tests.scenarios.drill import all_stores, log_options
from tests.support.stores import real_store

ROOT = Path(__file__).parents[2]
IN_EVERY_RUN = ("clean-propcrc-5.3.3", "killed-lmq-4.9.7")
_REFUSING = """
import ctypes, sys
# PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN: as MemoryDenyWriteExecute of systemd has it
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):
    print("no such prctl")
    sys.exit(77)
from mqtool.__main__ import run
run()
"""


def _run(*arguments: object, refused: bool = False, **environment: str) -> tuple[int, dict[str, Any], str]:
    start = ["-c", _REFUSING] if refused else ["-m", "mqtool"]
    done = subprocess.run(
        [sys.executable, *start, *map(str, arguments), "--json"], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    if done.returncode == 77 and refused:
        pytest.skip("this kernel has no PR_SET_MDWE")
    document = json.loads(done.stdout)
    kept = {name: value for name, value in document.items() if name not in ("seconds", "summary", "time")}
    return done.returncode, kept, done.stderr


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("reference") / "store"
    synth_store(root, messages=400, mapped_file_size=64 * 1024)
    for seed, recipe in enumerate(("bit-in-body", "page-zeroed", "index-unit-hash")):
        damage(recipe, root, seed)
    return root


def test_a_system_that_makes_no_memory_executable_runs_the_kernels(damaged: Path) -> None:
    assert _run("verify", damaged, refused=True) == _run("verify", damaged)
    assert _run("verify", damaged)[2] == ""


def test_a_first_start_writes_nothing_and_is_not_slow(damaged: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for environment in ({"HOME": str(home), "XDG_CACHE_HOME": ""}, {"HOME": "/proc/nowhere", "PATH": ""}):
        assert _run("verify", damaged, **environment)[2] == ""
    assert not any(home.iterdir())


def test_kernels_that_are_switched_off_are_no_bug(damaged: Path, tmp_path: Path) -> None:
    code, document, said = _run("verify", damaged, MQTOOL_REFERENCE="1")
    assert said.count("MQTOOL_REFERENCE is set") == 1 == len(said.splitlines())
    own_code, expected, nothing = _run("verify", damaged)
    assert (document["engine"].pop("crc"), expected["engine"].pop("crc")) == ("zlib", crc_name())
    assert (code, document, "") == (own_code, expected, nothing)
    for name, environment in (("slow", {"MQTOOL_REFERENCE": "1"}), ("fast", {})):
        code, _, _ = _run("rebuild", damaged, "--output", tmp_path / name, "--timezone", "UTC", **environment)
        assert code & ~6 <= 1
    slow, fast = (_contents(tmp_path / name) for name in ("slow", "fast"))
    assert slow == fast != {}


def _contents(root: Path) -> dict[str, bytes]:
    files = sorted(path for path in root.rglob("*") if path.is_file() and ".mqtool" not in path.parts)
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def _said(root: Path) -> list[Any]:
    said: list[Any] = []
    for line in (("verify",), ("rebuild", "--dry-run"), ("recover", "--dry-run")):
        result = mqtool(line[0], root, *log_options(root), *line[1:], "--json")
        document = plain(result.document, root)
        document.get("engine", {}).pop("crc", None)
        said.append((result.code, document))
    return said


@pytest.mark.slow
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in IN_EVERY_RUN else pytest.mark.long) for name in all_stores()
])
def test_every_store_is_judged_the_same_without_kernels(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, damaged = real_store(name, tmp_path), real_store(name, tmp_path / "damaged")
    damage("page-random", damaged)
    ours = [_said(whole), _said(damaged)]
    for kernel in KERNELS.values():
        monkeypatch.setattr(kernel, "_run", kernel.plain)
    assert [_said(whole), _said(damaged)] == ours
