"""Jobs of a session: run in threads, watched by the caller, cancelled if it is interrupted; checks of what they
read."""

from __future__ import annotations

import gc
import os
import queue
import socket
import threading
import time
import zipfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from recover.change.preconditions import StaleRefusal
from recover.cluster.session import ConnectSession, Session
from recover.findings.code import Refusal
from recover.log.scan import LogView, dead_ranges
from recover.store.reading import FileReads, Seen, file_crc
from recover.store.source import url_of

_names = count(1)
_EVERY = 0.2
_GRACE = 5
_JOBS = 4
_DONE = object()


class Job:
    """`function` over `items`, one task each, in a session. With `keeps` executors persist the results on their disks,
    if the session supports it.

    Results pass through the driver's heap, so tasks are not all submitted at once, but twice as many as there are cores
    at the time: dynamic allocation, which reacts to waiting tasks, still grows, and a slow task does not block others.
    """

    def __init__(
        self, session: Session, function: Callable[[Iterable[Any]], Iterable[Any]], items: Sequence[Any], label: str, *,
        keeps: bool = False,
    ) -> None:
        self.session, self.items, self._function, self._label, self._keeps = session, items, function, label, keeps
        self._rdd: Any = None
        self._lock = threading.Lock()

    @property
    def rdd(self) -> Any:
        """The results, a partition for each item; call it within `watch`."""
        from pyspark import StorageLevel

        with self._lock:
            if self._rdd is None:
                self._rdd = self.session.context.parallelize(self.items, len(self.items)).mapPartitions(self._function)
                if self._keeps:
                    self._rdd.persist(StorageLevel.DISK_ONLY)
            return self._rdd

    def run(self, then: Callable[[Iterable[Any]], Iterable[Any]], chosen: Sequence[int]) -> list[Any]:
        """Return `then` applied to the results of some tasks, given by their index in `items`; call it within
        `watch`."""
        if isinstance(self.session, ConnectSession):
            return list(self.session.answers(self._function, then, [self.items[number] for number in chosen]))
        return list(self.session.context.runJob(self.rdd, partial(_kept, then) if self._keeps else then, chosen))

    def answers(self, then: Callable[[Iterable[Any]], Iterable[Any]] = iter) -> Generator[Any, None, None]:
        """Yield the same for all tasks, as they finish. `Refusal` (8), which names Spark's log, if one failed on its
        last attempt."""
        def actions() -> Iterator[Callable[[], Any]]:
            left = iter(range(len(self.items)))
            while chosen := [*islice(left, -(-max(self.session.least, 2 * self.session.cores) // _JOBS))]:
                yield partial(self.run, then, chosen)

        jobs = min(_JOBS, -(-len(self.items) * _JOBS // self.session.least))
        for found in _watched(self.session, actions(), self._label, jobs=jobs):
            yield from found

    def forget(self) -> None:
        """Let executors drop the results; later requests run the tasks again."""
        with suppress(Exception):  # a Spark that is gone keeps nothing
            self._rdd.unpersist()


def _kept(then: Callable[[Iterable[Any]], Iterable[Any]], results: Iterator[Any]) -> Iterable[Any]:
    """Return `then` applied to the persisted results of a task. `RuntimeError` if there is none.

    Spark (seen with 4.3.0) persists without an error on a disk that fills up with the last block: Kryo ignores errors
    when it closes a file, and takes the missing bytes for the end of the results when it reads it.
    """
    first = [*islice(results, 1)]
    if not first:
        raise RuntimeError(f"host {socket.gethostname()} lost a result that it persisted: its disk may be full")
    return then(chain(first, results))


def run_job(
    session: Session, function: Callable[[Iterable[Any]], Iterable[Any]], items: Sequence[Any], label: str,
) -> Generator[Any, None, None]:
    """Yield the results of a `Job`'s tasks, as they finish."""
    if items:
        yield from Job(session, function, items, label).answers()


def watch(
    session: Session, action: Callable[[], Any], label: str, *, tick: Callable[[], None] | None = None
) -> Any:
    """Return the result of `action`; on an exception here or in `tick`, its tasks are cancelled and interrupted."""
    (value,) = _watched(session, iter([action]), label, tick=tick)
    return value


def _watched(
    session: Session, actions: Iterator[Callable[[], Any]], label: str, *, jobs: int = 1,
    tick: Callable[[], None] | None = None,
) -> Iterator[Any]:
    """Yield the results of some actions as they finish; `jobs` threads take one after the other."""
    group = f"mqtool-{next(_names)}"
    answers: queue.Queue[Any] = queue.Queue(jobs)
    left, lock = threading.Event(), threading.Lock()

    def take() -> Callable[[], Any] | None:
        with lock:
            return next(actions, None)

    def put(answer: Any) -> None:
        while not left.is_set():
            with suppress(queue.Full):
                answers.put(answer, timeout=_EVERY)
                return
        raise InterruptedError

    def act() -> None:
        try:
            session.begin(group, label)
            if session.code:
                session.context.setLocalProperty(_CODE, session.code)
            while action := take():
                put((action(),))
            put(_DONE)
        except BaseException as error:
            with suppress(InterruptedError):
                put(error)

    # This thread handles signals, so it never calls Spark: py4j sends a message whenever one of its objects is
    # collected, and an exception raised in there is lost.
    try:
        threads = [session.thread(act) for _ in range(jobs)]
        for thread in threads:
            thread.start()
    except Exception as gone:  # starting a thread asks the JVM for inherited properties, and it may be gone
        raise session.broken(gone) from gone
    try:
        while jobs:
            try:
                answer = answers.get(timeout=_EVERY)
            except queue.Empty:
                if session.ending.is_set():
                    raise Refusal("stopped with the command") from None
                if tick is not None:
                    tick()
                continue
            if isinstance(answer, tuple):
                yield answer[0]
            elif answer is _DONE:
                jobs -= 1
            elif isinstance(answer, Refusal):
                raise answer
            else:
                raise session.broken(answer) from answer
    finally:
        left.set()
        if jobs:
            with suppress(Exception):
                session.cancel(group)
            end = time.monotonic() + _GRACE
            for thread in threads:
                thread.join(max(0.0, end - time.monotonic()))


PACKAGES = ("formats", "recover")
KINDS = (".py", ".c", ".h", ".bin")
"""Files to ship: modules, and the compiled kernels with the sources that they must match."""
NEEDED = ("numpy", "msgspec", "pyarrow", "crc32c")
_ZIP = "mqtool-code.zip"
_CODE = "mqtool.code"
"""Property that passes the digest of our code to tasks, if it was not shipped."""
_EACH_CORE = 2


def check_executors(session: Session, paths: Sequence[Path]) -> None:
    """Ship our code if it is missing or different. `Refusal` (8) if a host lacks a package or cannot see a path.

    Local executors share this machine and need no check.
    """
    if session.is_local or not paths:
        return
    names = [url_of(path) or str(path.absolute()) for path in paths]
    probe = _probe(names)
    own = next(iter(probe(())))
    if session.over_connect and not session.shipped:
        ship(session)  # executors that join later have no other way to get our code
    cores = watch(session, lambda: session.cores, "how many cores")
    hosts = {answer["host"]: answer for answer in run_job(
        session, probe, range(cores * _EACH_CORE), "do the executors see the store?"
    )}
    for host, answer in sorted(hosts.items()):
        if answer["lacks"]:
            raise Refusal(f"host {host} lacks Python packages: {', '.join(answer['lacks'])}",
                          "Install mqtool in the Python of the executors, which PYSPARK_PYTHON names.", host=host)
        for name, size in answer["sizes"].items():
            if size != own["sizes"][name]:
                raise invisible(host, name.partition("?")[0])
    if any(answer["code"] != own["code"] for answer in hosts.values()) and not session.shipped:
        ship(session)
    session.code = "" if session.shipped else own["code"]


def ship(session: Session) -> None:
    """Send our code to all executors, including those that join later."""
    session.ship(pack_code(session.folder))
    session.shipped = True


_MOUNT = "Mount the store at the same path on every worker (s3://: give them credentials), or run with --engine local."


def invisible(host: str, path: str) -> Refusal:
    """Return the refusal for a store that some executor cannot see."""
    return Refusal(f"host {host} cannot see {path}", _MOUNT, host=host)


def unreadable(host: str, path: Path, error: OSError) -> Refusal:
    """Return the refusal for a file that an executor repeatedly failed to read, but this machine can: not the store's
    fault."""
    name = (url_of(path) or str(path)).partition("?")[0]
    return Refusal(f"host {host} cannot read {name}, which this machine can: {error.strerror}", _MOUNT, host=host)


def _probe(names: Sequence[str]) -> Callable[[Iterable[int]], Iterator[dict[str, Any]]]:
    """Return a function that is pickled by value, because a host without our code could not look it up."""
    packages, needed, kinds = PACKAGES, NEEDED, KINDS

    def probe(_tasks: Iterable[int]) -> Iterator[dict[str, Any]]:
        import hashlib
        import importlib.util
        import os
        import socket
        import time
        from pathlib import Path as Folder

        def code_of(package: str) -> str:
            spec = importlib.util.find_spec(package)
            digest = hashlib.sha256()
            for place in spec.submodule_search_locations or () if spec is not None else ():
                for path in sorted(Folder(place).rglob("*")):
                    if path.suffix in kinds:
                        # each host may have compiled its own library: only its presence counts
                        content = b"" if path.suffix == ".bin" else path.read_bytes()
                        digest.update(f"{path.relative_to(place)}\0".encode() + content)
            return digest.hexdigest()

        def size_of(name: str) -> int:
            try:
                if "://" in name:
                    from pyarrow.fs import FileSystem

                    files, path = FileSystem.from_uri(name)
                    return int(files.open_input_file(path).size())
                return os.stat(name).st_size
            except OSError as error:
                return -(error.errno or 1)

        time.sleep(0.05)  # long enough that every core gets a task
        yield {
            "host": socket.gethostname(), "code": " ".join(map(code_of, packages)),
            "lacks": [name for name in needed if importlib.util.find_spec(name) is None],
            "sizes": {name: size_of(name) for name in names},
        }

    return probe


def pack_code(folder: Path) -> str:
    """Return the path of a zip in `folder` of our packages for executors to import; kernels are loaded out of it."""
    root, target = Path(__file__).resolve().parents[2], folder / _ZIP
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            for path in sorted((root / package).rglob("*")):
                if path.suffix in KINDS:
                    archive.write(path, path.relative_to(root).as_posix())
    return str(target)


# --- Code that runs on executors. Nothing here holds a lock, or writes into a store.


_state = {"frozen": False}


def enter() -> None:
    """Once per worker: exclude objects of imported modules from the garbage collection that follows each task.

    `RuntimeError` on a host that joined after the check and has other code than the driver.
    """
    if not _state["frozen"]:
        from pyspark import TaskContext

        context = TaskContext.get()
        wanted = context.getLocalProperty(_CODE) if context is not None else None
        if wanted and next(_probe([])(()))["code"] != wanted:
            raise RuntimeError(f"host {socket.gethostname()} has another mqtool than the driver")
        gc.collect()
        gc.freeze()
        _state["frozen"] = True


# --- Comparison of what workers read with what this machine sees: a path may lead them to another store's files.
#
# 1. Each task returns what it saw of each file (`Seen`) and checksums of everything that it read.
# 2. Equal to what this machine sees: one file in one state. A sample is compared nevertheless, against a lying mount.
# 3. Different: a copy, another store, or a mount that invents inodes. Before a plan that changes something is shown,
#    this machine reads all these bytes as well. A command that only reports compares a sample.
# 4. A file that is written to meanwhile differs in time alone, here too: that proves nothing, and nothing is changed
#    there. Clocks are not compared: a file server's may be ahead.
#
# Not protected: a block device that two hosts mount in different states under one identity.


class TaskReads(Struct, frozen=True):
    """What one task read of each file, by path, and on which host."""

    files: dict[str, FileReads]
    host: str = field(default_factory=socket.gethostname)


class Views(Struct):
    """What tasks read of the log since the last full comparison; `began`: a time before these reads (s).

    `compared`: bytes that this machine read again because a worker's view of the file differed from its own.
    """

    began: float
    reads: dict[str, list[tuple[str, FileReads]]] = {}
    own: dict[str, Seen] = {}
    compared: int = 0

    def look(self, paths: Iterable[Path]) -> None:
        """Keep what this machine sees of some files before tasks read them: a later change is a write."""
        for path in paths:
            with suppress(OSError):
                self.own.setdefault(str(path.absolute()), Seen.of(str(path)))

    def take(self, task: TaskReads) -> None:
        """Add what a task read. `Refusal` (8) if a file's length or first bytes differ from what this machine sees."""
        for path, reads in task.files.items():
            self.reads.setdefault(path, []).append((task.host, reads))
            if not self._is_written_to(path, reads):
                pieces = next((run.pieces() for run in reads.runs), iter(()))
                _compare(task.host, path, reads.size, islice(pieces, 1))

    def check_damage(self, log: LogView) -> None:
        """Raise `Refusal` (8) if a worker read other bytes than this machine where it found no intact record."""
        for scan in log.files:
            base, path = scan.mapped_file.file_from_offset, str(scan.mapped_file.path.absolute())
            if path not in self.reads:
                continue
            for dead in dead_ranges(scan, stale=log.stale > 0):
                start, stop = dead.start - base, dead.last_data - base + 1
                for host, reads in self.reads[path]:
                    if not self._is_written_to(path, reads):
                        _compare(host, path, reads.size, (piece for run in reads.runs for piece in run.pieces()
                                                          if piece[0] < stop and piece[1] > start))

    def confirm(self) -> None:
        """Read everything that tasks read of files that they may have seen otherwise; `Refusal` (8) if this machine
        sees other bytes."""
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            every = [(path, *read) for path, reads in self.reads.items() for read in reads]
            for _ in pool.map(lambda read: self.compare(*read), every):
                pass
        self.reads.clear()

    def compare(self, path: str, host: str, reads: FileReads) -> None:
        """Raise `Refusal` (8) if this machine sees other bytes of a file than the host of these reads."""
        own = Seen.of(path)
        if own == reads.seen:
            return
        self.compared += sum(run.stop - run.start for run in reads.runs)
        try:
            _compare(host, path, reads.size, (piece for run in reads.runs for piece in run.pieces()))
        except Refusal as refusal:
            if not self._is_written_to(path, reads):
                raise
            raise StaleRefusal(f"{path} changed while the store was read", **refusal.facts) from refusal

    def _is_written_to(self, path: str, reads: FileReads) -> bool:
        """Whether the file changes meanwhile, as a broker's does: then a difference proves nothing, and mqtool changes
        nothing there."""
        now = Seen.of(path)
        before = self.own.get(path, reads.seen)
        has_changed = before is not None and before != now and before.is_of_file(now)
        return has_changed or self.began <= now.ctime_ns / 1e9 <= time.time()


def _compare(host: str, path: str, size: int, pieces: Iterable[tuple[int, int, int]]) -> None:
    own = os.stat(path).st_size
    different = ((start, stop) for start, stop, value in pieces
                 if file_crc(Path(path), start, stop) != (stop - start, value))
    place = (min(own, size), max(own, size)) if own != size else next(different, None)
    if place is not None:
        raise Refusal(
            f"host {host} reads another file as {path} than this machine does",
            "Mount the same store on every worker, or use --engine local.", host=host, file=path, start=place[0],
            stop=place[1],
        )
