"""Released brokers on the clock: one writes the stores, and those that are measured load them."""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.shapes import Shape
from fixtures.lab.toolchain import ensure
from fixtures.synth import write_topics

VERSIONS = ("5.3.3", "4.9.7")
WRITER = "4.9.7"  # whose stores all later releases read
_HEAP = "1500m"
_NEVER_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a broker made of a store: seconds of its load(), log end, units of all queues, entries of the index."""

    seconds: float
    log_end: int
    units: int
    entries: int


def write_store(shape: Shape, root: Path) -> int:
    """Have a broker write the store and stop in order; how many messages it holds."""
    root.mkdir(parents=True)
    done = _run(WRITER, "BulkWriter", root, {
        "bytes": shape.log_bytes, "body": shape.body, "topics": shape.topics, "queues": shape.queues,
        "keys": shape.keys, "seed": 7, "conf.diskMaxUsedSpaceRatio": 95,
        "conf.mappedFileSizeConsumeQueue": shape.queue_file_bytes,
        # syncing ten thousand queues every second would take longer than filling them
        "conf.flushIntervalConsumeQueue": _NEVER_MS, "conf.flushConsumeQueueThoroughInterval": _NEVER_MS,
    })
    # a whole broker keeps the list of its topics; the message store alone does not
    write_topics(root, {f"Topic{number}": shape.queues for number in range(shape.topics)})
    return int(done["messages"])


def load(version: str, root: Path, commitlog: Path, shape: Shape) -> Loaded:
    """Load the store at `root`, whose log may lie elsewhere, in a JVM of its own. The JVM's start is not counted."""
    seen = _run(version, "LoadClock", root, {
        "conf.storePathCommitLog": commitlog, "conf.mappedFileSizeConsumeQueue": shape.queue_file_bytes,
    })
    if not seen["loaded"]:
        raise RuntimeError(f"broker {version} does not load {root}")
    entries = sum(count for _, count in seen["index"])
    return Loaded(seen["load_ns"] / 1e9, seen["max_phy"], seen["units"], entries)


def _run(version: str, program: str, root: Path, request: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="mqtool-bench-") as scratch:
        asked, answer = Path(scratch) / "request", Path(scratch) / "report.json"
        asked.write_text("".join(f"{name}={value}\n" for name, value in {"root": root, **request}.items()), "utf-8")
        command = ensure(version).command(program, str(asked), str(answer), home=Path(scratch), heap=_HEAP, quick=False)
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=scratch)
        if not answer.exists():
            raise RuntimeError(f"{program} of {version} ended with {done.returncode}: {done.stderr[-2000:]}")
        report: dict[str, Any] = json.loads(answer.read_text("utf-8"))
        return report
