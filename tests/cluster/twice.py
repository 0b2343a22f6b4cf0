"""One command line with both engines: what they say and what they leave must be the same."""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqtool import exits
from recover.cluster.session import find_java, running_session
from recover.findings.code import Refusal
from tests.cli.runner import Result, mqtool
from tests.scenarios.drill import log_options
from tests.support.stores import copy_store
from tests.support.trees import contents

# Splits so small that every file of the stores is cut into many, at places that mean nothing.
SPLITS = "mqtool.splitSize=300007"
#: MQTOOL_MASTER names another one: a cluster that sees this machine's folders.
MASTER = os.environ.get("MQTOOL_MASTER", "local[2]")
SPARK = ("--engine", "spark", "--master", MASTER, "--conf", "spark.driver.memory=512m", "--conf", SPLITS)
_OWN = {"engine", "seconds", "id", "journal", "created", "next", "time", "room"}
_ENGINE = re.compile(r"(?: --(?:engine|master|conf) (?:'[^']*'|[^\s'])+)+")
_TIME = re.compile(r" in (?:\d+ h \d+ min|(?:\d+ min )?[\d.]+ s)\b")


@functools.cache
def no_java() -> str:
    """Why Spark cannot run here; empty when it can."""
    try:
        find_java()
    except Refusal as refusal:
        return refusal.message
    return ""


#: Of tests that start Spark: skipped where there is no Java, and run by one worker, with one session.
needs_spark = [pytest.mark.spark, pytest.mark.skipif(bool(no_java()), reason=f"NOT RUN, the Spark engine: {no_java()}")]


def plain(value: Any, root: Path) -> Any:
    """A document without what may differ: engine, also in what to type, seconds, ids, times, where the copy lies."""
    if isinstance(value, dict):
        return {key: plain(item, root) for key, item in value.items() if key not in _OWN}
    if isinstance(value, list):
        return [plain(item, root) for item in value]
    return _TIME.sub("", _ENGINE.sub("", value.replace(str(root), "STORE"))) if isinstance(value, str) else value


def stages() -> list[Any]:
    """What Spark says of each stage that the running session has had."""
    session = running_session()
    if session is None:
        return []
    context: Any = session.context
    running = context._jsc.sc()
    running.listenerBus().waitUntilEmpty()
    none = context._gateway.new_array(context._jvm.double, 0)
    found = running.statusStore().stageList(None, False, False, none, None)
    return [found.apply(number) for number in range(found.size())]


def from_now_on() -> Callable[[], list[Any]]:
    """Stages that begin after this call, in the running session or in one that takes its place."""
    def every() -> dict[tuple[Any, ...], Any]:
        session = running_session()
        name = None if session is None else session.context.applicationId
        return {(name, stage.stageId(), stage.attemptId()): stage for stage in stages()}

    seen = {*every()}
    return lambda: [stage for key, stage in every().items() if key not in seen]


def same_answers(root: Path, command: str, *arguments: object, spark: tuple[str, ...] = SPARK) -> Result:
    """Run a command that reads with either engine; the local result."""
    line = (command, root, *log_options(root), *arguments, "--json")
    local, there = mqtool(*line), mqtool(*line, *spark)
    _assert_same(local, root, there, root)
    return local


def same_changes(root: Path, command: str, *arguments: object, spark: tuple[str, ...] = SPARK) -> Result:
    """Change two copies of a store, one with either engine, and compare what is left; the local result."""
    other = copy_store(root, root.parent / f"{root.name}-spark")
    try:
        local = mqtool(command, root, *log_options(root), *arguments, "--yes", "--json")
        there = mqtool(command, other, *log_options(other), *arguments, "--yes", "--json", *spark)
        _assert_same(local, root, there, other)
        assert contents(root) == contents(other)
    finally:
        shutil.rmtree(other)
    return local


def _assert_same(local: Result, root: Path, spark: Result, other: Path) -> None:
    assert local.code & exits.BUG == 0, local.stderr
    assert spark.code == local.code, spark.stderr
    assert plain(spark.document, other) == plain(local.document, root)
    if "engine" in spark.document:
        assert spark.document["engine"]["name"] == "spark" != local.document["engine"]["name"]
