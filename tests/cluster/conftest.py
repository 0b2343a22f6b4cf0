"""What Spark's tests share: a site's settings, a session, a cluster, and an S3-compatible server of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from recover.cluster.session import running_session, session_for, spark_settings, stop_session
from tests.cluster.cluster import UNCHECKED, Cluster, cluster, free_port
from tests.support.plans import quick_folder

_SECONDS = 60
# queries over thousands of rows: compiling them and handing around 200 parts of them takes longer than they do
_SITE = """\
spark.sql.shuffle.partitions 2
spark.sql.codegen.wholeStage false
spark.sql.codegen.factoryMode NO_CODEGEN
"""


@contextmanager
def _site(folder: Path) -> Iterator[None]:
    """What a site says before any Spark starts: its settings, and the credentials of `endpoint`."""
    (folder / "spark-defaults.conf").write_text(_SITE)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("SPARK_CONF_DIR", str(folder)), ("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_REGION", "us-east-1"), ("AWS_EC2_METADATA_DISABLED", "true"),
            ("JDK_JAVA_OPTIONS", f"{os.environ.get('JDK_JAVA_OPTIONS', '')} {UNCHECKED}"),
        ):
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="package", autouse=True)
def site() -> Iterator[None]:
    with quick_folder() as folder, _site(folder):
        yield


@pytest.fixture
def spark() -> Any:
    """The session of this process for SQL, with the data sources registered."""
    from pyspark.sql import SparkSession

    from recover.cluster.sources import register

    made = SparkSession(session_for(spark_settings("local[2]", ["spark.driver.memory=512m"])).context)
    register(made)
    return made


@pytest.fixture
def own_session() -> Iterator[None]:
    """No session runs before the test, which starts one with settings of its own, nor after it."""
    stop_session()
    yield
    stop_session()


@pytest.fixture(scope="session")
def started() -> Iterator[Cluster]:
    with quick_folder() as folder, ExitStack() as stack:
        # of the session, and so made before `site`: without credentials its uploads are anonymous, and moto keeps the
        # chunk headers of those as content
        with _site(folder):
            made = stack.enter_context(cluster(folder / "cluster"))
        yield made
        stop_session()


@pytest.fixture
def running(started: Cluster) -> Cluster:
    """A master and two workers; a session of an earlier test on it goes on, with an executor on each."""
    started.revive()
    session, end = running_session(), time.monotonic() + _SECONDS
    while session is not None and session.master == started.url and not session.is_over \
            and session.json()["executors"] < len(started.workers):
        assert time.monotonic() < end, "executors that were killed did not come back"
        time.sleep(0.1)
    return started


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """host:port of a server that keeps its buckets in memory, and its log, a line a request."""
    port, path = free_port(), tmp_path_factory.mktemp("s3") / "log"
    with path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log
        )
        try:
            _wait_for(f"http://127.0.0.1:{port}/moto-api/data.json", process)
            yield f"127.0.0.1:{port}", path
        finally:
            process.terminate()
            process.wait(20)


@pytest.fixture(scope="session")
def endpoint(server: tuple[str, Path]) -> str:
    return server[0]


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _SECONDS
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            assert process.poll() is None and time.monotonic() < end, "the S3 server did not start"
            time.sleep(0.1)
