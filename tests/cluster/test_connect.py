"""A Spark Connect server: what reads says the same over it, what changes is refused, and its session is left alone."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pyspark
import pytest

from mqtool import exits
from recover.cluster.session import java_home, stop_session
from tests.cli.runner import mqtool
from tests.cluster.cluster import free_port
from tests.cluster.twice import SPLITS, needs_spark, plain, same_answers
from tests.support.plans import quick_folder
from tests.support.stores import real_store, struck_store
from tests.support.trees import assert_unchanged

_SECONDS = 90
_CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("command", ["recover", "rebuild", "rebuild-index", "rebuild-consumequeue", "truncate"])
@pytest.mark.parametrize("named", [True, False])
def test_what_changes_a_store_is_refused_before_anything_is_asked(
    tmp_path: Path, command: str, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = real_store("clean-5.3.3", tmp_path)
    url = f"sc://127.0.0.1:{free_port()}"  # nobody answers there
    if not named:
        monkeypatch.setenv("SPARK_REMOTE", url)
    master = ("--master", url) if named else ("--engine", "spark")
    with assert_unchanged(root):
        result = mqtool(command, root, "--yes", "--json", *master, *(("--to", 0) if command == "truncate" else ()))
    assert result.code == exits.OPERATIONAL
    assert f"only read, and {command} is not one" in result.document["error"]["message"]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a Connect server with two cores, whose Python has what executors need and nothing of ours."""
    with quick_folder() as folder:
        python = folder / "python"
        packages = Path(numpy.__file__).parents[1]
        python.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}:$PYTHONPATH" exec {sys._base_executable} "$@"\n')
        python.chmod(0o755)
        port = free_port()
        settings = [item for setting in (
            f"spark.connect.grpc.binding.port={port}", "spark.connect.grpc.binding.address=127.0.0.1",
            "spark.ui.enabled=false", f"spark.local.dir={folder}", "spark.driver.memory=512m",
            "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        ) for item in ("--conf", setting)]
        line = [Path(pyspark.__file__).parent / "bin" / "spark-submit", "--master", "local[2,4]", *settings,
                "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
            "JAVA_HOME": java_home(), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(python),
        }
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(line, stdout=log, stderr=log, env=environment, cwd=folder)
        try:
            end = time.monotonic() + _SECONDS
            while not _answers(port):
                assert time.monotonic() < end and process.poll() is None, (folder / "log").read_text()
                time.sleep(0.2)
            yield f"sc://127.0.0.1:{port}"
        finally:
            stop_session()
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.deep
@pytest.mark.skipif(importlib.util.find_spec("grpc_status") is None,
                    reason="NOT RUN, Spark Connect: its packages are missing, pip install 'mqtool[connect]'")
class TestServer:
    pytestmark = needs_spark

    @pytest.mark.parametrize(("name", "recipe"), [
        ("killed-5.5.0", None), ("killed-lmq-4.9.7", "crash-torn-tail"),
        *(pytest.param("clean-manyfiles-5.3.3", recipe, marks=pytest.mark.long)
          for recipe in ("page-random", "log-early-end-mark")),
    ])
    def test_verify_says_what_the_local_engine_says(
        self, server: str, tmp_path: Path, name: str, recipe: str | None
    ) -> None:
        root = real_store(name, tmp_path) if recipe is None else struck_store(name, tmp_path, recipe)[0]
        with assert_unchanged(root):
            same_answers(root, "verify", spark=("--master", server, "--conf", SPLITS))

    @pytest.mark.long
    def test_so_does_whatever_else_reads(self, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SPARK_REMOTE", server)
        root, _ = struck_store("clean-5.3.3", tmp_path / "s", "bit-in-body")
        spark = "--engine", "spark", "--conf", SPLITS
        with assert_unchanged(root):
            for command in (("predict", "--broker", "5.3.3"), ("groups",),
                            ("query", "--topic", "TopicTest", "--key", "nowhere", "--scan")):
                same_answers(root, *command, spark=spark)
            pages = [tmp_path / name for name in ("local.md", "spark.md")]
            texts = []
            for page, engine in zip(pages, ((), spark), strict=True):
                assert mqtool("report", root, "-o", page, *engine).code & exits.OPERATIONAL == 0
                texts.append([plain(line, root) for line in page.read_text().splitlines() if line[:1] in ("|", "#")])
            assert len(texts[0]) > 20 and texts[0] == texts[1]
            found = [mqtool("export", root, "-o", out, "--format", "parquet", "--json", *engine) for out, engine in
                     ((tmp_path / "local.parquet", ()), (tmp_path / "spark", spark))]
            assert found[0].document["messages"] == found[1].document["messages"] > 0
            assert found[0].document["topics"] == found[1].document["topics"]
            fleet = mqtool("fleet", "verify", root, "--into", tmp_path / "tables", "--json", "--master", server)
            (row,) = fleet.document["stores"]
            assert row["messages"] == mqtool("verify", root, "--json").document["commitlog"]["messages"]

    def test_what_answers_and_is_no_connect_server_is_refused(self, tmp_path: Path) -> None:
        import grpc

        stop_session()
        other = grpc.server(ThreadPoolExecutor(1))
        port = other.add_insecure_port("127.0.0.1:0")
        other.start()
        result = mqtool("verify", real_store("clean-5.3.3", tmp_path), "--json", "--master", f"sc://127.0.0.1:{port}")
        other.stop(None)
        assert result.code == 8
        assert result.document["error"]["message"] == (
            f"Spark did not start with master sc://127.0.0.1:{port}: Method not found!")

    def test_a_setting_that_the_server_does_not_have_is_refused(self, server: str, tmp_path: Path) -> None:
        root = real_store("clean-5.3.3", tmp_path)
        result = mqtool("verify", root, "--json", "--master", server, "--conf", "spark.executor.memory=7g")
        assert result.code == exits.OPERATIONAL
        assert "its spark.executor.memory is not set, not 7g" in result.document["error"]["message"]

    def test_a_session_of_this_process_is_taken_and_left_running_and_has_the_sources(
        self, server: str, tmp_path: Path
    ) -> None:
        root = real_store("clean-5.3.3", tmp_path / "s")
        script = tmp_path / "notebook.py"
        script.write_text(
            "import sys\nfrom pyspark.sql import SparkSession\nfrom mqtool.cli import main\n"
            "from recover.cluster.session import stop_session\nfrom recover.cluster.sources import register\n"
            "spark = SparkSession.builder.remote(sys.argv[2]).getOrCreate()\nregister(spark)\n"
            "load = lambda part: spark.read.format(f'rocketmq-{part}').load(sys.argv[1])\n"
            "counts = [load(part).count() for part in ('commitlog', 'consumequeue', 'index', 'findings')]\n"
            "counts.append(load('commitlog').where('queue_offset < 3').count())\n"
            "code = main(['verify', sys.argv[1], '--engine', 'spark', '--json'])\nstop_session()\n"
            "print('ended', code, spark.range(5).count(), counts)\n"
        )
        done = subprocess.run(
            [sys.executable, script, root, server], capture_output=True, text=True, timeout=300, check=False,
            env=dict(os.environ) | {"PYTHONPATH": str(_CHECKOUT)},
        )
        assert "ended 0 5 " in done.stdout, done.stderr
        document = json.JSONDecoder().raw_decode(done.stdout[done.stdout.index("{\n"):])[0]
        assert document["engine"]["master"] == "sc://127.0.0.1"
        log, queues, index, findings, few = json.loads(done.stdout[done.stdout.rindex("["):])
        assert log == document["commitlog"]["messages"] and queues == document["consumequeue"]["units"]
        assert index == document["index"]["entries"] and findings == len(document["findings"])
        assert 0 < few < log
