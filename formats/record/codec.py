"""Records and blanks, bytes to values and back.

Positions are those in the buffer; `limit` is the position after the last byte of the mapped
file (or of the readable range).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn

from msgspec import Struct, structs

from formats import properties as props
from formats import sysflag
from formats.crc import crc31
from formats.errors import FormatError
from formats.layout import Buffer
from formats.record.layout import (
    BLANK,
    BLANK_SIZE,
    HEAD,
    HEADS,
    I32_STRUCT,
    IPV4_LENGTH,
    IPV6_LENGTH,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_SIZE,
    OFFSET_SYS_FLAG,
    PROPERTIES_LENGTH,
    PROPERTY_CRC_SIZE,
    TOPIC_LENGTHS,
    BlankHead,
)
from formats.record.message import PROPERTY_CRC_START, Host, Record

CrcOf = Callable[[int, int], int]
"""The CRC, top bit cleared, of the bytes [start, stop) of a record."""


class Blank(Struct, frozen=True):
    """The end of a mapped file: `size` is the bytes from its start to the end of the file."""

    size: int


def decode(buffer: Buffer, offset: int = 0, limit: int | None = None, *, check_crc: bool = True) -> Record:
    """Read the record at `offset`.

    Raises FormatError: `short` (the range ends first), `blank` (a blank stands here),
    `bad-magic`, `bad-size`, `bad-length-sum`, `bad-body-length`, `bad-topic` or
    `bad-properties` (a negative length), and with `check_crc` `bad-body-crc`,
    `bad-property-crc`.
    """
    end = len(buffer) if limit is None else min(limit, len(buffer))
    total_size = read_start(buffer, offset, end)
    if total_size > end - offset:
        fail("short", offset, f"a record of {total_size} bytes, {end - offset} left",
             needed=total_size, available=end - offset)
    record = parse(buffer, offset, total_size)
    if check_crc:
        check_crcs(record, offset, crc_in(buffer, offset))
    return record


def crc_in(buffer: Buffer, offset: int) -> CrcOf:
    """The CRC of ranges of the record at `offset`."""
    return lambda start, stop: crc31(memoryview(buffer)[offset + start : offset + stop])


def fail(reason: str, offset: int, message: str, **facts: object) -> NoReturn:
    """Raise the FormatError of these parts."""
    raise FormatError(reason, offset, message, **facts)


def read_start(buffer: Buffer, offset: int, end: int) -> int:
    """The size of the record at `offset`, after its magic."""
    if offset < 0 or end - offset < BLANK_SIZE:
        fail("short", offset, "not even room for size and magic", needed=BLANK_SIZE, available=max(0, end - offset))
    total_size, magic = BLANK.struct.unpack_from(buffer, offset)
    if magic not in TOPIC_LENGTHS:
        at = offset + BLANK.offset("magic")
        if magic == MAGIC_BLANK:
            fail("blank", at, "a blank, not a record", size=total_size)
        fail("bad-magic", at, f"magic {magic & 0xFFFFFFFF:08X}", magic=magic)
    if total_size < MIN_RECORD_SIZE:
        fail("bad-size", offset, f"size {total_size} is less than {MIN_RECORD_SIZE}",
             size=total_size, minimum=MIN_RECORD_SIZE)
    return int(total_size)


def parse(buffer: Buffer, offset: int, total_size: int, left_out: int = 0) -> Record:
    """The fields of a record whose bytes are all in the buffer; every length is checked before it is used.

    The first `left_out` bytes of the body may be left out of the buffer, and then are of the record, too.
    """
    end = offset + total_size - left_out
    (sys_flag,) = I32_STRUCT.unpack_from(buffer, offset + OFFSET_SYS_FLAG)
    layout = HEADS[sys_flag & sysflag.HOSTS_V6]
    if layout.size > total_size:
        fail("bad-length-sum", offset, f"size {total_size} is less than the head", size=total_size, head=layout.size)
    (_, magic, body_crc, queue_id, flag, queue_offset, phy_offset, _, born_timestamp, born_ip, born_port,
     store_timestamp, store_ip, store_port, reconsume_times, prepared_transaction_offset,
     body_length) = layout.struct.unpack_from(buffer, offset)
    if body_length < 0:
        fail("bad-body-length", offset + layout.offset("body_length"), f"body length {body_length}", length=body_length)
    body_at = offset + layout.size
    body_end = body_at + body_length - left_out
    topic_length = TOPIC_LENGTHS[magic]
    topic_at = body_end + topic_length.size
    if topic_at + PROPERTIES_LENGTH.size > end:
        _length_sum(offset, total_size, topic_at + PROPERTIES_LENGTH.size - offset + left_out)
    (length,) = topic_length.unpack_from(buffer, body_end)
    if length < 0:
        fail("bad-topic", body_end, f"topic length {length}", length=length)
    topic_end = topic_at + length
    properties_at = topic_end + PROPERTIES_LENGTH.size
    if properties_at > end:
        _length_sum(offset, total_size, properties_at - offset + left_out)
    (length,) = PROPERTIES_LENGTH.struct.unpack_from(buffer, topic_end)
    if length < 0:
        fail("bad-properties", topic_end, f"properties length {length}", length=length)
    if properties_at + length != end:
        _length_sum(offset, total_size, properties_at + length - offset + left_out)
    return Record(
        total_size, magic, body_crc, queue_id, flag, queue_offset, phy_offset, sys_flag,
        born_timestamp, (born_ip, born_port), store_timestamp, (store_ip, store_port),
        reconsume_times, prepared_transaction_offset,
        bytes(buffer[body_at:body_end]), bytes(buffer[topic_at:topic_end]), bytes(buffer[properties_at:end]),
    )


def _length_sum(offset: int, total_size: int, counted: int) -> NoReturn:
    fail("bad-length-sum", offset, f"size {total_size}, but the fields take at least {counted}",
         size=total_size, counted=counted)


def check_crcs(record: Record, offset: int, crc: CrcOf, left_out: int = 0) -> None:
    """Raise FormatError unless the sums fit. `left_out`: see `parse`."""
    # The broker does not check an empty body either: 0 is stored for a null one.
    if length := len(record.body) + left_out:
        at = HEADS[record.sys_flag & sysflag.HOSTS_V6].size
        if (computed := crc(at, at + length)) != record.body_crc:
            fail("bad-body-crc", offset + HEAD.offset("body_crc"), "the body is not the one that was stored",
                 stored=record.body_crc, computed=computed)
    if (digits := record.property_crc) is not None:
        covered = record.total_size - PROPERTY_CRC_SIZE
        expected = _crc_digits(crc(0, covered))
        if digits != expected:
            fail("bad-property-crc", offset + covered - left_out, "the record is not the one that was stored",
                 stored=digits.decode("latin-1"), computed=expected.decode())


def property_crc_digits(covered: Buffer) -> bytes:
    """The ten digits of the property CRC, lowest first, of the record bytes before that property."""
    return _crc_digits(crc31(covered))


def _crc_digits(crc: int) -> bytes:
    return f"{crc:010d}"[::-1].encode()


def encode(record: Record) -> bytes:
    """The bytes of a record, exactly as its fields say: checksums are stored, not computed.

    FormatError `bad-host` or `bad-length-sum` when the fields contradict each other,
    `struct.error` when a value does not fit its field.
    """
    layout = HEADS[record.sys_flag & sysflag.HOSTS_V6]
    for host, bit in ((record.born_host, sysflag.BORNHOST_V6), (record.store_host, sysflag.STOREHOST_V6)):
        length = IPV6_LENGTH if record.sys_flag & bit else IPV4_LENGTH
        if len(host[0]) != length:
            fail("bad-host", 0, f"an address of {len(host[0])} bytes where sysFlag says {length}")
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
        _length_sum(0, record.total_size, len(content))
    return content


def decode_blank(buffer: Buffer, offset: int = 0) -> Blank:
    """Read a blank; FormatError `short` or `bad-magic`. Its size is not judged: brokers up to 5.3.1 ignore it."""
    size, magic = BLANK.decode(buffer, offset)
    if magic != MAGIC_BLANK:
        fail("bad-magic", offset + BLANK.offset("magic"), f"magic {magic & 0xFFFFFFFF:08X}", magic=magic)
    return Blank(size)


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
