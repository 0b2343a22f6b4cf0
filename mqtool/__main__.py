"""`python -m mqtool`, and what the installed command runs."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def run() -> NoReturn:
    """Run the command line of this process and end with its exit code."""
    # numpy's threads for linear algebra, of which there is none here, spin for 0.03 s each before they sleep
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from mqtool.cli import main

    sys.exit(main())


if __name__ == "__main__":
    run()
