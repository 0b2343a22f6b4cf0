"""Real brokers on sound stores: of every kind, of our own making, and what is asked of them."""

from __future__ import annotations

import functools
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest

from fixtures.lab import kinds
from fixtures.lab.packed import made, manifest, settings
from fixtures.lab.report import OracleReport
from fixtures.lab.whole import Delivered, Subscription, WholeBroker
from tests.broker.cases import Case, cases, marked
from tests.broker.judge import REFUSED, damaged, mqtool, start
from tests.support.brokers import VERSIONS, oracle
from tests.support.stores import EXPECTED, KINDS, STORES, broker_conf, copy_store, real_store
from tests.support.trees import tree_digest

# --- The oracle itself: on sound stores it must report what is known to be in them.


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
def test_a_log_in_several_folders_is_found_or_all_queues_go(version: str, tmp_path: Path) -> None:
    name = "clean-multipath-4.9.7"
    root = real_store(name, tmp_path)
    told = mqtool("predict", "--broker-conf", broker_conf(name, root, tmp_path / "broker.conf"), "--broker", version)
    folders = settings(name)["storePathCommitLog"].replace("{root}", str(root))
    seen = oracle(version).start(root, {**settings(name), "storePathCommitLog": folders})
    assert seen.after_start is not None
    kept = sum(high - low for low, high in seen.after_start.queues.values()) > 0
    assert (told.code == 0) is kept


@pytest.mark.parametrize("version", VERSIONS)
def test_broker_accepts_and_delivers_new_messages(version: str, tmp_path: Path) -> None:
    seen = oracle(version).start(real_store("clean-4.5.1", tmp_path), write={"TopicA/0": 3, "Brandnew/1": 3})
    assert sorted(seen.written) == ["Brandnew/1", "TopicA/0"]
    for queue, written in seen.written.items():
        assert [status for status, _, _ in written["puts"]] == ["PUT_OK"] * 3
        assert [row[1] for row in written["read"]["messages"]] == [offset for _, offset, _ in written["puts"]], queue


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


# --- The packed stores that the lab wrote hold what their manifests say, by the word of the broker that wrote them.


@pytest.mark.parametrize("name", made())
def test_store_holds_what_its_manifest_says(name: str, tmp_path: Path) -> None:
    known = manifest(name)
    seen = oracle(known["broker"]).start(real_store(name, tmp_path), settings(name), read=True, walk=True)
    assert seen.starts and seen.after_start is not None, seen
    assert (seen.after_start.min_phy, seen.after_start.max_phy) == (known["min_phy"], known["max_phy"])
    assert len(seen.walked) == known["records"]
    assert {queue: high for queue, (_, high) in seen.after_start.queues.items()} == {
        queue: high for queue, (_, high) in known["queues"].items()
    }
    assert sum(1 for _ in seen.messages()) == known["started_by"][known["broker"]]["delivered"]
    assert {message.phy_offset for _, message in seen.messages()} == {record.phy_offset for record in seen.walked}
    assert not seen.ignored_settings


# --- Stores of every kind: what a broker of the release that wrote one delivers, recover takes nothing from it.
#
# While the log is not mounted recover changes nothing, byte for byte: tests/scenarios/test_every_store.py.


#: Written anew before they are read: brokers forget timers that are a week old, and those of a timer in RocksDB that
#: were due ten minutes ago.
FRESH = tuple(name for name in KINDS if manifest(name)["kind"].startswith("timers"))
KEYS = 40
SAMPLE = "kinds/clean-dledger-5.3.3"
every_kind = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.deep if name == SAMPLE else []) for name in KINDS]
)


@every_kind
def test_store_delivers_what_its_manifest_says(name: str) -> None:
    counts, expected = kinds.counts(delivered_before(name)), dict(manifest(name)["delivered"])
    if "Compacted" in expected:
        assert KEYS <= counts["Compacted"] <= expected["Compacted"]
        del counts["Compacted"], expected["Compacted"]
    assert counts == expected


@pytest.mark.parametrize("given", ["broker.conf", "nothing"])
@every_kind
def test_broker_delivers_after_recover_what_it_delivered_before(name: str, given: str, tmp_path: Path) -> None:
    root = real_store(name, tmp_path)
    if recovered(name, root, given):
        if name in FRESH:
            root = due_soon(name, tmp_path / "due")
            before = deliver(name, copy_store(root, tmp_path / "before"))
            assert recovered(name, root, given)
        else:
            before = delivered_before(name)
        assert same(deliver(name, root)) == same(before)


def recovered(name: str, root: Path, given: str) -> bool:
    """Whether recover changed anything. If it refused, nothing may have changed."""
    conf = broker_conf(name, root, root.with_name("broker.conf"))
    before = tree_digest(root)
    done = mqtool("recover", root, "--yes", *(["--broker-conf", conf] if given == "broker.conf" else []))
    changed = tree_digest(root) != before
    assert not changed or not done.code & REFUSED
    return changed


def due_soon(name: str, folder: Path) -> Path:
    """The store as a broker writes it now."""
    folder.mkdir()
    (kind,) = (kind for kind in kinds.RECIPES if f"kinds/{kind.name}" == name)
    return kinds.write(kind, folder / "store")


def deliver(name: str, root: Path) -> Delivered:
    """What its broker delivers from the copy."""
    known = manifest(name)
    return kinds.deliver(known["broker"], root, settings(name), known["read"])


@functools.cache
def delivered_before(name: str) -> Delivered:
    """What its broker delivers from the store as it was written."""
    with tempfile.TemporaryDirectory(prefix="mqtool-kind-") as scratch:
        folder = Path(scratch) / "written"
        return deliver(name, due_soon(name, folder) if name in FRESH else real_store(name, folder))


def same(delivered: Delivered) -> dict[str, set[object]]:
    """What has to be the same: each message at its place; of delayed ones the body (a killed broker sends some of them
    twice), of compacted ones the newest.
    """
    found: dict[str, set[object]] = {}
    for topic, queues in delivered.items():
        rows = [(queue, *row) for queue, messages in queues.items() for row in sorted(messages)]
        if topic == "Compacted":
            rows = rows[-KEYS:]
        found[topic] = {row[-1] if topic in kinds.REPEATED else tuple(row) for row in rows}
    return found


# --- A config file with a flipped bit in the name of its table: whole brokers forget what it has, until it is put back.


@pytest.mark.parametrize("version", VERSIONS)
def test_topics_are_forgotten_until_their_table_has_its_name_again(version: str, tmp_path: Path) -> None:
    """Although the backup is sound."""
    store = "clean-4.5.1"
    for is_mended in (False, True):
        root = real_store(store, tmp_path / str(is_mended))
        path = root / "config" / "topics.json"
        path.write_bytes(path.read_bytes().replace(b"topicConfigTable", b"topicConfigTabme"))
        if is_mended:
            assert mqtool("recover", root, "--yes").code == 1
        with WholeBroker(version, root, settings(store), kill=True) as broker:
            (received,) = broker.consume([Subscription("TopicA")], timeout=90.0 if is_mended else 20.0)
        assert bool(received) == is_mended
