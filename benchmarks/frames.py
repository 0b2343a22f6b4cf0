"""RDDs beside DataFrames: `python -m benchmarks.frames STORE [RUNS]` runs verify and `rebuild --output` with either.

The jobs of `recover.cluster` are RDDs. Here the same calls are answered by DataFrames of one binary column
(`mapInArrow`, and `repartitionById` for the shuffle), whose elements are pickled; the functions of the tasks are the
same. Rows of few splits are scanned again, because a kept DataFrame runs a task on every partition to find them.

Each run is a process of its own; what counts is the processor time of all its processes, JVM and workers included,
which other work on the machine does not change much. The files of both ways must be the same.
"""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.contest import markdown
from recover.cluster import jobs, making

_SCHEMA = "k int, v binary"
_BATCH = 4 << 20
_LINES = {"verify": ("verify",), "rebuild": ("rebuild", "--output")}
_WAYS = ("RDD", "DataFrame")


class Frame:
    """The part of an RDD that the jobs use, on a DataFrame."""

    def __init__(self, df: Any) -> None:
        self.df = df

    def mapPartitions(self, function: Callable[[Iterable[Any]], Iterable[Any]]) -> Frame:  # noqa: N802 - Spark's name
        return Frame(self.df.mapInArrow(_on_batches(function), _SCHEMA))

    def map(self, function: Callable[[Any], Any]) -> Frame:
        return self.mapPartitions(lambda elements: map(function, elements))

    def filter(self, holds: Callable[[Any], bool]) -> Frame:
        return self.mapPartitions(lambda elements: filter(holds, elements))

    def partitionBy(self, count: int, _key: Any) -> Frame:  # noqa: N802 - Spark's name
        from pyspark.sql.functions import col

        return Frame(self.df.repartitionById(count, col("k")))

    def coalesce(self, count: int) -> Frame:
        return Frame(self.df.coalesce(count))

    def persist(self, level: Any) -> Frame:
        self.df = self.df.persist(level)
        return self

    def unpersist(self) -> None:
        self.df.unpersist()

    def collect(self) -> list[Any]:
        from pyspark import cloudpickle as typed

        cloudpickle: Any = typed

        return [cloudpickle.loads(row.v) for row in self.df.select("v").collect()]


def _on_batches(function: Callable[[Iterable[Any]], Iterable[Any]]) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a function of elements as one of Arrow batches. Pickled by value: an executor may lack this module."""
    schema, most = ["k", "v"], _BATCH

    def on_batches(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import cloudpickle as typed

        cloudpickle: Any = typed

        def batch(keys: list[int], values: list[bytes]) -> Any:
            return pa.record_batch([pa.array(keys, pa.int32()), pa.array(values, pa.binary())], schema)

        keys: list[int] = []
        values: list[bytes] = []
        size = 0
        for element in function(cloudpickle.loads(one.as_buffer()) for some in batches for one in some.column(1)):
            keys.append(element[0] if type(element) is tuple and type(element[0]) is int else 0)
            values.append(cloudpickle.dumps(element))
            size += len(values[-1])
            if size > most:
                yield batch(keys, values)
                keys, values, size = [], [], 0
        if values:
            yield batch(keys, values)

    return on_batches


class Context:
    """The part of a SparkContext that the jobs use."""

    def __init__(self, spark: Any) -> None:
        self.spark = spark

    def parallelize(self, items: Sequence[Any], count: int) -> Frame:
        from pyspark import cloudpickle as typed

        cloudpickle: Any = typed

        packed = [cloudpickle.dumps(item) for item in items]

        def made(batches: Iterable[Any]) -> Iterator[Any]:
            import pyarrow as pa

            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield pa.record_batch([pa.array([0], pa.int32()), pa.array([packed[number]], pa.binary())],
                                          ["k", "v"])

        return Frame(self.spark.range(0, len(packed), 1, min(count, len(packed))).mapInArrow(made, _SCHEMA))

    def union(self, frames: Sequence[Frame]) -> Frame:
        df = frames[0].df
        for frame in frames[1:]:
            df = df.union(frame.df)
        return Frame(df)


class _Session:
    """A session whose `context` is of DataFrames."""

    def __init__(self, session: Any) -> None:
        self.real, self.context = session, Context(session.sql())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def use_frames() -> None:
    """Have the jobs of this process run on DataFrames."""
    from pyspark import StorageLevel

    def results(job: Any) -> Frame:
        with job._lock:
            if job._rdd is None:
                own = Context(job.session.sql()).parallelize(job.items, len(job.items)).mapPartitions(job._function)
                job._rdd = own.persist(StorageLevel.DISK_ONLY) if job._keeps else own
            kept: Frame = job._rdd
            return kept

    def run(job: Any, then: Any, chosen: Sequence[int]) -> list[Any]:
        if len(chosen) == len(job.items):
            return list(job.rdd.mapPartitions(then).collect())
        some = Context(job.session.sql()).parallelize([job.items[number] for number in chosen], len(chosen))
        return some.mapPartitions(job._function).mapPartitions(then).collect()

    def answers(job: Any, then: Any = iter) -> Iterator[Any]:
        yield from jobs.watch(job.session, lambda: job.run(then, [*range(len(job.items))]), job._label)

    def on_frames(method: Callable[..., Any]) -> Callable[..., Any]:
        def called(producer: Any, *arguments: Any, **options: Any) -> Any:
            real, producer.session = producer.session, _Session(producer.session)
            try:
                return method(producer, *arguments, **options)
            finally:
                producer.session = real

        return called

    every: Any = jobs.Job
    every.rdd, every.run, every.answers = property(results), run, answers
    for name in ("_shuffled", "write"):
        setattr(making.SparkProducer, name, on_frames(getattr(making.SparkProducer, name)))


def measured(way: str, line: tuple[str, ...], store: Path) -> tuple[float, float, str]:
    """Return seconds, processor seconds of all processes, and a digest of what a run wrote or said."""
    with TemporaryDirectory(dir=store.parent) as folder:
        output = [str(Path(folder, "out"))] if line[-1] == "--output" else []
        words = [line[0], str(store), *line[1:], *output, "--master", "local[2]", "--quiet"]
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "benchmarks.frames", f"--{way}", *words], check=False,
                              capture_output=True, env={**os.environ, "TMPDIR": folder})
        seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode & ~7:
            raise RuntimeError(done.stderr.decode()[-2000:])
        digest = hashlib.sha256(bytes([done.returncode]))
        for path in sorted(Path(folder, "out").rglob("*")):
            if path.is_file():
                digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
        shutil.rmtree(Path(folder, "out"), ignore_errors=True)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, digest.hexdigest()


def main(store: Path, runs: int) -> str:
    """Return the table of the least times of some alternating runs; `RuntimeError` if both ways differ in a file."""
    rows = []
    for name, line in _LINES.items():
        found: dict[str, list[tuple[float, float, str]]] = {way: [] for way in _WAYS}
        for _ in range(runs):
            for way in _WAYS:
                found[way].append(measured(way, line, store))
        if len({digest for own in found.values() for _, _, digest in own}) > 1:
            raise RuntimeError(f"{name}: RDD and DataFrame differ")
        wall, used = ([min(own[at] for own in ((run[0], run[1]) for run in found[way])) for way in _WAYS]
                      for at in (0, 1))
        rows.append((name, *(f"{seconds:.1f} s" for seconds in (*wall, *used)), f"{used[1] / used[0]:.2f}"))
    return markdown(("", "RDD", "DataFrame", "RDD, processor", "DataFrame, processor", "ratio"), rows)


if __name__ == "__main__":
    if sys.argv[1] in [f"--{way}" for way in _WAYS]:
        from mqtool.cli import main as mqtool

        if sys.argv[1] == "--DataFrame":
            use_frames()
        sys.exit(mqtool(sys.argv[2:]))
    print(main(Path(sys.argv[1]), int([*sys.argv, "2"][2])))
