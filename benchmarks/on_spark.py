"""Queues and index made again on Spark with two cores of this machine, session start included; how it grows; SQL.

`python -m benchmarks.on_spark FILE COMMAND ...` runs a command line in this process and notes what Spark's stages took.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.contest import at_least, at_most, in_turn, markdown, times_table
from benchmarks.parts import LINEAR, Measured, rebuilt, same_queues
from benchmarks.stage import GIBI, NEWEST, Stage

_MASTER = ("--master", "local[2]")
_SPARK = f"mqtool rebuild {' '.join(_MASTER)}"


def compare_with_recovery(stage: Stage, runs: int) -> Measured:
    """The whole command with its session, beside a broker's recovery; both from the log alone."""
    broker = f"{NEWEST} abnormal recovery"
    times = in_turn({
        _SPARK: partial(_seconds, stage),
        "mqtool rebuild, threads": lambda: rebuilt(stage).seconds,
        broker: partial(stage.abnormal_recovery, NEWEST),
    }, runs, cached=stage.log_files)
    rebuilt(stage, *_MASTER)
    same_queues(stage)
    return times_table(times, _SPARK), [
        at_least(f"{stage.shape.name}: rebuilt on Spark, session included, against {NEWEST}", 1,
                 times[broker].least / times[_SPARK].least),
    ]


def _seconds(stage: Stage) -> float:
    return rebuilt(stage, *_MASTER).seconds


def growth(stages: Iterable[Stage], runs: int) -> Measured:
    """Logs from small to large: seconds, bytes scanned a second and core, bytes shuffled for a message, tasks."""
    rows, rates = [], []
    for stage in stages:
        times = in_turn({_SPARK: partial(_seconds, stage)}, runs, cached=stage.log_files)
        seconds = times[_SPARK].least
        noted = stage.beside("stages.json")
        ran = rebuilt(stage, *_MASTER, module=("benchmarks.on_spark", noted))
        messages = ran.json()["verify"]["commitlog"]["messages"]
        work = json.loads(noted.read_text())
        scan = sum(each["milliseconds"] for each in work if each["job"] == "scan of the log")
        rates.append(seconds / stage.log_bytes)
        rows.append((
            f"{stage.log_bytes / GIBI:.1f} GiB", f"{messages:,}", f"{seconds:.2f}",
            f"{stage.log_bytes / scan / 1e6:.2f}", f"{sum(each['shuffled'] for each in work) / messages:.1f}",
            str(sum(each["tasks"] for each in work)),
        ))
    head = ("log", "messages", "rebuilt s", "scan, GB/s a core", "shuffled, bytes a message", "tasks")
    return markdown(head, rows), [
        at_most("Spark: time of a byte, largest log to smallest", LINEAR, rates[-1] / rates[0], "x"),
    ]


def questions(stage: Stage, many: Stage, runs: int) -> Measured:
    """What is asked in SQL of one log, with the columns that it needs and without, and of one topic among many queues.

    The session is there already.
    """
    from pyspark.sql import SparkSession

    from recover.cluster.session import session_for, spark_settings
    from recover.cluster.sources import register

    spark = SparkSession(session_for(spark_settings("local[2]", [])).context)
    register(spark)
    topic = sorted(path.name for path in (many.root / "consumequeue").iterdir())[0]

    def log(**options: str) -> Any:
        return spark.read.format("rocketmq-commitlog").options(**options).load(str(stage.root))

    def by_topic(frame: Any) -> Any:
        return frame.groupBy("topic").agg({"size": "sum", "topic": "count"})

    middle = log(columns="phy_offset", where=f"phy_offset > {stage.log_bytes // 2}").first().phy_offset
    queues = spark.read.format("rocketmq-consumequeue")
    asked: dict[str, Callable[[], Any]] = {
        "bytes by topic": lambda: by_topic(log(columns="topic,size")),
        "bytes by topic, all columns read": lambda: by_topic(log()),
        "one record by physical offset": lambda: log(where=f"phy_offset = {middle}"),
        "one topic": lambda: queues.option("where", f"topic = '{topic}'").load(str(many.root)),
    }
    times = in_turn({name: partial(_answered, frame) for name, frame in asked.items()}, runs, cached=stage.log_files)
    return times_table(times, "bytes by topic"), [
        at_most(f"SQL: {name}", limit, times[name].least, "s")
        for name, limit in (("bytes by topic", 8.3), ("one record by physical offset", 3), ("one topic", 2))
    ]


def _answered(frame: Callable[[], Any]) -> float:
    """Seconds until the rows are there. A frame that is asked twice would keep what it shuffled."""
    begin = time.perf_counter()
    if not frame().collect():
        raise RuntimeError("a question had no answer")
    return time.perf_counter() - begin


def stages_that_ran() -> list[dict[str, Any]]:
    """Of each stage of this process's Spark: what its job was for, tasks, milliseconds, bytes shuffled; in order."""
    from recover.cluster.session import running_session

    session = running_session()
    if session is None:
        return []
    context = session.context
    quantiles = context._gateway.new_array(context._jvm.double, 0)
    found = context._jsc.sc().statusStore().stageList(None, False, False, quantiles, None)
    ran = [found.apply(number) for number in range(found.size())]
    return [
        {"job": str(stage.description().get()) if stage.description().isDefined() else "",
         "tasks": stage.numCompleteTasks(), "milliseconds": stage.executorRunTime(),
         "shuffled": stage.shuffleWriteBytes()}
        for stage in sorted(ran, key=lambda item: int(item.stageId()))
    ]


if __name__ == "__main__":
    from mqtool.cli import main

    code = main(sys.argv[2:])
    Path(sys.argv[1]).write_text(json.dumps(stages_that_ran()))
    sys.exit(code)
