"""Which master, which settings: what the user said, and what a scan of a store needs beside it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from recover.errors import UsageRefusal
from recover.scan.split_scan import SPLIT_SIZE

_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,(\d+))?\])?")
_MASTERS = ("spark://", "yarn", "k8s://")
_RETRIES = 4
_OWN = "mqtool."
SPLIT_SETTING = "mqtool.splitSize"

COMMON = {
    # 8 instead of 69 ms a task, together with gc.freeze in the workers
    "spark.python.unix.domain.socket.enabled": "true",
    # one action is one job: what progress counts
    "spark.sql.adaptive.enabled": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.driver.memory": "2g",
    "spark.driver.maxResultSize": "0",
    "spark.task.maxFailures": str(_RETRIES),
    "spark.app.name": "mqtool",
}
LOCAL_ONLY = {
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    # the JVM only hands bytes on: what the second compiler takes is never earned back within one command
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    # what a task sends home goes straight to the driver, which is in the same JVM, and not through its block store
    "spark.task.maxDirectResultSize": "64m",
}


class SparkSettings(Struct, frozen=True):
    """A master URL, Spark's settings, and the size of a split in bytes."""

    master: str
    conf: tuple[tuple[str, str], ...]
    split_size: int = SPLIT_SIZE

    @property
    def is_local(self) -> bool:
        """True when the executors are threads of this machine's JVM."""
        return self.master.startswith("local")


def spark_settings(master: str | None, conf: Iterable[str] = (), threads: int | None = None) -> SparkSettings:
    """What --master and --conf K=V come to. `UsageRefusal` (16) for what Spark could not mean."""
    chosen = _master(master, threads or len(os.sched_getaffinity(0)))
    given = dict(_pair(item) for item in conf)
    split_size = int(given.pop(SPLIT_SETTING, SPLIT_SIZE))
    base = COMMON | (LOCAL_ONLY if chosen.startswith("local") else {})
    return SparkSettings(chosen, tuple(sorted((base | _without_own(given)).items())), split_size)


def _master(text: str | None, threads: int) -> str:
    """The master; a local one with retries, which Spark's own `local[N]` does not have."""
    if text is None:
        return f"local[{threads},{_RETRIES}]"
    local = _LOCAL.fullmatch(text)
    if local is not None:
        return f"local[{local[1] or 1},{local[2] or _RETRIES}]"
    if not text.startswith(_MASTERS):
        raise UsageRefusal(f"--master {text}: no master that Spark knows",
                           "Write local[2], local[*], spark://host:7077, yarn or k8s://host:443.")
    return text


def _pair(item: str) -> tuple[str, str]:
    key, equals, value = item.partition("=")
    key = key.strip()
    if not equals or not key.startswith(("spark.", _OWN)):
        raise UsageRefusal(f"--conf {item}: write K=V with a setting of Spark",
                           "For instance --conf spark.executor.memory=4g.")
    if key == SPLIT_SETTING and not (value.strip().isdecimal() and int(value) > 0):
        raise UsageRefusal(f"--conf {item}: a split has a size in bytes", f"For instance {SPLIT_SETTING}=134217728.")
    return key, value.strip()


def _without_own(given: Mapping[str, str]) -> dict[str, str]:
    unknown = [key for key in given if key.startswith(_OWN)]
    if unknown:
        raise UsageRefusal(f"--conf {unknown[0]}: there is no such setting", f"mqtool knows {SPLIT_SETTING}.")
    return dict(given)
