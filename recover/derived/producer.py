"""Who makes derived files elsewhere: an engine whose executors kept the scan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from recover.change.content import Writes
from recover.change.model import Step
from recover.derived.expected import Expectation, QueueKey
from recover.log.engine import Engine
from recover.log.scan import LogView
from recover.store.store import Store

if TYPE_CHECKING:
    from recover.derived.index_rebuild import FileBuilder, RebuiltIndexFile, Target
    from recover.derived.queues import QueueBuilder


class Producer(Writes, Protocol):
    """Something that makes the derived files of one log elsewhere."""

    def queues(
        self, builder: QueueBuilder, expectation: Expectation, wanted: set[QueueKey] | None, *, fresh: bool
    ) -> Iterator[tuple[QueueKey, list[Step]]]:
        """Each wanted queue that the log fills, and the steps that put it right; `fresh`: that install all of it."""

    def index_files(
        self, builder: FileBuilder, targets: Iterable[Target], files: Iterable[RebuiltIndexFile]
    ) -> Iterator[RebuiltIndexFile]:
        """The files of the targets, their content made elsewhere."""


@runtime_checkable
class HasProducer(Protocol):
    """An engine that can make files, too."""

    def producer(self, store: Store, log: LogView) -> Producer | None:
        """Who makes the derived files of a log that this engine scanned; None where that is not possible."""


def producer_for(engine: Engine, store: Store, log: LogView) -> Producer | None:
    """Who makes the derived files of `log` elsewhere; None when this process does."""
    return engine.producer(store, log) if isinstance(engine, HasProducer) else None
