"""A standalone Spark cluster on this machine: a master and two workers, each a process with a folder of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pyspark

from recover.cluster.session import java_home

_SECONDS = 60
# no JVM of a test lives long enough to earn back what the second compiler takes, or the check of Spark's own classes
UNCHECKED = "-XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
_BRIEF = f"-XX:TieredStopAtLevel=1 {UNCHECKED}"


class Cluster:
    """A running cluster: its URL, its folder, its workers, which say that they have so many cores each.

    The second worker has mounts of its own, where that can be had; a test may add one.
    """

    def __init__(self, folder: Path, cores: int = 1) -> None:
        self.folder = folder
        self.cores = cores
        self.workers: list[subprocess.Popen[bytes]] = []
        # nothing of ours is on the executors' path: they get the code as a cluster of strangers would
        self._environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
            "JAVA_HOME": java_home(),
            "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOG_DIR": str(folder),
            # whoever is killed removes nothing
            "SPARK_LOCAL_DIRS": str(self._scratch),
            "SPARK_DAEMON_JAVA_OPTS": f"{_BRIEF} -Djava.io.tmpdir={self._scratch}",
        }
        self._scratch.mkdir(parents=True)
        port = free_port()
        self.url = f"spark://127.0.0.1:{port}"
        self._master = self._start("master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1",
                                   "--port", port, "--webui-port", free_port())

    @property
    def _scratch(self) -> Path:
        return self.folder / "scratch"

    def _start(self, name: str, *arguments: object, before: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        place = self.folder / name
        place.mkdir(exist_ok=True)
        program = Path(pyspark.__file__).parent / "bin" / "spark-class"
        with (place / "log").open("wb") as log:
            return subprocess.Popen(
                [*before, program, *map(str, arguments)], cwd=place, env=self._environment, stdout=log, stderr=log,
                start_new_session=True,
            )

    def revive(self) -> None:
        """Have both workers run, those that were killed anew."""
        begun = [number for number in (0, 1) if number >= len(self.workers) or self.workers[number].poll() is not None]
        for number in begun:
            worker = self._start(
                f"worker-{number}", "org.apache.spark.deploy.worker.Worker", "--cores", self.cores, "--memory", "1g",
                "--host", "127.0.0.1", "--webui-port", free_port(), "-d", self.folder / f"worker-{number}", self.url,
                before=("unshare", "-m") if number and can_mount() else (),
            )
            self.workers[number : number + 1] = [worker]
        for number in begun:
            _wait_for(self.folder / f"worker-{number}" / "log", "Successfully registered")

    @contextmanager
    def mounted(self, source: Path, target: Path) -> Iterator[None]:
        """The second worker and its executors see the folder `source` at `target`."""
        enter = ("nsenter", "-m", "-t", str(self.workers[1].pid))
        subprocess.run([*enter, "mount", "--bind", source, target], check=True)
        try:
            yield
        finally:
            subprocess.run([*enter, "umount", "-l", target], check=True)

    def line(self, *more: str) -> tuple[str, ...]:
        """The options that put a command on this cluster, with small heaps."""
        return ("--master", self.url, *(item for setting in (
            "spark.driver.memory=512m", "spark.executor.memory=512m", "spark.executor.cores=1",
            "spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1",
            f"spark.executor.extraJavaOptions={_BRIEF} -Djava.io.tmpdir={self._scratch}",
            f"spark.driver.extraJavaOptions={_BRIEF}",
            "spark.python.unix.domain.socket.dir=/tmp",
            # no task before both workers have an executor
            "spark.cores.max=2", "spark.scheduler.minRegisteredResourcesRatio=1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime=120s", *more,
        ) for item in ("--conf", setting)))

    def kill_executors(self, *workers: int) -> list[int]:
        """kill -9 of the executors of these workers; their process ids."""
        found = [pid for number in workers for pid in children(self.workers[number].pid)]
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return found

    def kill(self, number: int) -> list[int]:
        """kill -9 of a worker and of its executors, as when a machine goes; process ids of the latter."""
        self.workers[number].send_signal(signal.SIGSTOP)  # it would start others
        found = self.kill_executors(number)
        self.workers[number].kill()
        self.workers[number].wait()
        return found

    def stop(self) -> None:
        """End what runs."""
        for process in (*self.workers, self._master):
            if process.poll() is None:
                process.terminate()
        for process in (*self.workers, self._master):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def children(pid: int) -> list[int]:
    """Process ids of the children of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        found += map(int, (task / "children").read_text().split())
    return found


@cache
def can_mount() -> bool:
    """Whether a process with mounts of its own can be started here."""
    done = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    return done.returncode == 0


@contextmanager
def cluster(folder: Path, cores: int = 1) -> Iterator[Cluster]:
    """Start a master and two workers; stop what is left of them in the end."""
    made = Cluster(folder, cores)
    try:
        made.revive()
        yield made
    finally:
        made.stop()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(log: Path, text: str) -> None:
    end = time.monotonic() + _SECONDS
    while text not in log.read_text(errors="replace"):
        assert time.monotonic() < end, log.read_text(errors="replace")
        time.sleep(0.1)
