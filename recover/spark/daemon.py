"""pyspark's daemon with our modules imported: the workers that it forks have them, instead of each importing its own.

For executors that find our code by their path, which those of this machine do.
"""

from __future__ import annotations

import recover.spark.stages  # noqa: F401 - with all that tasks need

if __name__ == "__main__":
    from pyspark.daemon import manager

    manager()
