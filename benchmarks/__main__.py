"""Measures mqtool beside released brokers and prints tables: `make bench`, or `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks import on_spark, parts
from benchmarks.contest import RUNS, Goal, markdown, note
from benchmarks.stage import GIBI, MEBI, Shape, Stage, many, plain, set_up
from fixtures.lab.toolchain import available

PARTS = ("start", "check", "rebuild", "export", "queues", "growth", "hostile", "spark", "sql")
WITHOUT_BROKER = {"start", "hostile"}
_SPARK_SIZES = (1, 2, 4)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what was asked for. 0 when all was measured, whether or not goals are met; 1 when it cannot be."""
    options = _options(arguments)
    reason = available() if set(options.parts) - WITHOUT_BROKER else None
    if reason is not None:
        print(f"benchmarks: {reason}", file=sys.stderr)
        return 1
    goals: list[Goal] = []
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mqtool-bench-", dir=options.folder) as scratch:
        try:
            for title, text, more in _measure(options, Path(scratch)):
                print(f"\n### {title}\n\n{text}", flush=True)
                goals += more
        except (OSError, RuntimeError) as error:
            print(f"benchmarks: {error}", file=sys.stderr)
            return 1
    if goals:
        print(f"\n### Goals\n\n{markdown(('', 'goal', 'measured', 'met'), [goal.row() for goal in goals])}")
    print(f"\n{len(os.sched_getaffinity(0))} cores, {options.runs} runs each in turn, least of them; "
          f"{time.monotonic() - begin:.0f} s in all. `python -m benchmarks {' '.join(arguments or sys.argv[1:])}`")
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--parts", type=_words, default=PARTS, help=f"what to measure: {','.join(PARTS)}")
    parser.add_argument("--bodies", type=_numbers, default=[500, 200, 4096], help="body lengths: 500,200,4096")
    parser.add_argument("--log", type=int, default=2_000, help="MiB of log of the stores of one size (2000)")
    parser.add_argument("--sizes", type=_numbers, default=[0.5, 1, 2, 4, 8], help="GiB of growing logs: 0.5,1,2,4,8")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"counted runs of each party ({RUNS})")
    parser.add_argument("--folder", type=Path, default=None, help="where to write the stores (a temporary folder)")
    return parser.parse_args(arguments)


def _words(text: str) -> list[str]:
    words = text.split(",")
    if set(words) - set(PARTS):
        raise argparse.ArgumentTypeError(f"one of {', '.join(PARTS)}")
    return words


def _numbers(text: str) -> list[float]:
    return [float(word) for word in text.split(",")]


Section = tuple[str, str, list[Goal]]


def _measure(options: argparse.Namespace, folder: Path) -> Iterator[Section]:
    runs, chosen, log_bytes = options.runs, set(options.parts), options.log * MEBI
    if "start" in chosen:
        yield "Start-up", *parts.start_up(folder, runs)
    for body in options.bodies if chosen & {"check", "rebuild", "export"} else ():
        with _stage(plain(int(body), log_bytes), folder) as stage:
            store = f"bodies of {int(body)} bytes, {stage.log_bytes / GIBI:.1f} GiB, {stage.messages:,} messages"
            if "check" in chosen:
                yield f"Checking: {store}", *parts.checks(stage, runs)
            if "rebuild" in chosen:
                yield f"Rebuilding: {store}", *parts.rebuilds(stage, runs)
            if "export" in chosen:
                yield f"Exporting: {store}", *parts.exports(stage, runs)
    if "queues" in chosen:
        with _stage(many(100), folder) as stage:
            yield "Ten thousand queues", *parts.many_queues(stage, runs)
    if "growth" in chosen:
        yield "Growing logs", *parts.growth(_growing(options.sizes, folder), runs)
    if "hostile" in chosen:
        yield "Hostile input", *parts.hostile(folder, runs)
    if "spark" in chosen:
        with _stage(plain(500, log_bytes), folder) as stage:
            yield "The log scanned, seconds of a core", *on_spark.scans(stage, runs)
            yield "Checking and rebuilding on Spark", *on_spark.compare_with_recovery(stage, runs)
            with _stage(many(100), folder) as queues:
                yield "What a cluster sends to the driver", *on_spark.home(stage, queues, folder)
        sizes = [size for size in _SPARK_SIZES if size <= max(options.sizes)] or options.sizes
        yield "Growing logs on Spark", *on_spark.growth(_growing(sizes, folder), runs)
    if "sql" in chosen:
        with _stage(plain(500, log_bytes), folder) as stage, _stage(many(200), folder) as queues:
            yield "Questions in SQL, the session running", *on_spark.questions(stage, queues, runs)


@contextmanager
def _stage(shape: Shape, folder: Path) -> Iterator[Stage]:
    note(f"writing {shape.name} ...")
    stage = set_up(shape, folder)
    try:
        yield stage
    finally:
        stage.remove()


def _growing(sizes: Sequence[float], folder: Path) -> Iterator[Stage]:
    """Stores of these sizes in GiB, ascending; those of whole files share the log of the largest."""
    for size in sorted(size for size in sizes if size < 1):
        with _stage(plain(500, 0).sized(int(size * GIBI)), folder) as stage:
            yield stage
    files = sorted(int(size) for size in sizes if size >= 1)
    if files:
        # a little less, so that no further file is begun
        with _stage(plain(500, 0).sized(files[-1] * GIBI - GIBI // 64), folder) as stage:
            for count in files:
                yield stage.first_files(count)


if __name__ == "__main__":
    sys.exit(main())
