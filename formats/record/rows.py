"""The columns that a scan keeps of each intact record: 48 bytes a row."""

from __future__ import annotations

from typing import Any

import numpy as np

from formats import properties as props
from formats.basics import index_key_hash
from formats.record import Record, delay_level, iter_index_keys, tags_code
from formats.record.grammar import unserved
from formats.sysflag import TRANSACTION_ROLLBACK, contradicted_by

RECORD = np.dtype([
    ("phy_offset", "<i8"),
    ("queue_offset", "<i8"),
    ("store_timestamp", "<i8"),
    ("tags_code", "<i8"),
    ("size", "<i4"),
    ("queue", "<i4"),
    ("sys_flag", "<i4"),
    ("bits", "<u2"),
    ("hashes", "<u2"),
])
"""One intact record. `queue` is the number of a (topic, queue id) pair of the scan; `hashes` counts its index key
hashes: the unique key, each word of KEYS, then the tags. With BIT_DELAY, `tags_code` holds the delay level."""

EXPECTED = np.dtype([
    ("queue_offset", "<i8"), ("phy_offset", "<i8"), ("tags_code", "<i8"), ("store_timestamp", "<i8"),
    ("size", "<i4"), ("queue", "<i4"), ("bits", "<u2"),
])
"""One position of a queue. With BIT_DELAY `tags_code` is the delay level; with BIT_MARKER the message is lost."""

QUEUE_TALLY = np.dtype([
    ("first", "<i8"), ("last", "<i8"), ("positions", "<i8"), ("least", "<i8"), ("most", "<i8"), ("sum", "<u8"),
    ("bits", "<u2"), ("fallen", "?"),
])
"""Counts over the rows of one queue, see `formats.native.rows.tally_rows`."""

BIT_HAS_TAGS = 1
BIT_DELAY = 2
BIT_LMQ = 4
BIT_PROP_CRC = 8
BIT_V2 = 16
BIT_STALE = 32
"""A stale record: of an earlier generation, after a break of the log."""
BIT_SUPERSEDED = 64
BIT_HAS_UNIQ = 128
BIT_FILLER = 256
BIT_MARKER = 512
BIT_INNER_BATCH = 1024
BIT_MISNUMBERED = 2048
BIT_CONTRADICTED_FLAG = 4096
"""The body contradicts the sysFlag (`formats.sysflag.contradicted_by`), and no checksum covers the flag."""
BIT_UNSERVED = 8192
"""A service of brokers cannot deliver the message (`formats.record.grammar.unserved`)."""
BITS_REJECTED = BIT_CONTRADICTED_FLAG | BIT_UNSERVED

NOT_LIVE = BIT_STALE | BIT_SUPERSEDED
NOT_IN_QUEUE = NOT_LIVE | BIT_MISNUMBERED
"""Rows with any of these hold no place in a queue; a scan of a single file cannot set them yet."""
STAND_IN = BIT_FILLER | BIT_MARKER
"""Records that replace lost ones."""
NO_MESSAGE = NOT_LIVE | STAND_IN
"""Rows with any of these are not messages that a consumer could receive."""


# --- The columns of one record, computed by the reference codec: the same as the compiled walk writes.


FILLER_TOPIC = "MQTOOL_FILLER"
MARKER_PROPERTY = "MQTOOL_LOST"


def is_filler(record: Record) -> bool:
    """Whether a record was written by mqtool in place of damage; its topic may be a prefix of FILLER_TOPIC."""
    return record.transaction_type == TRANSACTION_ROLLBACK and FILLER_TOPIC.startswith(record.topic_name)


def row_of(record: Record, queue: int, *, with_keys: bool = True) -> tuple[Any, Any]:
    """Return one RECORD row (shape (1,)) and the int32 index key hashes of `record`, whose queue has the number
    `queue`.

    Without `with_keys` it has neither hashes nor a tags code, only a delay level.
    """
    values = record.property_map()
    level = delay_level(record)
    bits = sum(
        bit
        for bit, is_set in (
            (BIT_V2, record.version == 2),
            (BIT_PROP_CRC, record.property_crc is not None),
            (BIT_HAS_TAGS, bool(values.get(props.TAGS))),
            (BIT_HAS_UNIQ, bool(values.get(props.UNIQ_KEY))),
            (BIT_LMQ, props.INNER_MULTI_DISPATCH in values),
            (BIT_INNER_BATCH, props.INNER_NUM in values),
            (BIT_MARKER, MARKER_PROPERTY in values),
            (BIT_FILLER, is_filler(record)),
            (BIT_DELAY, level is not None and level > 0),
            (BIT_CONTRADICTED_FLAG, record.property_crc is None and contradicted_by(record.sys_flag, record.body)),
            (BIT_UNSERVED, bool(unserved(record))),
        )
        if is_set
    )
    hashes = np.array([index_key_hash(key) for key in iter_index_keys(record)] if with_keys else [], dtype=np.int32)
    row = np.zeros(1, dtype=RECORD)
    row[0] = (
        record.phy_offset, record.queue_offset, record.store_timestamp,
        level if level is not None and level > 0 else tags_code(record) if with_keys else 0,
        record.total_size, queue, record.sys_flag, bits, min(hashes.size, 0xFFFF),
    )
    return row, hashes[:0xFFFF]
