"""Queues and index made anew from the log: brokers' abnormal recovery beside us; one topic and one queue."""

from __future__ import annotations

import filecmp
from collections.abc import Callable
from pathlib import Path

from benchmarks.broker import VERSIONS, load
from benchmarks.contest import in_turn
from benchmarks.ours import mqtool
from benchmarks.stage import Stage
from benchmarks.table import Goal, at_least, at_most, times_table

SYNCED = "mqtool rebuild"
UNSYNCED = "mqtool rebuild, no fsync"
_GOALS = {"5.3.3": (8, 6), "4.9.7": (4.5, 3.5)}


def compare_rebuilds(stage: Stage, runs: int) -> tuple[str, list[Goal]]:
    """Table and goals. All start from the log alone; our queues are compared with the broker's byte for byte."""
    parties: dict[str, Callable[[], float]] = {
        SYNCED: lambda: _rebuild(stage),
        UNSYNCED: lambda: _rebuild(stage, "benchmarks.unsynced"),
        **{f"{version} abnormal recovery": _recovery(stage, version) for version in VERSIONS},
    }
    times = in_turn(parties, runs)
    differing = differing_files(stage.beside("mqtool") / "consumequeue", stage.root / "consumequeue")
    if differing:
        raise RuntimeError(f"the rebuilt queues differ from the broker's: {differing[:3]}")
    goals = []
    for version, (before, after) in _GOALS.items():
        broker = times[f"{version} abnormal recovery"].least
        goals += [
            at_least(f"{stage.shape.name}: rebuilt, before fsync, against {version}", before,
                     broker / times[UNSYNCED].least),
            at_least(f"{stage.shape.name}: rebuilt, with fsync, against {version}", after,
                     broker / times[SYNCED].least),
        ]
    return times_table(times, SYNCED), goals


def compare_parts(stage: Stage, runs: int) -> tuple[str, list[Goal]]:
    """One topic and one queue, beside the scan of the log that no rebuild can do without."""
    times = in_turn({
        "scan of the log": lambda: mqtool("verify", str(stage.root), "--only", "commitlog", "--json").seconds,
        "one topic": lambda: _rebuild(stage, "mqtool", "--topic", "Topic0"),
        "one queue": lambda: _rebuild(stage, "mqtool", "--topic", "Topic0", "--queue", "0"),
    }, runs)
    scan = times["scan of the log"].least
    # a tenth more for their own writes and the noise of two processes
    goals = [at_most(f"{stage.shape.name}: {name} rebuilt", scan * 1.1, times[name].least, "s")
             for name in ("one topic", "one queue")]
    return times_table(times, "scan of the log"), goals


def _rebuild(stage: Stage, module: str = "mqtool", *narrow: str) -> float:
    folder = stage.bare("mqtool")
    command = "rebuild-consumequeue" if narrow else "rebuild"
    ran = mqtool(command, str(folder), "--commitlog", str(stage.commitlog), "--yes", "--json", *narrow, module=module,
                 expect=None)
    if ran.code & ~3 or not ran.json()["applied"]:
        raise RuntimeError(f"rebuild ended with {ran.code}: {ran.output[-2000:]}")
    return ran.seconds


def _recovery(stage: Stage, version: str) -> Callable[[], float]:
    def run() -> float:
        seen = load(version, stage.bare("broker"), stage.commitlog, stage.shape)
        if seen.units != stage.messages:
            raise RuntimeError(f"{version} made {seen.units} units of {stage.messages} messages")
        return seen.seconds

    return run


def differing_files(ours: Path, theirs: Path) -> list[str]:
    """Files below two folders that are not byte for byte the same, or that only one has."""
    def names(root: Path) -> set[str]:
        return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}

    both = names(ours) & names(theirs)
    unlike = [name for name in both if not filecmp.cmp(ours / name, theirs / name, shallow=False)]
    return sorted((names(ours) ^ names(theirs)) | set(unlike))
