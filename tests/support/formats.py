"""Every format of a store, one line each: a new format is its module and a line here.

The reference in docs/format.md and the project's own tests walk this list.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Struct

from formats.basics import FormatError, Layout


class Format(Struct, frozen=True):
    """One format: its name in the docs, what it is found in (below the store root), its module, its layouts there."""

    name: str
    found_in: str
    module: str
    layouts: tuple[str, ...] = ()

    def layout(self, name: str) -> Layout[Any]:
        """One of `layouts`, by the name that its module gives it."""
        found = getattr(importlib.import_module(self.module), name)
        if not isinstance(found, Layout):
            raise TypeError(f"{self.module}.{name} is no layout")
        return found


FORMATS = (
    Format("commitlog", "commitlog/<offset>", "formats.record.layout",
           ("HEAD", "HEAD_BORN_V6", "HEAD_STORE_V6", "HEAD_BOTH_V6", "TOPIC_LENGTH_V1", "TOPIC_LENGTH_V2",
            "PROPERTIES_LENGTH", "PROPERTY_CRC", "BLANK")),
    Format("message-id", "ids that clients and tools show", "formats.record.message",
           ("OFFSET_ID", "OFFSET_ID_V6", "UNIQ_KEY", "UNIQ_KEY_V6")),
    Format("consumequeue", "consumequeue/<topic>/<queue>/<offset>", "formats.consumequeue", ("CQ_UNIT",)),
    Format("consumequeue-ext", "consumequeue_ext/<topic>/<queue>/<offset>", "formats.consumequeue",
           ("CQ_EXT_HEAD", "CQ_EXT_END")),
    Format("batchconsumequeue", "batchconsumequeue/<topic>/<queue>/<offset>", "formats.consumequeue",
           ("BATCH_CQ_UNIT",)),
    Format("index", "index/<time>", "formats.index", ("INDEX_HEADER", "INDEX_SLOT", "INDEX_UNIT")),
    Format("checkpoint", "checkpoint", "formats.checkpoint", ("CHECKPOINT",)),
    Format("abort", "abort, abort.bak", "formats.checkpoint"),
    Format("config", "config/*.json", "formats.config.tables"),
    Format("timer", "timerlog/<offset>, timerwheel, config/timercheck", "formats.timer",
           ("TIMER_LOG_UNIT", "TIMER_LOG_BLANK", "TIMER_WHEEL_SLOT", "TIMER_CHECK")),
    Format("compaction", "compaction/", "formats.consumequeue"),
    Format("dledger", "dledger-<id>/data/<offset>, dledger-<id>/index/<offset>", "formats.dledger",
           ("DLEDGER_ENTRY_HEAD", "DLEDGER_BLANK", "DLEDGER_INDEX_UNIT")),
    Format("epoch", "epochFileCheckpoint", "formats.dledger"),
    Format("legacy-transaction", "transaction/statetable, transaction/redolog", "formats.legacy_transaction",
           ("STATE_UNIT",)),
    Format("names", "the names of files and topics", "formats.basics"),
    Format("properties-text", "broker.conf, dledger-<id>/checkpoint, dledger-<id>/currterm",
           "formats.config.properties_text"),
)

BY_NAME = {entry.name: entry for entry in FORMATS}


def refusal(read: Callable[..., object], *arguments: object) -> FormatError:
    """The `FormatError` that reading ends with."""
    with pytest.raises(FormatError) as caught:
        read(*arguments)
    return caught.value
