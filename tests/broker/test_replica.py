"""`recover --from` between a master and its slave, both real brokers: the slave has its log from the master's HA
service, and its own queues, index and checkpoint."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from fixtures.lab.packed import settings
from fixtures.lab.whole import WholeBroker
from tests.reading.test_further import assert_healed
from tests.support import plain_reader as plain
from tests.support.brokers import require_lab
from tests.support.pairs import DIVERGED, SAME, pair
from tests.support.stores import copy_store, unpacked

pytestmark = pytest.mark.broker
MASTERS = {"5.3.3": "clean-manyfiles-5.3.3", "4.9.7": "clean-plain-4.9.7"}
PAIRS = 150


def replicated(version: str, folder: Path) -> tuple[Path, Path]:
    """A master's store and that of its slave, which had the first log file and got all others from the master; both
    killed."""
    name = MASTERS[version]
    master, slave = copy_store(unpacked(name), folder / "master"), folder / "slave"
    first = min((master / "commitlog").iterdir())
    for part in (first, master / "config" / "topics.json"):
        copy = slave / part.relative_to(master)
        copy.parent.mkdir(parents=True)
        shutil.copy(part, copy)
    conf = {**settings(name), "brokerIP2": "127.0.0.1"}
    with WholeBroker(version, master, {**conf, "brokerRole": "ASYNC_MASTER"}, kill=True) as broker:
        own = {"brokerRole": "SLAVE", "brokerId": 1, "namesrvAddr": broker.address}
        until = time.monotonic() + 120
        with WholeBroker(version, slave, {**conf, **own}, kill=True):
            while plain.records_by_place(slave) != plain.records_by_place(master):
                assert time.monotonic() < until, "the slave has not caught up"
                time.sleep(0.5)
            time.sleep(1.5)  # for its queues
    return master, slave


@pytest.fixture(scope="module")
def replicated_by(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """The stores of a master and its slave of a release: from one run of both for all pairs."""
    return cache(lambda version: replicated(version, tmp_path_factory.mktemp(version)))


@pytest.mark.parametrize("seed", range(PAIRS))
@pytest.mark.parametrize("version", MASTERS)
def test_damaged_master_and_slave_heal_each_other(
    version: str, seed: int, replicated_by: Callable[[str], tuple[Path, Path]], tmp_path: Path
) -> None:
    require_lab()
    master, slave = replicated_by(version)
    stores = (master, slave) if seed % 2 else (slave, master)
    found = pair(version, seed, SAME if seed % 4 < 3 else DIVERGED, tmp_path, stores=stores)
    assert_healed(found, "--extend", "--max-loss", "all", "--set", "fileReservedTime=7200")
