"""A small store-shaped tree and plans over it, for the tests of everything that writes."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from recover.change import disk
from recover.change.content import LazyContent
from recover.change.model import Install, Plan, Retire, RetireFolder, WriteFile, WriteRange, ZeroRange
from recover.change.preconditions import seal
from recover.store.reading import data_extents
from tests.support.system import in_a_child

LOG = "commitlog/00000000000000000000"
NEXT_LOG = "commitlog/00000000000000131072"
QUEUE = "consumequeue/TopicA/0/00000000000000000000"
NEW_QUEUE = "consumequeue/TopicB/3/00000000000000000000"
INDEX = "index/20240101000000000"
LOG_SIZE = 131072
_ROOM = 2 << 30
_OLD = 1_700_000_000_123_456_789


def small_store(root: Path) -> Path:
    """Two mapped files (the second with holes), a queue, an index file, config, checkpoint, abort; all of them old."""
    pattern = bytes(range(1, 252))
    files = {
        LOG: (pattern * 600)[:LOG_SIZE], QUEUE: pattern * 8, INDEX: pattern * 40, "checkpoint": pattern + bytes(3845),
        "abort": b"", "config/topics.json": b'{"topicConfigTable":{', "config/topics.json.bak": b"{}",
    }
    for number, (name, data) in enumerate(files.items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o644 if number % 2 else 0o640)
    with (root / NEXT_LOG).open("wb") as file:
        file.write(pattern * 80)
        file.seek(65536 + 300)
        file.write(pattern)
        file.truncate(LOG_SIZE)
    make_old(root)
    return root


def make_old(root: Path) -> None:
    """Give every file and directory an mtime of its own, years ago, with a nanosecond part."""
    paths = sorted(root.rglob("*"), reverse=True)
    for number, path in enumerate([*paths, root]):
        os.utime(path, ns=(_OLD, _OLD + number * 1_000_000_007), follow_symlinks=False)


def _lines() -> Iterator[bytes]:
    for number in range(40):
        yield b"%04d " % number * 1000
    yield bytes(200_000)


LAZY = LazyContent(400_000, _lines, allocated=300_000)


def in_place() -> Plan:
    """Ranges at odd positions: over data, over a hole, over the end of a block; two on one file."""
    return Plan("truncate", [
        ZeroRange(NEXT_LOG, 19_000, 40_961), WriteRange(NEXT_LOG, 50_001, b"x" * 5000),
        WriteRange(LOG, 4090, b"bridge" * 500), ZeroRange(LOG, 100_000, LOG_SIZE),
    ])


def whole_files() -> Plan:
    """Files replaced, made with their directories, and taken away."""
    return Plan("rebuild", [
        Retire(INDEX), Install(QUEUE, b"unit" * 700), Install(NEW_QUEUE, LAZY),
        WriteFile("consumequeue/TopicB/4/00000000000000000000", b"more"),
    ])


def everything() -> Plan:
    """The order of a recovery: derived files away, log, derived files, checkpoint, config, abort last."""
    return Plan("recover", [
        Retire(INDEX), ZeroRange(NEXT_LOG, 19_000, LOG_SIZE), WriteRange(LOG, 50_000, b"m" * 70_000),
        Install(NEW_QUEUE, b"q" * 6000), WriteFile("checkpoint", b"c" * 4096),
        WriteFile("config/topics.json", b"{}"), Retire("abort"),
    ], loss=[{"topic": "TopicA", "queue": 0, "messages": 1}])


def growing() -> Plan:
    """A mapped file that was cut short gets its length back."""
    return Plan("recover", [WriteRange(QUEUE, 2000, b"g" * 4000), ZeroRange(QUEUE, 6000, 20_000)])


def folders() -> Plan:
    """Folders taken away whole, one of them out of another's neighbourhood, between steps on files."""
    return Plan("recover", [
        ZeroRange(NEXT_LOG, 19_000, 40_961), RetireFolder("consumequeue/TopicA/0"), RetireFolder("config"),
        Install(NEW_QUEUE, b"q" * 6000), Retire("abort"),
    ])


PLANS: dict[str, Callable[[], Plan]] = {
    "in-place": in_place, "whole-files": whole_files, "everything": everything, "growing": growing,
    "folders": folders,
}


def sealed(name: str, root: Path) -> Plan:
    """One of `PLANS`, bound to a store."""
    return seal(PLANS[name](), root)


def hole_map(root: Path) -> dict[str, list[tuple[int, int]]]:
    """Which ranges of each file below a root hold blocks (synced first, so that the map is the disk's)."""
    result: dict[str, list[tuple[int, int]]] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and ".mqtool" not in path.parts:
            with path.open("rb") as file:
                os.fsync(file.fileno())
                result[path.relative_to(root).as_posix()] = data_extents(file.fileno(), 0, path.stat().st_size)
    return result


@contextmanager
def hooked(hook: Callable[[disk.Operation], None]) -> Iterator[None]:
    """Have a function called before each operation in the block."""
    disk.set_hook(hook)
    try:
        yield
    finally:
        disk.set_hook(None)


def count_operations(work: Callable[[], object]) -> list[disk.Operation]:
    """The operations that some work announces, in order."""
    seen: list[disk.Operation] = []
    with hooked(seen.append):
        work()
    return seen


def killed_at(number: int, work: Callable[[], object]) -> bool:
    """Run work in a forked process that gets SIGKILL just before operation `number`; whether it did."""
    left = number

    def hook(operation: disk.Operation) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def watched() -> None:
        with hooked(hook):
            work()

    code = in_a_child(watched)
    assert code in (0, -signal.SIGKILL), f"the work failed by itself: {code}"
    return code != 0


@contextmanager
def quick_folder() -> Iterator[Path]:
    """An empty folder in memory where there is one: syncs cost nothing there, and these tests sync a lot."""
    memory = Path("/dev/shm")
    roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= _ROOM
    with tempfile.TemporaryDirectory(dir=memory if roomy else None, ignore_cleanup_errors=True) as name:
        yield Path(name)


@contextmanager
def failing(matches: Callable[[int, disk.Operation], bool], code: int) -> Iterator[None]:
    """Operations that match (number, operation) fail with an errno."""
    number = -1

    def hook(operation: disk.Operation) -> None:
        nonlocal number
        number += 1
        if matches(number, operation):
            raise OSError(code, os.strerror(code), operation.path)

    with hooked(hook):
        yield
