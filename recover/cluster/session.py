"""The Spark session of this process: started when first needed, its output in a file, stopped at the end."""

from __future__ import annotations

import atexit
import os
import pickle
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from recover.findings.code import Refusal, UsageRefusal, require
from recover.findings.model import HIDDEN, is_secret
from recover.log.split_scan import SPLIT_SIZE

# --- Master and settings: the user's, and those that a scan of a store needs.


_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,(\d+))?\])?")
_MASTERS = ("spark://", "yarn", "k8s://", "sc://")
_CONNECT = "sc://"
_REMOTE = "SPARK_REMOTE"
_CONNECTED = "SPARK_CONNECT_MODE_ENABLED"
"""Set by pyspark if a session of Spark Connect was started in this process."""
_RETRIES = 4
_OWN = "mqtool."
SPLIT_SETTING = "mqtool.splitSize"

# used if neither the command line nor the site's files set them
DEFAULTS = {
    # 8 ms a task instead of 69, together with gc.freeze in the workers
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.task.maxFailures": str(_RETRIES),
    # a worker starts as `python -m`, which would import from its current folder, perhaps the store
    "spark.executorEnv.PYTHONSAFEPATH": "1",
}
LOCAL_DEFAULTS = {
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false",
    # results go directly to the driver, which is in the same JVM, instead of through its block store
    "spark.task.maxDirectResultSize": "64m",
}
_HEAP = "2g"


class SparkSettings(Struct, frozen=True):
    """Options of the command line: master (None: the site's, else `threads` of this machine), Spark's settings, and the
    size of a split in bytes."""

    master: str | None
    conf: tuple[tuple[str, str], ...]
    split_size: int = SPLIT_SIZE
    threads: int = 1

    @property
    def over_connect(self) -> bool:
        """Whether a Connect server is used, named by the master or, without one, as pyspark would choose."""
        if self.master is None:
            return os.environ.get(_REMOTE, "").startswith(_CONNECT) or _CONNECTED in os.environ
        return self.master.startswith(_CONNECT)


def spark_settings(master: str | None, conf: Iterable[str] = (), threads: int | None = None) -> SparkSettings:
    """Parse --master and --conf K=V. `UsageRefusal` (16) for what Spark would not accept, `Refusal` (8) if the driver
    lacks packages."""
    given = dict(_pair(item) for item in conf)
    split_size = int(given.pop(SPLIT_SETTING, SPLIT_SIZE))
    threads = threads or len(os.sched_getaffinity(0))
    settings = SparkSettings(_master(master), tuple(sorted(given.items())), split_size, threads)
    require(*("connect", "Spark Connect") if settings.over_connect else ("spark", "Spark"))
    return settings


def _master(text: str | None) -> str | None:
    """Return the given master; a local one gets retries, which Spark's own `local[N]` does not have."""
    local = None if text is None else _LOCAL.fullmatch(text)
    if local is not None:
        return f"local[{local[1] or 1},{local[2] or _RETRIES}]"
    if text is not None and not text.startswith(_MASTERS):
        raise UsageRefusal(f"--master {text}: no master that Spark knows",
                           "Write local[2], local[*], spark://host:7077, yarn, k8s://host:443 or sc://host:15002.")
    return text


def _pair(item: str) -> tuple[str, str]:
    key, equals, value = item.partition("=")
    key = key.strip()
    if not equals or not key.startswith(("spark.", _OWN)):
        raise UsageRefusal(f"--conf {item}: write K=V with a setting of Spark",
                           "For instance --conf spark.executor.memory=4g.")
    if key.startswith(_OWN) and key != SPLIT_SETTING:
        raise UsageRefusal(f"--conf {key}: there is no such setting", f"mqtool knows {SPLIT_SETTING}.")
    if key == SPLIT_SETTING and not (value.strip().isdecimal() and int(value) > 0):
        raise UsageRefusal(f"--conf {item}: a split has a size in bytes", f"For instance {SPLIT_SETTING}={SPLIT_SIZE}.")
    return key, value.strip()


# --- The Java that Spark starts.


OLDEST = 17
_NEWEST_FOR_3 = 21
"""Spark 3.5's Hadoop requires the security manager, which Java 24 no longer has."""
_SECONDS = 30
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


def find_java(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the first Java of JAVA_HOME and PATH that this Spark runs on. `Refusal` (8) if there is none."""
    import pyspark

    newest = _NEWEST_FOR_3 if pyspark.__version__.startswith("3.") else 0
    home, on_path = environment.get("JAVA_HOME"), shutil.which("java", path=environment.get("PATH", ""))
    seen = []
    for program in (home and Path(home, "bin", "java"), on_path and Path(on_path)):
        if program:
            release = release_of(program)
            if release >= OLDEST and release <= (newest or release):
                return program
            seen.append(f"{program} is {release or 'no Java'}")
    raise Refusal(
        f"Spark needs Java {OLDEST} {f'to {newest}' if newest else 'or later'}, and there is none "
        f"({'; '.join(seen) or 'no java on PATH'})",
        "Install a Java runtime, or set JAVA_HOME to one; the local engine needs no Java.",
    )


def java_home(environment: Mapping[str, str] = os.environ) -> str:
    """Return the JAVA_HOME with which Spark starts the Java of `find_java`."""
    return str(find_java(environment).resolve().parent.parent)


def release_of(program: Path) -> int:
    """Return the feature release that `java -version` prints (8 for 1.8); 0 if it does not run or prints none."""
    try:
        said = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(said.stderr + said.stdout)
    return 0 if found is None else int(found[2] or 0) if found[1] == "1" else int(found[1])


# --- The session.


_LOG = "spark.log"
_SCRATCH = "scratch"
_JAVA_ENDED = re.compile(r'^(?:Exception in thread "main" [\w.$]+: |Error: )(.+)$', re.MULTILINE)
_LONGEST_OF_SOCKETS = 60
"""Limit for a folder's path in bytes; a socket in it is named by a UUID, and the system allows 107 for both."""
_CODE = Path(__file__).resolve().parents[2]
_SESSION_SECONDS = 20
_REACH_SECONDS = 5
_CONNECT_PORT = ":15002"
_TRIES = 5
"""Number of retries with a Connect server, with a pause that grows fourfold from 50 ms."""
_PLACES = ("SPARK_HOME", "SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
"""Variables that name folders for the JVM, which runs in another folder than this process."""
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set for programs run by spark-submit: there is a JVM, with the site's and the submitter's settings."""


class Session:
    """A running Spark: `context` is pyspark's; the JVM and its local workers write to a log in `folder`.

    `failed` keeps the log for the user; `shipped`: the executors were sent our code; `code`: digest of the code found
    on them; `tasks` and `size` (bytes of files): what was scanned so far. A context that already runs in this process
    is used as it is, and not stopped. `least`: minimum number of tasks submitted at one time. `ending`: threads that
    wait for its jobs cancel them, because the one that handles Ctrl-C has ended.
    """

    over_connect = False
    least = 16

    def __init__(self, settings: SparkSettings) -> None:
        self.settings = settings
        self.failed = self.shipped = self.is_taken = False
        self.code = ""
        self.master = without_token(settings.master or "")
        self.tasks = self.size = 0
        self._before: tuple[int, float] = (0, 0.0)  # what a Spark that was there had taken
        self.ending = threading.Event()
        self._counting = threading.Lock()
        self.folder = Path(tempfile.mkdtemp(prefix="mqtool-spark-"))
        self.process: Any = None
        self.context: Any = None
        starting: Future[None] = Future()
        # this thread handles Ctrl-C: a start in progress is allowed to finish, so that there is something to stop
        threading.Thread(target=_settle, args=(starting, self._start), daemon=True).start()
        try:
            while wait([starting], 0.1).not_done:
                pass
        except BaseException:
            wait([starting], _SESSION_SECONDS)
            self.stop()
            raise
        if error := starting.exception():
            self.failed = True
            said = self._java_said() or first_line(error)  # a Java error asks the JVM for its text
            self.stop()
            if isinstance(error, Refusal):
                raise error
            raise Refusal(f"Spark did not start with master {self.master}: {said}", self.where) from error

    def count(self, size: int) -> None:
        """Count a task that scanned so many bytes; several stores may be scanned at one time."""
        with self._counting:
            self.tasks += 1
            self.size += size

    @property
    def is_local(self) -> bool:
        """Whether the executors are threads of this machine's JVM."""
        return self.master.startswith("local")

    @property
    def is_over(self) -> bool:
        """Whether Spark is gone, or a session that was not ours was stopped by its owner. One of which a job failed
        takes others."""
        context = self.context._jsc
        try:
            return context is None or (self.failed and bool(context.sc().isStopped()))
        except Exception:
            return True

    @property
    def where(self) -> str:
        """Hint where to read more about a failure."""
        return f"Spark's own log: {self.folder / _LOG}" if self._has_logged else "Read what Spark logged."

    def _java_said(self) -> str:
        """The reason in the log of a JVM that ended before pyspark reached it; "" if it runs, or gave none."""
        if self.process is not None or not self._has_logged:
            return ""
        found = _JAVA_ENDED.search((self.folder / _LOG).read_text(errors="replace"))
        return found[1][:400] if found else ""

    def _start(self) -> None:
        """Use the running context, or start one; the command line's settings take precedence over the site's, then
        ours."""
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        given = dict(self.settings.conf)
        if self.settings.master is not None:
            given["spark.master"] = self.settings.master
        if (running := SparkContext._active_spark_context) is not None:
            self.is_taken, self.context, self.master = True, running, str(running.master)
            self._check_settings(given, "a Spark runs in this process", "stop that Spark first")
            self._before = self._taken()
            return
        warnings.filterwarnings("ignore", module="pyspark")
        reach(self.master)
        (self.folder / _SCRATCH).mkdir()
        own = {} if _SUBMITTED in os.environ else self._jvm_environment()
        with _environment(own), (self.folder / _LOG).open("wb") as noise:
            # a process group of its own, so that Ctrl-C reaches mqtool, not the JVM and its workers
            streams = {"stdout": noise, "stderr": noise, "start_new_session": True, "cwd": self.folder}
            launch = SparkConf(loadDefaults=False).setAll([*given.items()])
            gateway = launch_gateway(launch, streams)  # type: ignore[no-untyped-call]
            self.process = gateway.proc
            conf = SparkConf(_jvm=gateway.jvm).setAll([*given.items()])
            self.master = str(conf.get("spark.master"))
            if self.master != self.settings.master:
                reach(self.master)
            defaults = DEFAULTS | (LOCAL_DEFAULTS if self.is_local else {})
            defaults["spark.driver.maxResultSize"] = str(conf.get("spark.driver.memory", _HEAP))
            if len(os.fsencode(self.folder / _SCRATCH)) > _LONGEST_OF_SOCKETS:
                defaults["spark.python.unix.domain.socket.dir"] = "/tmp"
            for key, value in defaults.items():
                conf.setIfMissing(key, value)
            # the names that pyspark and spark-submit give if nobody chose one
            if conf.get("spark.app.name") in ("pyspark-shell", Path(sys.argv[0]).name):
                conf.set("spark.app.name", "mqtool")
            self.context = SparkContext(conf=conf, gateway=gateway)
        self.context.setLogLevel("ERROR")
        # Spark waits a minute for an id from the master, and then goes on with one of its own
        if self.master.startswith("spark://") and self.context.applicationId.startswith("spark-application-"):
            raise Refusal(f"no Spark master answers at {self.master}, though something listens there",
                          "Check the port: a master's is 7077, not that of its web pages.", master=self.master)

    def _check_settings(self, given: Mapping[str, str], what: str, remedy: str) -> None:
        """`Refusal` (8) if a running Spark has other settings than those given: they take effect only at start."""
        for key, value in given.items():
            if (own := self.setting(key)) != value:
                own = own or "not set"
                said = f"differs from the one given as {HIDDEN}" if is_secret(key) else f"is {own}, not {value}"
                raise Refusal(f"{what}, and its {key} {said}",
                              f"Leave the setting out, or {remedy}.")

    def setting(self, key: str) -> str | None:
        """Return a setting of the running Spark."""
        found: str | None = self.context.getConf().get(key)
        return found

    def _jvm_environment(self) -> dict[str, str]:
        """Return the environment of our own JVM and its workers: defaults for what the site's files do not set."""
        # this variable has no escapes: put a double quote between single ones
        place = str(self.folder / _SCRATCH).replace('"', '"\'"\'"')
        options = f'"-Djava.io.tmpdir={place}" {os.environ.get("JDK_JAVA_OPTIONS", "")}'.strip()
        environment = {name: os.path.abspath(os.environ[name]) for name in _PLACES if os.environ.get(name)} | {
            "JAVA_HOME": java_home(),
            "PYTHONSAFEPATH": "1",
            "MASTER": f"local[{self.settings.threads},{_RETRIES}]",
            "SPARK_DRIVER_MEMORY": os.environ.get("SPARK_DRIVER_MEMORY", _HEAP),
            # Java's temporary files go into this session's folder: a killed JVM removes none
            "JDK_JAVA_OPTIONS": options,
            "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
            # local workers are plain interpreters: they find a checkout that this one imports from by the path
            "PYTHONPATH": os.pathsep.join(filter(None, [str(_CODE), os.environ.get("PYTHONPATH", "")])),
        }
        if self.is_local:
            environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
            # the JVM only passes bytes on: neither the second compiler nor the check of Spark's own classes pays off
            # within one command
            environment["JDK_JAVA_OPTIONS"] += " -XX:TieredStopAtLevel=1 -XX:+IgnoreUnrecognizedVMOptions " \
                "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
        return environment

    def json(self) -> dict[str, Any]:
        """Return application, address of Spark's own pages, executors, and what they scanned."""
        executors = 0
        with suppress(Exception):
            # the driver counts as one of them, except with a local master, where it is the only one
            executors = max(1, len(self.context._jsc.sc().statusTracker().getExecutorInfos()) - 1)
        tasks, seconds = self.took()
        return {"master": self.master, "application": self.context.applicationId, "ui": self.context.uiWebUrl,
                "executors": executors, "tasks": self.tasks, "bytes": self.size, "all_tasks": tasks,
                "core_seconds": seconds}

    def took(self) -> tuple[int | None, float | None]:
        """Return the number of all tasks of this session, and their seconds of a core, waits for storage included; None
        if Spark does not tell."""
        with suppress(Exception):
            (tasks, seconds), (tasks_before, seconds_before) = self._taken(), self._before
            return tasks - tasks_before, round(seconds - seconds_before, 3)
        return None, None

    def _taken(self) -> tuple[int, float]:
        every = self.context._jsc.sc().statusStore().executorList(False)
        own = [every.apply(number) for number in range(every.size())]
        return sum(one.totalTasks() for one in own), sum(one.totalDuration() for one in own) / 1000

    @cached_property
    def attempts(self) -> int:
        """How often a task is tried."""
        local = _LOCAL.fullmatch(self.setting("spark.master") or "")
        return int((local[2] or 1) if local else self.setting("spark.task.maxFailures") or _RETRIES)

    @property
    def cores(self) -> int:
        """The number of tasks that run at one time, as far as Spark knows now. `Refusal` (8) if Spark is gone."""
        try:
            return int(self.context.defaultParallelism)
        except Exception as error:
            raise self.broken(error) from error

    def begin(self, group: str, label: str) -> None:
        """Assign further jobs of this thread to a group."""
        self.context.setJobGroup(group, label, interruptOnCancel=True)

    def cancel(self, group: str) -> None:
        """Cancel the jobs of a group."""
        self.context.cancelJobGroup(group)

    def thread(self, action: Callable[[], None]) -> threading.Thread:
        """Return a thread that may use Spark."""
        from pyspark import InheritableThread

        return InheritableThread(target=action, daemon=True)

    def ship(self, path: str) -> None:
        """Have all executors import from a zip."""
        self.context.addPyFile(path)

    def sql(self) -> Any:
        """Return the same Spark as a SparkSession."""
        from pyspark.sql import SparkSession

        return SparkSession(self.context)

    def broken(self, error: BaseException) -> Refusal:
        """Return the refusal for an error of Spark, whose log stays."""
        self.failed = True
        return Refusal(f"Spark gave up: {first_line(error)}", self.where)

    def stop(self) -> None:
        """Stop Spark and its JVM, if they are ours; the log stays if something failed."""
        context, self.context = self.context, None
        if context is not None and not self.is_taken:
            with suppress(Exception):
                server, context._accumulatorServer = context._accumulatorServer, None
                server.handle_error = lambda *_: None  # it would print that the JVM closed its connection first
                threading.Thread(target=_shut_down, args=(server,), daemon=True).start()
                context.stop()
        if self.process is not None:  # spark-submit ends its own
            _forget_gateway()
            with suppress(Exception):
                self.process.stdin.close()  # the JVM ends with it
                self.process.wait(_SESSION_SECONDS)
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
        kept = self.failed and self._has_logged
        shutil.rmtree(self.folder / _SCRATCH if kept else self.folder, ignore_errors=True)

    @property
    def _has_logged(self) -> bool:
        """Whether there is a log of ours, also of a JVM that ended before pyspark reached it."""
        return (self.folder / _LOG).is_file() and (self.folder / _LOG).stat().st_size > 0


class ConnectSession(Session):
    """A session of a Spark Connect server, which has DataFrames and no RDD: `context` is its SparkSession.

    Executors persist nothing; requests to the server are only jobs, settings, and their cancellation.
    """

    over_connect = True
    least = 128
    _was_connected = False

    def _start(self) -> None:
        url = self.settings.master or os.environ.get(_REMOTE)
        self._was_connected = _CONNECTED in os.environ
        self.is_taken = self.settings.master is None and self._was_connected
        if url is not None and not self.is_taken:
            self.master = without_token(url)
            reach(self.master)
        warnings.filterwarnings("ignore", module="pyspark")
        try:
            from pyspark.sql import SparkSession
            from pyspark.sql.connect.client.retries import DefaultPolicy
            from pyspark.sql.connect.session import SparkSession as Connected

            if self.is_taken:  # pyspark's own getOrCreate requires an address even if a session runs
                self.context = Connected.builder.getOrCreate()
            else:
                self.context = SparkSession.builder.remote(str(url)).create()
                # retry for some seconds if the server is gone, not for the ten minutes of pyspark
                self.context.client.set_retry_policies([DefaultPolicy(max_retries=_TRIES)])
        except ImportError as error:  # pyspark asks for newer versions
            raise Refusal(f"Spark Connect lacks a package here: {first_line(error)}",
                          "pip install 'mqtool[connect]'; --master spark://HOST:7077 does without.") from error
        self.master = self.master or f"{_CONNECT}{self.context.client.host}"
        _ = self.context.version  # the first request: another server may have answered at the address
        self._check_settings(dict(self.settings.conf), "settings hold from the start of a Connect server",
                             "start the server with it")

    @property
    def is_over(self) -> bool:
        """Whether it failed, or a session that was not ours was stopped by its owner."""
        return self.failed or bool(self.context.is_stopped)

    def setting(self, key: str) -> str | None:
        """Return a setting of the server's Spark."""
        found: str | None = self.context.conf.get(key, None)
        return found

    def json(self) -> dict[str, Any]:
        """See `Session`: Connect reports neither the address of Spark's pages nor the number of executors."""
        return {"master": self.master, "application": self.setting("spark.app.id"), "ui": None, "executors": None,
                "tasks": self.tasks, "bytes": self.size, "all_tasks": None, "core_seconds": None}

    @cached_property
    def cores(self) -> int:
        """The number of tasks that run at one time, by the partitions of a range. `Refusal` (8) if Spark is gone."""
        try:
            parts = self.context.range(1 << 16).selectExpr("spark_partition_id()").toArrow()
        except Exception as error:
            raise self.broken(error) from error
        return int(parts.column(0)[-1].as_py()) + 1

    def begin(self, group: str, label: str) -> None:
        self.context.addTag(group)

    def cancel(self, group: str) -> None:
        self.context.interruptTag(group)

    def thread(self, action: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=action, daemon=True)

    def ship(self, path: str) -> None:
        self.context.addArtifacts(path, pyfile=True)

    def sql(self) -> Any:
        return self.context

    def answers(
        self, function: Callable[[Iterable[Any]], Iterable[Any]], then: Callable[[Iterable[Any]], Iterable[Any]],
        items: Sequence[Any],
    ) -> Iterator[Any]:
        # pickled by value, because a host without our code could not look it up
        def answer(batches: Iterable[Any]) -> Iterator[Any]:
            import pickle

            import pyarrow as pa

            for batch in batches:
                for number in batch.column(0).to_pylist():
                    found = [pickle.dumps(one) for one in then(function([items[number]]))]
                    yield pa.record_batch([pa.array(found, pa.binary())], ["answer"])

        frame = self.context.range(0, len(items), 1, len(items)).mapInArrow(answer, "answer binary")
        for row in frame.toLocalIterator():
            yield pickle.loads(row.answer)

    def stop(self) -> None:
        super().stop()
        if not self._was_connected:  # pyspark's leftover would keep every other Spark from this process
            os.environ.pop(_CONNECTED, None)


def without_token(master: str) -> str:
    """Return a master without the parameters of a Connect server's address, one of which is its token."""
    return master.partition("/;")[0] if master.startswith(_CONNECT) else master


def _settle(future: Future[Any], action: Callable[[], Any]) -> None:
    """Set the future to the result or exception of `action`."""
    try:
        future.set_result(action())
    except BaseException as error:
        future.set_exception(error)


_current: list[Session] = []
_lock = threading.Lock()


def session_for(settings: SparkSettings) -> Session:
    """Return the session for this master and these Spark settings; one runs at a time, and ends with the process.

    `Refusal` (8) without Spark. Another split size does not require another session.
    """
    with _lock:
        if _current and not _current[0].is_over:
            own = structs.replace(_current[0].settings, split_size=settings.split_size)
            if own == settings:
                return _current[0]
        stop_session()
        _current.append(ConnectSession(settings) if settings.over_connect else Session(settings))
        return _current[0]


def is_session_there() -> bool:
    """Whether this process has a Spark that we did not start: a notebook's, or spark-submit's."""
    from pyspark import SparkContext

    active = SparkContext._active_spark_context
    own = running_session()
    return (active is not None or _SUBMITTED in os.environ) and (own is None or own.is_taken)


def running_session() -> Session | None:
    """Return the running session, or None."""
    return _current[0] if _current else None


def stop_session() -> None:
    """Stop the running session, if any."""
    while _current:
        _current.pop().stop()


atexit.register(stop_session)


def first_line(error: BaseException) -> str:
    """Return the message of a Spark error, without the stacks of either language."""
    text = str(error)
    with suppress(Exception):
        cause = error.java_exception  # type: ignore[attr-defined]
        # "An error has occurred" of a library has a cause that says which; Spark's own messages do themselves
        while cause.getCause() is not None and not cause.toString().startswith("org.apache.spark."):
            cause = cause.getCause()
        text = str(cause.getMessage() or cause)
    if details := re.search(r'\bdetails = "(.*)"', text):  # gRPC's
        text = details[1]
    lines: list[str] = []
    for line in map(str.strip, text.splitlines()):
        if line.startswith(("at ", "Driver stacktrace")) and lines:
            break
        if line and not line.startswith("SQLSTATE"):
            lines.append(line)
    if not lines:
        return type(error).__name__
    # a Python traceback has its message at the end, everything else at the beginning
    said = lines[-1] if any("Traceback (most recent call last)" in line for line in lines) else lines[0]
    return said.rsplit("org.apache.spark.SparkException: ", 1)[-1][:400]


def _shut_down(server: Any) -> None:
    """End pyspark's server of accumulators, which looks every second whether it should: nothing waits for it."""
    with suppress(Exception):
        server.shutdown()


def _forget_gateway() -> None:
    from pyspark import SparkContext

    SparkContext._gateway = None
    SparkContext._jvm = None
    # a context that could not be stopped because its JVM is gone would count as running
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


def reach(master: str) -> None:
    """Raise `Refusal` (8) if no master accepts a connection: Spark would retry for a minute, and not mention it."""
    hosts = re.sub(r"^(?:spark|k8s|sc)://(?:https?://)?", "", master).rstrip("/")
    if hosts == master.rstrip("/"):
        return
    problem = ""
    for address in hosts.split(","):
        if master.startswith(_CONNECT) and not re.search(r":\d+$", address):
            address += _CONNECT_PORT
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS / (hosts.count(",") + 1)).close()
        except (OSError, ValueError) as error:
            problem = getattr(error, "strerror", None) or str(error)
        else:
            return
    raise Refusal(f"no Spark master answers at {master}: {problem}",
                  "Check the address, and that the master runs.", master=master)
