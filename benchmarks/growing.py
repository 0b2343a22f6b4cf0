"""Start-up, many queues, and logs of growing size."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.broker import VERSIONS, load
from benchmarks.contest import in_turn
from benchmarks.ours import Ran, mqtool
from benchmarks.shapes import GIBI, MANY_QUEUES
from benchmarks.stage import Stage
from benchmarks.table import Goal, at_least, at_most, markdown, times_table
from fixtures.damage.patch import flip_bit
from fixtures.nested_heads import nested_heads, sound_log
from fixtures.synth import synth_store
from formats.names import offset_to_name

_MOST_ANONYMOUS = 600e6
_LINEAR = 1.3  # a byte of the largest log may take so many times as long as one of the smallest
_HOSTILE = 5


def start_up(folder: Path, runs: int) -> tuple[str, list[Goal]]:
    """Table and goals: a verify of a store with one message, and the help."""
    store = folder / "tiny"
    synth_store(store, messages=1)
    times = in_turn({
        "verify of one message": lambda: mqtool("verify", str(store), "--json", expect=None).seconds,
        "--help": lambda: mqtool("--help").seconds,
    }, runs)
    least = times["verify of one message"].least
    goals = [at_most("start-up", 0.45, least, "s"), at_most("--help", 0.4, times["--help"].least, "s")]
    return times_table(times, "verify of one message"), goals


def many_queues(stage: Stage, runs: int) -> tuple[str, list[Goal]]:
    """What each of ten thousand queues adds to a check of the log, and how often a file is opened."""
    log, queues = "verify --only commitlog", "verify --only commitlog --only consumequeue"
    times = in_turn({
        log: lambda: mqtool("verify", str(stage.root), "--json", "--only", "commitlog").seconds,
        queues: lambda: mqtool(
            "verify", str(stage.root), "--json", "--only", "commitlog", "--only", "consumequeue").seconds,
        f"{VERSIONS[0]} normal recovery": lambda: load(VERSIONS[0], stage.root, stage.commitlog, stage.shape).seconds,
    }, runs, cached=stage.files)
    count = MANY_QUEUES.topics * MANY_QUEUES.queues
    each = (times[queues].least - times[log].least) / count * 1e6
    command = [sys.executable, "-m", "benchmarks.opens", "verify", str(stage.root), "--json"]
    done = subprocess.run(command, capture_output=True, check=True)
    opened = {name: times for name, times in json.loads(done.stdout)["opened"].items() if str(stage.root) in name}
    goals = [
        at_most(f"{count} queues: opened and checked, each", 60, each, "us"),
        at_most(f"{count} queues: opens of one file", 1, max(opened.values()), ""),
    ]
    return times_table(times, log), goals


def growth(stages: Iterable[Stage], runs: int) -> tuple[str, list[Goal]]:
    """Logs from small to large; a broker's abnormal recovery beside us, whose normal one reads the last files only."""
    rows = []
    goals = []
    rates: list[float] = []
    for stage in stages:
        log, broker = "verify --only commitlog", f"{VERSIONS[0]} abnormal recovery"
        times = in_turn({
            log: partial(_timed, stage),
            broker: partial(_recovery, stage),
        }, runs, cached=stage.log_files)
        peak = _checked(stage, watched=True).anonymous
        # what the broker made is a whole store: all of it is checked once, for time and memory
        place = str(stage.beside("broker"))
        whole = mqtool("verify", place, "--commitlog", str(stage.commitlog), "--json", expect=None, watched=True)
        with _damaged(stage.log_files[0]):
            planned = mqtool("recover", place, "--commitlog", str(stage.commitlog), "--dry-run", "--json", expect=None,
                             watched=True)
        size = stage.log_bytes
        rates.append(times[log].least / size)
        goals.append(at_least(f"{size / GIBI:.1f} GiB: log checked, against {VERSIONS[0]} from the first file", 15,
                              times[broker].least / times[log].least))
        rows.append((
            f"{size / GIBI:.1f} GiB", f"{times[log].least:.2f}", f"{times[broker].least:.2f}",
            f"{times[broker].least / times[log].least:.1f}", f"{whole.seconds:.2f}", f"{peak / 1e6:.0f}",
            f"{whole.anonymous / 1e6:.0f}", f"{planned.seconds:.2f}", f"{planned.anonymous / 1e6:.0f}",
        ))
        for what, most in (("verify", max(whole.anonymous, peak)), ("recover, one bit flipped", planned.anonymous)):
            goals.append(at_most(f"{size / GIBI:.1f} GiB: RssAnon of {what}", _MOST_ANONYMOUS / 1e6, most / 1e6, "MB"))
    goals.append(at_most("time of a byte, largest log to smallest", _LINEAR, rates[-1] / rates[0], "x"))
    head = ("log", "log checked s", f"{VERSIONS[0]} s", "ratio", "everything s", "RssAnon MB", "everything MB",
            "recover of a flipped bit planned s", "its MB")
    return markdown(head, rows), goals


@contextmanager
def _damaged(path: Path) -> Iterator[None]:
    """One bit of a file flipped, and put back."""
    at = path.stat().st_size // 3
    flip_bit(path.parent, path, at, 2)
    try:
        yield
    finally:
        flip_bit(path.parent, path, at, 2)


def hostile(folder: Path, runs: int) -> tuple[str, list[Goal]]:
    """Heads of records within each other's bodies, right but for a checksum, beside sound messages of as many bytes."""
    files = {
        "8 MiB of sound messages": sound_log(8 << 20, 128), "2 MiB of nested heads": nested_heads(2 << 20, 128),
        "8 MiB of nested heads": nested_heads(8 << 20, 128),
    }
    for name, content in files.items():
        (folder / name / "commitlog").mkdir(parents=True)
        (folder / name / "commitlog" / offset_to_name(0)).write_bytes(content)
    times = in_turn({
        name: partial(_seconds, str(folder / name), "--only", "commitlog") for name in files
    }, runs)
    sound, small, large = (times[name].least for name in files)
    goals = [
        at_most("8 MiB of nested heads to 2 MiB", 4 * _LINEAR, large / small, "x"),
        at_most("8 MiB of nested heads to sound messages", _HOSTILE, large / sound, "x"),
    ]
    return times_table(times, next(iter(files))), goals


def _seconds(store: str, *options: str) -> float:
    return mqtool("verify", store, *options, "--json", expect=None).seconds


def _timed(stage: Stage) -> float:
    return _checked(stage).seconds


def _checked(stage: Stage, *, watched: bool = False) -> Ran:
    return mqtool("verify", str(stage.root), "--only", "commitlog", "--json", watched=watched)


def _recovery(stage: Stage) -> float:
    return load(VERSIONS[0], stage.bare("broker"), stage.commitlog, stage.shape).seconds
