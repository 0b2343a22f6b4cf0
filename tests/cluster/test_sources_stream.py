"""rocketmq-commitlog as a stream: what is appended comes once, over runs with a checkpoint."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fixtures.synth import StoreWriter
from formats.record import encode, make_record
from recover.findings.code import Refusal, UsageRefusal
from recover.store.reading import recorded
from tests.cluster.twice import needs_spark
from tests.support.commitlog import placed_records
from tests.support.stores import real_store, write_at

pytestmark = needs_spark
NAME = "killed-5.5.0"


def log_end(name: str) -> int:
    """Physical offset after the last record of a store."""
    last = placed_records(name)[-1].record
    return last.phy_offset + last.total_size


def append(root: Path, at: int, count: int) -> int:
    """Write messages where the log ends; where it ends then."""
    file = max(path for path in (root / "commitlog").iterdir() if int(path.name) <= at)
    for number in range(count):
        content = encode(make_record(topic="More", body=b"%d" % number, phy_offset=at, properties=b"KEYS\x01k\x02",
                                     store_timestamp=1_800_000_000_000, queue_offset=number))
        write_at(file, at - int(file.name), content)
        at += len(content)
    return at


def follow(spark: Any, root: Path, folder: Path, **options: str) -> list[int]:
    """Run the stream until it has all that there is; the offsets that have come so far, over all runs."""
    frame = spark.readStream.format("rocketmq-commitlog").options(columns="phy_offset", splitSize="400009", **options)
    out = frame.load(str(root)).writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    out.trigger(availableNow=True).start(str(folder / "out")).awaitTermination()
    rows = spark.read.schema("phy_offset bigint").parquet(str(folder / "out")).collect()
    return sorted(row.phy_offset for row in rows)


@pytest.mark.slow
def test_what_is_appended_comes_once_over_two_runs(spark: Any, tmp_path: Path) -> None:
    root, end = real_store(NAME, tmp_path), log_end(NAME)
    present = [placed.record.phy_offset for placed in placed_records(NAME)]
    assert follow(spark, root, tmp_path / "all") == present
    assert follow(spark, root, tmp_path / "new", startingOffset="latest") == []
    last = append(root, end, 40)
    found = follow(spark, root, tmp_path / "all")
    assert found[: len(present)] == present and len(set(found)) == len(found) == len(present) + 40
    assert follow(spark, root, tmp_path / "new", startingOffset="latest") == found[len(present) :]
    assert follow(spark, root, tmp_path / "all") == found and found[-1] < last
    assert follow(spark, root, tmp_path / "some", where="topic = 'More' and queue_offset < 7") == found[-40:-33]


@pytest.mark.slow
def test_a_log_that_lost_what_was_read_is_no_quiet_end(spark: Any, tmp_path: Path) -> None:
    root, end = real_store(NAME, tmp_path), log_end(NAME)
    append(root, end, 2)
    follow(spark, root, tmp_path)
    file = max(path for path in (root / "commitlog").iterdir() if int(path.name) <= end)
    write_at(file, end - int(file.name), bytes(4096))
    with pytest.raises(Exception, match=rf"was read up to \d+, and its log now goes from \d+ to {end}"):
        follow(spark, root, tmp_path)


@pytest.mark.slow
def test_files_that_expired_before_they_were_read_are_told(spark: Any, tmp_path: Path) -> None:
    root = real_store("clean-manyfiles-5.3.3", tmp_path)
    files = sorted((root / "commitlog").iterdir())
    kept = [file.rename(tmp_path / file.name) for file in files[1:]]
    follow(spark, root, tmp_path)
    for file in kept[1:]:
        file.rename(root / "commitlog" / file.name)
    files[0].unlink()
    with pytest.raises(Exception, match=rf"and its log now goes from {int(files[2].name)} to"):
        follow(spark, root, tmp_path)


def _messages(root: Path, count: int, body: int, size: int) -> int:
    """A log of so many messages in files of `size` bytes; where it ends."""
    writer = StoreWriter(root, mapped_file_size=size)
    for number in range(count):
        writer.put("Topic", bytes(body), {"KEYS": str(number)})
    return writer.close().log_end


def reader(root: Path, **options: str) -> Any:
    from pyspark.sql.types import LongType, StructType

    from recover.cluster.sources import CommitlogSource

    return CommitlogSource({"path": str(root), **options}).streamReader(StructType().add("phy_offset", LongType()))


def test_a_poll_reads_what_is_new_and_no_file_from_its_start(tmp_path: Path) -> None:
    root, end = real_store(NAME, tmp_path), log_end(NAME)
    stream = reader(root)
    assert stream.latestOffset(None) == {str(root): end}
    for count in (0, 0, 30, 1):
        last = append(root, end, count)
        with recorded() as reads:
            assert stream.latestOffset(None) == {str(root): last}
            parts = stream.partitions({str(root): end}, {str(root): last})
        # two pieces of the file that grows, and of the empty next one that brokers make in advance
        assert sum(run.stop - run.start for file in reads.values() for run in file.runs) < 300_000
        base = max(int(path.name) for path in (root / "commitlog").iterdir() if int(path.name) <= end)
        assert len(parts) == (count > 0)
        with recorded() as reads:
            assert sum(batch.num_rows for part in parts for batch in stream.read(part)) == count
        assert not reads or min(run.start for file in reads.values() for run in file.runs) >= end - base
        end = last


def test_a_log_that_was_truncated_while_it_was_followed_is_noticed(tmp_path: Path) -> None:
    root, end = real_store(NAME, tmp_path), log_end(NAME)
    append(root, end, 3)
    stream = reader(root)
    start = stream.latestOffset(None)
    file = max(path for path in (root / "commitlog").iterdir() if int(path.name) <= end)
    write_at(file, end - int(file.name), bytes(4096))
    assert stream.latestOffset(start) == {str(root): end}
    with pytest.raises(Exception, match=rf"its log now goes from \d+ to {end}"):
        stream.partitions(start, stream.latestOffset(start))


def test_a_batch_takes_no_more_bytes_than_asked_and_batches_take_all(tmp_path: Path) -> None:
    end = _messages(tmp_path / "s", 900, 10_000, 4 << 20)
    stream, root = reader(tmp_path / "s", maxBytesPerTrigger="2500000", splitSize="1000003"), str(tmp_path / "s")
    offset, found = stream.initialOffset(), []
    assert offset == {root: 0}
    while (stop := stream.latestOffset(offset)) != offset:
        assert 0 < stop[root] - offset[root] <= 2_500_000
        parts = stream.partitions(offset, stop)
        found += [row["phy_offset"] for part in parts for batch in stream.read(part) for row in batch.to_pylist()]
        offset = stop
    assert offset[root] == end and len(found) == len(set(found)) == 900 and found == sorted(found)
    assert stream.reportLatestOffset() == {root: end}


def test_a_stream_begins_where_it_is_told(tmp_path: Path) -> None:
    root = real_store("clean-manyfiles-5.3.3", tmp_path)
    rows = [placed.record for placed in placed_records("clean-manyfiles-5.3.3")]
    middle = rows[len(rows) // 2]
    later = min(record.phy_offset for record in rows if record.store_timestamp >= middle.store_timestamp)
    time = datetime.fromtimestamp(middle.store_timestamp / 1000, UTC).isoformat()
    for begin, offset in (("earliest", rows[0].phy_offset), (str(middle.phy_offset - 1), middle.phy_offset),
                          (str(middle.phy_offset), middle.phy_offset), (time, later),
                          ("latest", rows[-1].phy_offset + rows[-1].total_size)):
        assert reader(root, startingOffsets=begin).initialOffset() == {str(root): offset}, begin
    sorted((root / "commitlog").iterdir())[0].unlink()
    with pytest.raises(Refusal, match=r"the log goes from \d+ to \d+, and startingOffsets is 7"):
        reader(root, startingOffsets="7").initialOffset()
    for option, value in (("startingOffsets", "soon"), ("maxBytesPerTrigger", "0"), ("maxBytesPerTrigger", "1m")):
        with pytest.raises(UsageRefusal, match=option):
            reader(root, **{option: value})


@pytest.mark.slow
def test_progress_tells_the_lag_and_batches_are_bounded(spark: Any, tmp_path: Path) -> None:
    end = _messages(tmp_path / "s", 400, 10_000, 8 << 20)
    frame = spark.readStream.format("rocketmq-commitlog").options(columns="phy_offset", maxBytesPerTrigger="1500000")
    out = frame.load(str(tmp_path / "s")).writeStream.format("parquet")
    query = out.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start(str(tmp_path / "o"))
    query.awaitTermination()
    progress = [json.loads(item.json) for item in query.recentProgress if item.numInputRows]
    assert len(progress) >= 3 and sum(item["numInputRows"] for item in progress) == 400
    assert json.loads(json.dumps(progress[0]["sources"][0]["latestOffset"])) == {str(tmp_path / "s"): end}
    assert progress[0]["sources"][0]["endOffset"][str(tmp_path / "s")] <= 1_500_000
