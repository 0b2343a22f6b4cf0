"""What a broker's settings or its release, and not the store, would have to change: each has a remedy of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from formats.consumequeue import file_size_for
from recover.broker.settings import java_integer
from recover.broker.versions import BrokerVersion
from recover.files.store import COMMITLOG, CONSUMEQUEUE, INDEX, Store
from recover.findings import Finding, finding
from recover.index.files import index_geometry, list_index_files
from recover.scan.log import LogView
from recover.verify.commitlog import needs_newer_broker


def contradicted_settings(store: Store, settings: Mapping[str, str]) -> Iterator[Finding]:
    """Sizes that the settings name and the files of the store do not have, where these agree with each other."""
    for key, folder, right in _sizes_of_files(store):
        given = java_integer(settings.get(key, ""))
        if given is not None and right is not None and _rounded(key, given) != right:
            yield finding("settings-contradict-files", folder, None, setting=key, given=given, right=right)


def _sizes_of_files(store: Store) -> Iterator[tuple[str, str, int | None]]:
    if store.commitlog.files:
        yield "mappedFileSizeCommitLog", COMMITLOG, store.mapped_file_size
    if store.queue_folders:
        yield "mappedFileSizeConsumeQueue", CONSUMEQUEUE, store.queue_size_of_files
    listing = list_index_files(store.index_dir)
    geometry = index_geometry(store, listing) if listing.files else None
    if geometry is not None:
        yield "maxHashSlotNum", INDEX, geometry.slots
        yield "maxIndexNum", INDEX, geometry.entries


def _rounded(key: str, value: int) -> int:
    return file_size_for(value) if key == "mappedFileSizeConsumeQueue" else value


def too_old_for(store: Store, view: LogView, version: BrokerVersion) -> Iterator[Finding]:
    """Records that this release cannot read: it would cut the log at the first of them."""
    for item in needs_newer_broker(store, view):
        needed = item.facts["version"]
        if version < BrokerVersion.parse(needed):
            yield finding("start-needs-newer-broker", item.file, item.offset, broker=str(version), version=needed,
                          what=item.facts["what"], start=item.facts["start"])
