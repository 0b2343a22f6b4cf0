"""How long a start takes: what it reads, at which rates, and which probe it outlasts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import structs

from benchmarks.starts import KEPT, rates
from formats.basics import offset_in_name
from recover.predict.start_cost import MEBI, MEGA, RATES
from tests.cli.runner import Result, mqtool
from tests.support import plain_reader as plain
from tests.support.stores import unpacked

MEASURED = json.loads(KEPT.read_text("utf-8"))


def predicted(name: str, *more: object, broker: str = "5.3.3") -> Result:
    return mqtool("predict", unpacked(name), "--broker", broker, *more, "--json")


@pytest.mark.parametrize(("name", "release"), [
    ("killed-5.5.0", "5.3.3"), ("killed-5.5.0", "4.5.1"), ("clean-5.3.3", "5.3.3"), ("killed-manyfiles-5.5.0", "5.5.0"),
])
def test_reads_are_the_records_from_the_start_file_on(name: str, release: str) -> None:
    found = predicted(name, broker=release).document
    records = plain.records(unpacked(name))
    begin = offset_in_name(found["start_file"].rpartition("/")[2]) or 0
    read = [record for record in records if begin <= record.phy_offset < found["max_phy"]]
    reads = found["start_reads"]
    assert (reads["recovery_bytes"], reads["recovery_records"]) == (found["max_phy"] - begin, len(read))
    # after a kill all of them go to queues and index once more, after an orderly stop none
    assert reads["dispatched_records"] == (len(read) if name.startswith("killed") else 0)


@pytest.mark.parametrize("release", sorted(RATES))
def test_rates_are_those_measured(release: str) -> None:
    assert rates(MEASURED["loads"], MEASURED["whole"], release) == structs.asdict(RATES[release])
    # what whole brokers took on logs after a kill
    per = RATES[release]
    for row in (row for row in MEASURED["whole"] if row["version"] == release and row["messages"]):
        estimate = per.start_s + (row["log_bytes"] / MEBI * per.mib_us
                                  + row["messages"] * (per.record_us + per.dispatch_us)) / MEGA
        assert 0.5 < estimate / row["seconds"] < 2


def test_other_release_has_the_rates_of_the_nearest_older_one() -> None:
    found = predicted("clean-5.3.3", broker="5.4.0").document
    assert found["start_reads"]["measured"] == "5.3.3"
    assert predicted("clean-4.5.1", broker="4.3.0").document["start_reads"]["measured"] == "4.5.1"


def test_disk_adds_the_time_of_the_bytes() -> None:
    cached, read = (predicted("killed-5.5.0", *rate).document for rate in ((), ("--disk-rate", "0.1")))
    seconds = cached["start_reads"]["recovery_bytes"] / 100_000
    assert read["start_seconds"] == pytest.approx(cached["start_seconds"] + seconds, rel=0.05)
    assert f"{read['start_reads']['disk_seconds']:g} s for the disk" in read["start_reads"]["basis"]


@pytest.mark.parametrize(("limit", "warned"), [(10, True), (10_000, False)])
def test_start_that_outlasts_a_probe_is_a_warning(limit: int, *, warned: bool) -> None:
    found = predicted("clean-empty-5.3.3")
    assert "start-outlasts-probe" not in found.codes and found.code == 0
    found = predicted("clean-plain-4.9.7", "--disk-rate", "0.01", "--probe-limit", limit, broker="4.9.7")
    told = [item for item in found.document["findings"] if item["code"] == "start-outlasts-probe"]
    assert bool(told) == warned
    if warned:
        assert found.code & 2
        assert told[0]["severity"] == "warning" and told[0]["facts"]["limit"] == limit
        assert any("startupProbe" in step["why"] for step in found.document["next"])


def test_no_seconds_of_a_start_that_fails(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / "stray").write_bytes(b"x")
    found = mqtool("predict", tmp_path, "--broker", "5.3.3", "--json").document
    assert found["starts"] is False
    assert found["start_seconds"] is None and found["start_reads"] is None
