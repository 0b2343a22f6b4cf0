"""Where no compiled code may run, kernels are interpreted: the same answers, later, and one line that says so."""

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

ROOT = Path(__file__).parents[2]
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
    root = tmp_path_factory.mktemp("interpreted") / "store"
    synth_store(root, messages=400, mapped_file_size=64 * 1024)
    for seed, recipe in enumerate(("bit-in-body", "page-zeroed", "index-unit-hash")):
        damage(recipe, root, seed)
    return root


def test_executable_memory_that_is_refused_is_no_refusal_of_ours(damaged: Path) -> None:
    code, document, said = _run("verify", damaged, refused=True)
    assert said.count("this system refuses executable memory") == 1 == len(said.splitlines())
    assert (code, document, "") == _run("verify", damaged)


def test_a_compiler_that_is_switched_off_is_no_bug(damaged: Path, tmp_path: Path) -> None:
    code, document, said = _run("verify", damaged, NUMBA_DISABLE_JIT="1")
    assert said.count("NUMBA_DISABLE_JIT is set") == 1 == len(said.splitlines())
    assert (code, document, "") == _run("verify", damaged)
    for name, environment in (("slow", {"NUMBA_DISABLE_JIT": "1"}), ("fast", {})):
        code, _, _ = _run("rebuild", damaged, "--output", tmp_path / name, "--timezone", "UTC", **environment)
        assert code & ~6 <= 1
    slow, fast = (_contents(tmp_path / name) for name in ("slow", "fast"))
    assert slow == fast != {}


def _contents(root: Path) -> dict[str, bytes]:
    files = sorted(path for path in root.rglob("*") if path.is_file() and ".mqtool" not in path.parts)
    return {str(path.relative_to(root)): path.read_bytes() for path in files}
