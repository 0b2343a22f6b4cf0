"""The columns that a scan keeps of each intact record: 48 bytes a row."""

from __future__ import annotations

import numpy as np

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
"""One intact record. `queue` numbers a (topic, queue id) pair of the scan; `hashes` counts its index key hashes:
the unique key, each word of KEYS, then the tags. With BIT_DELAY, `tags_code` holds the delay level."""

EXPECTED = np.dtype([
    ("queue_offset", "<i8"), ("phy_offset", "<i8"), ("tags_code", "<i8"), ("store_timestamp", "<i8"),
    ("size", "<i4"), ("queue", "<i4"), ("bits", "<u2"),
])
"""One position of a queue. With BIT_DELAY `tags_code` is the delay level; with BIT_MARKER the message is lost."""

BIT_HAS_TAGS = 1
BIT_DELAY = 2
BIT_LMQ = 4
BIT_PROP_CRC = 8
BIT_V2 = 16
BIT_GHOST = 32
BIT_SUPERSEDED = 64
BIT_HAS_UNIQ = 128
BIT_FILLER = 256
BIT_MARKER = 512
BIT_INNER_BATCH = 1024
BIT_STRAY = 2048
BIT_CONTRADICTED_FLAG = 4096
"""The body is not what the sysFlag says of it (`formats.sysflag.contradicted_by`), and no checksum covers that."""
BIT_UNSERVED = 8192
"""A service of brokers cannot deliver the message (`formats.commitlog.service.unserved`)."""
BITS_REJECTED = BIT_CONTRADICTED_FLAG | BIT_UNSERVED

STALE = BIT_GHOST | BIT_SUPERSEDED
NO_PLACE = STALE | BIT_STRAY
"""Rows with any of these stand for nothing in a queue; what a scan of one file cannot tell yet."""
NO_MESSAGE = STALE | BIT_FILLER | BIT_MARKER
"""Rows with any of these are no message that a consumer could be given."""


def column_offset(name: str) -> int:
    """Where a column begins in a row, in bytes."""
    assert RECORD.fields is not None
    return int(RECORD.fields[name][1])
