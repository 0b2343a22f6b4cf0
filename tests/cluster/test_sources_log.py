"""The columns of rocketmq-commitlog, against each record decoded alone, over splits of any size; without Spark."""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage import of_area
from formats.basics import FormatError
from formats.record import Record, decode, encode, encode_blank, host_text, make_record
from recover.cluster.source_rows import COMMITLOG, SCANNED, Filters, commitlog_batches, log_parts
from recover.findings.code import Refusal, UsageRefusal
from recover.log.split_scan import REACH, scan_alone, scan_files, splits_of
from recover.store.mapped_files import MappedFile
from recover.store.reading import recorded
from recover.store.source import open_file
from recover.store.store import Store
from tests.support.sampling import few, sampled
from tests.support.stores import STORES, real_store, strike, unpacked

WHOLE = 1 << 40
NAMES = [name for name in COMMITLOG.names if name != "store"]
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def rows(root: Path, size: int, names: Sequence[str] = NAMES) -> list[dict[str, Any]]:
    """What the data source reads of a store in splits of so many bytes, in the order of the log."""
    parts = log_parts(Store.open(root), Filters(), size)
    found = [row for part in parts for batch in commitlog_batches(part, names, Filters())
             for row in batch.to_pylist(maps_as_pydicts="strict")]
    return sorted(found, key=lambda row: row["phy_offset"])


def time_of(milliseconds: int) -> datetime.datetime | None:
    """What Spark calls a timestamp: none before the year 1, nor after 9999."""
    with suppress(OverflowError):
        return EPOCH + datetime.timedelta(milliseconds=milliseconds)
    return None


def row_of(record: Record, file: str, is_sound: bool) -> dict[str, Any]:
    """The row of one record, out of its fields."""
    return {
        "topic": record.topic_name, "queue_id": record.queue_id, "queue_offset": record.queue_offset,
        "phy_offset": record.phy_offset, "size": record.total_size, "store_timestamp": record.store_timestamp,
        "store_time": time_of(record.store_timestamp),
        "born_timestamp": record.born_timestamp,
        "born_time": time_of(record.born_timestamp),
        "store_host": host_text(record.store_host), "born_host": host_text(record.born_host), "tags": record.tags,
        "keys": record.keys, "uniq_key": record.uniq_key, "properties": record.property_map(),
        "sys_flag": record.sys_flag, "flag": record.flag, "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset, "body_size": len(record.body),
        "body_crc": record.body_crc, "crc_ok": is_sound, "version": record.version, "file": file, "body": record.body,
    }


def one_by_one(root: Path) -> list[dict[str, Any]]:
    """The rows of a store, each record decoded alone where one walk over the whole file finds it."""
    found = []
    for part in log_parts(Store.open(root), Filters(), WHOLE):
        file, (scan,) = part.mapped_file, scan_files([[part]], 1)
        content = file.path.read_bytes()
        places = [(int(offset), True) for split in scan.splits for offset in split.records["phy_offset"]]
        for offset, is_sound in places + [(gap.start, False) for gap in scan.gaps if gap.facts.get("size")]:
            with suppress(FormatError):
                record = decode(content, offset - file.file_from_offset, check_crc=False)
                found.append(row_of(record, file.name, is_sound))
    return sorted(found, key=lambda row: row["phy_offset"])


def log_file(folder: Path, content: bytes, size: int = 0) -> Path:
    """The root of a store with one log file."""
    (folder / "commitlog").mkdir(parents=True)
    (folder / "commitlog" / f"{0:020d}").write_bytes(content.ljust(size, b"\0"))
    return folder


def message(phy_offset: int, body: bytes = b"", **fields: Any) -> bytes:
    """The bytes of a message that stands there."""
    given = {"topic": "T", "properties": b"KEYS\x01k\x02", "store_timestamp": 1_700_000_000_000, **fields}
    return encode(make_record(body=body, phy_offset=phy_offset, **given))


def nested(count: int, seed: int) -> Iterator[bytes]:
    """Messages, most of which have intact messages in their bodies, in their own places and over their ends."""
    dice, at = random.Random(seed), 0
    for _ in range(count):
        begin = at + len(message(0)) - len(b"T") - len(b"KEYS\x01k\x02") - 3
        inner = message(begin + 40, dice.randbytes(dice.randrange(300)))
        if dice.random() < 0.4:
            inner = message(begin + 40, inner[:0] + message(begin + 40 + 91, dice.randbytes(99)) + dice.randbytes(60))
        body = bytes(40) + inner + dice.randbytes(dice.randrange(1, 99))
        if dice.random() < 0.3:  # its checksum fails, so that what is in it counts
            yield message(at, body)[:-1] + b"\x01"
        else:
            yield message(at, body)
        at += len(message(at, body))


@few("name", STORES, quick=2)
def test_every_column_is_what_each_record_says(name: str) -> None:
    found = rows(unpacked(name), WHOLE)
    assert found == one_by_one(unpacked(name)) != []
    for column in NAMES if name == STORES[-1] else ():  # columns do not depend on the store
        assert rows(unpacked(name), WHOLE, ["phy_offset", column]) == [
            {"phy_offset": row["phy_offset"], column: row[column]} for row in found]


@pytest.mark.parametrize(("recipe", "name"), sampled(of_area("log", "files", "crash"), STORES, quick=3, one_in=24))
def test_splits_of_a_damaged_log_have_each_record_once(tmp_path: Path, recipe: str, name: str) -> None:
    root = real_store(name, tmp_path)
    strike(recipe, root)
    wanted = one_by_one(root)
    least = max((path.stat().st_size for path in (root / "commitlog").iterdir()), default=29) // 29
    for size in (WHOLE, 400_009, least + random.Random(recipe).randrange(least)):
        assert rows(root, size) == wanted, size


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(2, 6))])
def test_a_message_in_the_body_of_another_is_no_row_wherever_a_split_begins(tmp_path: Path, seed: int) -> None:
    content = b"".join(nested(60, seed))
    root = log_file(tmp_path, content + encode_blank(len(content) // 4096 * 4096 + 4096 - len(content)),
                    len(content) // 4096 * 4096 + 4096)
    wanted = one_by_one(root)
    assert len(wanted) > 30
    for size in (97, 1013):
        assert rows(root, size) == wanted, size


def test_properties_are_those_that_a_broker_parses(tmp_path: Path) -> None:
    texts = [
        b"", b"KEYS\x01a b\x02", b"KEYS\x01first\x02TAGS\x01t\x02KEYS\x01last",
        b"\x02\x02KEYS\x01\x02TAGS\x01x\x01y\x02",
        b"\x01v\x02KEYS\x02k\x01", b"KEYS\x01\xed\xa0\x80\xff\x02n\xff\x01v\x02n\xfe\x01w",
        "TAGS\x01\u00e4\U0001f600".encode(),
    ]
    content, records = b"", []
    for text in texts * 3:
        content += message(len(content), b"body", properties=text)
        records.append(text)
    found = rows(log_file(tmp_path, content, 1 << 16), 200)
    wanted = one_by_one(tmp_path)
    assert found == wanted and len(found) == len(records)
    assert found[2]["keys"] == "last" and found[3]["tags"] == "x\x01y" and found[0]["properties"] == {}
    assert found[5]["properties"] == {"KEYS": "\ufffd\ufffd", "n\ufffd": "w"}


@pytest.mark.parametrize("milliseconds", [-(1 << 63), (1 << 63) - 1, -62_135_596_800_001, 253_402_300_800_000])
def test_a_number_that_is_no_time_is_null_beside_the_number(tmp_path: Path, milliseconds: int) -> None:
    content = message(0, born_timestamp=milliseconds) + message(len(message(0)), born_timestamp=1)
    first, second = rows(log_file(tmp_path, content, 4096), WHOLE)
    assert (first["born_timestamp"], first["born_time"]) == (milliseconds, None)
    assert second["born_time"] == EPOCH + datetime.timedelta(milliseconds=1)


def test_a_message_too_long_for_splits_is_refused_not_read_wrongly(tmp_path: Path) -> None:
    begin = len(message(0)) - len(b"T") - len(b"KEYS\x01k\x02") - 3
    inner = message(begin + 5000, b"inner")
    content = message(0, bytes(5000) + inner + bytes(5000))
    path = log_file(tmp_path, content + message(len(content)), 1 << 16) / "commitlog" / f"{0:020d}"
    first, second, third = splits_of(MappedFile(path, 0, 1 << 16), 1 << 16, 5000)[:3]
    with open_file(path) as reader:
        with pytest.raises(Refusal, match=f"a message or an end mark of {len(content)} bytes"):
            scan_alone(first, reader, 1000)
        begun = [[int(offset) for split in scan_alone(part, reader).splits for offset in split.records["phy_offset"]]
                 for part in (first, second, third)]
    assert begun == [[0], [], [len(content)]]


@pytest.mark.parametrize("where", [
    "body = 'x'", "colour = 1", "topic", "topic =", "topic = Orders", "topic = 'a' or queue_id = 1", "size = 'big'",
    "size in 1", "size = (1, 2)", "size = 1 and", "and size = 1", "topic like 'a%'", "store_time > 'yesterday'",
    "size = 1; drop table log", "size in ()", "crc_ok = maybe",
])
def test_a_where_that_cannot_be_answered_is_refused(where: str) -> None:
    with pytest.raises(UsageRefusal, match="where: "):
        Filters.of(where, COMMITLOG, {"store", *SCANNED})


def test_a_where_takes_text_with_quotes_times_and_truth() -> None:
    text = ("topic = 'it''s = a, (topic) and' and crc_ok = false and store_time >= '2026-11-21T02:00:00' "
            "and size in (1,-2)")
    assert Filters.of(text, COMMITLOG, {"store", *SCANNED}).tests == [
        ("topic", "=", "it's = a, (topic) and"), ("crc_ok", "=", False),
        ("store_time", ">=", datetime.datetime(2026, 11, 21, 2, tzinfo=datetime.UTC)), ("size", "in", [1, -2]),
    ]


def test_a_physical_offset_reads_one_split_and_what_may_reach_into_it(tmp_path: Path) -> None:
    content, body = bytearray(), bytes(1 << 20)
    while len(content) < 2 * REACH:
        content += message(len(content), body)
    wanted, end = len(content), len(content) + 3 * len(message(0))
    for number in range(3):
        content += message(wanted + number * len(message(0)))
    root = log_file(tmp_path, bytes(content), len(content) + 4096)
    for where, offsets in ((f"phy_offset >= {wanted}", 3), (f"phy_offset = {wanted}", 1)):
        filters = Filters.of(where, COMMITLOG, {"phy_offset"})
        with recorded() as reads:
            found = [row["phy_offset"] for part in log_parts(Store.open(root), filters, REACH // 2)
                     for batch in commitlog_batches(part, ["phy_offset", "body_size"], filters)
                     for row in batch.to_pylist()]
        assert found == list(range(wanted, end, len(message(0))))[:offsets]
        (read,) = reads.values()
        assert sum(run.stop - run.start for run in read.runs) < 1.5 * REACH
