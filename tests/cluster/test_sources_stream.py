"""rocketmq-commitlog as a stream: what is appended comes once, over runs with a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from formats.record import encode, make_record
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
