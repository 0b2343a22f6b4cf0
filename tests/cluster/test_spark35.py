"""Spark 3.5, from a Python of its own: what it reports and leaves is what the local engine does.

MQTOOL_SPARK35 names that Python: pyspark 3.5 and what mqtool needs are installed for it, mqtool itself is not.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage import damage
from tests.cli.runner import Result, mqtool
from tests.cluster.twice import SPARK, needs_spark, plain
from tests.scenarios.drill import log_options
from tests.support.stores import copy_store, real_store
from tests.support.trees import contents

PYTHON = os.environ.get("MQTOOL_SPARK35", "")

pytestmark = [
    pytest.mark.deep, *needs_spark,
    pytest.mark.skipif(not PYTHON, reason="NOT RUN, Spark 3.5: MQTOOL_SPARK35 names no Python that has it"),
]


def on_35(folder: Path, *line: object, **more: str) -> tuple[int, dict[str, Any]]:
    """A command line with --json on Spark 3.5; its exit code and document."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2]), "TMPDIR": str(folder)} | more
    done = subprocess.run([PYTHON, "-m", "mqtool", *map(str, line), "--json", *SPARK], env=environment,
                          capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def assert_same(local: Result, root: Path, there: tuple[int, dict[str, Any]], other: Path) -> None:
    code, document = there
    assert code == local.code and code & ~7 == 0, document
    own = local.document
    del own["tool"], document["tool"]  # it is not installed there
    assert plain(document, other) == plain(own, root)


@pytest.mark.parametrize(("name", "recipe"), [
    ("clean-manyfiles-5.3.3", "page-random"), ("killed-ext-5.5.0", "bit-in-body"), ("killed-lmq-4.9.7", None),
])
def test_spark_3_5_says_and_makes_what_this_machine_does(tmp_path: Path, name: str, recipe: str | None) -> None:
    root = real_store(name, tmp_path / "a")
    if recipe is not None:
        damage(recipe, root)
    for path in [path for path in sorted((root / "consumequeue").rglob("0*")) if path.is_file()][:3]:
        path.unlink()
    options = log_options(root)
    assert_same(mqtool("verify", root, *options, "--json"), root, on_35(tmp_path, "verify", root, *options), root)
    made, made_there = tmp_path / "made", tmp_path / "made-there"
    assert_same(mqtool("rebuild", root, *options, "--output", made, "--json"), made,
                on_35(tmp_path, "rebuild", root, *options, "--output", made_there), made_there)
    assert contents(made) == contents(made_there)
    other = copy_store(root, tmp_path / "b" / root.name)
    assert_same(mqtool("recover", root, *options, "--yes", "--json"), root,
                on_35(tmp_path, "recover", other, *log_options(other), "--yes"), other)
    assert contents(root) == contents(other)


def test_a_java_that_is_too_new_for_it_is_passed_over(tmp_path: Path) -> None:
    program = tmp_path / "home" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho 'openjdk version \"25.0.2\" 2026-01-20' >&2\n")
    program.chmod(0o755)
    root = real_store("clean-5.3.3", tmp_path / "s")
    code, document = on_35(tmp_path, "verify", root, JAVA_HOME=str(tmp_path / "home"), PATH=str(tmp_path))
    assert code == 8
    assert document["error"]["message"] == f"Spark needs Java 17 to 21, and there is none ({program} is 25)"
