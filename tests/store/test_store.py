"""Files of a store: their names, links, columns kept beside them, and files that are not of this machine."""

from __future__ import annotations

import errno
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fixtures.damage import damage
from formats.record.rows import RECORD
from mqtool import exits
from recover.change.model import Plan
from recover.change.preconditions import seal
from recover.check.report import verify
from recover.derived.expected import QueueKey
from recover.findings.code import Refusal
from recover.store import columns
from recover.store.columns import ColumnStore
from recover.store.memo import current_stamps
from recover.store.source import announce, entries, files_below, open_file, remote_root
from recover.store.store import Store, StoreOptions
from tests.cli.runner import mqtool
from tests.cluster.twice import plain
from tests.support.analysed import opened
from tests.support.sampling import few
from tests.support.stores import real_store, unpacked
from tests.support.system import small_disk

# --- Files of a store by the names that reports and plans give them.


@pytest.mark.parametrize("root", ["/var/store", "store", "../store", ".", "/"])
def test_a_file_below_the_root_is_named_from_there(root: str) -> None:
    store = Store(Path(root), StoreOptions())
    for name in ("abort", "consumequeue/TopicA/0/00000000000000000000", "consumequeue/%RETRY%g/0"):
        assert store.relative(store.path(name)) == name
    assert store.relative(store.root) == "."


@pytest.mark.parametrize("place", ["/var/store2/abort", "/var/stor", "/var", "/elsewhere/commitlog/0"])
def test_what_lies_elsewhere_keeps_its_whole_path(place: str) -> None:
    assert Store(Path("/var/store"), StoreOptions()).relative(Path(place)) == place


# --- What a plan remembers of the store's files: those behind links, too, and nothing further away.


StoreCopy = Callable[[str], Path]


def queue_behind_a_link(root: Path, linked: str) -> tuple[QueueKey, Path]:
    """A queue, and a file of it, whose folder or whose topic's is now a link to one beside the store."""
    key, path = first_queue(root)
    folder = path.parent if linked == "queue" else path.parent.parent
    folder.rename(aside := root.with_name("aside"))
    folder.symlink_to(aside)
    return key, path


def first_queue(root: Path) -> tuple[QueueKey, Path]:
    folder = opened(root).queue_folders[0]
    return QueueKey(folder.topic, folder.queue_id), sorted(folder.path.iterdir())[0]


@pytest.mark.parametrize("linked", ["topic", "queue"])
def test_a_file_behind_a_link_that_changed_is_no_longer_as_it_was_seen(linked: str, store: StoreCopy) -> None:
    root = store("clean-plain-4.9.7")
    _, path = queue_behind_a_link(root, linked)
    seen = current_stamps(opened(root))
    assert path.relative_to(root).as_posix() in seen
    os.truncate(path, path.stat().st_size - 20)
    with pytest.raises(Refusal, match="changed while the store was read"):
        seal(Plan("rebuild", []), root, seen=seen)


def test_a_link_that_leads_out_of_the_store_is_not_followed_deeper_than_queues_lie(store: StoreCopy) -> None:
    root = store("clean-plain-4.9.7")
    (deep := root.with_name("deep") / "0" / "far" / "away").mkdir(parents=True)
    (deep / "file").touch()
    (deep.parent / "loop").symlink_to(root.with_name("deep"))
    (root / "consumequeue" / "Linked").symlink_to(root.with_name("deep"))
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "linked").symlink_to(root.with_name("deep"))
    (root / "consumequeue" / "broken").symlink_to(root / "nowhere")
    linked = {name for name in current_stamps(opened(root)) if "inked" in name}
    assert linked == {"consumequeue/Linked", "consumequeue/Linked/0"}


# --- Files that are not of this machine: read, listed and judged as those that are, and never opened by mistake.


MIB = 1 << 20


def _there(root: Path) -> Path:
    """The same files behind an address."""
    return remote_root(root.absolute().as_uri())


@few(("name", "recipes"), [
    ("clean-5.3.3", []), ("killed-lmq-4.9.7", ["page-random", "queue-behind"]), ("killed-5.5.0", ["checkpoint-zero"]),
], quick=(1, 2))
def test_a_store_behind_an_address_is_judged_like_the_one_on_the_disk(
    name: str, recipes: list[str], tmp_path: Path
) -> None:
    root = real_store(name, tmp_path)
    for recipe in recipes:
        damage(recipe, root, 5)
    here, there = (plain(verify(Store.open(place)).json(), place) for place in (root, _there(root)))
    assert there == here


def test_no_call_of_the_system_takes_a_path_that_is_not_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    path = _there(tmp_path) / "file"
    for call in (os.stat, os.listdir, os.scandir, os.remove, lambda it: os.open(it, os.O_RDONLY), open):
        with pytest.raises(TypeError, match="not a local file"):
            call(path)  # type: ignore[operator]
    assert path.exists() and path.is_file() and not path.is_dir() and path.stat().st_size == 1


def test_a_folder_lists_the_same_wherever_it_is() -> None:
    root = unpacked("clean-5.3.3")
    there = _there(root)

    def listed(place: Path) -> dict[str, int]:
        return {name: status.st_size for name, status in files_below(place)}

    assert listed(there) == listed(root) != {}
    for folder in ("", "consumequeue", "commitlog"):
        here, far = ([(item.name, item.is_folder, item.is_file and item.length) for item in entries(place / folder)]
                     for place in (root, there))
        assert far == here
    assert sorted(path.name for path in there.glob("c*")) == sorted(path.name for path in root.glob("c*"))
    with pytest.raises(FileNotFoundError):
        entries(there / "nowhere")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(random.Random(1).randbytes(40 * MIB + 17))
    return path


@pytest.mark.parametrize("seed", range(3))
def test_what_comes_ahead_reads_as_what_is_there(large: Path, seed: int) -> None:
    content, rng = large.read_bytes(), random.Random(seed)
    with open_file(_there(large.parent) / "large") as reader:
        assert reader.length == len(content)
        for _ in range(30):
            start = rng.randrange(len(content))
            if rng.random() < 0.4:
                reader.announce(start, rng.randrange(start, len(content) + MIB))
            offset = max(0, start + rng.randrange(-MIB, MIB))
            length = rng.choice([0, 1, 4096, MIB, 17 * MIB])
            assert reader.read(offset, length) == content[offset : offset + length]


def test_files_that_are_expected_come_whole_and_others_all_the_same(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / str(number)).write_bytes(bytes([number]) * number)
    there = _there(tmp_path)
    announce(there / str(number) for number in range(0, 30, 2))
    for number in range(30):
        source = open_file(there / str(number))
        assert source.read(0, 100) == bytes([number]) * number
        source.close()
    announce(iter(()))
    announce([tmp_path / "1"])


# --- The store of columns: what does not fit into memory, and a disk that has no room for it either.


ROWS = np.zeros(1000, dtype=RECORD)
ROWS["phy_offset"] = np.arange(1000)
HASHES = np.arange(3000, dtype=np.int32)


@pytest.fixture
def little_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder with room for 64 KiB."""
    with small_disk(tmp_path / "disk", "64k") as folder:
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        yield folder


def test_what_does_not_fit_into_memory_comes_back_from_the_disk() -> None:
    store = ColumnStore(ROWS.nbytes)
    for _ in range(3):
        kept = store.keep(ROWS, HASHES)
        assert kept.records.tolist() == ROWS.tolist()
        assert kept.hashes.tolist() == HASHES.tolist()
        kept.records["bits"] |= 1  # a scan marks stale records in place


def test_a_full_disk_is_an_error_and_not_the_end_of_the_process(little_room: Path) -> None:
    store = ColumnStore(0)
    store.keep(ROWS, HASHES)
    with pytest.raises(OSError) as full:
        store.keep(ROWS, HASHES)
    assert full.value.errno == errno.ENOSPC


@pytest.fixture
def root() -> Path:
    """A store that is there before the disk is a small one."""
    return unpacked("clean-5.3.3")


def test_a_full_temporary_folder_ends_the_command_with_8(
    root: Path, little_room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "DEFAULT_MEMORY", 1024)
    result = mqtool("verify", root, "--json")
    assert result.code & exits.OPERATIONAL
    assert "No space left" in result.document["error"]["message"]
