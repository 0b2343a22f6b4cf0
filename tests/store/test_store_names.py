"""Files of a store by the names that reports and plans give them."""

from __future__ import annotations

from pathlib import Path

import pytest

from recover.store.store import Store, StoreOptions


@pytest.mark.parametrize("root", ["/var/store", "store", "../store", ".", "/"])
def test_a_file_below_the_root_is_named_from_there(root: str) -> None:
    store = Store(Path(root), StoreOptions())
    for name in ("abort", "consumequeue/TopicA/0/00000000000000000000", "consumequeue/%RETRY%g/0"):
        assert store.relative(store.path(name)) == name
    assert store.relative(store.root) == "."


@pytest.mark.parametrize("place", ["/var/store2/abort", "/var/stor", "/var", "/elsewhere/commitlog/0"])
def test_what_lies_elsewhere_keeps_its_whole_path(place: str) -> None:
    assert Store(Path("/var/store"), StoreOptions()).relative(Path(place)) == place
