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
from formats.record import BLANK_SIZE, MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE
from tests.cli.runner import mqtool
from tests.support.trees import contents


def _log_folders(root: Path) -> list[Path]:
    if (root / "commitlog").is_dir():
        return [root / "commitlog"]
    return [root.with_name(root.name + end) for end in ("-log-a", "-log-b")]


def _records(root: Path) -> dict[int, walk.Located]:
    files = [file for folder in _log_folders(root) for file in walk.mapped_files(folder)]
    return {hit.record.phy_offset: hit for file in files for hit in walk.records_of(file)}


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
def test_a_shape_holds_what_its_writer_says_and_verify_finds_what_its_name_says(name: str, tmp_path: Path) -> None:
    made = SHAPES[name](tmp_path / "s")
    parts = [f"--commitlog={folder}" for folder in _log_folders(tmp_path / "s")] if name == "multi-path" else []
    result = mqtool("verify", tmp_path / "s", *parts, "--json")
    assert result.code == CODES.get(name, 0), result.stdout
    if name in ("queues-without-log", "deleted-topic", "empty"):
        return
    records = _records(made.root)
    log, queues, index = (result.document[part] for part in ("commitlog", "consumequeue", "index"))
    assert len(records) == made.records == log["messages"]
    assert max(hit.record.phy_offset + hit.record.total_size for hit in records.values()) == made.log_end
    assert (queues["right"], index["expected"]) == (sum(made.queues.values()), made.index_entries)
    assert (log["log_end"], log["blanks"], made.units) == (made.log_end, made.files - 1 - (name == "preallocated"),
                                                           sum(made.queues.values()))
