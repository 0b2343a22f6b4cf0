"""Records and blanks, values to bytes; the reader of records is `formats.record.grammar`."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from formats import properties as props
from formats import sysflag
from formats.crc import crc31
from formats.errors import FormatError
from formats.layout import Buffer
from formats.record.layout import (
    BLANK,
    HEADS,
    IPV4_LENGTH,
    IPV6_LENGTH,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH,
    PROPERTY_CRC_SIZE,
    TOPIC_LENGTHS,
    BlankHead,
)
from formats.record.message import PROPERTY_CRC_START, Host, Record, crc_digits


def property_crc_digits(covered: Buffer) -> bytes:
    """The ten digits of the property CRC, lowest first, of the record bytes before that property."""
    return crc_digits(crc31(covered))


def encode(record: Record) -> bytes:
    """The bytes of a record, exactly as its fields say: checksums are stored, not computed.

    FormatError `bad-host` or `bad-length-sum` when the fields contradict each other,
    `struct.error` when a value does not fit its field.
    """
    layout = HEADS[record.sys_flag & sysflag.HOSTS_V6]
    for host, bit in ((record.born_host, sysflag.BORNHOST_V6), (record.store_host, sysflag.STOREHOST_V6)):
        length = IPV6_LENGTH if record.sys_flag & bit else IPV4_LENGTH
        if len(host[0]) != length:
            raise FormatError("bad-host", 0, f"an address of {len(host[0])} bytes where sysFlag says {length}")
    content = b"".join((
        layout.struct.pack(
            record.total_size, record.magic, record.body_crc, record.queue_id, record.flag, record.queue_offset,
            record.phy_offset, record.sys_flag, record.born_timestamp, *record.born_host, record.store_timestamp,
            *record.store_host, record.reconsume_times, record.prepared_transaction_offset, len(record.body),
        ),
        record.body,
        TOPIC_LENGTHS[record.magic].pack(len(record.topic)),
        record.topic,
        PROPERTIES_LENGTH.struct.pack(len(record.properties)),
        record.properties,
    ))
    if len(content) != record.total_size:
        raise FormatError("bad-length-sum", 0, f"size {record.total_size}, fields take {len(content)}",
                          size=record.total_size, counted=len(content))
    return content


def decode_blank(buffer: Buffer, offset: int = 0) -> int:
    """The size of a blank: bytes from its start to the end of the file; FormatError `short` or `bad-magic`.

    It is not judged: brokers up to 5.3.1 ignore it.
    """
    size, magic = BLANK.decode(buffer, offset)
    if magic != MAGIC_BLANK:
        raise FormatError("bad-magic", offset + BLANK.offset("magic"), f"magic {magic & 0xFFFFFFFF:08X}", magic=magic)
    return size


def encode_blank(size: int) -> bytes:
    """The eight bytes of a blank that stands `size` bytes before the end of its mapped file."""
    return BLANK.encode(BlankHead(size, MAGIC_BLANK))


# --- Records made from what a message says; the rest is computed.


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
