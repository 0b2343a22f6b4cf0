"""A standalone Spark cluster on this machine: a master and two workers, each a process with a folder of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from recover.cluster.session import find_java, java_home

_SECONDS = 60


@dataclass(frozen=True)
class Cluster:
    """A running cluster: its URL, its folder, its processes."""

    url: str
    folder: Path
    workers: list[subprocess.Popen[bytes]]

    def line(self, *more: str) -> tuple[str, ...]:
        """The options that put a command on this cluster, with small heaps."""
        return ("--master", self.url, *(item for setting in (
            "spark.driver.memory=512m", "spark.executor.memory=512m", "spark.executor.cores=1",
            "spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1",
            f"spark.executor.extraJavaOptions=-Djava.io.tmpdir={self.folder / 'scratch'}",
            "spark.python.unix.domain.socket.dir=/tmp", *more,
        ) for item in ("--conf", setting)))

    def executors(self, worker: int) -> list[int]:
        """Process ids of the executors that a worker has started."""
        return children(self.workers[worker].pid)

    def kill(self, worker: int) -> None:
        """kill -9 of a worker and of its executors, as when a machine goes."""
        pids = self.executors(worker)
        self.workers[worker].kill()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.workers[worker].wait()


def children(pid: int) -> list[int]:
    """Process ids of the children of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        found += map(int, (task / "children").read_text().split())
    return found


def can_mount() -> bool:
    """Whether a process with mounts of its own can be started here."""
    done = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    return done.returncode == 0


@contextmanager
def cluster(folder: Path, other_view: tuple[Path, Path] | None = None) -> Iterator[Cluster]:
    """Start a master and two workers with one core each; stop what is left of them in the end.

    `other_view` (source, target): the second worker and its executors see the folder `source` at `target`.
    """
    # nothing of ours is on the executors' path: they get the code as a cluster of strangers would
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["JAVA_HOME"] = java_home(find_java(), folder / "java")
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOG_DIR": str(folder)}
    # whoever is killed removes nothing
    scratch = folder / "scratch"
    scratch.mkdir(parents=True)
    environment |= {"SPARK_LOCAL_DIRS": str(scratch), "SPARK_DAEMON_JAVA_OPTS": f"-Djava.io.tmpdir={scratch}"}
    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    port = free_port()
    running: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: object, before: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        place = folder / name
        place.mkdir(parents=True)
        with (place / "log").open("wb") as log:
            process = subprocess.Popen(
                [*before, program, *map(str, arguments)], cwd=place, env=environment, stdout=log, stderr=log,
                start_new_session=True,
            )
        running.append(process)
        return process

    try:
        start("master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", port,
              "--webui-port", free_port())
        url = f"spark://127.0.0.1:{port}"
        mounted = ("unshare", "-m", "sh", "-c", 'mount --bind "$1" "$2" && shift 2 && exec "$@"', "sh")
        workers = [
            start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", "--cores", 1, "--memory", "1g",
                  "--host", "127.0.0.1", "--webui-port", free_port(), "-d", folder / f"worker-{number}", url,
                  before=(*mounted, *map(str, other_view)) if number and other_view else ())
            for number in (0, 1)
        ]
        for number in (0, 1):
            _wait_for(folder / f"worker-{number}" / "log", "Successfully registered")
        yield Cluster(url, folder, workers)
    finally:
        for process in reversed(running):
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


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
