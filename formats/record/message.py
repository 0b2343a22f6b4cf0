"""A commitlog record as a value, the facts derived from its fields, and its bytes."""

from __future__ import annotations

import ipaddress
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any, NamedTuple

from msgspec import Struct, structs

from formats import basics, properties as props, sysflag
from formats.basics import I16, I32, I64, Buffer, FormatError, Layout, crc31, java_string, raw
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

Host = tuple[bytes, int]

TOPIC_SCHEDULE = "SCHEDULE_TOPIC_XXXX"
TOPIC_HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
TOPIC_OP_HALF = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TOPIC_CHECK_MAX = "TRANS_CHECK_MAX_TIME_TOPIC"
TOPIC_ROCKSDB_HALF = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
TOPIC_ROCKSDB_OP_HALF = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
TOPIC_TIMER = "rmq_sys_wheel_timer"
SERVICE_TOPICS = {
    TOPIC_SCHEDULE: "delayed", TOPIC_TIMER: "timer",
    TOPIC_HALF: "half", TOPIC_ROCKSDB_HALF: "half", TOPIC_OP_HALF: "op", TOPIC_ROCKSDB_OP_HALF: "op",
}
"""The kind of message in each topic that a service of brokers reads; those of RocksDB's transactions since 5.4.0."""
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
SYSTEM_PREFIX = "rmq_sys_"
REPLY_SUFFIX = "_REPLY_TOPIC"

KEY_JOIN = "#"
TAG_JOIN = "#T#"
PROPERTY_CRC_START = props.CRC32.encode() + props.NAME_VALUE_BYTE


class Record(Struct, frozen=True):
    """One stored message, its fields in the order of the bytes.

    Hosts are (address of 4 or 16 bytes, port), timestamps are ms, `body` is as stored (compressed if the sysFlag says
    so), `properties` is the raw text.
    """

    total_size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    phy_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: Host
    store_timestamp: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: bytes
    properties: bytes

    @property
    def version(self) -> int:
        """1 or 2: the width of the topic length in bytes."""
        return 2 if self.magic == MAGIC_V2 else 1

    @property
    def topic_name(self) -> str:
        """The topic as Java decodes it."""
        return java_string(self.topic)

    @property
    def transaction_type(self) -> int:
        """0 none, 4 prepared, 8 commit, 12 rollback."""
        return self.sys_flag & sysflag.TRANSACTION

    @property
    def property_crc(self) -> bytes | None:
        """The ten digits of the property CRC at the very end of the record, None without one."""
        last = self.properties[-PROPERTY_CRC_SIZE:]
        if len(last) < PROPERTY_CRC_SIZE or not last.startswith(PROPERTY_CRC_START):
            return None
        return last[len(PROPERTY_CRC_START):-1]

    def property_map(self) -> dict[str, str]:
        """Return all properties as brokers from 4.9.1 on parse them."""
        return props.parse(self.properties)

    def get_property(self, name: str) -> str | None:
        """Return one property, None if the broker does not see it."""
        if name.encode() not in self.properties:
            return None
        return self.property_map().get(name)

    @property
    def tags(self) -> str | None:
        return self.get_property(props.TAGS)

    @property
    def keys(self) -> str | None:
        """The KEYS property, words separated by single spaces."""
        return self.get_property(props.KEYS)

    @property
    def uniq_key(self) -> str | None:
        """The UNIQ_KEY property: the id that the client assigned."""
        return self.get_property(props.UNIQ_KEY)


def crc_digits(crc: int) -> bytes:
    """Return the ten digits of a property CRC (31 bits), lowest first."""
    return f"{crc:010d}"[::-1].encode()


def tags_code(record: Record) -> int:
    """Return the hash of TAGS for the record's unit (a delayed message has another code, see `delay_level`)."""
    return basics.tags_code(record.get_property(props.TAGS))


def delay_level(record: Record) -> int | None:
    """Return the level whose deliver time replaces the tags code, None for an ordinary message.

    ValueError if DELAY is not a Java int; the broker's record check fails then.
    """
    if record.topic_name != TOPIC_SCHEDULE:
        return None
    text = record.get_property(props.DELAY)
    return None if text is None else java_number(text)


def inner_batch(values: Mapping[str, str]) -> tuple[int, int] | None:
    """Return queue offset of the first message and number of messages of an inner batch; None for an ordinary record.

    ValueError if INNER_BASE is not a Java long or INNER_NUM not a Java short; the record check of 5.x fails then.
    """
    base, count = values.get(props.INNER_BASE), values.get(props.INNER_NUM)
    return None if base is None or count is None else (java_number(base, 64), java_number(count, 16))


def java_number(text: str, bits: int = 32) -> int:
    """Return `Integer.parseInt` or its siblings: an optional sign and digits that fit so many bits, else ValueError."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits.isdecimal():
        raise ValueError(f"not a Java number: {text!r}")
    value = int(text)
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise ValueError(f"out of the range of a Java number of {bits} bits: {text!r}")
    return value


def iter_index_keys(record: Record) -> Iterator[str]:
    """Yield the texts that `IndexService.buildIndex` hashes for a record, in its order.

    The unique key, each word of KEYS (duplicates kept), and last (5.4.0 and later) the whole TAGS text. Nothing for a
    rolled back transaction.
    """
    if record.transaction_type == sysflag.TRANSACTION_ROLLBACK:
        return
    topic = record.topic_name
    values = record.property_map()
    if uniq_key := values.get(props.UNIQ_KEY):
        yield topic + KEY_JOIN + uniq_key
    for word in values.get(props.KEYS, "").split(props.KEY_SEPARATOR):
        if word:
            yield topic + KEY_JOIN + word
    if text := values.get(props.TAGS):
        yield topic + TAG_JOIN + text


def host_text(host: Host) -> str:
    """Return `address:port`, with an IPv6 address in brackets."""
    address = ipaddress.ip_address(host[0])
    return f"[{address}]:{host[1]}" if address.version == 6 else f"{address}:{host[1]}"


# --- Records and blanks, values to bytes; `formats.record.grammar` reads records. ------------------------------------


def encode(record: Record) -> bytes:
    """Return the bytes of a record, exactly as its fields say: checksums are stored, not computed.

    FormatError `bad-host` or `bad-length-sum` if the fields contradict each other, `struct.error` if a value does not
    fit its field.
    """
    layout = HEADS[record.sys_flag & sysflag.HOSTS_V6]
    for host, bit in ((record.born_host, sysflag.BORNHOST_V6), (record.store_host, sysflag.STOREHOST_V6)):
        length = IPV6_LENGTH if record.sys_flag & bit else IPV4_LENGTH
        if len(host[0]) != length:
            raise FormatError("bad-host", 0, f"an address of {len(host[0])} bytes, but sysFlag requires {length}")
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
    """Return the size of a blank: bytes from its start to the end of the file; FormatError `short` or `bad-magic`.

    The size is not checked: brokers up to 5.3.1 ignore it.
    """
    size, magic = BLANK.decode(buffer, offset)
    if magic != MAGIC_BLANK:
        raise FormatError("bad-magic", offset + BLANK.offset("magic"), f"magic {magic & 0xFFFFFFFF:08X}", magic=magic)
    return size


def encode_blank(size: int) -> bytes:
    """Return the eight bytes of a blank that starts `size` bytes before the end of its mapped file."""
    return BLANK.encode(BlankHead(size, MAGIC_BLANK))


# --- Records built from a message's content; everything else is computed.


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
    """Return a record as a broker would store it: version, IPv6 bits, size and checksums are computed.

    `magic` overrides the choice of V2 for topics longer than 127 bytes; `property_crc` appends the property CRC as
    `enabledAppendPropCRC` does.
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
        text += PROPERTY_CRC_START + crc_digits(0) + props.PROPERTY_BYTE
    size = (HEADS[sys_flag & sysflag.HOSTS_V6].size + len(body) + TOPIC_LENGTHS[magic].size + len(topic)
            + PROPERTIES_LENGTH.size + len(text))
    record = Record(
        size, magic, crc31(body), queue_id, flag, queue_offset, phy_offset, sys_flag,
        store_timestamp if born_timestamp is None else born_timestamp, born_host, store_timestamp, store_host,
        reconsume_times, prepared_transaction_offset, body, topic, text,
    )
    return with_property_crc(record) if property_crc else record


def with_property_crc(record: Record) -> Record:
    """Return the record with its property CRC recomputed; it must have that property."""
    digits = crc_digits(crc31(encode(record)[:-PROPERTY_CRC_SIZE]))
    text = record.properties[:-PROPERTY_CRC_SIZE]
    return structs.replace(record, properties=text + PROPERTY_CRC_START + digits + props.PROPERTY_BYTE)


# --- Message ids: the place where a broker stored a message, and the unique key assigned by its client.


class OffsetId(NamedTuple):
    """The offset message id (`MessageDecoder.createMessageId`)."""

    ip: Annotated[bytes, raw(IPV4_LENGTH), "broker address, 4 or 16 bytes"]
    port: Annotated[int, I32, "broker port"]
    phy_offset: Annotated[int, I64, "position of the record in that broker's log"]


class UniqKey(NamedTuple):
    """The unique key of a client (`MessageClientIDSetter`); the ms count from the start of its local month."""

    ip: Annotated[bytes, raw(IPV4_LENGTH), "client address, 4 or 16 bytes"]
    pid: Annotated[int, I16, "low 16 bits of the process id"]
    loader_hash: Annotated[int, I32, "hash of the class loader"]
    month_millis: Annotated[int, I32, "ms since the month began, in the client's time zone"]
    counter: Annotated[int, I16, "counts messages, wraps"]


OFFSET_ID = Layout.of(OffsetId)
OFFSET_ID_V6 = OFFSET_ID.widened({"ip": raw(IPV6_LENGTH)})
UNIQ_KEY = Layout.of(UniqKey)
UNIQ_KEY_V6 = UNIQ_KEY.widened({"ip": raw(IPV6_LENGTH)})


def offset_id(ip: bytes, port: int, phy_offset: int) -> str:
    """Return the 32 (IPv4) or 56 (IPv6) upper-case hex digits of a store host and a phy offset."""
    if len(ip) not in (IPV4_LENGTH, IPV6_LENGTH):
        raise FormatError("bad-host", 0, f"an address of {len(ip)} bytes", length=len(ip))
    layout = OFFSET_ID_V6 if len(ip) == IPV6_LENGTH else OFFSET_ID
    return layout.encode(OffsetId(ip, port, phy_offset)).hex().upper()


def parse_offset_id(text: str) -> OffsetId:
    """Return the parts of an offset message id; FormatError `bad-message-id`."""
    # both kinds of id have the same two sizes, so they cannot be distinguished by their text
    try:
        content = bytes.fromhex(text)
    except ValueError:
        content = b""
    # the comparison rejects the blanks that fromhex skips
    if text.upper() != content.hex().upper() or len(content) not in (OFFSET_ID.size, OFFSET_ID_V6.size):
        raise FormatError("bad-message-id", 0, f"not a message id: {text!r}", text=text)
    return (OFFSET_ID if len(content) == OFFSET_ID.size else OFFSET_ID_V6).decode(content)


# --- Stored bodies as their producers sent them.


DEFAULT_MAX_SIZE = 128 << 20
"""Bytes of a decompressed body: a few KiB can decompress to many GiB."""
_STEP = 1024
ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
"""The module that reads ZSTD: of the standard library, or the package with the same."""
_ZSTD_INPUT, _ZSTD_HEADER = 131_075, 4
"""Bytes that Java's ZSTD stream reads at once, and the most that are too few for a frame's header."""


class MissingCodecError(ImportError):
    """A body cannot be shown because an optional package is not installed."""


def decompress(body: bytes, sys_flag: int, max_size: int = DEFAULT_MAX_SIZE) -> bytes:
    """Return the body before compression; unchanged if empty, or unless the sysFlag says compressed.

    Raises FormatError `bad-compressed-body` (not a whole stream of its type), `bad-compression-type`, `body-too-large`
    (more than `max_size` bytes), and MissingCodecError if the package for LZ4 or ZSTD is absent.
    """
    if not body or not sys_flag & sysflag.COMPRESSED:
        return body
    kind = sys_flag & sysflag.COMPRESSION_TYPE
    if kind in (sysflag.COMPRESSION_LEGACY_ZLIB, sysflag.COMPRESSION_ZLIB):
        content, whole = _zlib(body, max_size)
    elif kind == sysflag.COMPRESSION_LZ4:
        lz4 = _codec("LZ4", "lz4.frame")
        content, whole = _frames(lz4.LZ4FrameDecompressor, RuntimeError, body, max_size)
    elif kind == sysflag.COMPRESSION_ZSTD:
        zstd = _codec("ZSTD", ZSTD)
        content, whole = _frames(zstd.ZstdDecompressor, zstd.ZstdError, body, max_size, _ZSTD_INPUT)
    else:
        raise FormatError("bad-compression-type", 0, f"unknown compression type in sysFlag {sys_flag:#x}", kind=kind)
    if len(content) > max_size:
        raise FormatError("body-too-large", 0, f"decompresses to more than {max_size} bytes", limit=max_size)
    if not whole:
        raise FormatError("bad-compressed-body", len(body), "the compressed stream does not end")
    return content


def _zlib(body: bytes, max_size: int) -> tuple[bytes, bool]:
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(body, max_size + 1)
    except zlib.error as error:
        raise FormatError("bad-compressed-body", 0, str(error)) from error
    return content, stream.eof


def _frames(
    new: Callable[[], Any], problem: type[Exception], body: bytes, max_size: int, at_once: int = 1,
) -> tuple[bytes, bool]:
    """Decompress frames, one after the other as Java's input streams do, with a `new` decompressor for each.

    Such a stream reads `at_once` bytes; it ends well if a frame ended among the last that it read (ZstdInputStream).
    """
    stream, content = new(), bytearray()
    ended, last = 0, (len(body) - 1) // at_once * at_once
    # in small steps, because not every decompressor accepts a size limit
    for start in range(0, len(body), _STEP):
        rest = body[start : start + _STEP]
        stop = start + len(rest)
        try:
            while rest:
                stream = new() if stream.eof else stream
                content += stream.decompress(rest)
                rest = (stream.unused_data or b"") if stream.eof else b""
                ended = stop - len(rest) if stream.eof else ended
        except problem as error:
            if ended > last and len(body) - ended <= _ZSTD_HEADER:
                break
            raise FormatError("bad-compressed-body", start, str(error)) from error
        if len(content) > max_size:
            break
    return bytes(content), ended > last


def _codec(kind: str, module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingCodecError(f"this body is {kind}: {module} is needed to read it, and not installed") from error
