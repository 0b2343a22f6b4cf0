"""mqtool on the clock: a process of its own each time, from its start to its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SAMPLE_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Ran:
    """One run: wall seconds of the process, the highest RssAnon seen (bytes, 0 if nobody looked), exit code, output."""

    seconds: float
    anonymous: int
    code: int
    output: str

    def json(self) -> dict[str, Any]:
        """The document of a run with --json."""
        document: dict[str, Any] = json.loads(self.output)
        return document


def mqtool(*arguments: str, expect: int | None = 0, module: str = "mqtool", watched: bool = False) -> Ran:
    """Run a command line. RuntimeError if it ends with another code than `expect` (None: any).

    Only if `watched` is its memory looked at all the while: who looks takes from the cores that it runs on.
    """
    command = [sys.executable, "-m", module, *arguments]
    # an installation has its bytecode; without it a start compiles 150 modules
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    begin = time.perf_counter()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        peak = 0
        status = Path(f"/proc/{process.pid}/status")
        while True:
            peak = max(peak, anonymous_bytes(status)) if watched else 0
            try:
                output, errors = process.communicate(timeout=_SAMPLE_SECONDS if watched else None)
                break
            except subprocess.TimeoutExpired:
                continue
        seconds = time.perf_counter() - begin
    if expect is not None and process.returncode != expect:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {(errors + output)[-2000:]}")
    return Ran(seconds, peak, process.returncode, output)


def anonymous_bytes(status: Path) -> int:
    """RssAnon of a process in bytes; 0 when it is gone."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), 0)
