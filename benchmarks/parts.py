"""What is measured on this machine: start-up, checks, rebuilds, exports, many queues, growing logs, hostile input.

`python -m benchmarks.parts LINES OUT` reads an export, and prints the seconds that one process takes to write it again
from memory with the same JSON library.
"""

from __future__ import annotations

import filecmp
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path

import msgspec

from benchmarks.contest import Goal, Ran, Times, at_least, at_most, in_turn, markdown, mqtool, times_table
from benchmarks.stage import GIBI, NEWEST, VERSIONS, Stage
from fixtures.damage.patch import flip_bit
from fixtures.nested_heads import nested_heads, sound_log
from fixtures.synth import synth_store
from formats.basics import offset_to_name
from recover.export.messages import Message
from recover.store.reading import data_extents

Measured = tuple[str, list[Goal]]
Parties = dict[str, Callable[[], float]]

NORMAL, ABNORMAL = f"{NEWEST} normal recovery", f"{NEWEST} abnormal recovery"
LOG = ("--only", "commitlog")
REBUILT = {"5.3.3": 6.0, "4.9.7": 3.5}
LINEAR = 1.3
"""A byte of the largest log may take so many times as long as one of the smallest."""
_MEMORY_MB, _PARQUET_MB = 600, 150
_BUFFER = 1 << 20
_TOGETHER = 50_000


def start_up(folder: Path, runs: int) -> Measured:
    """A verify of a store with one message, and the help."""
    synth_store(folder / "tiny", messages=1)
    times = in_turn({
        "verify of one message": lambda: mqtool("verify", folder / "tiny", "--json", expect=None).seconds,
        "--help": lambda: mqtool("--help").seconds,
    }, runs)
    start, shown = (party.least for party in times.values())
    return times_table(times, "verify of one message"), [
        at_most("start-up", 0.45, start, "s"), at_most("--help", 0.4, shown, "s"),
    ]


def checks(stage: Stage, runs: int) -> Measured:
    """The log checked, the whole store checked: brokers' normal recovery beside us."""
    log, everything = "mqtool verify --only commitlog", "mqtool verify"
    parties: Parties = {log: partial(_log_seconds, stage), everything: lambda: verified(stage).seconds}
    parties |= {f"{version} normal recovery": partial(stage.normal_recovery, version) for version in VERSIONS}
    times = in_turn(parties, runs, cached=stage.files)
    return times_table(times, log), [
        at_least(f"{stage.shape.name}: everything checked, against {NEWEST}", 1,
                 times[NORMAL].least / times[everything].least),
    ]


def verified(stage: Stage, *more: str, watched: bool = False) -> Ran:
    ran = mqtool("verify", stage.root, "--json", *more, watched=watched)
    found = ran.json()["commitlog"]["messages"]
    if stage.messages and found != stage.messages:
        raise RuntimeError(f"{found} messages were found where the broker wrote {stage.messages}")
    return ran


def _log_seconds(stage: Stage) -> float:
    return verified(stage, *LOG).seconds


def rebuilds(stage: Stage, runs: int) -> Measured:
    """Queues and index made again from the log alone, with fsync; our queues are compared with the broker's."""
    ours = "mqtool rebuild"
    parties: Parties = {ours: lambda: rebuilt(stage).seconds}
    parties["its files alone, written and synced"] = lambda: _written_again(stage)
    parties |= {f"{version} abnormal recovery": partial(stage.abnormal_recovery, version) for version in VERSIONS}
    times = in_turn(parties, runs, cached=stage.log_files)
    same_queues(stage)
    return times_table(times, ours), [
        at_least(f"{stage.shape.name}: rebuilt, with fsync, against {version}", least,
                 times[f"{version} abnormal recovery"].least / times[ours].least)
        for version, least in REBUILT.items()
    ]


def _written_again(stage: Stage) -> float:
    """Seconds that it takes to write what the last rebuild made, file by file, each synced, as no broker does."""
    made = stage.beside("mqtool")
    contents = [_content(path) for name in ("consumequeue", "index") for path in (made / name).rglob("*")
                if path.is_file()]
    with tempfile.TemporaryDirectory(dir=made) as folder:
        begin = time.perf_counter()
        for number, (length, parts) in enumerate(contents):
            with Path(folder, str(number)).open("wb", buffering=0) as file:
                for at, content in parts:
                    file.seek(at)
                    file.write(content)
                file.truncate(length)
                os.fsync(file.fileno())
        return time.perf_counter() - begin


def _content(path: Path) -> tuple[int, list[tuple[int, bytes]]]:
    """Length of a file, and what it stores, by offset."""
    with path.open("rb", buffering=0) as file:
        length = os.fstat(file.fileno()).st_size
        return length, [(at, os.pread(file.fileno(), stop - at, at))
                        for at, stop in data_extents(file.fileno(), 0, length)]


def rebuilt(stage: Stage, *more: object, module: tuple[object, ...] = ("mqtool",)) -> Ran:
    """A rebuild of a store that has nothing but its log; `module` runs the command, its own arguments after it."""
    name, *before = module
    ran = mqtool(*before, "rebuild", stage.bare("mqtool"), "--commitlog", stage.commitlog, "--yes", "--json", *more,
                 module=str(name), expect=None)
    if ran.code & ~3 or not ran.json()["applied"]:
        raise RuntimeError(f"rebuild ended with {ran.code}: {ran.output[-2000:]}")
    return ran


def same_queues(stage: Stage) -> None:
    """RuntimeError where a queue file of the last rebuild is not byte for byte that of the broker."""
    ours, theirs = stage.beside("mqtool") / "consumequeue", stage.root / "consumequeue"
    names = [{path.relative_to(root) for path in root.rglob("*") if path.is_file()} for root in (ours, theirs)]
    unlike = [name for name in names[0] & names[1] if not filecmp.cmp(ours / name, theirs / name, shallow=False)]
    if differing := sorted((names[0] ^ names[1]) | set(unlike)):
        raise RuntimeError(f"the rebuilt queues differ from the broker's: {list(map(str, differing[:3]))}")


def exports(stage: Stage, runs: int) -> Measured:
    """Messages written out: as NDJSON beside encoding the same ones from memory, and as Parquet."""
    ndjson, parquet, memory = "mqtool export, NDJSON", "mqtool export, Parquet", "the same messages from memory"
    lines, out = stage.beside("lines"), stage.beside("out")
    _exported(stage, lines, "ndjson")
    times = in_turn({
        ndjson: lambda: _exported(stage, out, "ndjson").seconds,
        parquet: lambda: _exported(stage, out, "parquet").seconds,
        memory: lambda: _from_memory(lines, out),
    }, runs, cached=stage.log_files)
    peak = _exported(stage, out, "ndjson", watched=True).anonymous
    rate = stage.log_bytes / 1e6 / times[parquet].least
    name = stage.shape.name
    return times_table(times, ndjson), [
        at_most(f"{name}: NDJSON, against {memory}", 1.5, times[ndjson].least / times[memory].least, "x"),
        at_least(f"{name}: Parquet, against {_PARQUET_MB} MB of log a second", 1, rate / _PARQUET_MB),
        at_most(f"{name}: memory of an export", _MEMORY_MB, peak / 1e6, "MB"),
    ]


def _exported(stage: Stage, out: Path, kind: str, *, watched: bool = False) -> Ran:
    out.unlink(missing_ok=True)
    ran = mqtool("export", stage.root, "-o", out, "--format", kind, "--json", watched=watched)
    found = ran.json()["messages"]
    if found != stage.messages:
        raise RuntimeError(f"{found} messages were written where the store has {stage.messages}")
    return ran


def _from_memory(lines: Path, out: Path) -> float:
    done = subprocess.run([sys.executable, "-m", "benchmarks.parts", lines, out], capture_output=True, check=True)
    return float(done.stdout)


def encode(lines: Path, out: Path) -> float:
    """Seconds that it takes to write the messages of an export from memory; reading them does not count.

    Some at a time: all messages of 2 GiB together took 8 GB of memory from everybody else on the machine.
    """
    decoder, encoder = msgspec.json.Decoder(Message), msgspec.json.Encoder()
    seconds = 0.0
    with lines.open("rb") as source, out.open("wb", buffering=_BUFFER) as stream:
        while messages := [decoder.decode(line) for line in islice(source, _TOGETHER)]:
            begin = time.perf_counter()
            for message in messages:
                stream.write(encoder.encode(message) + b"\n")
            seconds += time.perf_counter() - begin
    return seconds


def many_queues(stage: Stage, runs: int) -> Measured:
    """What each of many queues adds to a check of the log."""
    log, queues = "verify --only commitlog", "verify --only commitlog --only consumequeue"
    times = in_turn({
        log: partial(_log_seconds, stage),
        queues: lambda: verified(stage, *LOG, "--only", "consumequeue").seconds,
        NORMAL: partial(stage.normal_recovery, NEWEST),
    }, runs, cached=stage.files)
    count = stage.shape.topics * stage.shape.queues
    each = (times[queues].least - times[log].least) / count * 1e6
    return times_table(times, log), [at_most(f"{count} queues: opened and checked, each", 60, each, "us")]


def growth(stages: Iterable[Stage], runs: int) -> Measured:
    """Logs from small to large; a broker's abnormal recovery beside us, whose normal one reads the last files only."""
    rows, goals, rates = [], [], []
    for stage in stages:
        times = in_turn({
            "log": partial(_log_seconds, stage),
            ABNORMAL: partial(stage.abnormal_recovery, NEWEST),
        }, runs, cached=stage.log_files)
        log, broker = (party.least for party in times.values())
        peak = verified(stage, *LOG, watched=True).anonymous
        # what the broker made is a whole store: all of it is checked once, for time and memory
        made = (stage.beside("broker"), "--commitlog", stage.commitlog, "--json")
        whole = mqtool("verify", *made, expect=None, watched=True)
        with _damaged(stage.log_files[0]):
            planned = mqtool("recover", *made, "--dry-run", expect=None, watched=True)
        size = f"{stage.log_bytes / GIBI:.1f} GiB"
        rates.append(log / stage.log_bytes)
        rows.append((
            size, f"{log:.2f}", f"{broker:.2f}", f"{broker / log:.1f}", f"{whole.seconds:.2f}", f"{peak / 1e6:.0f}",
            f"{whole.anonymous / 1e6:.0f}", f"{planned.seconds:.2f}", f"{planned.anonymous / 1e6:.0f}",
        ))
        goals.append(at_least(f"{size}: log checked, against {NEWEST} from the first file", 15, broker / log))
        for what, most in (("verify", max(whole.anonymous, peak)), ("recover, one bit flipped", planned.anonymous)):
            goals.append(at_most(f"{size}: RssAnon of {what}", _MEMORY_MB, most / 1e6, "MB"))
    goals.append(at_most("time of a byte, largest log to smallest", LINEAR, rates[-1] / rates[0], "x"))
    head = ("log", "log checked s", f"{NEWEST} s", "ratio", "everything s", "RssAnon MB", "everything MB",
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


def hostile(folder: Path, runs: int) -> Measured:
    """Heads of records within each other's bodies, right but for a checksum, beside sound messages of as many bytes."""
    files = {
        "8 MiB of sound messages": sound_log(8 << 20, 128), "2 MiB of nested heads": nested_heads(2 << 20, 128),
        "8 MiB of nested heads": nested_heads(8 << 20, 128),
    }
    for name, content in files.items():
        (folder / name / "commitlog").mkdir(parents=True)
        (folder / name / "commitlog" / offset_to_name(0)).write_bytes(content)

    def seconds(name: str) -> float:
        return mqtool("verify", folder / name, *LOG, "--json", expect=None).seconds

    times: dict[str, Times] = in_turn({name: partial(seconds, name) for name in files}, runs)
    sound, small, large = (party.least for party in times.values())
    return times_table(times, next(iter(files))), [
        at_most("8 MiB of nested heads to 2 MiB", 4 * LINEAR, large / small, "x"),
        at_most("8 MiB of nested heads to sound messages", 5, large / sound, "x"),
    ]


if __name__ == "__main__":
    print(encode(Path(sys.argv[1]), Path(sys.argv[2])))
