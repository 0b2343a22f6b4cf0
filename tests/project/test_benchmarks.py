"""`python -m benchmarks` runs, and ends with a row for each goal of the parts that it measured."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_parts_that_need_no_broker_are_measured_and_held_to_their_goals() -> None:
    line = [sys.executable, "-m", "benchmarks", "--parts", "start", "--runs", "1"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    _, goals = done.stdout.split("### Goals")
    rows = re.findall(r"^\| (\S+) +\| +(\S.*?) \| +(\S.*?) \| +(?:yes|no) \|$", goals, re.M)
    assert [(name, goal) for name, goal, _ in rows] == [("start-up", "<= 0.45 s"), ("--help", "<= 0.4 s")]
    assert all(float(measured.split()[0]) > 0 for _, _, measured in rows)
