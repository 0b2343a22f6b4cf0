"""The log checked, the whole store checked: brokers' normal recovery beside us."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.broker import VERSIONS, load
from benchmarks.contest import in_turn
from benchmarks.ours import mqtool
from benchmarks.stage import Stage
from benchmarks.table import Goal, at_least, times_table

LOG = "mqtool verify --only commitlog"
ALL = "mqtool verify"


def compare_checks(stage: Stage, runs: int) -> tuple[str, list[Goal]]:
    """Table and goals."""
    parties: dict[str, Callable[[], float]] = {
        LOG: lambda: _verify(stage, "--only", "commitlog"),
        ALL: lambda: _verify(stage),
        **{f"{version} normal recovery": _recovery(stage, version) for version in VERSIONS},
    }
    times = in_turn(parties, runs, cached=stage.files)
    broker = times[f"{VERSIONS[0]} normal recovery"].least
    goal = at_least(f"{stage.shape.name}: everything checked, against {VERSIONS[0]}", 1, broker / times[ALL].least)
    return times_table(times, LOG), [goal]


def _verify(stage: Stage, *more: str) -> float:
    ran = mqtool("verify", str(stage.root), "--json", *more)
    found = ran.json()["commitlog"]["messages"]
    if found != stage.messages:
        raise RuntimeError(f"{found} messages were found where the broker wrote {stage.messages}")
    return ran.seconds


def _recovery(stage: Stage, version: str) -> Callable[[], float]:
    def run() -> float:
        seen = load(version, stage.root, stage.commitlog, stage.shape)
        if seen.units != stage.messages:
            raise RuntimeError(f"{version} has {seen.units} units of {stage.messages} messages")
        return seen.seconds

    return run
