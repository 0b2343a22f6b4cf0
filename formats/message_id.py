"""Message ids: where a broker stored a message, and the unique key that its client gave it."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from formats.errors import FormatError
from formats.layout import I16, I32, I64, Layout, raw
from formats.record.layout import IPV4_LENGTH, IPV6_LENGTH


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
    """32 (IPv4) or 56 (IPv6) upper-case hex digits of a store host and a phy offset."""
    if len(ip) not in (IPV4_LENGTH, IPV6_LENGTH):
        raise FormatError("bad-host", 0, f"an address of {len(ip)} bytes", length=len(ip))
    layout = OFFSET_ID_V6 if len(ip) == IPV6_LENGTH else OFFSET_ID
    return layout.encode(OffsetId(ip, port, phy_offset)).hex().upper()


def parse_offset_id(text: str) -> OffsetId:
    """The parts of an offset message id; FormatError `bad-message-id`."""
    # Both kinds of id have the same two sizes, so nothing in the text tells them apart.
    try:
        content = bytes.fromhex(text)
    except ValueError:
        content = b""
    # The comparison keeps out the blanks that fromhex skips.
    if text.upper() != content.hex().upper() or len(content) not in (OFFSET_ID.size, OFFSET_ID_V6.size):
        raise FormatError("bad-message-id", 0, f"not a message id: {text!r}", text=text)
    return (OFFSET_ID if len(content) == OFFSET_ID.size else OFFSET_ID_V6).decode(content)
