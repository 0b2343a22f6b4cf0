"""Scans, checks and rebuilds on Spark with two cores of this machine, how a rebuild grows, what a cluster sends home,
questions in SQL, and what an idle stream costs.

`python -m benchmarks.on_spark FILE COMMAND ...` runs a command line in this process and notes what Spark's stages took.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.contest import at_least, at_most, in_turn, markdown, mqtool, times_table
from benchmarks.parts import LINEAR, NORMAL, Measured, rebuilt, same_queues, verified
from benchmarks.stage import GIBI, NEWEST, Stage
from recover.cluster.engine import SparkEngine
from recover.cluster.session import running_session, session_for, spark_settings, stop_session
from recover.cluster.sources import CommitlogSource, register
from recover.log.scan import LocalEngine
from recover.store.store import Store, StoreOptions
from tests.cluster.cluster import cluster

_MASTER = ("--master", "local[2]")
_CORES = 2
_SHUFFLED, _HOME_A_MESSAGE, _HOME_A_QUEUE = 15, 0.5, 250
_POLL_SECONDS = 0.05
_SPARK = f"mqtool rebuild {' '.join(_MASTER)}"
_PAGE = Path(__file__).resolve().parents[1] / "docs" / "spark-sql.md"


def compare_with_recovery(stage: Stage, runs: int) -> Measured:
    """Whole commands with their session, beside a broker's recovery: everything checked, and all made from the log."""
    broker, verify = f"{NEWEST} abnormal recovery", f"mqtool verify {' '.join(_MASTER)}"
    times = in_turn({
        _SPARK: partial(_seconds, stage),
        "mqtool rebuild, threads": lambda: rebuilt(stage).seconds,
        broker: partial(stage.abnormal_recovery, NEWEST),
        verify: lambda: verified(stage, *_MASTER).seconds,
        "mqtool verify, threads": lambda: verified(stage).seconds,
        NORMAL: partial(stage.normal_recovery, NEWEST),
    }, runs, cached=stage.files)
    rebuilt(stage, *_MASTER)
    same_queues(stage)
    return times_table(times, _SPARK), [
        at_least(f"{stage.shape.name}: {what} on Spark, session included, against {NEWEST} from the first file", 1,
                 times[broker].least / times[party].least)
        for what, party in (("rebuilt", _SPARK), ("everything checked", verify))
    ]


def scans(stage: Stage, runs: int) -> Measured:
    """The log scanned by executors of a session that runs, and by threads: both cores at it, seconds of both."""
    log = Store(stage.root, StoreOptions()).commitlog

    def executors() -> float:
        ran = len(stages_that_ran())
        SparkEngine(spark_settings("local[2]")).scan_log(log, with_keys=False)
        return sum(float(each["milliseconds"]) for each in stages_that_ran()[ran:]) / 1000

    def threads() -> float:
        begin = time.perf_counter()
        LocalEngine(_CORES).scan_log(log, with_keys=False)
        return (time.perf_counter() - begin) * _CORES

    times = in_turn({"executors": executors, "threads": threads}, runs, cached=stage.log_files)
    stop_session()
    return times_table(times, "threads"), [
        at_least(f"{stage.shape.name}: log scanned by a core, Spark to threads", 0.8,
                 times["threads"].least / times["executors"].least),
    ]


def _seconds(stage: Stage) -> float:
    return rebuilt(stage, *_MASTER).seconds


def growth(stages: Iterable[Stage], runs: int) -> Measured:
    """Logs from small to large: seconds, bytes scanned a second and core, bytes shuffled for a message, tasks."""
    rows, rates, shuffled = [], [], []
    for stage in stages:
        times = in_turn({_SPARK: partial(_seconds, stage)}, runs, cached=stage.log_files)
        seconds = times[_SPARK].least
        noted = stage.beside("stages.json")
        ran = rebuilt(stage, *_MASTER, module=("benchmarks.on_spark", noted))
        messages = ran.json()["verify"]["commitlog"]["messages"]
        work = json.loads(noted.read_text())
        scan = sum(each["milliseconds"] for each in work if each["job"] == "scan of the log")
        rates.append(seconds / stage.log_bytes)
        shuffled.append(sum(each["shuffled"] for each in work) / messages)
        rows.append((
            f"{stage.log_bytes / GIBI:.1f} GiB", f"{messages:,}", f"{seconds:.2f}",
            f"{stage.log_bytes / scan / 1e6:.2f}", f"{shuffled[-1]:.1f}",
            str(sum(each["tasks"] for each in work)),
        ))
    head = ("log", "messages", "rebuilt s", "scan, GB/s a core", "shuffled, bytes a message", "tasks")
    return markdown(head, rows), [
        at_most("Spark: time of a byte, largest log to smallest", LINEAR, rates[-1] / rates[0], "x"),
        at_most("Spark: bytes shuffled for a message", _SHUFFLED, max(shuffled), "bytes"),
    ]


def home(stage: Stage, queues: Stage, folder: Path) -> Measured:
    """What a verify of a sound store sends to the driver, on a cluster of a master and two workers."""
    rows, found = [], []
    with cluster(folder / "cluster") as made:
        for each in (stage, queues):
            noted = each.beside("stages.json")
            ran = mqtool(noted, "verify", each.root, "--json", *made.line(), module="benchmarks.on_spark")
            messages, count = ran.json()["commitlog"]["messages"], each.shape.topics * each.shape.queues
            size = sum(work["home"] for work in json.loads(noted.read_text()))
            found.append((size, messages, count))
            rows.append((each.shape.name, f"{messages:,}", f"{count:,}", f"{size / 1e6:.2f}"))
    of_message = found[0][0] / found[0][1]
    of_queue = (found[1][0] - of_message * found[1][1]) / found[1][2]
    return markdown(("store", "messages", "queues", "MB to the driver"), rows), [
        at_most("Spark: bytes to the driver for a message", _HOME_A_MESSAGE, of_message, "bytes"),
        at_most("Spark: bytes to the driver for a queue", _HOME_A_QUEUE, of_queue, "bytes"),
    ]


def questions(stage: Stage, queues: Stage, runs: int) -> Measured:
    """The questions of docs/spark-sql.md, and what is asked of a log by place, and of one topic of many queues.

    The session is there already.
    """
    spark = session_for(spark_settings("local[2]")).sql()
    register(spark)
    page = _PAGE.read_text()
    needed = re.search('needed = "(.*)"', page)
    assert needed is not None

    def rows(kind: str, root: Path = stage.root, **options: str) -> Any:
        return spark.read.format(f"rocketmq-{kind}").options(**options).load(str(root))

    rows("commitlog", columns=needed[1]).createOrReplaceTempView("log")
    rows("consumequeue").createOrReplaceTempView("queues")
    rows("index").createOrReplaceTempView("units")
    middle = rows("commitlog", columns="phy_offset", where=f"phy_offset > {stage.log_bytes // 2}").first().phy_offset
    found = re.findall(r"^\*\*([^*]+)\*\*[^`]*```sql\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    asked: dict[str, Callable[[], Any]] = {title: partial(spark.sql, question) for title, question in found}
    first, place = next(iter(asked)), "One record by physical offset"
    topic = f"One topic of {queues.shape.name}"
    asked[place] = lambda: rows("commitlog", where=f"phy_offset = {middle}")
    asked[topic] = lambda: rows("consumequeue", queues.root, where="topic = 'Topic7'")
    times = in_turn({name: partial(_answered, frame) for name, frame in asked.items()}, runs, cached=stage.files)
    stop_session()
    polled = _idle_poll(stage, runs)
    return f"{times_table(times, first)}\n\nAn idle poll of a stream: {polled * 1000:.1f} ms of processor time.", [
        at_most("Stream: processor time of an idle poll", _POLL_SECONDS, polled, "s"),
        *(at_most(f"SQL: {name}", limit, times[name].least, "s")
          for name, limit in ((first, 8.3), (place, 3), (topic, 2))),
    ]


def _idle_poll(stage: Stage, runs: int) -> float:
    """Least processor seconds of a poll of a log that has nothing new, after the first one."""
    from pyspark.sql.types import LongType, StructType

    stream: Any = CommitlogSource({"path": str(stage.root)}).streamReader(StructType().add("phy_offset", LongType()))
    end, seconds = stream.latestOffset(None), []
    for _ in range(runs):
        begin = time.process_time()
        same = stream.latestOffset(None) == end
        seconds.append(time.process_time() - begin)
        assert same, "the log does not grow"
    return min(seconds)


def _answered(frame: Callable[[], Any]) -> float:
    """Seconds until the rows are there. A frame that is asked twice would keep what it shuffled."""
    begin = time.perf_counter()
    frame().collect()
    return time.perf_counter() - begin


def stages_that_ran() -> list[dict[str, Any]]:
    """Of each stage of this process's Spark: what its job was for, tasks, milliseconds, bytes shuffled and sent to the
    driver; in order."""
    session = running_session()
    if session is None:
        return []
    context = session.context
    context._jsc.sc().listenerBus().waitUntilEmpty()
    quantiles = context._gateway.new_array(context._jvm.double, 0)
    found = context._jsc.sc().statusStore().stageList(None, False, False, quantiles, None)
    ran = [found.apply(number) for number in range(found.size())]
    return [
        {"job": str(stage.description().get()) if stage.description().isDefined() else "",
         "tasks": stage.numCompleteTasks(), "milliseconds": stage.executorRunTime(),
         "shuffled": stage.shuffleWriteBytes(), "home": stage.resultSize()}
        for stage in sorted(ran, key=lambda item: int(item.stageId()))
    ]


if __name__ == "__main__":
    from mqtool.cli import main

    code = main(sys.argv[2:])
    Path(sys.argv[1]).write_text(json.dumps(stages_that_ran()))
    sys.exit(code)
