"""What a command would take on Spark, said before it runs: no byte of the store is read, and no Spark starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.synth import synth_store
from recover.cluster.session import running_session
from tests.cli.runner import mqtool
from tests.cli.test_documents import held


@pytest.mark.parametrize("line", [("verify",), ("recover",), ("rebuild", "--output", "nowhere")], ids=" ".join)
def test_an_estimate_says_bytes_tasks_and_what_they_cost(line: tuple[str, ...], tmp_path: Path) -> None:
    root = synth_store(tmp_path / "s", messages=2_000, mapped_file_size=1 << 19).root
    size = sum(path.stat().st_size for path in (root / "commitlog").iterdir())
    before = running_session()
    words = (line[0], root, *line[1:], "--estimate", "--json")
    small, large = (mqtool(*words, "--price", "3600", *more).document for more in (
        ("--engine", "spark", "--conf", "mqtool.splitSize=100000"), ()))
    assert running_session() is before
    held(small, line[0])
    assert small["estimate"]["bytes"] == large["estimate"]["bytes"] >= size
    # ten splits of 100,000 bytes where there were two
    assert small["estimate"]["tasks"] - large["estimate"]["tasks"] >= size // 100_000 - 2
    assert small["estimate"]["cost"] == pytest.approx(small["estimate"]["core_seconds"])
    assert small["estimate"]["core_seconds"] > large["estimate"]["core_seconds"] > 0


def test_a_command_that_names_no_store_says_which_one_estimates(tmp_path: Path) -> None:
    done = mqtool("export", tmp_path, "-o", tmp_path / "x", "--estimate")
    assert done.code == 16 and "mqtool verify STORE --estimate" in done.stderr
