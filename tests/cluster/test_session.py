"""A session: which Java it gets, whose settings hold, what it says of itself, and that nothing is left of one stopped
early."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyspark
import pytest

from fixtures.synth import synth_store
from recover.cluster.session import find_java, java_home, release_of, session_for, spark_settings
from recover.findings.code import Refusal
from tests.cli.runner import mqtool
from tests.cluster.cluster import free_port
from tests.cluster.twice import needs_spark, no_java
from tests.support.stores import real_store

# --- A session: whose settings hold, what it says of itself, and that nothing is left of one that is stopped early.


def _environment(folder: Path) -> dict[str, str]:
    return dict(os.environ) | {
        "JAVA_HOME": java_home(), "TMPDIR": str(folder), "PYTHONPATH": os.getcwd(),
        "PYSPARK_PYTHON": sys.executable,
    }


@pytest.mark.parametrize("master", ["spark://127.0.0.1:{port}", "spark://127.0.0.1:{port},127.0.0.1:{port}",
                                    "k8s://https://127.0.0.1:{port}", "sc://127.0.0.1:{port}/;token=secret"])
def test_a_master_that_nobody_answers_at_is_refused_at_once(tmp_path: Path, master: str) -> None:
    begun = time.monotonic()
    result = mqtool("verify", real_store("clean-5.3.3", tmp_path), "--json", "--master",
                    master.format(port=free_port()))
    assert result.code == 8 and time.monotonic() - begun < 15
    assert "no Spark master answers at" in result.document["error"]["message"]
    assert "refused" in result.document["error"]["message"] and "secret" not in json.dumps(result.document["error"])


def test_one_of_several_masters_that_answers_is_enough() -> None:
    from recover.cluster.session import reach

    with socket.create_server(("127.0.0.1", 0)) as server:
        reach(f"spark://127.0.0.1:{free_port()},127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(Refusal, match="no Spark master answers"):
            reach(f"spark://127.0.0.1:{free_port()}")


@pytest.mark.spark
@pytest.mark.skipif(bool(no_java()), reason=f"NOT RUN, the Spark engine: {no_java()}")
def test_no_code_of_the_store_runs_where_the_session_starts(tmp_path: Path) -> None:
    root = real_store("clean-5.3.3", tmp_path / "s")
    for name in ("socketserver", "pickle", "runpy", "numpy", "sitecustomize", "pyspark", "recover"):
        (root / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "script.py").write_text(
        "import sys\nfrom mqtool.cli import main\n"
        "into, on = sys.argv[1], ['--json', '--master', 'local[1]', '--conf', 'spark.driver.memory=512m']\n"
        "print('codes', main(['verify', '.', *on]), main(['fleet', 'verify', '.', '--into', into, *on]))\n"
    )
    done = subprocess.run([sys.executable, tmp_path / "bin" / "script.py", tmp_path / "t"], cwd=root,
                          env=_environment(tmp_path), capture_output=True, text=True, timeout=200, check=False)
    assert "codes 0 0" in done.stdout, done.stdout + done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.deep
class TestStarted:
    pytestmark = needs_spark

    def test_what_spark_submit_says_holds(self, tmp_path: Path) -> None:
        root = real_store("clean-5.3.3", tmp_path / "s")
        script = tmp_path / "main.py"
        script.write_text("import sys\nfrom mqtool.cli import main\nsys.exit(main())\n")
        (tmp_path / "events").mkdir()
        submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        done = subprocess.run(
            [submit, "--master", "local[1]", "--driver-memory", "512m", "--conf", "spark.eventLog.enabled=true",
             "--conf", f"spark.eventLog.dir={tmp_path / 'events'}", "--conf", "spark.eventLog.compress=false",
             "--conf", "spark.eventLog.rolling.enabled=false", script, "verify", root, "--engine", "spark",
             "--json"], env=_environment(tmp_path), capture_output=True, text=True, timeout=200, check=False,
        )
        assert done.returncode == 0, done.stderr
        answer = done.stdout[done.stdout.index("{\n"):]
        assert json.JSONDecoder().raw_decode(answer)[0]["engine"]["master"] == "local[1]"
        names = [json.loads(line)["App Name"] for log in (tmp_path / "events").iterdir() for line in _events(log)
                 if "SparkListenerApplicationStart" in line]
        assert names == ["mqtool"]

    @pytest.mark.long
    def test_the_site_s_defaults_hold_and_the_command_line_comes_before_them(
        self, tmp_path: Path, own_session: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "spark-defaults.conf").write_text(
            "spark.master local[1]\nspark.driver.memory 600m\nspark.driver.maxResultSize 123m\nspark.app.name theirs\n"
            f"spark.driver.extraJavaOptions -Djava.io.tmpdir={tmp_path}\n"
        )
        monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
        session = session_for(spark_settings(None, ["spark.app.name=ours"]))
        conf = session.context.getConf()
        assert session.master == session.context.master == "local[1]" and session.is_local
        found = [conf.get(f"spark.{name}") for name in ("driver.memory", "driver.maxResultSize", "app.name")]
        assert found == ["600m", "123m", "ours"]
        assert session.context._jvm.System.getProperty("java.io.tmpdir") == str(tmp_path)

    def test_the_answer_says_where_it_was_computed(self, tmp_path: Path) -> None:
        root = real_store("clean-5.3.3", tmp_path)
        # one of an earlier test goes on counting
        session = session_for(spark_settings("local[2]", ["spark.driver.memory=512m"]))
        tasks, read = session.tasks, session.size
        result = mqtool("verify", root, "--json", "--master", "local[2]", "--conf", "spark.driver.memory=512m",
                        "--conf", "mqtool.splitSize=400009")
        engine: dict[str, Any] = result.document["engine"]
        size = sum(path.stat().st_size for path in (root / "commitlog").iterdir())
        assert engine["application"].startswith("local-") and engine["executors"] == 1
        assert engine["bytes"] - read == size and engine["tasks"] - tasks >= size // 400009
        assert f"Spark application {engine['application']} on local[2,4]" in result.stderr

    @pytest.mark.parametrize(("options", "reason", "logged"), [
        (("--master", "local[1]", "--conf", "spark.serializer=no.such.Serializer"), "no.such.Serializer", "no.such"),
        (("--master", "yarn"), "either HADOOP_CONF_DIR or YARN_CONF_DIR must be set", "HADOOP_CONF_DIR"),
    ], ids=["Spark", "Java"])
    def test_a_spark_that_does_not_start_says_why_and_leaves_its_log(
        self, tmp_path: Path, own_session: None, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...],
        reason: str, logged: str,
    ) -> None:
        for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
            monkeypatch.delenv(name, raising=False)
        result = mqtool("verify", real_store("clean-5.3.3", tmp_path), "--json", *options)
        error = result.document["error"]
        assert result.code == 8 and reason in error["message"]
        log = Path(error["remedy"].removeprefix("Spark's own log: "))
        assert logged in log.read_text()
        shutil.rmtree(log.parent)

    @pytest.mark.long
    def test_a_port_where_something_else_listens_is_no_master(self, tmp_path: Path, own_session: None) -> None:
        root = real_store("clean-5.3.3", tmp_path)
        with socket.create_server(("127.0.0.1", 0)) as server:
            master = f"spark://127.0.0.1:{server.getsockname()[1]}"
            result = mqtool("verify", root, "--json", "--master", master)
        assert result.code == 8
        assert result.document["error"]["message"] == (
            f"no Spark master answers at {master}, though something listens there")

    @pytest.mark.long
    def test_every_command_that_scans_says_that_spark_starts(self, tmp_path: Path) -> None:
        root, on_spark = synth_store(tmp_path / "s", messages=60).root, ("--master", "local[2]")
        for line in (("query", root, "--topic", "Topic0"), ("trace", root, "none", "--scan"),
                     ("export", root, "-o", tmp_path / "all.ndjson"), ("verify", root)):
            assert "starting Spark" in mqtool(*line, *on_spark).stderr

    def test_a_spark_that_runs_in_this_process_is_taken_and_left_running(self, tmp_path: Path) -> None:
        root = real_store("clean-5.3.3", tmp_path / "s")
        script = tmp_path / "notebook.py"
        script.write_text(
            "import os, sys\nfrom pyspark.sql import SparkSession\nfrom mqtool.cli import main\n"
            "spark = SparkSession.builder.master('local[1]').appName('theirs').getOrCreate()\n"
            "codes = [main(['verify', sys.argv[1], '--json', *more]) for more in "
            "([], ['--master', 'local[2]'], ['--conf', 'spark.executor.memory=7g'])]\n"
            "from recover.cluster.session import stop_session\nstop_session()\n"
            "print('codes', codes, spark.range(5).count(), os.listdir(os.environ['TMPDIR']))\n"
        )
        environment = _environment(tmp_path) | {"TMPDIR": str(tmp_path / "s")}
        done = subprocess.run([sys.executable, script, root], env=environment, capture_output=True, text=True,
                              timeout=200, check=False)
        assert f"codes [0, 8, 8] 5 ['{root.name}']" in done.stdout, done.stderr
        first = json.JSONDecoder().raw_decode(done.stdout[done.stdout.index("{\n"):])[0]["engine"]
        assert first["master"] == "local[1]" and first["tasks"]
        assert "its spark.master is local[1], not local[2,4]" in done.stdout

    @pytest.mark.parametrize("seconds", [
        pytest.param(half / 2, marks=() if half == 5 else pytest.mark.long) for half in range(1, 21)])
    def test_ctrl_c_while_spark_starts_leaves_no_process(self, tmp_path: Path, seconds: float) -> None:
        root = real_store("clean-5.3.3", tmp_path / "s")
        process = subprocess.Popen(
            [sys.executable, "-m", "mqtool", "verify", root, "--master", "local[1]"], env=_environment(tmp_path),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        process.wait(120)
        end = time.monotonic() + 20
        while left := _processes_of(tmp_path):
            assert time.monotonic() < end, left
            time.sleep(0.2)


def _events(log: Path) -> list[str]:
    """The lines of an event log, a file or a folder of files."""
    files = [log] if log.is_file() else sorted(log.iterdir())
    return [line for path in files for line in path.read_text().splitlines()]


def _processes_of(folder: Path) -> list[str]:
    """Process ids of those whose temporary folder is this one."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            environment = (place / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"TMPDIR={folder}".encode() in environment and place.name != str(os.getpid()):
            found.append(place.name)
    return found


# --- Which Java Spark gets: the one of JAVA_HOME, the one on the path, or a refusal.


def _fake(folder: Path, version: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(("version", "release"), [("17.0.15", 17), ("1.8.0_402", 8), ("21", 21), ("25.0.2", 25)])
def test_release_is_the_one_that_java_names(tmp_path: Path, version: str, release: int) -> None:
    assert release_of(_fake(tmp_path, version)) == release


def test_what_is_no_java_has_no_release(tmp_path: Path) -> None:
    assert release_of(tmp_path / "java") == 0
    assert release_of(Path("/bin/true")) == 0


@pytest.mark.parametrize(("of_home", "of_path", "taken"), [
    ("21.0.1", "17.0.1", "home"), (None, "17.0.1", "path"), ("1.8.0_402", "17.0.15", "path"),
])
def test_java_home_comes_before_the_path_unless_it_has_none_or_an_old_one(
    of_home: str | None, of_path: str, taken: str, tmp_path: Path
) -> None:
    if of_home is not None:
        _fake(tmp_path / "home", of_home)
    _fake(tmp_path / "path", of_path)
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path" / "bin")}
    assert find_java(environment) == tmp_path / taken / "bin" / "java"


def test_no_java_at_all_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Refusal) as refused:
        find_java({"PATH": str(tmp_path)})
    assert refused.value.exit_code == 8 and "JAVA_HOME" in refused.value.remedy


def test_a_link_to_java_leads_to_its_home(tmp_path: Path) -> None:
    program = _fake(tmp_path / "jdk", "17.0.15")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(program)
    assert java_home({"PATH": str(tmp_path / "links")}) == str(tmp_path / "jdk")
