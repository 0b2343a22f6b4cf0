"""How a command starts: with what was compiled before, and right without it."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage import damage
from formats.compiled import cache, ready
from formats.compiled.environment import environment
from tests.cli.runner import mqtool
from tests.codec.test_compiled import KERNELS
from tests.engines.twice import plain
from tests.scenarios.drill import all_stores, log_options
from tests.support.stores import real_store, unpacked

ROOT = Path(__file__).parents[2]
IN_EVERY_RUN = ("clean-5.3.3", "killed-lmq-4.9.7")
_SCRIPT = """
import sys
from mqtool.cli import main
code = main(sys.argv[1:])
print(sorted({"numba", "pyarrow", "pyspark", "pandas"} & sys.modules.keys()), file=sys.stderr)
sys.exit(code)
"""


def _started(folder: Path, *line: object) -> subprocess.Popen[str]:
    """A process of its own, with a cache of kernels in `folder`."""
    return subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, *map(str, line)], env={**os.environ, cache.VARIABLE: str(folder)}, cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )


@pytest.mark.slow
def test_two_processes_at_once_fill_one_cache_and_the_next_needs_no_numba(tmp_path: Path) -> None:
    store = unpacked("clean-5.3.3")
    expected = plain(mqtool("verify", store, "--json").document, store)
    both = [_started(tmp_path, "verify", store, "--json") for _ in range(2)]
    told = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    next_one = _started(tmp_path, "verify", store, "--json")
    told.append(next_one.communicate())
    assert next_one.returncode == 0
    for stdout, _ in told:
        assert plain(json.loads(stdout), store) == expected
    assert [error.strip() for _, error in told] == ["['numba']", "['numba']", "[]"]
    names = {path.name for path in (tmp_path / "mqtool").iterdir()}
    assert cache._file_name("walk_records", environment()) in names
    assert all(name.endswith(".kernel") and not name.startswith(".") for name in names)


def test_kernels_are_told_apart_without_openssl() -> None:
    script = "import formats.compiled.cache, formats.compiled.closure, sys\nprint('_hashlib' in sys.modules)\n"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "False"


def _said(root: Path) -> list[Any]:
    said: list[Any] = []
    for line in (("verify",), ("rebuild", "--dry-run"), ("recover", "--dry-run")):
        result = mqtool(line[0], root, *log_options(root), *line[1:], "--json")
        said.append((result.code, plain(result.document, root)))
    return said


@functools.cache
def _by_numba(number: int) -> Any:
    """One of the kernels as numba runs it, compiled once for all stores."""
    return ready.by_numba(KERNELS[number])


@pytest.mark.slow
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in IN_EVERY_RUN else pytest.mark.long) for name in all_stores()
])
def test_kernels_from_the_cache_say_what_numba_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, damaged = real_store(name, tmp_path), real_store(name, tmp_path / "damaged")
    damage("page-random", damaged)
    ours = [_said(whole), _said(damaged)]
    for number, kernel in enumerate(KERNELS):
        monkeypatch.setattr(kernel, "_run", _by_numba(number))
    assert [_said(whole), _said(damaged)] == ours
