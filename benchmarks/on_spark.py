"""Queues and index made again on Spark with two cores of this machine, session start included; how it grows.

`python -m benchmarks.on_spark FILE COMMAND ...` runs a command line in this process and notes what Spark's stages took.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
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
