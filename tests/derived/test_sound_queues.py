"""Queues that are byte for byte what the log calls for: the verdict is that of a look at each unit."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures.synth import synth_store
from formats.consumequeue import CQ_UNIT, CqUnit, ext_address
from recover.check.survey import ScanOptions, survey
from recover.derived.expected import QueueKey, QueueVerdict
from recover.store.store import Store
from tests.support.stores import STORES, unpacked

FEW = ("clean-plain-4.9.7", "killed-expired-5.3.3", "clean-expired-5.5.0", "killed-lmq-4.9.7", "killed-ext-5.5.0")
StoreCopy = Callable[[str], Path]


def plain(verdict: QueueVerdict) -> dict[str, Any]:
    fields = {name: getattr(verdict, name) for name in QueueVerdict.__slots__}
    return fields | {"missing_offsets": verdict.missing_offsets.tolist()}


def verdicts(root: Path) -> list[dict[str, Any]]:
    """What verify says of each queue, in its order."""
    queues = survey(Store.open(root), ScanOptions()).queues
    assert queues is not None
    return [plain(verdict) for verdict in queues.verdicts.values()]


def one_by_one(root: Path) -> list[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "list_queues", lambda self: iter(()))
        return verdicts(root)


@pytest.mark.parametrize("name", STORES)
def test_verdicts_are_those_of_a_look_at_each_queue(name: str) -> None:
    assert verdicts(unpacked(name)) == one_by_one(unpacked(name))


@pytest.mark.parametrize("name", FEW)
def test_any_changed_byte_gets_the_verdict_of_a_look(name: str, store: StoreCopy) -> None:
    root, choice = store(name), random.Random(name)
    files = [path for path in sorted((root / "consumequeue").rglob("*")) if path.is_file()]
    for _ in range(24):
        path = choice.choice(files)
        before = path.read_bytes()
        written = max(CQ_UNIT.size, len(before.rstrip(b"\0")))
        content = bytearray(before)
        content[choice.randrange(min(len(before), written + 2 * CQ_UNIT.size))] ^= 1 << choice.randrange(8)
        path.write_bytes(content)
        assert verdicts(root) == one_by_one(root), path
        path.write_bytes(before)


@pytest.mark.parametrize(
    "what", ["short", "long", "empty", "gone", "odd", "folder", "link", "dangling", "behind", "gap"]
)
@pytest.mark.parametrize("name", ["clean-plain-4.9.7", "clean-manyfiles-5.3.3"])
def test_odd_files_get_the_verdict_of_a_look(name: str, what: str, store: StoreCopy) -> None:
    root = store(name)
    path = next(path for path in sorted((root / "consumequeue").rglob("*")) if path.is_file())
    size = path.stat().st_size
    if what in ("short", "long", "empty"):
        os.truncate(path, {"short": size - 20, "long": size + 20, "empty": 0}[what])
    elif what == "gone":
        path.unlink()
    elif what == "odd":
        (path.parent / "note").write_text("x")
    elif what == "folder":
        (path.parent / f"{8 * size:020}").mkdir()
    elif what == "dangling":
        (path.parent / f"{8 * size:020}").symlink_to("nothing")
    elif what == "link":
        path.rename(path.parent / f"{7 * size:020}")
        path.symlink_to(f"{7 * size:020}")
    else:
        (path.parent / f"{size * (9 if what == 'gap' else 1):020}").write_bytes(bytes(size))
    assert verdicts(root) == one_by_one(root)


def test_queue_without_a_message_and_files_that_no_message_fills(store: StoreCopy) -> None:
    root = store("clean-plain-4.9.7")
    topic = next(path for path in sorted((root / "consumequeue").iterdir()))
    size = next(path for path in topic.rglob("*") if path.is_file()).stat().st_size
    for queue, content in {90: b"", 91: CQ_UNIT.encode(CqUnit(5, 100, 7)), 92: b"\0" * size}.items():
        (topic / str(queue)).mkdir()
        (topic / str(queue) / f"{0:020}").write_bytes(content.ljust(size, b"\0"))
    (topic / "93").mkdir()
    (topic / "094").mkdir()
    assert verdicts(root) == one_by_one(root)


def test_address_of_an_ext_unit_is_no_tags_code_of_an_expired_message(store: StoreCopy) -> None:
    root = store("clean-expired-5.5.0")
    for path in (path for path in sorted((root / "consumequeue").rglob("*")) if path.is_file()):
        with path.open("r+b") as file:
            first = CQ_UNIT.decode(file.read(CQ_UNIT.size))
            file.seek(0)
            file.write(CQ_UNIT.encode(first._replace(tags_code=ext_address(0))))
    assert verdicts(root) == one_by_one(root)


def test_file_that_could_not_be_read_once_is_not_sound(store: StoreCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    root = store("clean-plain-4.9.7")
    path = next(path for path in sorted((root / "consumequeue").rglob("*")) if path.is_file())
    failed: list[int] = []
    read = os.preadv

    def fails_once(descriptor: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if not failed and os.path.samestat(os.fstat(descriptor), path.stat()):
            failed.append(offset)
            raise OSError(5, "Input/output error")
        return read(descriptor, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", fails_once)
    found = [item for verdict in verdicts(root) for item in verdict["findings"]]
    assert failed
    assert [(item.code, item.file) for item in found] == [
        ("consumequeue-unreadable", str(path.relative_to(root)))
    ]


def test_folder_that_cannot_be_listed_is_left_to_whoever_says_so(
    store: StoreCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = store("clean-plain-4.9.7")
    before = one_by_one(root)

    def refuse(self: Store) -> Any:
        raise PermissionError(13, "Permission denied", str(root))
        yield

    monkeypatch.setattr(Store, "list_queues", refuse)
    assert verdicts(root) == before


def test_a_verdict_tells_which_positions_it_misses() -> None:
    verdict = QueueVerdict(QueueKey("T", 0), missing_offsets=np.array([3, 4, 5]))
    assert [place for place in range(10) if verdict.misses(place)] == [3, 4, 5]
    assert not QueueVerdict(QueueKey("T", 0)).misses(0)


@pytest.mark.parametrize("stands_there", ["nothing", "a file", "an empty folder"])
@pytest.mark.parametrize("of", ["queue", "topic"])
def test_a_queue_without_files_lacks_all_its_units_whatever_stands_in_its_place(
    tmp_path: Path, of: str, stands_there: str
) -> None:
    synth_store(tmp_path, messages=40, topics=2, queues=2)
    folder = tmp_path / "consumequeue" / "Topic1"
    if of == "queue":
        folder /= "1"
    shutil.rmtree(folder)
    if stands_there == "a file":
        folder.write_bytes(b"x")
    elif stands_there == "an empty folder":
        folder.mkdir()
    queues = survey(Store.open(tmp_path), ScanOptions()).queues
    assert queues is not None
    gone = ["1"] if of == "queue" else ["0", "1"]
    assert [(item.code, item.file, item.offset, item.facts["count"]) for item in queues.findings] == [
        ("consumequeue-missing-units", f"consumequeue/Topic1/{number}", None, 10) for number in gone
    ]
    lacking = {key: (found.missing, found.expected) for key, found in queues.verdicts.items() if found.missing}
    assert lacking == {QueueKey("Topic1", int(number)): (10, 10) for number in gone}
