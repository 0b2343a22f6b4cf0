"""Jobs on a session: run in a thread, watched from the caller's, cancelled when that is interrupted."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from recover.errors import Refusal
from recover.spark.session import Session

_names = itertools.count(1)
_EVERY = 0.2
_GRACE = 5


def run_job(
    session: Session, function: Callable[[Iterable[Any]], Iterable[Any]], items: Sequence[Any], label: str, *,
    done: Callable[[int], None] | None = None, kept: list[Any] | None = None,
) -> list[Any]:
    """`function` over `items`, a task each; all that the tasks yield, in the items' order.

    `done` is called with the number of tasks that have ended so far. `kept` takes an RDD of what the tasks yielded, a
    partition for each item; executors have that on their disks. `Refusal` (8), which names Spark's log, when a
    task has failed for the last time.
    """
    def collect() -> list[Any]:
        from pyspark import StorageLevel

        found = session.context.parallelize(items, len(items)).mapPartitions(function)
        if kept is not None:
            kept.append(found.persist(StorageLevel.DISK_ONLY))
        return list(found.collect())

    found: list[Any] = watch(session, collect, label, done=done)
    return found


def watch(
    session: Session, action: Callable[[], Any], label: str, *, done: Callable[[int], None] | None = None
) -> Any:
    """What `action` returns; its tasks are cancelled and interrupted when an exception rises here."""
    from pyspark import InheritableThread

    group = f"mqtool-{next(_names)}"
    outcome: dict[str, Any] = {"done": 0}
    over = threading.Event()

    def act() -> None:
        try:
            session.context.setJobGroup(group, label, interruptOnCancel=True)
            outcome["value"] = action()
        except BaseException as error:
            outcome["error"] = error
        finally:
            over.set()

    def count() -> None:
        while not over.wait(_EVERY):
            outcome["done"] = _tasks_done(session, group)

    # Signals are answered by this thread, so it waits and does nothing else: py4j sends a message whenever one of its
    # objects goes, and an exception that rises in there is lost.
    threads = [InheritableThread(target=act, daemon=True)]
    if done is not None:
        threads.append(InheritableThread(target=count, daemon=True))
    try:
        for thread in threads:
            thread.start()
    except Exception as gone:  # they ask the JVM for what they inherit, and it may be gone
        raise session.broken(gone) from gone
    try:
        while not over.wait(_EVERY):
            if done is not None:
                done(outcome["done"])
    except BaseException:
        with suppress(Exception):
            session.context.cancelJobGroup(group)
        over.wait(_GRACE)
        raise
    error = outcome.get("error")
    if isinstance(error, Refusal):
        raise error
    if error is not None:
        raise session.broken(error) from error
    return outcome["value"]


def _tasks_done(session: Session, group: str) -> int:
    total = 0
    with suppress(Exception):  # if Spark is gone, the action will say so
        tracker = session.context.statusTracker()
        for job in tracker.getJobIdsForGroup(group):
            info = tracker.getJobInfo(job)
            stages = [tracker.getStageInfo(stage) for stage in (info.stageIds if info is not None else ())]
            total += sum(stage.numCompletedTasks for stage in stages if stage is not None)
    return total
