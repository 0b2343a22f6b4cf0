"""A store looked at once, and plan steps carried out without a journal: what tests of single checks need."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from recover.change.model import Install, Retire, Step
from recover.reading.doubts import read
from recover.reading.facts import Facts
from recover.reading.reading import Reading
from recover.store.store import Store, StoreOptions

COMMITLOG_FOLDERS = ("commitlog-a", "commitlog-b")


def opened(root: Path, **options: object) -> Store:
    """The store, with the folders of a multi-path commitlog where it has them."""
    folders = tuple(root / name for name in COMMITLOG_FOLDERS if (root / name).is_dir())
    return Store.open(root, StoreOptions(commitlog=folders, **options))  # type: ignore[arg-type]


def analysed(root: Path, **settings: str) -> tuple[Store, Reading]:
    """The store and an analysis of it, with broker settings."""
    store = opened(root, settings=settings)
    return store, read(Facts.of(store))


def carry_out(root: Path, steps: Iterable[Step]) -> None:
    """Do what the steps of small files say."""
    for step in steps:
        if isinstance(step, Retire):
            (root / step.file).unlink()
            continue
        assert isinstance(step, Install) and step.content is not None
        (root / step.file).write_bytes(b"".join(step.content.chunks()))
