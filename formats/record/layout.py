"""The only declaration of where the fields of a commitlog record are.

A record is a fixed head, the body, the topic after its length, and the properties after theirs (`MessageExtEncoder`).
The head grows by 12 bytes for each IPv6 host, so one declaration gives four heads; up to the first host all have the
same offsets.
"""

from __future__ import annotations

import struct
from typing import Annotated, NamedTuple

from formats import sysflag
from formats.basics import I8, I16, I32, I64, Layout, raw

MAGIC_V1 = -626843481
MAGIC_V2 = -626843477
MAGICS = (MAGIC_V1, MAGIC_V2)
"""The magics of records."""
MAGIC_BLANK = -875286124

IPV4_LENGTH = 4
IPV6_LENGTH = 16


class Head(NamedTuple):
    """The part of a record before its body."""

    total_size: Annotated[int, I32, "bytes of the whole record, this field included"]
    magic: Annotated[int, I32, "DAA320A7 (V1) or DAA320AB (V2, from 5.1.0)"]
    body_crc: Annotated[int, I32, "CRC-32 of the stored body, top bit cleared"]
    queue_id: Annotated[int, I32, "queue of the topic"]
    flag: Annotated[int, I32, "set by the client, opaque"]
    queue_offset: Annotated[int, I64, "index in the consume queue"]
    phy_offset: Annotated[int, I64, "position of this record in the log"]
    sys_flag: Annotated[int, I32, "compression, transaction, IPv6 and batch bits"]
    born_timestamp: Annotated[int, I64, "client clock, ms"]
    born_ip: Annotated[bytes, raw(IPV4_LENGTH), "client address; 16 bytes when sysFlag has 0x10"]
    born_port: Annotated[int, I32, "client port, 0 to 65535; else clients throw and drop the rest of the response"]
    store_timestamp: Annotated[int, I64, "broker clock, ms"]
    store_ip: Annotated[bytes, raw(IPV4_LENGTH), "broker address; 16 bytes when sysFlag has 0x20"]
    store_port: Annotated[int, I32, "broker port, same limits"]
    reconsume_times: Annotated[int, I32, "failed deliveries"]
    prepared_transaction_offset: Annotated[int, I64, "of a commit: phy offset of its half message"]
    body_length: Annotated[int, I32, "bytes of the body that follows"]


class TopicLengthV1(NamedTuple):
    """The field before the topic of a V1 record."""

    length: Annotated[int, I8, "bytes of the topic that follows, 1 to 127"]


class TopicLengthV2(NamedTuple):
    """The field before the topic of a V2 record."""

    length: Annotated[int, I16, "bytes of the topic that follows"]


class PropertiesLength(NamedTuple):
    """The field before the properties."""

    length: Annotated[int, I16, "bytes of the properties that follow, to the end of the record"]


class PropertyCrc(NamedTuple):
    """The last property of a record written with enabledAppendPropCRC (from 5.2.0)."""

    name: Annotated[bytes, raw(8), "`__CRC32#`"]
    name_end: Annotated[bytes, raw(1), "0x01"]
    digits: Annotated[bytes, raw(10), "CRC of everything before `name`, lowest digit first"]
    end: Annotated[bytes, raw(1), "0x02"]


class BlankHead(NamedTuple):
    """The end mark of a mapped file; the bytes after it are undefined."""

    size: Annotated[int, I32, "bytes from here to the end of the mapped file"]
    magic: Annotated[int, I32, "CBD43194"]


HEAD = Layout.of(Head)
HEAD_BORN_V6 = HEAD.widened({"born_ip": raw(IPV6_LENGTH)})
HEAD_STORE_V6 = HEAD.widened({"store_ip": raw(IPV6_LENGTH)})
HEAD_BOTH_V6 = HEAD.widened({"born_ip": raw(IPV6_LENGTH), "store_ip": raw(IPV6_LENGTH)})
TOPIC_LENGTH_V1 = Layout.of(TopicLengthV1)
TOPIC_LENGTH_V2 = Layout.of(TopicLengthV2)
PROPERTIES_LENGTH = Layout.of(PropertiesLength)
PROPERTY_CRC = Layout.of(PropertyCrc)
BLANK = Layout.of(BlankHead)

HEADS = {
    0: HEAD,
    sysflag.BORNHOST_V6: HEAD_BORN_V6,
    sysflag.STOREHOST_V6: HEAD_STORE_V6,
    sysflag.HOSTS_V6: HEAD_BOTH_V6,
}
TOPIC_LENGTHS = {MAGIC_V1: TOPIC_LENGTH_V1.struct, MAGIC_V2: TOPIC_LENGTH_V2.struct}

OFFSET_PHY_OFFSET = HEAD.offset("phy_offset")
OFFSET_SYS_FLAG = HEAD.offset("sys_flag")
HEAD_SIZE = HEAD.size
IPV6_EXTRA = HEAD_BORN_V6.size - HEAD.size
TOPIC_LENGTH_V1_SIZE = TOPIC_LENGTH_V1.size
TOPIC_LENGTH_V2_SIZE = TOPIC_LENGTH_V2.size
PROPERTIES_LENGTH_SIZE = PROPERTIES_LENGTH.size
PROPERTY_CRC_SIZE = PROPERTY_CRC.size
BLANK_SIZE = BLANK.size
MIN_RECORD_SIZE = HEAD_SIZE + TOPIC_LENGTH_V1_SIZE + PROPERTIES_LENGTH_SIZE

I32_STRUCT = struct.Struct(">" + I32.code)
