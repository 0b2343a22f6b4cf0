"""A config file with a flipped bit in the name of its table: whole brokers forget what it has, until it is put back."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.lab.packed import settings
from fixtures.lab.whole import Subscription, WholeBroker
from tests.broker.judge import mqtool
from tests.support.brokers import VERSIONS, require_lab
from tests.support.stores import real_store

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("version", VERSIONS)
def test_topics_are_forgotten_until_their_table_has_its_name_again(version: str, tmp_path: Path) -> None:
    """Although the backup is sound."""
    require_lab()
    store = "clean-4.5.1"
    for is_mended in (False, True):
        root = real_store(store, tmp_path / str(is_mended))
        path = root / "config" / "topics.json"
        path.write_bytes(path.read_bytes().replace(b"topicConfigTable", b"topicConfigTabme"))
        if is_mended:
            assert mqtool("recover", root, "--yes").code == 1
        with WholeBroker(version, root, settings(store), kill=True) as broker:
            (received,) = broker.consume([Subscription("TopicA")], timeout=20.0)
        assert bool(received) == is_mended
