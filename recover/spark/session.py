"""The Spark session of this process: started when first needed, its noise in a file, stopped at the end."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from recover.errors import Refusal
from recover.spark.java import find_java, spark_environment
from recover.spark.settings import SparkSettings

LOG = "spark.log"
_SCRATCH = "scratch"
_LONGEST_OF_SOCKETS = 60
"""Bytes of a folder's path; a socket in it has a UUID for its name, and the system takes 107 for both."""
_CODE = Path(__file__).resolve().parents[2]
_SECONDS = 20
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"


class Session:
    """A running Spark: `context` is pyspark's, `log` in its `folder` is where the JVM and its local workers write.

    `failed` keeps the log for a person to read; `shipped`: the executors were sent our code.
    """

    def __init__(self, settings: SparkSettings) -> None:
        self.settings = settings
        self.failed = False
        self.shipped = False
        self.folder = Path(tempfile.mkdtemp(prefix="mqtool-spark-"))
        self.log = self.folder / LOG
        self._gateway: Any = None
        self.context: Any = None
        try:
            self._start()
        except BaseException as error:
            self.failed = isinstance(error, Exception)
            self.stop()
            if not self.failed or isinstance(error, Refusal):
                raise
            raise Refusal(f"Spark did not start with master {settings.master}: {first_line(error)}",
                          f"Spark's own log: {self.log}") from error

    def _start(self) -> None:
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        warnings.filterwarnings("ignore", module="pyspark")
        java = find_java()
        conf = SparkConf(loadDefaults=False).setMaster(self.settings.master)
        conf.setAll([*self.settings.conf])
        self._set_scratch(conf, str(conf.get(_JAVA_OPTIONS) or ""))
        java_home = spark_environment(java, self.folder / "java")
        with _environment(java_home | self._python()), _signals_kept(), self.log.open("wb") as noise:
            # a session of its own: Ctrl-C is for us to answer, not for the JVM and its workers
            streams = {"stdout": noise, "stderr": noise, "start_new_session": True}
            self._gateway = launch_gateway(conf, streams)  # type: ignore[no-untyped-call]
            self.context = SparkContext(conf=conf, gateway=self._gateway)
        self.context.setLogLevel("ERROR")

    def _set_scratch(self, conf: Any, options: str) -> None:
        """Java's temporary files are this session's, beside its other `options`: it removes none where it is killed."""
        folder = self.folder / _SCRATCH
        folder.mkdir()
        place = str(folder).replace("\\", "\\\\").replace('"', '\\"')
        # before what the user says, who may want another place
        conf.set(_JAVA_OPTIONS, f'"-Djava.io.tmpdir={place}" {options}'.strip())
        if len(os.fsencode(folder)) > _LONGEST_OF_SOCKETS:
            conf.setIfMissing("spark.python.unix.domain.socket.dir", "/tmp")

    def _python(self) -> dict[str, str]:
        if self.settings.is_local:
            # workers are plain interpreters: what this one imports from a checkout, they find by the path
            path = os.pathsep.join(filter(None, [str(_CODE), os.environ.get("PYTHONPATH", "")]))
            return {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable,
                    "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": path}
        return {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
                "PYSPARK_DRIVER_PYTHON": sys.executable}

    @property
    def cores(self) -> int:
        """Tasks that run at one time, as far as Spark knows by now. `Refusal` (8) when Spark is gone."""
        try:
            return int(self.context.defaultParallelism)
        except Exception as error:
            raise self.broken(error) from error

    def broken(self, error: BaseException) -> Refusal:
        """What to raise over an error of Spark's; this session is not used again."""
        self.failed = True
        return Refusal(f"Spark gave up: {first_line(error)}", f"Spark's own log: {self.log}")

    @property
    def process(self) -> Any:
        """The JVM, a `subprocess.Popen`."""
        return self._gateway.proc

    def stop(self) -> None:
        """End Spark and its JVM; the log stays when something failed."""
        gateway, self._gateway = self._gateway, None
        process = getattr(gateway, "proc", None)
        with suppress(Exception):
            if self.context is not None:
                self.context.stop()
        with suppress(Exception):
            if gateway is not None:
                gateway.shutdown()
        self.context = None
        _forget_gateway()
        if process is not None:
            with suppress(Exception):
                process.stdin.close()  # the JVM ends with it
                process.wait(_SECONDS)
            if process.poll() is None:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder / _SCRATCH if self.failed else self.folder, ignore_errors=True)


_current: list[Session] = []
_lock = threading.Lock()


def session_for(settings: SparkSettings) -> Session:
    """The session with these settings; one runs at a time, and ends with the process. `Refusal` (8) without Spark."""
    with _lock:
        if _current and _current[0].settings == settings and not _current[0].failed:
            return _current[0]
        stop_session()
        _current.append(Session(settings))
        return _current[0]


def running_session() -> Session | None:
    """The session that runs, if one does."""
    return _current[0] if _current else None


def stop_session() -> None:
    """Stop the session that runs, if one does."""
    while _current:
        _current.pop().stop()


atexit.register(stop_session)


def first_line(error: BaseException) -> str:
    """What an error of Spark says, without the stacks of either language."""
    text = str(error)
    with suppress(Exception):
        text = str(error.java_exception.getMessage())  # type: ignore[attr-defined]
    lines: list[str] = []
    for line in map(str.strip, text.splitlines()):
        if line.startswith(("at ", "Driver stacktrace")) and lines:
            break
        if line and not line.startswith("SQLSTATE"):
            lines.append(line)
    if not lines:
        return type(error).__name__
    # a Python traceback says what happened at its end, everything else at its beginning
    said = lines[-1] if any("Traceback (most recent call last)" in line for line in lines) else lines[0]
    return said.rsplit("org.apache.spark.SparkException: ", 1)[-1][:400]


def _forget_gateway() -> None:
    from pyspark import SparkContext

    SparkContext._gateway = None
    SparkContext._jvm = None
    # what could not be stopped because its JVM is gone would count as running
    SparkContext._active_spark_context = None


@contextmanager
def _environment(changes: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _signals_kept() -> Iterator[None]:
    """pyspark takes SIGINT for itself; how a command ends is decided elsewhere."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
