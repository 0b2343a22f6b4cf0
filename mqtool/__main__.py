"""`python -m mqtool`, and the entry point of the installed command."""

from __future__ import annotations

import gc
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

_INTERRUPTED = 32


def run() -> NoReturn:
    # numpy's linear algebra threads, unused here, spin for 0.03 s each before they sleep
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # objects of a scan of ten thousand queues stay alive: the default looks for garbage every 700 objects
    gc.set_threshold(20_000)
    # until `exits.signals` takes over, nothing has begun
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _stop)
    from mqtool.cli import main

    sys.exit(main())


def _stop(number: int, _frame: FrameType | None) -> None:
    os.write(2, f"mqtool: stopped by {signal.Signals(number).name} (exit {_INTERRUPTED}: interrupted)\n".encode())
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    run()
