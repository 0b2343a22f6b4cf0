"""How long starts of released brokers take: `python -m benchmarks.starts` writes fixtures/start-rates.json, from which
predict's rates come (recover/predict/start_cost.py).

1. A released broker writes stores of two sizes with small bodies, and one with large ones, each of 160 queues.
2. Each release loads them in a JVM of its own: as they are (normal recovery), and the log alone, from its first file on
   (abnormal: all queues and the index are made again). The least of some turns counts, of the thread that loads.
3. Whole brokers start on an empty store, and on a log after a kill: from the start of the process until the port
   answers. The first is what a start takes beside its log; the others are what the rates are held to.

Files are in the page cache; what a disk adds is for predict to say.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.stage import MEBI, Shape, Stage, plain, run, set_up
from fixtures.lab.toolchain import RELEASES, available
from fixtures.lab.whole import WholeBroker

KEPT = Path(__file__).resolve().parents[1] / "fixtures" / "start-rates.json"
SHAPES = {"small": plain(100, 24 * MEBI), "small4": plain(100, 96 * MEBI), "large": plain(4000, 96 * MEBI)}
_WHOLE = "small4"
_LARGE = (("5.3.3", 2_000, 3_000_000, 7.67), ("5.3.3", 8_192, 12_300_000, 32.4), ("4.9.7", 2_000, 3_000_000, 3.88))
"""Release, MiB of log, messages and seconds of abnormal recoveries that `make bench` timed on an idle machine
(docs/performance.md): a small log is read before the JVM has compiled the loop."""
_FACTORS = ("recovery_bytes", "recovery_records", "dispatched_records")
_HEAP = "1500m"


def main() -> int:
    """Measure and write the file; 1 without JDK or Maven."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.starts", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="turns of each load, the least of which counts (3)")
    parser.add_argument("--releases", nargs="*", default=RELEASES, help="those to measure; the file keeps the others")
    parser.add_argument("--stores", nargs="*", default=[*SHAPES], help=f"which: {' '.join(SHAPES)}")
    parser.add_argument("--folder", type=Path, default=None, help="where stores are, or are kept (a temporary folder)")
    options = parser.parse_args()
    if reason := available():
        print(f"benchmarks: {reason}")
        return 1
    asked = {(version, name) for version in options.releases for name in options.stores}
    kept = json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else {"loads": [], "whole": []}
    loads, whole = ([row for row in kept[name] if (row["version"], row["store"]) not in asked]
                    for name in ("loads", "whole"))
    with tempfile.TemporaryDirectory(prefix="mqtool-starts-") as scratch:
        if not {*options.releases} <= {row["version"] for row in whole if row["store"] == "empty"}:
            whole += _empty(options.releases, Path(scratch), options.runs)
        for name in options.stores:
            stage = _stage(name, options.folder or Path(scratch))
            loads += _loads(options.releases, name, stage, options.runs)
            if name == _WHOLE:
                whole += _killed(options.releases, name, stage, options.runs)
            print(f"{name}: {stage.messages:,} messages", flush=True)
            _keep(loads, whole)
    return 0


def _stage(name: str, folder: Path) -> Stage:
    """The store, written if it is not in the folder yet."""
    shape, known = SHAPES[name], folder / f"{name}.json"
    if known.exists():
        said = json.loads(known.read_text("utf-8"))
        return Stage(shape, Path(said["root"]), said["messages"])
    stage = set_up(shape, folder)
    known.write_text(json.dumps({"root": str(stage.root), "messages": stage.messages}), "utf-8")
    return stage


def _keep(loads: list[dict[str, Any]], whole: list[dict[str, Any]]) -> None:
    known = [version for version in sorted({row["version"] for row in loads}) if len(
        {row["store"] for row in loads if row["version"] == version}) == len(SHAPES)]
    lines = (f" {json.dumps(name)}: [\n  " + ",\n  ".join(map(json.dumps, rows)) + "\n ]"
             for name, rows in (("loads", loads), ("whole", whole)))
    made = f' "made_by": "benchmarks/starts.py",\n "rates": {json.dumps({v: rates(loads, whole, v) for v in known})}'
    KEPT.write_text("{\n" + ",\n".join([made, *lines]) + "\n}\n", "utf-8")


def rates(loads: list[dict[str, Any]], whole: list[dict[str, Any]], version: str) -> dict[str, float]:
    """Seconds that a start takes beside its log, and microseconds for each MiB read, record read and record dispatched:
    the least squares of the relative errors of all loads, none below 0."""
    rows = [row for row in loads if row["version"] == version] + [
        {"recovery_bytes": mib * MEBI, "recovery_records": messages, "dispatched_records": messages, "seconds": seconds}
        for release, mib, messages, seconds in _LARGE if release == version]
    seconds = np.array([row["seconds"] for row in rows])
    factors = np.array([[1, *(row[name] for name in _FACTORS)] for row in rows], dtype=float) / seconds[:, None]
    used = list(range(factors.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(factors[:, used], np.ones(len(rows)), rcond=None)
        if (found >= 0).all():
            break
        used.pop(int(np.argmin(found)))
    per = dict.fromkeys(range(factors.shape[1]), 0.0) | dict(zip(used, found.tolist(), strict=True))
    empty = min(row["seconds"] for row in whole if row["version"] == version and row["log_bytes"] == 0)
    return {"start_s": round(empty + per[0], 2), "mib_us": round(per[1] * 1e6 * MEBI, 1),
            "record_us": round(per[2] * 1e6, 3), "dispatch_us": round(per[3] * 1e6, 3)}


def _loads(releases: list[str], name: str, stage: Stage, runs: int) -> Iterator[dict[str, Any]]:
    log_bytes = int(run(RELEASES[0], "LoadClock", stage.root, _conf(stage))["max_phy"])
    for version in releases:
        for mode in ("normal", "abnormal"):
            seen = [run(version, "LoadClock", stage.root if mode == "normal" else stage.bare(mode), _conf(stage))
                    for _ in range(runs)]
            if not all(each["loaded"] and each["units"] == stage.messages for each in seen):
                raise RuntimeError(f"broker {version} does not load all of {stage.shape.name}")
            again = mode == "abnormal"
            yield {"version": version, "store": name, "mode": mode, "body": stage.shape.body,
                   "recovery_bytes": log_bytes, "recovery_records": stage.messages,
                   "dispatched_records": stage.messages * again,
                   "seconds": round(min(each["cpu_ns"] for each in seen) / 1e9, 4),
                   "wall_seconds": round(min(each["load_ns"] for each in seen) / 1e9, 4)}


def _took(broker: WholeBroker) -> dict[str, float]:
    """What its threads computed counts: a busy machine makes a start longer, not its work more."""
    return {"seconds": round(broker.cpu_seconds, 2), "wall_seconds": round(broker.seconds, 2)}


def _conf(stage: Stage) -> dict[str, Any]:
    return {"conf.storePathCommitLog": stage.commitlog, "conf.mappedFileSizeConsumeQueue": stage.shape.queue_file_bytes}


def _empty(releases: list[str], folder: Path, runs: int) -> Iterator[dict[str, Any]]:
    for version in releases:
        for _ in range(runs):
            root = Path(tempfile.mkdtemp(dir=folder))
            with WholeBroker(version, root, {}, kill=True, quick=False, heap=_HEAP) as broker:
                yield {"version": version, "store": "empty", "log_bytes": 0, "messages": 0,
                       **_took(broker)}
            shutil.rmtree(root)


def _killed(releases: list[str], name: str, stage: Stage, runs: int) -> Iterator[dict[str, Any]]:
    """Brokers on the log alone, beside an abort file."""
    shape: Shape = stage.shape
    for version in releases:
        for _ in range(runs):
            root = stage.bare("whole")
            log = root / "commitlog"
            log.mkdir()
            for path in (path for path in stage.log_files if path.stat().st_blocks):
                # what a broker appends must not reach the other turns
                subprocess.run(["cp", "--sparse=always", path, log / path.name], check=True)
            conf = {"mappedFileSizeConsumeQueue": shape.queue_file_bytes}
            with WholeBroker(version, root, conf, kill=True, quick=False, heap=_HEAP) as broker:
                yield {"version": version, "store": name, "log_bytes": shape.log_bytes, "messages": stage.messages,
                       **_took(broker)}


if __name__ == "__main__":
    raise SystemExit(main())
