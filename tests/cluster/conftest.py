"""One cluster for all tests of a worker that ask for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from recover.cluster.session import stop_session
from tests.cluster.cluster import Cluster, cluster
from tests.support.plans import quick_folder


@pytest.fixture(scope="session")
def started() -> Iterator[Cluster]:
    with quick_folder() as folder, cluster(folder / "cluster") as made:
        yield made
        stop_session()


@pytest.fixture
def running(started: Cluster) -> Cluster:
    """A master and two workers; a session of an earlier test on it may go on."""
    started.revive()
    return started
