"""Which releases would cut the log of a store, should they ever read it from its first file."""

from __future__ import annotations

from msgspec import Struct

from recover.broker.record_check import CheckRules
from recover.broker.recovery import oldest_searched, scan
from recover.broker.settings import BrokerSettings
from recover.broker.versions import BrokerVersion, boundaries
from recover.log.scan import LogView
from recover.predict.dispatch import Nobody
from recover.predict.loading import BrokerLog
from recover.store.store import Store


class Cut(Struct, frozen=True):
    """Releases from `first` on, and before `until` (None: up to the newest), end the log at `offset` for `reason`.

    `fatal`: they do not get over that place at all.
    """

    first: BrokerVersion
    until: BrokerVersion | None
    offset: int
    reason: str
    fatal: bool


def releases_that_cut(store: Store, view: LogView) -> list[Cut]:
    """The generations whose check fails before the log's end, with default settings; ascending, equal ones merged."""
    cuts: list[Cut] = []
    with BrokerLog(store.commitlog.files, store.mapped_file_size, view) as log:
        for first, until in zip(boundaries(), (*boundaries()[1:], None), strict=True):
            cut = _cut(log, first, until) if log.files else None
            if cut is None:
                continue
            before = cuts[-1] if cuts else None
            if before and before.until == first and (before.offset, before.reason) == (cut.offset, cut.reason):
                cuts[-1] = Cut(before.first, until, cut.offset, cut.reason, cut.fatal)
            else:
                cuts.append(cut)
    return cuts


def _cut(log: BrokerLog, first: BrokerVersion, until: BrokerVersion | None) -> Cut | None:
    end = scan(log, 0, CheckRules.of(BrokerSettings(first)), Nobody())
    if end.process_offset >= log.view.log_end and not end.fatal:
        return None
    return Cut(first, until, end.process_offset, end.reason, end.fatal)


def limited_search_cuts(view: LogView, settings: BrokerSettings) -> bool:
    """Whether a search for the start file that finds none among the newest files lets the log be cut short."""
    with BrokerLog(view.queue.files, view.queue.file_size, view) as log:
        first = oldest_searched(settings, len(log.files))
        return scan(log, first, CheckRules.of(settings), Nobody()).process_offset < view.log_end
