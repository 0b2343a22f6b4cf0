"""The columns of one record, computed by the reference codec: what the compiled walk would have written."""

from __future__ import annotations

from typing import Any

import numpy as np

from formats import properties as props
from formats.commitlog import Record, delay_level, iter_index_keys, tags_code
from formats.commitlog.service import unserved
from formats.javahash import index_key_hash
from formats.record_columns import (
    BIT_CONTRADICTED_FLAG,
    BIT_DELAY,
    BIT_FILLER,
    BIT_HAS_TAGS,
    BIT_HAS_UNIQ,
    BIT_INNER_BATCH,
    BIT_LMQ,
    BIT_MARKER,
    BIT_PROP_CRC,
    BIT_UNSERVED,
    BIT_V2,
    RECORD,
)
from formats.sysflag import TRANSACTION_ROLLBACK, contradicted_by

FILLER_TOPIC = "MQTOOL_FILLER"
MARKER_PROPERTY = "MQTOOL_LOST"


def is_filler(record: Record) -> bool:
    """True for a record that mqtool wrote in place of damage; its topic may be a beginning of FILLER_TOPIC."""
    return record.transaction_type == TRANSACTION_ROLLBACK and FILLER_TOPIC.startswith(record.topic_name)


def row_of(record: Record, queue: int) -> tuple[Any, Any]:
    """One RECORD row (shape (1,)) and the int32 index key hashes of `record`, whose queue has the number `queue`."""
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
    hashes = np.array([index_key_hash(key) for key in iter_index_keys(record, tags=True)], dtype=np.int32)
    row = np.zeros(1, dtype=RECORD)
    row[0] = (
        record.phy_offset, record.queue_offset, record.store_timestamp,
        level if level is not None and level > 0 else tags_code(record),
        record.total_size, queue, record.sys_flag, bits, min(hashes.size, 0xFFFF),
    )
    return row, hashes[:0xFFFF]
