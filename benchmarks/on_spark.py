"""Queues and index made anew on Spark with two cores of this machine, session start included; how it grows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.broker import VERSIONS, load
from benchmarks.contest import in_turn
from benchmarks.ours import Ran, mqtool
from benchmarks.rebuilding import differing_files
from benchmarks.shapes import GIBI
from benchmarks.stage import Stage
from benchmarks.table import Goal, at_least, at_most, markdown, times_table

_MASTER = "local[2]"
_SPARK = f"mqtool rebuild --master {_MASTER}"
_LINEAR = 1.3  # a byte of the largest log may take so many times as long as one of the smallest


@dataclass(frozen=True, slots=True)
class Work:
    """What one rebuild took of Spark: bytes scanned a second and core, bytes shuffled for a message, tasks."""

    scanned: float
    shuffled: float
    tasks: int


def compare_with_recovery(stage: Stage, runs: int) -> tuple[str, list[Goal]]:
    """Table and goal: the whole command with its session, beside a broker's recovery; both from the log alone."""
    broker = f"{VERSIONS[0]} abnormal recovery"
    times = in_turn({
        _SPARK: lambda: _rebuild(stage),
        "mqtool rebuild, threads": lambda: _rebuild(stage, local=True),
        broker: lambda: load(VERSIONS[0], stage.bare("broker"), stage.commitlog, stage.shape).seconds,
    }, runs, cached=stage.log_files)
    _rebuild(stage)
    differing = differing_files(stage.beside("spark") / "consumequeue", stage.root / "consumequeue")
    if differing:
        raise RuntimeError(f"the rebuilt queues differ from the broker's: {differing[:3]}")
    goal = at_least(f"{stage.shape.name}: rebuilt on Spark, session included, against {VERSIONS[0]}", 1,
                    times[broker].least / times[_SPARK].least)
    return times_table(times, _SPARK), [goal]


def growth(stages: Iterable[Stage], runs: int) -> tuple[str, list[Goal]]:
    """Logs from small to large: seconds, and what Spark had to do."""
    rows, rates = [], []
    for stage in stages:
        times = in_turn({_SPARK: partial(_rebuild, stage)}, runs, cached=stage.log_files)
        seconds = times[_SPARK].least
        work, messages = _work(stage)
        rates.append(seconds / stage.log_bytes)
        rows.append((
            f"{stage.log_bytes / GIBI:.1f} GiB", f"{messages:,}", f"{seconds:.2f}", f"{work.scanned / 1e9:.2f}",
            f"{work.shuffled:.1f}", str(work.tasks),
        ))
    head = ("log", "messages", "rebuilt s", "scan, GB/s a core", "shuffled, bytes a message", "tasks")
    goals = [at_most("Spark: time of a byte, largest log to smallest", _LINEAR, rates[-1] / rates[0], "x")]
    return markdown(head, rows), goals


def _rebuild(stage: Stage, *, local: bool = False) -> float:
    """Seconds of a process that makes queues, index and checkpoint of a store that has nothing but its log."""
    return _ran(stage, [] if local else ["--master", _MASTER]).seconds


def _ran(stage: Stage, more: list[str], *before: str, module: str = "mqtool") -> Ran:
    ran = mqtool(*before, "rebuild", str(stage.bare("spark")), "--commitlog", str(stage.commitlog), "--yes", "--json",
                 *more, module=module, expect=None)
    if ran.code & ~3 or not ran.json()["applied"]:
        raise RuntimeError(f"rebuild ended with {ran.code}: {ran.output[-2000:]}")
    return ran


def _work(stage: Stage) -> tuple[Work, int]:
    """What Spark's stages took in one rebuild, and how many messages the log holds."""
    noted = stage.beside("stages.json")
    ran = _ran(stage, ["--master", _MASTER], str(noted), module="benchmarks.spark_stages")
    return _read(noted, stage.log_bytes, ran.json()["verify"]["commitlog"]["messages"])


def _read(noted: Path, log_bytes: int, messages: int) -> tuple[Work, int]:
    stages = json.loads(noted.read_text())
    noted.unlink()
    scan = sum(stage["milliseconds"] for stage in stages if stage["job"] == "scan of the log")
    shuffled = sum(stage["shuffled"] for stage in stages)
    work = Work(log_bytes / scan * 1000, shuffled / messages, sum(stage["tasks"] for stage in stages))
    return work, messages
