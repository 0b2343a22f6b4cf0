"""Messages written out: as NDJSON beside encoding the same ones from memory, and as Parquet.

`python -m benchmarks.exporting LINES OUT` reads an export, and prints the seconds that one process takes to write it
again from memory with the same JSON library.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks.contest import in_turn
from benchmarks.ours import mqtool
from benchmarks.stage import Stage
from benchmarks.table import Goal, at_least, at_most, times_table
from recover.export.messages import Message

NDJSON = "mqtool export, NDJSON"
PARQUET = "mqtool export, Parquet"
MEMORY = "the same messages from memory"
_MOST = 1.5
_PARQUET_MB = 150
_MEMORY_MB = 600
_BUFFER = 1 << 20


def compare_exports(stage: Stage, runs: int) -> tuple[str, list[Goal]]:
    """Table and goals."""
    lines = stage.beside("lines")
    _export(stage, lines, "ndjson")
    parties: dict[str, Callable[[], float]] = {
        NDJSON: lambda: _removed(stage, "ndjson"),
        PARQUET: lambda: _removed(stage, "parquet"),
        MEMORY: lambda: _from_memory(lines, stage.beside("again")),
    }
    times = in_turn(parties, runs, cached=stage.log_files)
    peak = mqtool("export", str(stage.root), "-o", str(stage.beside("peak")), watched=True).anonymous
    stage.beside("peak").unlink()
    lines.unlink()
    name = stage.shape.name
    rate = stage.log_bytes / 1e6 / times[PARQUET].least
    return times_table(times, NDJSON), [
        at_most(f"{name}: NDJSON, against {MEMORY}", _MOST, times[NDJSON].least / times[MEMORY].least, "x"),
        at_least(f"{name}: Parquet, against {_PARQUET_MB} MB of log a second", 1, rate / _PARQUET_MB),
        at_most(f"{name}: memory of an export", _MEMORY_MB, peak / 1e6, "MB"),
    ]


def _export(stage: Stage, out: Path, kind: str) -> float:
    ran = mqtool("export", str(stage.root), "-o", str(out), "--format", kind, "--json")
    found = ran.json()["messages"]
    if found != stage.messages:
        raise RuntimeError(f"{found} messages were written where the store has {stage.messages}")
    return ran.seconds


def _removed(stage: Stage, kind: str) -> float:
    out = stage.beside(kind)
    seconds = _export(stage, out, kind)
    out.unlink()
    return seconds


def _from_memory(lines: Path, out: Path) -> float:
    done = subprocess.run([sys.executable, "-m", "benchmarks.exporting", str(lines), str(out)],
                          capture_output=True, text=True, check=True)
    return float(done.stdout)


def encode(lines: Path, out: Path) -> float:
    """Seconds that it takes to write the messages of an export from memory; reading them does not count."""
    decoder, encoder = msgspec.json.Decoder(Message), msgspec.json.Encoder()
    with lines.open("rb") as stream:
        messages = [decoder.decode(line) for line in stream]
    begin = time.perf_counter()
    with out.open("wb") as stream:
        pending = bytearray()
        for message in messages:
            pending += encoder.encode(message)
            pending += b"\n"
            if len(pending) >= _BUFFER:
                stream.write(pending)
                pending.clear()
        stream.write(pending)
    seconds = time.perf_counter() - begin
    out.unlink()
    return seconds


if __name__ == "__main__":
    print(encode(Path(sys.argv[1]), Path(sys.argv[2])))
