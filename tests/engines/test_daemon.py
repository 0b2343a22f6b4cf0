"""Workers of this machine get pyspark with its bytecode, not the zipped copy that Spark puts in front."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark

from recover.spark.daemon import installed_first

SPARK = Path(pyspark.__file__).parent
ZIPPED = [str(zipped) for zipped in sorted((SPARK / "python" / "lib").glob("*.zip")) if "spark" in zipped.name or
          "py4j" in zipped.name]


def test_zipped_copies_are_left_out_where_both_are_installed() -> None:
    assert len(ZIPPED) == 2
    assert installed_first([*ZIPPED, "/opt/own.zip", *sys.path]) == ["/opt/own.zip", *sys.path]


def test_zipped_copies_stay_where_one_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    path = [*ZIPPED, str(tmp_path)]
    assert installed_first(path) == path


def test_the_daemon_answers_with_the_installed_one(tmp_path: Path) -> None:
    """It says where it listens, and ends with its input, as the JVM expects of it."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*ZIPPED, str(Path(__file__).parents[2])])}
    command = [sys.executable, "-v", "-m", "recover.spark.daemon"]
    noise = tmp_path / "noise"
    with noise.open("wb") as errors:
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                              timeout=60, check=False)
    assert 0 < int.from_bytes(done.stdout, "big") < 65536
    imported = [line for line in noise.read_text().splitlines() if line.endswith(("/pyspark/daemon.py", "daemon.pyc"))]
    assert imported and not [line for line in imported if "pyspark.zip" in line]
