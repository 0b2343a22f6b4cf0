"""Queues that are followed many at a time: every verdict is that of a look at the queue alone."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.opens import count_opens
from fixtures.synth import synth_store
from formats.consumequeue import CQ_UNIT, CqUnit, ext_address
from formats.kernels.queue import EXPIRED, RIGHT
from recover.evidence.expected import Expectation, QueueKey
from recover.evidence.queue_verdict import QueueVerdict
from recover.files.reader import FileReader, Held, ReadFailure, read_elsewhere
from recover.files.store import Store
from recover.verify import sound_queues
from recover.verify.sound_queues import SoundQueues
from recover.verify.survey import ScanOptions, survey
from tests.support.stores import STORES, unpacked

FEW = ("clean-plain-4.9.7", "killed-expired-5.3.3", "clean-expired-5.5.0", "killed-lmq-4.9.7", "killed-ext-5.5.0")
StoreCopy = Callable[[str], Path]


def plain(verdict: QueueVerdict) -> dict[str, Any]:
    fields = {name: getattr(verdict, name) for name in QueueVerdict.__slots__}
    return fields | {"missing_offsets": [*map(int, verdict.missing_offsets)]}


def verdicts(root: Path) -> list[dict[str, Any]]:
    """What verify says of each queue, in its order."""
    queues = survey(Store.open(root), ScanOptions()).queues
    assert queues is not None
    return [plain(verdict) for verdict in queues.verdicts.values()]


def one_by_one(root: Path) -> list[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SoundQueues, "files", lambda self, key: None)
        return verdicts(root)


@pytest.fixture
def in_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file is read in many small pieces, a few queues at a time."""
    monkeypatch.setattr(sound_queues, "_SMALL", 0)
    monkeypatch.setattr(sound_queues, "_WINDOW", 3 * CQ_UNIT.size)
    monkeypatch.setattr(sound_queues, "_ROOM", 200)


def followed(root: Path) -> dict[QueueKey, bool]:
    """Which queues are found sound without a look at them alone."""
    store = Store.open(root)
    look = survey(store, ScanOptions(), with_queues=False)
    members = [(number, key) for number, key in enumerate(look.expectation.keys) if look.expectation.counts[number]]
    return {
        key: sound is not None
        for batch in SoundQueues(store, look.log, look.expectation).follow(members)
        for (_, key), sound in zip(batch.members, batch.sound, strict=True)
    }


@pytest.mark.parametrize("name", STORES)
def test_verdicts_are_those_of_a_look_at_each_queue(name: str) -> None:
    assert verdicts(unpacked(name)) == one_by_one(unpacked(name))


@pytest.mark.parametrize("name", FEW)
def test_verdicts_are_the_same_in_windows(name: str, in_windows: None) -> None:
    assert verdicts(unpacked(name)) == one_by_one(unpacked(name))


@pytest.mark.parametrize("name", ["clean-plain-4.9.7", "clean-expired-5.5.0", "clean-manyfiles-5.3.3"])
def test_all_queues_of_a_sound_store_are_followed(name: str) -> None:
    sound = followed(unpacked(name))
    assert sound
    # what a delayed message's unit holds is more than the log says
    assert {key.topic for key, so in sound.items() if not so} <= {"SCHEDULE_TOPIC_XXXX"}


def test_units_of_expired_messages_are_counted_in_front() -> None:
    found = {verdict["key"]: verdict for verdict in verdicts(unpacked("clean-expired-5.5.0"))}
    expired = {key: one["counts"] for key, one in found.items() if EXPIRED in one["counts"] and RIGHT in one["counts"]}
    sound = followed(unpacked("clean-expired-5.5.0"))
    assert expired and all(sound[key] for key in expired)


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("windows", [False, True])
def test_any_changed_byte_gets_the_verdict_of_a_look(
    name: str, windows: bool, store: StoreCopy, request: pytest.FixtureRequest
) -> None:
    if windows:
        request.getfixturevalue("in_windows")
    root, choice = store(name), random.Random(f"{name} {windows}")
    files = [path for path in sorted((root / "consumequeue").rglob("*")) if path.is_file()]
    for _ in range(12):
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


def test_address_of_an_ext_unit_is_never_followed_over(store: StoreCopy) -> None:
    root = store("clean-expired-5.5.0")
    for path in (path for path in sorted((root / "consumequeue").rglob("*")) if path.is_file()):
        with path.open("r+b") as file:
            first = CQ_UNIT.decode(file.read(CQ_UNIT.size))
            file.seek(0)
            file.write(CQ_UNIT.encode(first._replace(tags_code=ext_address(0))))
    assert verdicts(root) == one_by_one(root)


@pytest.mark.parametrize("windows", [False, True])
def test_file_that_could_not_be_read_once_is_not_sound(
    windows: bool, store: StoreCopy, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if windows:
        request.getfixturevalue("in_windows")
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


def test_no_file_is_opened_twice_be_it_sound_or_not(store: StoreCopy) -> None:
    root = store("clean-plain-4.9.7")
    files = [path for path in sorted((root / "consumequeue").rglob("*")) if path.is_file()]
    for path in files[::2]:
        with path.open("r+b") as file:
            file.write(b"\x01")
    code, opened = count_opens(["verify", str(root), "--json"])
    assert code
    assert {opened[str(path)] for path in files} == {1}


def test_files_of_a_long_queue_do_not_all_stay_open(
    in_windows: None, store: StoreCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recover.files.queue_files._MOST_OPEN", 2)
    monkeypatch.setattr(sound_queues, "_ROOM", 100_000)
    root = store("clean-manyfiles-5.3.3")
    most = 0
    opened = FileReader.__init__

    def counting(self: FileReader, path: Path, **more: Any) -> None:
        nonlocal most
        opened(self, path, **more)
        now = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
               if os.path.exists(f"/proc/self/fd/{name}")]
        most = max(most, sum("/consumequeue/" in name for name in now))

    monkeypatch.setattr(FileReader, "__init__", counting)
    queues = len(list((root / "consumequeue").glob("*/*")))
    assert verdicts(root) and most <= queues + 2


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


def test_bytes_that_were_read_before_need_no_file(tmp_path: Path) -> None:
    from recover.files.queue_files import QueueBytes

    content = QueueBytes()
    content.keep(str(tmp_path / "x"), b"abc")
    with content.reader(tmp_path / "x") as reader:
        assert reader.read(1, 5) == b"bc"
    content.failed(ReadFailure(tmp_path / "y", 0, 3, 0))
    assert content.failure(tmp_path / "y") is not None
    assert content.failure(tmp_path / "x") is None
    with pytest.raises(FileNotFoundError), content.reader(tmp_path / "y"):
        pass
    content.close()
    shutil.rmtree(tmp_path)


def test_queues_without_files_are_looked_at_in_one_pass_over_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    shutil.copytree(unpacked("clean-plain-4.9.7"), root)
    shutil.rmtree(root / "consumequeue")
    passes = []
    noted = Expectation._noted

    def counted(self: Expectation, batch: list[int]) -> Any:
        passes.append(len(batch))
        return noted(self, batch)

    monkeypatch.setattr(Expectation, "_noted", counted)
    told = verdicts(root)
    assert passes == []  # counts tell it all
    monkeypatch.setattr(Expectation, "span", lambda *_: None)
    seen = verdicts(root)
    assert passes == [len(seen)] and len(seen) > 1 and all(verdict["missing"] for verdict in seen)
    assert told == seen


@pytest.mark.parametrize("name", STORES)
def test_a_queue_without_a_file_is_judged_as_with_its_rows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    shutil.copytree(unpacked(name), root)
    for number, folder in enumerate(sorted((root / "consumequeue").glob("*/*"))):
        if number % 3 == 0:
            shutil.rmtree(folder)
        elif number % 3 == 1:
            for path in folder.iterdir():
                path.unlink()
    told = verdicts(root)
    monkeypatch.setattr(Expectation, "span", lambda *_: None)
    assert told == verdicts(root)


def test_a_queue_whose_bytes_are_elsewhere_is_left_to_who_reads_them(
    store: StoreCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recover.files.reader._elsewhere", {})
    root = store("clean-plain-4.9.7")
    log = next(path for path in (root / "commitlog").iterdir())
    read_elsewhere(log, lambda: Held(log.read_bytes()))
    assert any(followed(root).values())
    path = next(path for path in sorted((root / "consumequeue").rglob("*")) if path.is_file())
    content = path.read_bytes()
    read_elsewhere(path, lambda: Held(content))
    path.write_bytes(bytes(len(content)))
    assert not any(followed(root).values())
    assert not [verdict for verdict in verdicts(root) if verdict["findings"]]


@pytest.mark.parametrize("missing", [range(3, 6), np.array([3, 4, 5])], ids=["range", "array"])
def test_a_verdict_tells_which_positions_it_misses(missing: Any) -> None:
    verdict = QueueVerdict(QueueKey("T", 0), missing_offsets=missing)
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
