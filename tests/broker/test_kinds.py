"""Stores of every kind: what a broker of the release that wrote one delivers, recover takes nothing from it.

While the log is not mounted recover changes nothing, byte for byte: tests/scenarios/test_every_kind.py.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest

from fixtures.lab import kinds
from fixtures.lab.packed import manifest, settings
from fixtures.lab.whole import Delivered
from tests.broker.judge import REFUSED, mqtool
from tests.support.brokers import require_lab
from tests.support.stores import KINDS, broker_conf, copy_store, real_store
from tests.support.trees import tree_digest

pytestmark = pytest.mark.broker

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
    require_lab()
    counts, expected = kinds.counts(delivered_before(name)), dict(manifest(name)["delivered"])
    if "Compacted" in expected:
        assert KEYS <= counts["Compacted"] <= expected["Compacted"]
        del counts["Compacted"], expected["Compacted"]
    assert counts == expected


@pytest.mark.parametrize("given", ["broker.conf", "nothing"])
@every_kind
def test_broker_delivers_after_recover_what_it_delivered_before(name: str, given: str, tmp_path: Path) -> None:
    require_lab()
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
