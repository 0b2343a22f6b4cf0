"""Queues and index made anew from the log: brokers' abnormal recovery beside us; one topic and one queue."""

from __future__ import annotations

import filecmp
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.broker import VERSIONS, load
from benchmarks.contest import in_turn
from benchmarks.ours import mqtool
from benchmarks.stage import Stage
from benchmarks.table import Goal, at_least, at_most, times_table

SYNCED = "mqtool rebuild"
UNSYNCED = "mqtool rebuild, no fsync"
_SCAN, _VERIFY, _ALONE = "scan of the log", "verify, without derived files", ", alone in its log"
_NOISE = 1.05  # of four processes that are set off against one another
_GOALS = {"5.3.3": (8, 6), "4.9.7": (4.5, 3.5)}


def compare_rebuilds(stage: Stage, runs: int) -> tuple[str, list[Goal]]:
    """Table and goals. All start from the log alone; our queues are compared with the broker's byte for byte."""
    parties: dict[str, Callable[[], float]] = {
        SYNCED: lambda: _rebuild(stage),
        UNSYNCED: lambda: _rebuild(stage, "benchmarks.unsynced"),
        **{f"{version} abnormal recovery": _recovery(stage, version) for version in VERSIONS},
    }
    times = in_turn(parties, runs, cached=stage.log_files)
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


def compare_parts(stage: Stage, alone: Stage, runs: int) -> tuple[str, list[Goal]]:
    """One topic and one queue: no more than to look at the store once, and what such a rebuild writes.

    A rebuild ends with what `verify` finds in the whole store, so that is the look at it; more strictly, it is a scan
    of the log. The writes are a plan, a journal, the change and its proof: what the same rebuild takes beyond the look
    on the store `alone`, whose log has the messages of this topic and no others.
    """
    parties: dict[str, Callable[[], float]] = {}
    for where, store in (("", stage), (_ALONE, alone)):
        parties[_SCAN + where] = partial(_look, store, "--only", "commitlog")
        parties[_VERIFY + where] = partial(_look, store)
        parties["one topic" + where] = partial(_rebuild, store, "mqtool", "--topic", "Topic0")
        parties["one queue" + where] = partial(_rebuild, store, "mqtool", "--topic", "Topic0", "--queue", "0")
    times = in_turn(parties, runs, cached=stage.log_files + alone.log_files)
    goals = []
    for look, what, strict in ((_VERIFY, "verify", False), (_SCAN, "a scan", True)):
        for name in ("one topic", "one queue"):
            writes = times[name + _ALONE].least - times[look + _ALONE].least
            goals.append(at_most(f"{stage.shape.name}: {name} rebuilt, {what} and its writes",
                                 (times[look].least + writes) * _NOISE, times[name].least, "s", strict=strict))
    return times_table(times, _SCAN), goals


def _look(stage: Stage, *more: str) -> float:
    folder = stage.bare("mqtool")
    ran = mqtool("verify", str(folder), "--commitlog", str(stage.commitlog), "--json", *more, expect=None)
    if ran.code & ~3 or ran.json()["commitlog"]["messages"] != stage.messages:
        raise RuntimeError(f"verify ended with {ran.code}: {ran.output[-2000:]}")
    return ran.seconds


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
