"""Checking and rebuilding the index of a store in tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recover.derived.index_check import IndexReport, check_index
from recover.derived.index_rebuild import IndexRebuild, rebuild_index
from recover.log.scan import LogView, scan_log
from recover.store.store import Store, StoreOptions


def opened(root: Path, **options: Any) -> tuple[Store, LogView]:
    """The store, and its log scanned."""
    store = Store.open(root, StoreOptions(**options))
    return store, scan_log(store.commitlog)


def checked(root: Path, **options: Any) -> IndexReport:
    """What a check of the store's index says."""
    return check_index(*opened(root, **options))


def rebuilt(root: Path, **arguments: Any) -> IndexRebuild:
    """The plan of a rebuild."""
    return rebuild_index(*opened(root), **arguments)


def warnings(report: IndexReport) -> list[str]:
    """Codes of all findings but infos, in the order found."""
    return [item.code for item in report.findings if item.severity != "info"]


def write(plan: IndexRebuild, folder: Path) -> None:
    """Do what the plan says, in a folder of index files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in plan.retired:
        (folder / name).unlink()
    for file in plan.files:
        (folder / file.name).write_bytes(b"".join(file.content.chunks()))


def index_bytes(root: Path) -> dict[str, bytes]:
    """Name and content of each index file of a store."""
    return {path.name: path.read_bytes() for path in sorted((root / "index").iterdir())}
