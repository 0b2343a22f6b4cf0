"""Queues whose units have the sum that the log calls for: the verdict is that of a look at each unit."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.synth import StoreWriter, synth_store
from formats.consumequeue import CQ_UNIT
from recover.check.survey import ScanOptions, survey
from recover.derived.expected import Expectation, QueueKey, QueueVerdict
from recover.store.store import Store

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
        patch.setattr(Expectation, "tally_of", lambda *_: None)
        return verdicts(root)


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


@pytest.mark.parametrize("name", FEW)
def test_queues_without_files_get_the_verdict_of_a_look(name: str, store: StoreCopy) -> None:
    root = store(name)
    for folder in (root / "consumequeue").glob("*/*"):
        shutil.rmtree(folder)
    found = verdicts(root)
    assert found == one_by_one(root)
    assert any(each["missing"] for each in found)


@pytest.mark.parametrize("offsets", [(0, 2, 3), (0, 2, 1, 3), (0, 1, 1, 3), (3, 0, 1, 2), (0, 0, 2), (5, 6, 6)])
def test_a_queue_without_files_whose_messages_are_out_of_line_gets_the_verdict_of_a_look(
    tmp_path: Path, offsets: tuple[int, ...]
) -> None:
    writer = StoreWriter(tmp_path)
    for offset in offsets:
        writer.put("Topic", b"x", queue_offset=offset)
    writer.close()
    shutil.rmtree(tmp_path / "consumequeue")
    assert verdicts(tmp_path) == one_by_one(tmp_path)


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
