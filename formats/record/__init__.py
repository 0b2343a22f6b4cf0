"""The commitlog: records (V1, V2) and the blank that ends a mapped file; re-exports the names that most code needs."""

from __future__ import annotations

from formats.record.grammar import check_strict, decode
from formats.record.layout import (
    BLANK,
    BLANK_SIZE,
    HEAD,
    HEAD_SIZE,
    HEADS,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MAGICS,
    MIN_RECORD_SIZE,
    OFFSET_SYS_FLAG,
    PROPERTY_CRC_SIZE,
)
from formats.record.message import (
    SERVICE_TOPICS,
    TOPIC_HALF,
    TOPIC_OP_HALF,
    TOPIC_SCHEDULE,
    TOPIC_TIMER,
    Record,
    decode_blank,
    delay_level,
    encode,
    encode_blank,
    host_text,
    iter_index_keys,
    make_record,
    tags_code,
)
