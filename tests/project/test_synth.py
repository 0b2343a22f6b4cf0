"""Synthetic stores hold what their writer says, laid out so that the strict codec finds nothing to object to."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.damage import damage, walk
from fixtures.shapes import SHAPES, body_with_crc
from fixtures.synth import StoreWriter, synth_store
from formats.checkpoint import CHECKPOINT
from formats.compression import decompress
from formats.consumequeue import CQ_UNIT, is_pre_blank
from formats.index import IndexGeometry
from formats.index import decode as decode_index
from formats.javahash import index_key_hash
from formats.record import BLANK_SIZE, MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE, decode_blank, iter_index_keys
from mqtool.cli import main
from tests.support.trees import contents

SMALL = sorted(SHAPES.keys() - {"many-queues", "queues-without-log", "deleted-topic"})


def _log_folders(root: Path) -> list[Path]:
    if (root / "commitlog").is_dir():
        return [root / "commitlog"]
    return [root.with_name(root.name + end) for end in ("-log-a", "-log-b")]


def _records(root: Path) -> dict[int, walk.Located]:
    files = [file for folder in _log_folders(root) for file in walk.mapped_files(folder)]
    return {hit.record.phy_offset: hit for file in files for hit in walk.records_of(file)}


@pytest.mark.parametrize("name", SMALL)
def test_every_unit_of_a_shape_names_its_record(name: str, tmp_path: Path) -> None:
    made = SHAPES[name](tmp_path / "s")
    records = _records(made.root)
    assert len(records) == made.records
    assert not records or max(hit.record.phy_offset + hit.record.total_size for hit in records.values()) == made.log_end
    found = 0
    for queue in walk.queues(made.root):
        for hit in walk.units(queue):
            if is_pre_blank(hit.unit):
                continue
            found += 1
            record = records[hit.unit.phy_offset].record
            assert hit.unit.size == record.total_size
            if not queue.topic.startswith("%LMQ%"):
                at = (hit.file.file_from_offset + hit.position) // CQ_UNIT.size
                assert (record.topic_name, record.queue_id, record.queue_offset) == (queue.topic, queue.queue_id, at)
    assert found == made.units == sum(made.queues.values())


@pytest.mark.parametrize("name", SMALL)
def test_every_key_of_a_shape_is_found_through_the_index(name: str, tmp_path: Path) -> None:
    made = SHAPES[name](tmp_path / "s")
    geometry = IndexGeometry(100, 400)
    images = [decode_index(path.read_bytes(), geometry) for path in walk.index_files(made.root)]
    assert len(images) == made.index_files
    assert sum(image.used - 1 for image in images) == made.index_entries
    places = {
        (unit.key_hash, unit.phy_offset)
        for image in images for slot in range(geometry.slots) for _, unit in image.chain(slot)
    }
    keys = {
        (index_key_hash(key), phy_offset)
        for phy_offset, hit in _records(made.root).items()
        for key in iter_index_keys(hit.record, tags=name == "property-crc")
    }
    assert places == keys


@pytest.mark.parametrize("name", sorted(SHAPES.keys() - {"many-queues", "empty", "queues-without-log"}))
def test_log_files_of_a_shape_have_their_length_and_a_blank(name: str, tmp_path: Path) -> None:
    made = SHAPES[name](tmp_path / "s")
    ends: dict[walk.MappedFile, int] = {}
    for hit in _records(made.root).values():
        ends[hit.file] = max(ends.get(hit.file, 0), hit.end)
    assert len({file.path.stat().st_size for file in ends}) == 1
    for file in sorted(ends, key=lambda file: file.file_from_offset)[:-1]:
        assert decode_blank(file.read(), ends[file]).size == file.path.stat().st_size - ends[file]


@pytest.mark.slow
def test_twenty_thousand_queues_have_a_file_each(tmp_path: Path) -> None:
    made = SHAPES["many-queues"](tmp_path / "s")
    assert len(made.queues) == made.records == 20_000
    assert len(walk.queues(made.root)) == 20_000


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    digests = []
    for name in ("one", "other"):
        synth_store(tmp_path / name, seed=5, messages=200)
        digests.append(contents(tmp_path / name))
    assert digests[0] == digests[1]
    synth_store(tmp_path / "third", seed=6, messages=200)
    assert contents(tmp_path / "third") != digests[0]


@given(st.binary(max_size=40), st.integers(0, 0xFFFFFFFF))
def test_a_body_can_be_given_any_crc(prefix: bytes, crc: int) -> None:
    assert zlib.crc32(body_with_crc(prefix, crc)) == crc


def test_crc_extremes_are_in_their_store(tmp_path: Path) -> None:
    SHAPES["crc-extremes"](tmp_path / "s")
    assert {hit.record.body_crc for hit in walk.records(tmp_path / "s")} == {0, 0x7FFFFFFF}


def test_every_blank_leaves_every_number_of_bytes(tmp_path: Path) -> None:
    SHAPES["every-blank"](tmp_path / "s")
    left = {file.path.stat().st_size - position for file, position in walk.blanks(tmp_path / "s")}
    assert left == set(range(BLANK_SIZE, MIN_RECORD_SIZE + BLANK_SIZE))


def test_every_compression_is_in_its_store(tmp_path: Path) -> None:
    SHAPES["compressed"](tmp_path / "s")
    records = [hit.record for hit in walk.records(tmp_path / "s")]
    assert len({record.sys_flag for record in records}) == 5
    assert all(decompress(record.body, record.sys_flag).startswith(b"a body worth") for record in records)


def test_both_versions_and_all_host_kinds_are_in_their_store(tmp_path: Path) -> None:
    SHAPES["v2-ipv6"](tmp_path / "s")
    kinds = {(hit.record.magic, len(hit.record.born_host[0]), len(hit.record.store_host[0]))
             for hit in walk.records(tmp_path / "s")}
    assert kinds == {(magic, born, store) for magic in (MAGIC_V1, MAGIC_V2) for born in (4, 16) for store in (4, 16)}


def test_pre_blanks_stand_before_the_first_unit_of_an_expired_store(tmp_path: Path) -> None:
    made = SHAPES["first-file-not-zero"](tmp_path / "s")
    assert made.min_offset > 0
    for queue in walk.queues(made.root):
        units = walk.units(queue)
        first = next(number for number, hit in enumerate(units) if not is_pre_blank(hit.unit))
        assert queue.files[0].file_from_offset // CQ_UNIT.size + first == 130


def test_a_multi_path_log_uses_all_its_folders(tmp_path: Path) -> None:
    SHAPES["multi-path"](tmp_path / "s")
    assert all(len(walk.mapped_files(folder)) > 1 for folder in _log_folders(tmp_path / "s"))


def test_a_killed_store_has_abort_and_perhaps_a_file_of_zeros(tmp_path: Path) -> None:
    SHAPES["preallocated"](tmp_path / "s")
    assert (tmp_path / "s" / "abort").read_bytes()
    assert not any(walk.log_files(tmp_path / "s")[-1].read())


def test_checkpoint_times_are_those_of_the_newest_record(tmp_path: Path) -> None:
    synth_store(tmp_path / "s", messages=100)
    fields = CHECKPOINT.decode((tmp_path / "s" / "checkpoint").read_bytes())
    assert fields.physic_msg_timestamp == walk.records(tmp_path / "s")[-1].record.store_timestamp


def test_a_record_larger_than_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="larger files"):
        StoreWriter(tmp_path / "s", mapped_file_size=1024).put("T", bytes(1024))


def test_first_file_of_a_queue_can_go_missing(tmp_path: Path) -> None:
    synth_store(tmp_path / "s", messages=600, topics=1, queues=2)
    done = damage("queue-first-file-missing", tmp_path / "s")
    assert not (tmp_path / "s" / done.changes[0].file).exists()
    assert len(walk.mapped_files((tmp_path / "s" / done.changes[0].file).parent)) == 2


CODES = {"preallocated": 2, "queues-without-log": 4, "first-file-not-zero": 2, "large-offsets": 2}


@pytest.mark.parametrize("name", sorted(SHAPES.keys() - {"many-queues"}))
def test_verify_finds_in_a_shape_what_its_name_says(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    SHAPES[name](tmp_path / "s")
    parts = [f"--commitlog={folder}" for folder in _log_folders(tmp_path / "s")] if name == "multi-path" else []
    code = main(["verify", str(tmp_path / "s"), "--json", *parts])
    assert code == CODES.get(name, 0), capsys.readouterr().out
