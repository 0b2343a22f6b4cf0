"""Where nobody looks at rows of other queues than some, a scan keeps those alone, and everything is told as ever."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage import NotApplicable, damage, of_area
from fixtures.lab.packed import WHOLE_BROKER, made
from fixtures.synth import StoreWriter, synth_store
from formats.kernels.index_wanted import TAKE_ALL, TAKE_KEYS
from formats.record_columns import RECORD
from recover.index.stream import IndexStream, TagHistory
from recover.scan import engine
from recover.scan.chosen import NOTHING, Chosen
from recover.scan.log import LogView
from recover.scan.log_scan import count_log, scan_log
from recover.scan.split_scan import one_split
from recover.verify import chosen_rows
from recover.verify.chosen_rows import rows_asked_for
from tests.cli.runner import mqtool
from tests.support.looks import counted_files, opened
from tests.support.stores import unpacked

STORES = (*WHOLE_BROKER, *made())


def bare(root: Path) -> Path:
    """Nothing but its log and config is left of a store."""
    for name in ("consumequeue", "consumequeue_ext", "index"):
        shutil.rmtree(root / name, ignore_errors=True)
    (root / "checkpoint").unlink(missing_ok=True)
    return root


def both(monkeypatch: pytest.MonkeyPatch, root: Path, *command: object) -> Iterator[tuple[dict[str, Any], Any]]:
    """What a command says and leaves, with chosen rows and with those of all queues, each on a copy of its own."""
    for keeps_all in (False, True):
        copy = root.with_name("store")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(root, copy)
        with monkeypatch.context() as patch:
            if keeps_all:
                patch.setattr(chosen_rows, "rows_asked_for", lambda store, made: None)
            result = mqtool(command[0], copy, *command[1:], "--json")
        document = result.document
        for key in ("time", "seconds", "summary", "journal", "plan", "verify"):
            document.pop(key, None)
        yield {**document, "verify": without_seconds(result.document.get("verify"))}, queue_files(copy)
        shutil.rmtree(copy)


def queue_files(root: Path) -> dict[str, bytes]:
    return queue_files_of(root / "consumequeue")


def queue_files_of(folder: Path) -> dict[str, bytes]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256(path.read_bytes()).digest() for path in files}


def without_seconds(verify: dict[str, Any] | None) -> dict[str, Any] | None:
    return verify and {key: value for key, value in verify.items() if key != "seconds"}


def topics_of(log: LogView) -> list[str]:
    return sorted({topic.decode() for topic, _ in log.queues})


@pytest.mark.parametrize("name", STORES)
def test_kept_rows_are_all_of_the_chosen_queues_and_units_are_counted_as_of_rows(name: str) -> None:
    queue = opened(unpacked(name)).commitlog
    whole = scan_log(queue)
    for topic in topics_of(whole)[:3]:
        log = count_log(queue, threads=2, with_keys=True, chosen=Chosen(topic))
        if log is None:
            continue
        own = [number for number, key in enumerate(log.queues) if key[0].decode() == topic]
        kept = one_split(log.splits_with(own)).records
        rows = one_split(whole.splits()).records
        mine = rows[[int(queue) in own for queue in rows["queue"]]]
        mine["hashes"] = 0
        assert kept.dtype == RECORD and kept.tolist() == mine.tolist()
        assert log.has_keys and log.queues == whole.queues and log.tally.units is not None
        for rule, with_tags in ((TAKE_KEYS, False), (TAKE_ALL, True)):
            stream = IndexStream(whole.splits())
            stream.tags = TagHistory([(0, with_tags)])
            assert log.tally.units.wanted(rule) == stream.all_wanted()


def test_rows_of_other_queues_come_whole_for_who_asks(tmp_path: Path) -> None:
    synth_store(tmp_path / "s", messages=900, mapped_file_size=32 * 1024)
    queue = opened(tmp_path / "s").commitlog
    log, whole = count_log(queue, with_keys=True, chosen=Chosen("Topic1", 2)), scan_log(queue)
    assert log is not None
    chosen_one, other = log.queues.index((b"Topic1", 2)), log.queues.index((b"Topic1", 1))
    assert 0 < sum(split.records.size for split in log.splits_with([chosen_one])) < 100
    for splits in (log.splits_with([chosen_one, other]), log.splits()):
        found, expected = one_split(splits), one_split(whole.splits())
        assert found.records.tolist() == expected.records.tolist() and found.hashes.tolist() == expected.hashes.tolist()


def test_a_record_that_only_the_reference_codec_takes_is_kept_too(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s")
    for number in range(20):
        # letters beyond ASCII are not for the compiled walk
        writer.put("Topic0", b"body", {"KEYS": f"ключ{number} второй", "TAGS": "метка" if number % 2 else "tag"})
        writer.put("Topic1", b"body", {"KEYS": "plain"})
    writer.close()
    queue = opened(tmp_path / "s").commitlog
    log, whole = count_log(queue, with_keys=True, chosen=Chosen("Topic0")), scan_log(queue)
    assert log is not None and log.tally.units is not None
    rows = one_split(whole.splits()).records
    mine = rows[rows["queue"] == 0]
    mine["hashes"] = 0
    assert one_split(log.splits_with([0])).records.tolist() == mine.tolist() and mine.size == 20
    assert log.tally.units.wanted(TAKE_ALL)[0] == 20 * 3 + 20
    assert log.tally.units.wanted(TAKE_KEYS)[0] == 20 * 2 + 20


@pytest.mark.parametrize("name", STORES)
def test_a_topic_of_a_bare_broker_s_log_is_rebuilt_alike(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(unpacked(name), tmp_path / "origin")
    root = bare(tmp_path / "origin")
    topics = topics_of(scan_log(opened(root).commitlog))
    for narrow in [(topics[0],), (topics[-1], "--queue", "0")] if topics else []:
        mine, other = both(monkeypatch, root, "rebuild-consumequeue", "--topic", *narrow, "--yes")
        assert mine == other


@pytest.mark.parametrize("recipe", sorted(of_area("log", "crash", "files")))
@pytest.mark.parametrize("command", [("verify",), ("rebuild-consumequeue", "--topic", "Topic1", "--yes")], ids=str)
def test_a_damaged_bare_log_is_told_and_rebuilt_alike(
    recipe: str, command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synth_store(tmp_path / "origin", messages=600, mapped_file_size=32 * 1024)
    try:
        damage(recipe, tmp_path / "origin", 3)
    except NotApplicable:
        pytest.skip("the store lacks what this damages")
    mine, other = both(monkeypatch, bare(tmp_path / "origin"), *command)
    assert mine == other


def test_a_bare_log_is_read_once_for_a_topic_and_once_for_a_verify(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synth_store(tmp_path / "s", messages=900, mapped_file_size=32 * 1024)
    root = bare(tmp_path / "s")
    scanned = counted_files(monkeypatch)
    monkeypatch.setattr(engine, "scan_log", lambda *a, **k: pytest.fail("rows of all queues were kept"))
    assert mqtool("verify", root, "--json").document["consumequeue"]["missing"] == 900
    result = mqtool("rebuild-consumequeue", root, "--topic", "Topic1", "--yes", "--max-loss", "all",
                    "--json")
    assert result.document["verify"]["consumequeue"]["missing"] == 675
    (root / "consumequeue").rename(tmp_path / "in place")
    mqtool("rebuild-consumequeue", root, "--topic", "Topic1", "--output", tmp_path / "output", "--json")
    assert queue_files(tmp_path / "output") == queue_files_of(tmp_path / "in place")
    # and once for what a broker alone would deliver
    assert len(scanned) == 4 * len(set(scanned)) > 10


# the queues are asked for log files that are missing
@pytest.mark.parametrize("folder", ["index"])
def test_a_folder_that_cannot_be_listed_is_left_to_who_looks_at_it(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synth_store(tmp_path / "s", messages=100)
    root = bare(tmp_path / "s")
    (root / folder).mkdir(parents=True)
    known, asked = os.listdir, []

    def listdir(path: Any) -> list[str]:
        if Path(path) == root / folder:
            asked.append(path)
            raise PermissionError(13, "Permission denied", str(path))
        return known(path)

    monkeypatch.setattr(os, "listdir", listdir)
    assert rows_asked_for(opened(root), NOTHING) is None and asked
    asked.clear()
    assert mqtool("verify", root, "--only", "commitlog", "--json").document["commitlog"]["messages"] == 100
    assert not asked


@pytest.mark.parametrize(
    ("beside", "all_rows"),
    [("consumequeue/Topic1/0", False), ("consumequeue/Topic1/1", True), ("consumequeue/Topic2/0", True),
     ("consumequeue_ext/Topic1/0", True), ("index", False), ("index/20240101000000000", True), ("checkpoint", True)],
)
def test_what_is_held_against_all_rows_has_them(beside: str, all_rows: bool, tmp_path: Path) -> None:
    synth_store(tmp_path / "s", messages=20)
    root = bare(tmp_path / "s")
    path = root / beside
    if "20" in path.name or path.name == "checkpoint":
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(4096))
    else:
        path.mkdir(parents=True)
    made = Chosen("Topic1", 0)
    assert rows_asked_for(opened(root), made) == (None if all_rows else made)
    assert rows_asked_for(opened(root), None) is None
    assert (rows_asked_for(opened(root), NOTHING) is None) == (all_rows or beside != "index")
