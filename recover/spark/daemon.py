"""pyspark's daemon with our modules imported: the workers that it forks have them, instead of each importing its own.

For executors that find our code by their path, which those of this machine do.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import PurePath

_ZIPPED = ("pyspark", "py4j")


def installed_first(path: Sequence[str]) -> list[str]:
    """`path` without Spark's zipped copies of pyspark and py4j, if the rest of it has both.

    Spark puts those copies in front. They hold no bytecode: every process would compile them anew, half a second.
    """
    rest = [entry for entry in path if not _is_zipped(PurePath(entry).name)]
    return rest if all(PathFinder.find_spec(name, rest) for name in _ZIPPED) else list(path)


def _is_zipped(name: str) -> bool:
    return name.endswith(".zip") and name.startswith(_ZIPPED)


if __name__ == "__main__":
    sys.path[:] = installed_first(sys.path)

    import pyspark.worker  # noqa: F401 - what each worker would import behind the fork
    from pyspark.daemon import manager

    import recover.spark.stages  # noqa: F401 - with all that tasks need

    manager()
