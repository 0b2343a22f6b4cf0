"""What executors keep of a scan: traced back from the log that files are made for, and packed without a loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.synth import synth_store
from formats.record.rows import BIT_SUPERSEDED
from recover.cluster.jobs import ScanTask, scan_splits
from recover.cluster.making import pack_elements
from recover.cluster.packing import Kept, PackedSplit, pack, pack_numbers, rows_of, unpack, unpack_numbers
from recover.cluster.views import Seen
from recover.log.file_scan import FileScan, scan_split
from recover.log.scan import LogView, assemble
from recover.log.split_scan import FileJoin, one_split, splits_of
from recover.repair.after import after_replacing
from recover.store.columns import ColumnStore
from recover.store.store import Store


class Scanned:
    """A log scanned as executors scan it, and what they keep of it, by task."""

    def __init__(self, root: Path) -> None:
        queue, store = Store.open(root).commitlog, ColumnStore()
        self.kept, self.packed = Kept(), dict[int, PackedSplit]()
        files: list[FileScan] = []
        for file in queue.files:
            parts = splits_of(file, queue.file_size, 20_011)
            scans = []
            for task, part in enumerate(parts, self.kept.tasks(len(parts))):
                self.packed[task] = pack(scan_split(part), Seen({}))
                scans.append(unpack(self.packed[task], part, store))
                for split in scans[-1].scan.splits:
                    self.kept.note(split, task)
            found = FileJoin(scans).join()
            assert isinstance(found, FileScan)
            files.append(found)
        self.log = assemble(queue, files)
        self.kept.settle(self.log)

    def assert_same_rows(self, log: LogView) -> int:
        """Executors have the rows of `log`, those apart that are sent; how many splits those are."""
        sources = self.kept.sources(log)
        numbers = {key: number for number, key in enumerate(log.queues)}
        found = dict(sources.sent)
        for task, pieces in sources.pieces.items():
            found |= dict(rows_of(self.packed[task], pieces, numbers))
        whole = one_split(found[number] for number in range(len(found)))
        wanted = one_split(log.splits())
        assert whole.records.tolist() == wanted.records.tolist()
        assert whole.hashes.tolist() == wanted.hashes.tolist()
        return len(sources.sent)


@pytest.fixture
def scanned(tmp_path: Path) -> Scanned:
    return Scanned(synth_store(tmp_path / "s", messages=1_500, mapped_file_size=1 << 17).root)


def test_a_log_as_scanned_is_all_kept(scanned: Scanned) -> None:
    assert len(scanned.packed) > 20
    assert scanned.assert_same_rows(scanned.log) == 0


def test_marks_that_came_later_travel_along(scanned: Scanned) -> None:
    for split in list(scanned.log.splits())[::3]:
        split.records["bits"][::5] |= np.uint16(BIT_SUPERSEDED)
    assert scanned.assert_same_rows(scanned.log) == 0


def test_a_log_that_is_cut_is_kept_up_to_there(scanned: Scanned) -> None:
    rows = one_split(scanned.log.splits()).records
    after = after_replacing(scanned.log, [], cut_from=int(rows["phy_offset"][700]))
    assert after.messages == 700
    assert scanned.assert_same_rows(after) == 0


def test_rows_that_no_scan_found_are_sent(scanned: Scanned) -> None:
    splits = [split for split in scanned.log.splits() if split.records.size]
    after = after_replacing(scanned.log, [], cut_from=scanned.log.log_end)
    changed = [split for split in after.splits() if split.records.size]
    changed[1].records["tags_code"][0] += 1
    changed[2].hashes[0] += 1
    assert len(changed) == len(splits)
    assert scanned.assert_same_rows(after) == 2


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1)))
def test_numbers_come_back_whatever_they_are(values: list[int]) -> None:
    column = np.array(values, dtype=np.int64)
    assert unpack_numbers(pack_numbers({"a": column, "b": column[::-1]}))["a"].tolist() == values


def test_nothing_is_made_of_a_split_that_was_scanned_again_from_another_file(scanned: Scanned) -> None:
    task, packed = next(iter(scanned.packed.items()))
    pieces = scanned.kept.sources(scanned.log).pieces
    with pytest.raises(RuntimeError, match=r"host .* reads other files of the log than the first scan did"):
        list(pack_elements(pieces, {task: packed.seen.digest + 1}, {}, lambda _number, _split: (), [(task, packed)]))


def test_a_scan_that_nobody_wants_keys_of_sends_no_hash_home(tmp_path: Path) -> None:
    queue = Store.open(synth_store(tmp_path / "s", messages=300).root).commitlog
    part = splits_of(queue.files[0], queue.file_size)[0]
    (_, whole), (_, narrow) = scan_splits([ScanTask(0, part), ScanTask(1, part, with_keys=False)])
    assert isinstance(whole, PackedSplit) and isinstance(narrow, PackedSplit)
    assert whole.hashes and not narrow.hashes and len(narrow.columns) < len(whole.columns)
