"""What every test may use: private copies of real stores."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import settings

from fixtures.lab.toolchain import available
from formats.native import build
from recover.check import log as check_log
from tests.broker import summary
from tests.support import sampling
from tests.support.counts import NOTE, PREFIX, Count, Note, lines
from tests.support.plans import quick_folder
from tests.support.stores import real_store

# screens are told in the language of the locale
os.environ["LC_ALL"] = "C.UTF-8"
_ONE_THREAD = {"scenarios", "reading", "predict", "repair", "derived"}

# Machines are noisy: no example is timed.
settings.register_profile("mqtool", deadline=None)
settings.load_profile("mqtool")


def pytest_configure(config: pytest.Config) -> None:
    """Compile the kernels if their sources have changed: a stale library is never used. Make no case in vain."""
    sampling.with_long = "not long" not in config.option.markexpr
    if not hasattr(config, "workerinput"):
        build.ensure(Path(build.__file__).parent)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark's tests come first: one of several workers gets all of them, and starts one session for most.

    A session elsewhere ends the one that runs: first come those on a cluster, then those of a Connect server, and last
    those that want a session of their own.
    """
    def place(item: pytest.Item) -> tuple[bool, bool, bool, bool]:
        names = getattr(item, "fixturenames", ())
        return (item.get_closest_marker("spark") is None, "own_session" in names, "running" not in names,
                "server" not in names)

    items.sort(key=place)
    items[:] = _spread(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1)))


def _spread(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Put files with tests that take a minute where the shares of all workers but the first one begin: nobody starts
    one of them when the others have done. Shares are of one size, and the first begins with Spark's."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items if workers > 1 else ():
        if item.get_closest_marker("patient"):
            files.setdefault(item.path, []).append(item)
    heads: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for number, path in enumerate(sorted(files, key=lambda path: -len(files[path]))):
        heads[1 + number % (workers - 1)] += files[path]
    moved = {item for some in files.values() for item in some}
    left = (item for item in items if item not in moved)
    found: list[pytest.Item] = []
    for number, some in enumerate(heads):
        share = (len(items) - len(found)) // (workers - number)
        found += [*some, *islice(left, max(0, share - len(some)))]
    return found


def pytest_collection_finish() -> None:
    """Have the garbage collector leave alone what lives as long as the run, and look less often: a test ends soon."""
    gc.freeze()
    gc.set_threshold(20_000)  # as `mqtool` does itself


@pytest.fixture(autouse=True)
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scan in one thread where the scan is not what is tested.

    The workers of a suite share the processors, and threads that hand over a megabyte cost more than they save.
    """
    if request.path.parent.name in _ONE_THREAD:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})


@pytest.fixture(autouse=True)
def clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Foretell starts as of an hour after the last packed store was written, whatever day it is: a week later brokers
    skip its timers. A test that makes a store, or changes times of files, marks itself `today`; real brokers always
    do."""
    if not any(request.node.get_closest_marker(name) for name in ("today", "broker")):
        monkeypatch.setattr(check_log, "now_ms", lambda: 1_795_471_200_000)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """An empty folder, in memory where there is room: what changes a store syncs a lot. Gone after the test."""
    with quick_folder() as path:
        yield path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The same by another name."""
    return tmp_path


@pytest.fixture
def disk(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder on another file system than `tmp_path`; skips where there is only one."""
    path = tmp_path_factory.mktemp("disk")
    if path.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is only one file system")
    return path


@pytest.fixture
def store(tmp_path: Path) -> Callable[[str], Path]:
    """`store("clean-5.3.3")` gives the root of a private copy; a second call of one name gives a second copy."""
    copies = 0

    def copy(name: str) -> Path:
        nonlocal copies
        copies += 1
        return real_store(name, tmp_path / f"copy-{copies}")

    return copy


@pytest.fixture
def count(record_property: Callable[[str, object], None]) -> Count:
    """`count("inputs fuzzed", 500)`: a number for the summary after the whole run."""
    return lambda name, number: record_property(PREFIX + name, number)


@pytest.fixture
def note(record_property: Callable[[str, object], None]) -> Note:
    """`note("MISSED ...")`: a line for the summary after the whole run."""
    return lambda line: record_property(NOTE + line, True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was counted, what real brokers were asked, and what this machine cannot run.

    A green line is not to be taken for more. The quick suite, which everybody runs all the time, prints no counts.
    """
    if not terminalreporter.config.getoption("markexpr").startswith("not deep"):
        for line in lines(terminalreporter.stats):
            terminalreporter.write_line(line)
        seed = terminalreporter.config.getoption("randomly_seed", "none")
        terminalreporter.write_line(f"seed of all other choices, for --randomly-seed: {seed}")
    found = summary.cases(terminalreporter.stats)
    for line in summary.lines(found):
        terminalreporter.write_line(line)
    if os.environ.get("MQTOOL_KEEP"):
        summary.write_matrix(found)
        summary.write_observed(found)
    if reason := available():
        terminalreporter.write_line(f"NOT RUN: make test-deep, make test-brokers ({reason})")
