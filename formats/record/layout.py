"""Where the fields of a commitlog record are: the only place that says so.

A record is a fixed head, the body, the topic after its length, and the properties after
theirs (`MessageExtEncoder`). The head grows by 12 bytes for each host that is IPv6, so there
are four heads of one declaration; the offsets exported here are those of the IPv4 head.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Annotated, NamedTuple

from formats import sysflag
from formats.layout import I8, I16, I32, I64, Layout, LayoutField, raw

MAGIC_V1 = -626843481
MAGIC_V2 = -626843477
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
    born_port: Annotated[int, I32, "client port, 0 to 65535: clients throw at any other, and drop what came after it"]
    store_timestamp: Annotated[int, I64, "broker clock, ms"]
    store_ip: Annotated[bytes, raw(IPV4_LENGTH), "broker address; 16 bytes when sysFlag has 0x20"]
    store_port: Annotated[int, I32, "broker port, as the client's"]
    reconsume_times: Annotated[int, I32, "deliveries that failed"]
    prepared_transaction_offset: Annotated[int, I64, "of a commit: phy offset of its half message"]
    body_length: Annotated[int, I32, "bytes of the body that follows"]


class TopicLengthV1(NamedTuple):
    """Before the topic of a V1 record."""

    length: Annotated[int, I8, "bytes of the topic that follows, 1 to 127"]


class TopicLengthV2(NamedTuple):
    """Before the topic of a V2 record."""

    length: Annotated[int, I16, "bytes of the topic that follows"]


class PropertiesLength(NamedTuple):
    """Before the properties."""

    length: Annotated[int, I16, "bytes of the properties that follow, to the end of the record"]


class PropertyCrc(NamedTuple):
    """The last property of a record written with enabledAppendPropCRC (from 5.2.0)."""

    name: Annotated[bytes, raw(8), "`__CRC32#`"]
    name_end: Annotated[bytes, raw(1), "0x01"]
    digits: Annotated[bytes, raw(10), "CRC of everything before `name`, lowest digit first"]
    end: Annotated[bytes, raw(1), "0x02"]


class BlankHead(NamedTuple):
    """What closes a mapped file; the bytes after it are undefined."""

    size: Annotated[int, I32, "bytes from here to the end of the mapped file"]
    magic: Annotated[int, I32, "CBD43194"]


def _with_ipv6(layout: Layout[Head], names: Collection[str]) -> Layout[Head]:
    fields: list[LayoutField] = []
    offset = 0
    for field in layout.fields:
        wire = raw(IPV6_LENGTH) if field.name in names else field.wire
        fields.append(LayoutField(field.name, offset, wire, field.note))
        offset += fields[-1].size
    return Layout(layout.record, tuple(fields))


HEAD = Layout.of(Head)
HEAD_BORN_V6 = _with_ipv6(HEAD, ["born_ip"])
HEAD_STORE_V6 = _with_ipv6(HEAD, ["store_ip"])
HEAD_BOTH_V6 = _with_ipv6(HEAD, ["born_ip", "store_ip"])
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

OFFSET_TOTAL_SIZE = HEAD.offset("total_size")
OFFSET_BODY_CRC = HEAD.offset("body_crc")
OFFSET_QUEUE_ID = HEAD.offset("queue_id")
OFFSET_FLAG = HEAD.offset("flag")
OFFSET_QUEUE_OFFSET = HEAD.offset("queue_offset")
OFFSET_PHY_OFFSET = HEAD.offset("phy_offset")
OFFSET_SYS_FLAG = HEAD.offset("sys_flag")
# From here on every offset moves by IPV6_EXTRA for each earlier host that is IPv6.
OFFSET_STORE_TIMESTAMP = HEAD.offset("store_timestamp")
OFFSET_RECONSUME_TIMES = HEAD.offset("reconsume_times")
OFFSET_BODY_LENGTH = HEAD.offset("body_length")
HEAD_SIZE = HEAD.size
IPV6_EXTRA = HEAD_BORN_V6.size - HEAD.size
TOPIC_LENGTH_V1_SIZE = TOPIC_LENGTH_V1.size
TOPIC_LENGTH_V2_SIZE = TOPIC_LENGTH_V2.size
PROPERTIES_LENGTH_SIZE = PROPERTIES_LENGTH.size
PROPERTY_CRC_SIZE = PROPERTY_CRC.size
BLANK_SIZE = BLANK.size
MIN_RECORD_SIZE = HEAD_SIZE + TOPIC_LENGTH_V1_SIZE + PROPERTIES_LENGTH_SIZE

I32_STRUCT = struct.Struct(">" + I32.code)
