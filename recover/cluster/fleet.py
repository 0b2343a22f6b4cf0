"""Many stores on Spark: a task verifies whole stores like the local engine, and writes their findings. Larger stores
are cut into splits, several stores at a time beside these tasks, so that no core waits for the last split of one.

The result is two tables of Parquet files: `stores`, a row a store, and `findings`, a row a finding; a run is a folder
`run=ID` in each. Only a store's row reaches the driver. A store with the same listing as in the previous run keeps its
rows and is not read.
"""

from __future__ import annotations

import ctypes
import glob
import hashlib
import heapq
import json
import os
import pickle
import shutil
import signal
import socket
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from recover.change.lock import probe
from recover.check.report import verify
from recover.cluster.engine import SparkEngine
from recover.cluster.jobs import check_executors, enter, run_job, watch
from recover.cluster.session import SparkSettings, session_for
from recover.findings.code import BUG, OPERATIONAL, Refusal, UsageRefusal
from recover.findings.model import Finding, filled, shell_line
from recover.log.scan import LocalEngine
from recover.look.live import settled
from recover.reading.facts import ScanOptions
from recover.store.memo import Stamp, stamp_of
from recover.store.source import is_remote, list_remote, remote_matches, remote_root
from recover.store.store import LOCK, Store

SPLIT_ABOVE = 16 << 30
"""Allocated bytes above which a store is too large for one core: a minute of reading, and 1.2 GB of a worker's disk for
rows of messages of 0.7 KB."""
_LARGE_AT_ONCE = 4
"""Each may have rows of 32 splits in the driver's heap."""
_TASKS_A_CORE = 4
_TASK_BYTES = 4 << 30
_TASK_STORES = 64
"""Approximate limits of a task, however few cores there are when the job begins: more may join."""
_EACH = 4 << 20
"""Fixed cost of a store, as bytes that could be read meanwhile."""
_LISTING_THREADS = 16
_RUN, _KEPT = "run=", "kept.parquet"
_SETTLED = 2_000_000_000
"""Nanoseconds after which a write certainly gets another time than the last one; file systems have coarse clocks."""
_DIES_WITH_PARENT = 1


class StoreRow(Struct):
    """A row of the table `stores`; sizes in bytes. `store`: its absolute path or URL.

    `worst`: code of the worst warning or error. `findings`: number of its rows in that table. `fingerprint`: digest of
    its listing, empty if the next run has to read the store. `error`: why the store was not verified, or not in one
    state. `read`: False if the row is that of an earlier run.
    """

    store: str
    host: str = ""
    messages: int = 0
    valid_to: int = 0
    bytes: int = 0
    seconds: float = 0.0
    exit_code: int = 0
    worst: str | None = None
    findings: int = 0
    fingerprint: str = ""
    error: str | None = None
    read: bool = True


FINDING_COLUMNS = ("store", "code", "severity", "file", "offset", "message", "remedy", "facts")


def _schemas() -> tuple[Any, Any]:
    """Return the Arrow schemas of the tables `stores` and `findings`; facts are JSON."""
    import pyarrow as pa

    kinds = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    stores = pa.schema([(item.name, kinds.get(getattr(item.type, "__name__", ""), pa.string()))
                        for item in structs.fields(StoreRow)])
    return stores, pa.schema([(name, pa.int64() if name == "offset" else pa.string()) for name in FINDING_COLUMNS])


# --- The stores, and the listing of their folders.


def named_stores(given: Iterable[str], stores_file: Path | None = None) -> list[str]:
    """Return the named places: absolute paths, patterns replaced by the folders that match, each place once.

    `stores_file` has a place or pattern a line; empty lines and those that begin with # are ignored. `UsageRefusal`
    (16) for a pattern without a match, and if there is no store at all.
    """
    words = [*given]
    if stores_file is not None:
        # as in file names, bytes that are no UTF-8 are kept; editors of Windows begin a file with a mark
        lines = map(str.strip, stores_file.read_text("utf-8-sig", "surrogateescape").splitlines())
        words += [line for line in lines if line and not line.startswith("#")]
    found: dict[str, None] = {}
    for word in words:
        if is_remote(word):
            is_pattern = word.startswith("s3") and glob.has_magic(word.partition("?")[0])
            fitting = remote_matches(word) if is_pattern else [word]
        elif glob.has_magic(word) and not os.path.exists(word):
            fitting = [os.path.abspath(path) for path in sorted(glob.glob(word, recursive=True)) if os.path.isdir(path)]
        else:
            fitting = [os.path.abspath(word)]
        if not fitting:
            raise UsageRefusal(f"no folder matches {word}", "Check the pattern: it must match the store roots.")
        found.update(dict.fromkeys(fitting))
    if not found:
        raise UsageRefusal("no store is named", "Give STORE, a quoted pattern, or --stores FILE.")
    return [*found]


class Listed(Struct, frozen=True):
    """A store to verify: its place, the digest of its listing ("" if it could not be listed), allocated bytes.

    `newest`: the last mtime or ctime in it, ns since the epoch. `lock`: stamp of its lock file, which a broker writes
    only at start; None without one.
    """

    place: str
    fingerprint: str
    size: int
    newest: int
    lock: Stamp | None


def listed(place: str, rules: str) -> Listed:
    """List every file and folder of a store without opening any. `rules` goes into the digest.

    The digest covers path, kind, size, mtime, inode and ctime of each; on s3:// and hdfs:// path, size and mtime.
    """
    digest, size, newest, lock = hashlib.sha256(rules.encode()), 0, 0, _lock(place)
    try:
        for line, length, when in _remote_lines(place) if is_remote(place) else _lines(Path(place)):
            digest.update(line)
            size, newest = size + length, max(newest, when)
    except (OSError, Refusal):
        return Listed(place, "", size, newest, lock)
    return Listed(place, digest.hexdigest(), size, newest, lock)


def _lock(place: str) -> Stamp | None:
    return None if is_remote(place) else stamp_of(Path(place, LOCK))


def _remote_lines(place: str) -> Iterator[tuple[bytes, int, int]]:
    for name, status in list_remote(place):
        line = f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode("utf-8", "surrogateescape")
        yield line, status.st_size, status.st_mtime_ns


def _lines(root: Path) -> Iterator[tuple[bytes, int, int]]:
    def stop(error: OSError) -> None:
        raise error

    seen = set()
    # a linked commitlog or queue is read, too; a link that leads back is listed once
    for directory, folders, names in os.walk(root, onerror=stop, followlinks=True):
        folders.sort()
        itself = os.stat(directory)
        if (itself.st_dev, itself.st_ino) in seen:
            folders.clear()
            continue
        seen.add((itself.st_dev, itself.st_ino))
        for name in ("", *sorted(names)):
            path = os.path.join(directory, name)
            try:
                found = os.stat(path)
            except FileNotFoundError:
                found = os.lstat(path)
            kept = (stat.S_IFMT(found.st_mode), found.st_size, found.st_mtime_ns, found.st_ino, found.st_ctime_ns)
            line = os.fsencode(os.path.relpath(path, root)) + f"\0{kept}\n".encode()
            yield line, found.st_blocks * 512, max(found.st_mtime_ns, found.st_ctime_ns)


# --- The run.


def verify_fleet(
    settings: SparkSettings, places: Sequence[str], into: Path, *, rules: str, everything: bool = False,
    split_above: int = SPLIT_ABOVE, note: Callable[[str], None], progress: Callable[[str], None],
) -> tuple[str, list[StoreRow]]:
    """Verify stores, and write a run into the tables below `into`; return its ID, and the rows in the order of
    `places`.

    `rules` names the version of the checks: another one reads everything, as `everything` does. Stores above
    `split_above` bytes are cut into splits, those of several stores at a time, beside the tasks for the others. A store
    that cannot be verified gets a row with its error. `Refusal` (8) if Spark does not start or loses an executor for
    good; then no run is written.
    """
    into = into.absolute()
    run = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    made = {name: into / name / f"_{run}" for name in ("stores", "findings")}
    progress("listing stores")
    with ThreadPoolExecutor(_LISTING_THREADS) as pool:
        found = [*pool.map(lambda place: listed(place, rules), places)]
    last = None if everything else last_run(into)
    rows = _unchanged(into, last, found)
    try:
        for folder in made.values():
            folder.mkdir(parents=True)
        _keep_findings(into, last, set(rows), made["findings"])
        named = {_KEPT}
        fresh = [item for item in found if item.place not in rows]
        for row, file in _verified(settings, fresh, made["findings"], rules, split_above, note):
            if not (made["findings"] / file).exists():
                raise Refusal(f"host {row.host} wrote {file}, which is not in {made['findings']}",
                              "Write to a folder that all workers share.", path=str(into))
            rows[row.store] = row
            named.add(file)
            done = sum(item.place in rows for item in fresh)
            progress(f"verifying {len(fresh):,} stores: {done:,} done")
        ordered = [rows[place] for place in places]
        _write_stores(made["stores"], ordered)
        for path in made["findings"].iterdir():
            if path.name not in named:
                path.unlink()  # a task that ran twice wrote it, or one that failed
        for name in ("findings", "stores"):
            made[name].rename(into / name / f"{_RUN}{run}")
    except BaseException:
        for folder in made.values():
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return run, ordered


def _unchanged(into: Path, last: str | None, found: Iterable[Listed]) -> dict[str, StoreRow]:
    """Return the rows of an earlier run, by place, of the stores whose listing is as it was then."""
    listings = {(item.place, item.fingerprint) for item in found if item.fingerprint}
    before = () if last is None else _rows(into, last)
    return {row.store: structs.replace(row, read=False) for row in before if (row.store, row.fingerprint) in listings}


def _verified(
    settings: SparkSettings, stores: Sequence[Listed], folder: Path, rules: str, split_above: int,
    note: Callable[[str], None],
) -> Iterator[tuple[StoreRow, str]]:
    """Yield the rows of stores as they are verified, each with the file that holds its findings."""
    if not stores:
        return
    session = session_for(settings)
    session.ending.clear()
    check_executors(session, [folder])
    large = sorted((item for item in stores if item.size > split_above), key=lambda item: -item.size)
    small = [item for item in stores if item.size <= split_above]

    def by_splits(item: Listed) -> list[tuple[StoreRow, str]]:
        return _write_findings(folder, [_verify_one(item, rules, ScanOptions(engine=SparkEngine(settings)))])

    for item in large:
        note(f"{item.place}: {item.size >> 30} GiB, more than --split-above: verified by splits")
    pool = ThreadPoolExecutor(_LARGE_AT_ONCE, "mqtool-store")
    try:
        waiting = [pool.submit(by_splits, item) for item in large]
        if small:
            tasks = _packed(small, session.cores, str(folder), rules)
            yield from run_job(session, verify_stores, tasks, "verify stores")
        for done in as_completed(waiting):
            yield from done.result()
    finally:
        session.ending.set()  # of no effect when all have ended
        pool.shutdown(cancel_futures=True)
        session.ending.clear()


def append_to_tables(settings: SparkSettings, into: Path, run: str, namespace: str) -> dict[str, str]:
    """Append a run to the tables NAMESPACE.stores and NAMESPACE.findings of the session's catalog; return their names.

    A missing table is created, with a partition a run, in the format set by the catalog or `spark.sql.sources.default`.
    Two tables cannot be changed in one commit, so `stores` comes last: a run is complete if it is in there. `Refusal`
    (8) if Spark fails, with the table that lacks the run; the run stays complete in its folder.
    """
    from pyspark.sql.functions import lit

    session = session_for(settings)
    tables = {name: f"{namespace}.{name}" for name in ("findings", "stores")}
    done: list[str] = []

    def append() -> None:
        spark = session.sql()
        for name, target in tables.items():
            rows = spark.read.parquet(str(into.absolute() / name / f"{_RUN}{run}")).withColumn("run", lit(run))
            rows.write.mode("append").partitionBy("run").saveAsTable(target)
            done.append(target)

    try:
        watch(session, append, "append to tables")
    except Refusal as refusal:
        left = f"{done[0]} has it and {tables['stores']} does not" if done else f"none of {namespace}.* has it"
        raise Refusal(f"run {run} is whole in {into}, but not in the tables: {left}: {refusal.message}",
                      refusal.remedy) from refusal
    return tables


def last_run(into: Path) -> str | None:
    """Return the ID of the newest run below a folder of which both tables are there, or None."""
    stores, findings = ({path.name.removeprefix(_RUN) for path in (into / name).glob(f"{_RUN}*")}
                        for name in ("stores", "findings"))
    return max(stores & findings, default=None)


def _packed(stores: Sequence[Listed], cores: int, folder: str, rules: str) -> list[FleetTask]:
    """Return tasks of about equal size: the largest store first, each to the task with the least."""
    count = max(cores * _TASKS_A_CORE, sum(item.size for item in stores) // _TASK_BYTES, len(stores) // _TASK_STORES)
    heap: list[tuple[int, int, list[Listed]]] = [(0, number, []) for number in range(min(count, len(stores)))]
    for item in sorted(stores, key=lambda item: -item.size):
        size, number, its = heap[0]
        its.append(item)
        heapq.heapreplace(heap, (size + item.size + _EACH, number, its))
    return [FleetTask(its, folder, rules) for _, _, its in sorted(heap, reverse=True)]


def _batches(into: Path, table: str, run: str | None) -> Iterator[Any]:
    """Yield the record batches of a table of a run."""
    from pyarrow import parquet

    for path in sorted((into / table / f"{_RUN}{run}").glob("*.parquet")):
        try:
            yield from parquet.ParquetFile(path).iter_batches()
        except (OSError, ValueError) as error:
            raise Refusal(f"{path} cannot be read: {error}", "Read every store: --all.", path=str(path)) from error


def _rows(into: Path, run: str) -> Iterator[StoreRow]:
    names = set(StoreRow.__struct_fields__)
    for batch in _batches(into, "stores", run):
        for row in batch.to_pylist():
            yield StoreRow(**{name: value for name, value in row.items() if name in names})


def _write_stores(folder: Path, rows: Sequence[StoreRow]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.Table.from_pylist([_plain(structs.asdict(row)) for row in rows], _schemas()[0])
    parquet.write_table(table, folder / "part-0.parquet")


def _keep_findings(into: Path, run: str | None, stores: set[str], folder: Path) -> None:
    """Copy the findings of stores that were not read again, batch by batch; writes at least an empty file."""
    import pyarrow as pa
    from pyarrow import compute, parquet

    kept = pa.array(sorted(stores), pa.string())
    with parquet.ParquetWriter(folder / _KEPT, _schemas()[1]) as writer:
        for batch in _batches(into, "findings", run) if stores else ():
            writer.write_batch(batch.filter(compute.is_in(batch.column("store"), kept)))


# --- Code that runs on executors.


class FleetTask(Struct, frozen=True):
    """Stores that one task verifies, the folder for their findings, and `rules` as for `listed`."""

    stores: list[Listed]
    folder: str
    rules: str


_Judged = tuple[StoreRow, list[dict[str, Any]]]


def verify_stores(tasks: Iterable[FleetTask]) -> Iterator[tuple[StoreRow, str]]:
    """Yield the rows of all stores of some tasks, each with the file that holds its findings.

    Each store of a file system has its own process: one that is killed or runs out of memory costs only its own row.
    Reading from a server uses threads, which a fork would lose: such a store is verified in the task's process.
    """
    enter()
    for task in tasks:
        judged = (_verify_one(item, task.rules, ScanOptions()) if is_remote(item.place) else _isolated(item, task.rules)
                  for item in task.stores)
        yield from _write_findings(Path(task.folder), judged)


def _write_findings(folder: Path, judged: Iterable[_Judged]) -> list[tuple[StoreRow, str]]:
    """Write the findings of stores into a file of this call's own; return the rows, each with its name."""
    import pyarrow as pa
    from pyarrow import parquet

    rows, name, schema = [], f"part-{uuid.uuid4().hex}.parquet", _schemas()[1]
    try:
        with parquet.ParquetWriter(folder / name, schema) as writer:
            for row, findings in judged:
                writer.write_table(pa.Table.from_pylist(findings, schema))
                rows.append((row, name))
    except OSError as error:
        raise Refusal(f"host {socket.gethostname()} cannot write {folder}: {error.strerror or error}",
                      "Write to a folder that all workers share.", path=str(folder)) from error
    return rows


def findings_of(place: str) -> list[dict[str, Any]]:
    """Return the rows of the table `findings` for one store, verified in this process. `Refusal` (8) if that fails."""
    row, findings = _verify_one(Listed(place, "", 0, 0, _lock(place)), "", ScanOptions())
    if row.error:
        raise Refusal(f"{place}: {row.error}")
    return findings


def _isolated(item: Listed, rules: str) -> _Judged:
    """Run `_verify_one` in a separate process."""
    read, write = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
            if os.getppid() == parent:
                answer = pickle.dumps(_verify_one(item, rules, ScanOptions()))
                with open(write, "wb") as pipe:
                    pipe.write(answer)
                os._exit(0)
        finally:
            os._exit(1)
    os.close(write)
    with open(read, "rb") as pipe:
        content = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 0:
        found: _Judged = pickle.loads(content)
        return found
    how = f"by {signal.Signals(-status).name}" if status < 0 else "without an answer"
    # the kernel kills a process if memory runs out; any other end is a bug of ours
    return StoreRow(item.place, socket.gethostname(), exit_code=OPERATIONAL if status == -signal.SIGKILL else BUG,
                    error=f"the process that verified it ended {how}"), []


def _verify_one(item: Listed, rules: str, options: ScanOptions) -> _Judged:
    """Verify one store; return its row and its findings. Any failure is in the row.

    A store that a broker writes to is seen as of the start of the check, if only this process reads it.
    """
    began, clock = time.monotonic(), time.time_ns()
    row = StoreRow(item.place, socket.gethostname())
    findings: list[dict[str, Any]] = []
    live = False

    def changed() -> bool:
        if live:
            return _lock(item.place) != item.lock
        return bool(item.fingerprint) and listed(item.place, rules).fingerprint != item.fingerprint

    try:
        root = remote_root(item.place) if is_remote(item.place) else Path(item.place)
        live = isinstance(options.engine, LocalEngine) and item.lock is not None and probe(root) is not None
        if changed():
            raise Refusal(f"host {row.host} lists other files than the driver did: the store changed, or another "
                          "folder is mounted there")
        store = Store.open(root)
        report = verify(settled(store) if live else store, options)
        log = report.json()
        row.messages, row.valid_to = log["commitlog"]["messages"], log["commitlog"]["valid_to"]
        row.bytes, row.exit_code, row.worst = log["bytes"], report.exit_code, _worst(report.findings)
        findings = [_finding_row(item.place, found) for found in report.findings]
        row.findings = len(findings)
        # a broker writes through memory maps, and file times follow later
        if item.newest < clock - _SETTLED and not any(found.code == "broker-running" for found in report.findings):
            row.fingerprint = item.fingerprint
    except Refusal as refusal:
        row.error, row.exit_code = refusal.message, refusal.exit_code
    except (OSError, MemoryError) as error:
        row.error, row.exit_code = str(error) or type(error).__name__, OPERATIONAL
    except Exception as error:
        row.error, row.exit_code = f"a bug in mqtool: {type(error).__name__}: {error}", BUG
    if not (row.error and row.exit_code & OPERATIONAL) and changed():
        row.error, row.fingerprint = "it changed while it was read", ""
        row.exit_code = row.exit_code & ~BUG | OPERATIONAL
    row.seconds = round(time.monotonic() - began, 3)
    return row, findings


def _worst(findings: Iterable[Finding]) -> str | None:
    wrong = [found for found in findings if found.severity != "info"]
    return max(wrong, key=lambda found: (found.severity == "error", found.bits)).code if wrong else None


def _finding_row(place: str, found: Finding) -> dict[str, Any]:
    values, quoted = found.json(), shell_line(place)
    log = "" if is_remote(place) else f"--commitlog {shell_line(place + '/commitlog')} "
    for name in ("message", "remedy"):
        values[name] = filled(values[name], place, lambda command: f"mqtool {command} {quoted}", log)
    facts = json.dumps(values["facts"], default=lambda value: value.item() if hasattr(value, "item") else str(value))
    return _plain({"store": place, **values, "facts": facts})


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with all text valid UTF-8, which file names may not be."""
    return {name: value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
            for name, value in row.items()}
