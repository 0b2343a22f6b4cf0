"""`python -m mqtool`, and what the installed command runs: a process of its own, which may leave things out."""

from __future__ import annotations

import gc
import os
import sys
from typing import NoReturn

_CONTAINERS = 100_000
"""So many more of them than before are looked through for garbage, some 10 MB. Python's default is 700."""


def _import_msgspec() -> None:
    """Without `typing_extensions`, where it looks first: 0.004 s to import, for what `typing` has as well."""
    name = "typing_extensions"
    if name in sys.modules:
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        import msgspec  # noqa: F401
    finally:
        del sys.modules[name]


_import_msgspec()


def run() -> NoReturn:
    """Run the command line of this process and end with its exit code."""
    # numpy's threads for linear algebra, of which there is none here, spin for 0.03 s each before they sleep
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # modules are no garbage: what is looked through while they are imported takes 0.007 s and finds none
    gc.set_threshold(_CONTAINERS)
    from mqtool.cli import main

    code = main()
    # the end of the process gives all back at once; looking through it for garbage before takes 0.015 s
    gc.freeze()
    sys.exit(code)


if __name__ == "__main__":
    run()
