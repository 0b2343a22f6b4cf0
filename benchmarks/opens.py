"""mqtool, and which files it opened how often: `python -m benchmarks.opens verify STORE ...` prints that as JSON."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence


def count_opens(arguments: Sequence[str]) -> tuple[int, Counter[str]]:
    """Exit code of a command line, and how often it opened each path. The hook stays for the life of the process."""
    from mqtool.cli import main

    opened: Counter[str] = Counter()

    def hook(event: str, values: tuple[object, ...]) -> None:
        if event == "open" and isinstance(values[0], str | bytes | os.PathLike):
            opened[os.fsdecode(values[0])] += 1

    sys.addaudithook(hook)
    with contextlib.redirect_stdout(io.StringIO()):
        code = main(arguments)
    return code, opened


if __name__ == "__main__":
    code, opened = count_opens(sys.argv[1:])
    print(json.dumps({"code": code, "opened": opened}))
