"""`python -m mqtool`, and what the installed command runs: a process of its own, which may leave things out."""

from __future__ import annotations

import gc
import os
import sys
from typing import NoReturn

from mqtool.cli import main


def run() -> NoReturn:
    """Run the command line of this process and end with its exit code."""
    # numpy's threads for linear algebra, of which there is none here, spin for 0.03 s each before they sleep
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    code = main()
    # the end of the process gives all back at once; looking through it for garbage before takes 0.015 s
    gc.freeze()
    sys.exit(code)


if __name__ == "__main__":
    run()
