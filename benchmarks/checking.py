"""The log checked, the whole store checked: brokers' normal recovery and floor beside us."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.broker import VERSIONS, load
from benchmarks.contest import in_turn
from benchmarks.floor import pass_over
from benchmarks.ours import mqtool
from benchmarks.stage import Stage
from benchmarks.table import Goal, at_least, at_most, times_table

LOG = "mqtool verify --only commitlog"
ALL = "mqtool verify"
_READ, _CRC = "readinto", "isal crc32"


def compare_checks(stage: Stage, runs: int, start_up: float) -> tuple[str, list[Goal]]:
    """Table and goals; `start_up` is the seconds of a command with next to nothing to do."""
    parties: dict[str, Callable[[], float]] = {
        LOG: lambda: _verify(stage, "--only", "commitlog"),
        ALL: lambda: _verify(stage),
        **{f"{version} normal recovery": _recovery(stage, version) for version in VERSIONS},
        _READ: lambda: pass_over(stage.log_files, crc=False),
        _CRC: lambda: pass_over(stage.log_files, crc=True),
    }
    times = in_turn(parties, runs, cached=stage.files)
    broker = times[f"{VERSIONS[0]} normal recovery"].least
    name = stage.shape.name
    goals = [
        at_least(f"{name}: log checked, against {VERSIONS[0]}", 2.5, broker / times[LOG].least),
        # the goal can be read in two ways
        at_most(f"{name}: log checked, 1.5 x isal, and start-up", times[_CRC].least * 1.5 + start_up, times[LOG].least,
                "s", strict=True),
        at_most(f"{name}: log checked, 1.5 x (isal and start-up)", (times[_CRC].least + start_up) * 1.5,
                times[LOG].least, "s"),
        at_least(f"{name}: everything checked, against {VERSIONS[0]}", 1, broker / times[ALL].least),
    ]
    return times_table(times, LOG), goals


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
