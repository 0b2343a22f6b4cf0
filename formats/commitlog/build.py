"""Records made from what a message says; the rest is computed."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from formats import properties as props
from formats import sysflag
from formats.commitlog.codec import encode, property_crc_digits
from formats.commitlog.layout import (
    HEADS,
    IPV6_LENGTH,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH,
    PROPERTY_CRC_SIZE,
    TOPIC_LENGTHS,
)
from formats.commitlog.record import PROPERTY_CRC_START, Host, Record
from formats.crc import crc31

LOCALHOST: Host = (b"\x7f\x00\x00\x01", 0)
LONGEST_V1_TOPIC = 127


def make_record(
    topic: str | bytes,
    body: bytes = b"",
    properties: bytes | Mapping[str, str] = b"",
    *,
    store_timestamp: int,
    queue_id: int = 0,
    queue_offset: int = 0,
    phy_offset: int = 0,
    flag: int = 0,
    sys_flag: int = 0,
    born_timestamp: int | None = None,
    born_host: Host = LOCALHOST,
    store_host: Host = LOCALHOST,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    magic: int | None = None,
    property_crc: bool = False,
) -> Record:
    """A record as a broker would store it: version, IPv6 bits, size and checksums are computed.

    `magic` overrides the choice of V2 for topics longer than 127 bytes; `property_crc` appends
    the property CRC as `enabledAppendPropCRC` does.
    """
    topic = topic.encode() if isinstance(topic, str) else topic
    text = properties if isinstance(properties, bytes) else props.join(properties)
    if magic is None:
        magic = MAGIC_V2 if len(topic) > LONGEST_V1_TOPIC else MAGIC_V1
    sys_flag &= ~sysflag.HOSTS_V6
    sys_flag |= sysflag.BORNHOST_V6 if len(born_host[0]) == IPV6_LENGTH else 0
    sys_flag |= sysflag.STOREHOST_V6 if len(store_host[0]) == IPV6_LENGTH else 0
    if property_crc:
        if text and not text.endswith(props.PROPERTY_BYTE):
            text += props.PROPERTY_BYTE
        text += PROPERTY_CRC_START + property_crc_digits(b"") + props.PROPERTY_BYTE
    size = (HEADS[sys_flag & sysflag.HOSTS_V6].size + len(body) + TOPIC_LENGTHS[magic].size + len(topic)
            + PROPERTIES_LENGTH.size + len(text))
    record = Record(
        size, magic, crc31(body), queue_id, flag, queue_offset, phy_offset, sys_flag,
        store_timestamp if born_timestamp is None else born_timestamp, born_host, store_timestamp, store_host,
        reconsume_times, prepared_transaction_offset, body, topic, text,
    )
    return with_property_crc(record) if property_crc else record


def with_property_crc(record: Record) -> Record:
    """The record with the digits of its property CRC computed anew; it must have that property."""
    covered = encode(record)[:-PROPERTY_CRC_SIZE]
    text = record.properties[:-PROPERTY_CRC_SIZE]
    return structs.replace(
        record,
        properties=text + PROPERTY_CRC_START + property_crc_digits(covered) + props.PROPERTY_BYTE,
    )
