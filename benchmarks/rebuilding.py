"""Queues and index made anew from the log: brokers' abnormal recovery beside us."""

from __future__ import annotations

import filecmp
from collections.abc import Callable
from pathlib import Path

from benchmarks.broker import VERSIONS, load
from benchmarks.contest import in_turn
from benchmarks.ours import mqtool
from benchmarks.stage import Stage
from benchmarks.table import Goal, at_least, times_table

SYNCED = "mqtool rebuild"
_GOALS = {"5.3.3": 6, "4.9.7": 3.5}


def compare_rebuilds(stage: Stage, runs: int) -> tuple[str, list[Goal]]:
    """Table and goals. All start from the log alone; our queues are compared with the broker's byte for byte."""
    parties: dict[str, Callable[[], float]] = {
        SYNCED: lambda: _rebuild(stage),
        **{f"{version} abnormal recovery": _recovery(stage, version) for version in VERSIONS},
    }
    times = in_turn(parties, runs, cached=stage.log_files)
    differing = differing_files(stage.beside("mqtool") / "consumequeue", stage.root / "consumequeue")
    if differing:
        raise RuntimeError(f"the rebuilt queues differ from the broker's: {differing[:3]}")
    goals = [
        at_least(f"{stage.shape.name}: rebuilt, with fsync, against {version}", least,
                 times[f"{version} abnormal recovery"].least / times[SYNCED].least)
        for version, least in _GOALS.items()
    ]
    return times_table(times, SYNCED), goals


def _rebuild(stage: Stage) -> float:
    folder = stage.bare("mqtool")
    ran = mqtool("rebuild", str(folder), "--commitlog", str(stage.commitlog), "--yes", "--json", expect=None)
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
