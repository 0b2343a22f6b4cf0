"""The oracle itself: on sound stores it must report what is known to be in them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from fixtures.lab.report import OracleReport
from tests.broker.cases import Case, cases, marked
from tests.broker.judge import damaged, start
from tests.support.brokers import VERSIONS, oracle
from tests.support.stores import EXPECTED, STORES, copy_store, real_store

pytestmark = pytest.mark.broker

READABLE = [
    (name, version) for name in STORES for version in VERSIONS if not ("v2" in name and version.startswith("4."))
]


@pytest.mark.parametrize(("name", "version"), READABLE)
def test_broker_serves_every_unit_of_a_sound_store(name: str, version: str, tmp_path: Path) -> None:
    """Stores of another version are read as well; 4.5.1 does not know LMQ but serves the queues that are there."""
    expected = EXPECTED[name]
    seen = oracle(version).start(real_store(name, tmp_path), read=True)
    assert seen.starts and seen.after_start is not None, seen
    assert (seen.after_start.min_phy, seen.after_start.max_phy) == (0, expected["log_end"])
    assert sum(high - low for low, high in seen.after_start.queues.values()) == expected["units"]
    delivered = list(seen.messages())
    assert len(delivered) == expected["units"]
    assert len({message.phy_offset for _, message in delivered}) == expected["records"]
    assert all(message.body_crc_ok for _, message in delivered)
    assert not any(queue.undecodable or queue.exception or queue.stuck is not None for queue in seen.read.values())
    assert seen.mode == ("normal" if expected["exit_state"] == "clean" else "abnormal")
    assert seen.deleted_files == [] or expected["exit_state"] == "killed"


@pytest.mark.parametrize("version", VERSIONS)
def test_broker_accepts_and_delivers_new_messages(version: str, tmp_path: Path) -> None:
    seen = oracle(version).start(real_store("clean-4.5.1", tmp_path), write={"TopicA/0": 3, "Brandnew/1": 3})
    assert sorted(seen.written) == ["Brandnew/1", "TopicA/0"]
    for queue, written in seen.written.items():
        assert [status for status, _, _ in written["puts"]] == ["PUT_OK"] * 3
        assert [row[1] for row in written["read"]["messages"]] == [offset for _, offset, _ in written["puts"]], queue


def test_end_of_the_run_decides_what_the_next_start_sees(tmp_path: Path) -> None:
    broker = oracle(VERSIONS[-1])
    for end, mode in (("halt", "abnormal"), ("shutdown", "normal")):
        store = real_store("clean-4.5.1", tmp_path / end)
        broker.start(store, end=end, fresh=True)
        assert broker.start(store).mode == mode


def test_refused_start_is_a_report(tmp_path: Path) -> None:
    store = real_store("clean-4.5.1", tmp_path)
    with (store / "commitlog" / "00000000000000000000").open("ab") as handle:
        handle.write(b"x")
    seen = oracle("5.3.3").start(store)
    assert (seen.loaded, seen.started, seen.starts) == (False, False, False)
    assert any("length not matched" in line for line in seen.log)


@pytest.mark.parametrize(("store", "damage", "version"), marked(random.Random(4).sample(cases(), 120), 3))
def test_a_jvm_that_served_others_reports_what_a_fresh_one_does(
    store: str, damage: str, version: str, tmp_path: Path
) -> None:
    """What allows one JVM to serve many starts: nothing of one reaches into the next."""
    root, _ = damaged(store, damage, tmp_path)
    case, write = Case(store, damage, version), {"Fresh/0": 3}
    fresh = start(case, copy_store(root, tmp_path / "fresh"), walk=True, write=write, fresh=True)
    reused = start(case, root, walk=True, write=write)
    assert _comparable(reused) == _comparable(fresh)


def _comparable(seen: OracleReport) -> dict[str, Any]:
    """All but times, paths, the pid in `abort`, and the names of new index files, which are times, too."""
    told = {name: value for name, value in vars(seen).items() if name not in ("log", "files_end", "written")}
    for name in ("after_load", "after_start"):
        figures = told[name]
        if figures is not None:
            entries = [count for _, count in figures.index]
            told[name] = (figures.min_phy, figures.max_phy, figures.queues, entries, _sizes(figures.files))
    told["written"] = {queue: [put[:2] for put in one["puts"]] for queue, one in seen.written.items()}
    return told


def _sizes(files: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(
        ("index" if name.startswith("index") else name, size) for name, size in files.items() if name != "abort"
    )
