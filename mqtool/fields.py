"""Fields of records and units in words: magics, addresses, flags, times."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from mqtool.text import clean, human_time

if TYPE_CHECKING:
    from recover.look.record import Field

_HEX_NAMES = {"magic", "body_crc", "sys_flag", "flag"}
_BODY_SHOWN = 200


def field_text(field: Field) -> str:
    """What a field says, harmless for a terminal."""
    value = field.value
    if isinstance(value, bytes):
        return _bytes_text(field.name, value)
    if not isinstance(value, int):
        return clean(value)
    if (milliseconds := time_of(field)) is not None:
        return f"{value} ({human_time(milliseconds)})"
    if field.name in _HEX_NAMES:
        extra = flag_text(value) if field.name == "sys_flag" else ""
        return f"{value} (0x{value & 0xFFFFFFFF:08X}{', ' + extra if extra else ''})"
    return str(value)


def time_of(field: Field) -> int | None:
    """The time (ms since 1970) that a field says, None for a field that holds no time."""
    if not field.name.endswith("timestamp") and field.name != "instant":
        return None
    return int(field.value) * (1000 if "seconds" in field.note else 1)


def _bytes_text(name: str, value: bytes) -> str:
    if name.endswith("_ip"):
        try:
            return str(ipaddress.ip_address(value))
        except ValueError:
            return value.hex()
    if name == "properties":
        return properties_text(value)
    if name == "topic":
        return clean(value)
    return body_text(value)


def body_text(value: bytes, limit: int = _BODY_SHOWN) -> str:
    """A body as text where it is text, else as hex; cut to `limit` characters."""
    try:
        return clean(value.decode("utf-8"), limit)
    except UnicodeDecodeError:
        shown = value[: limit // 2].hex()
        return f"hex {shown}{'…' if len(value) > limit // 2 else ''}"


def properties_text(value: bytes) -> str:
    """`name=value` pairs, one a line."""
    pairs = [item.partition(b"\x01") for item in value.split(b"\x02") if item]
    return "\n".join(f"{clean(name)}={clean(text, _BODY_SHOWN)}" for name, _, text in pairs)


def flag_text(sys_flag: int) -> str:
    """The bits of a sysFlag by name."""
    from formats import sysflag

    names = []
    if sys_flag & sysflag.COMPRESSED:
        kinds = {sysflag.COMPRESSION_LZ4: "LZ4", sysflag.COMPRESSION_ZSTD: "ZSTD"}
        names.append(f"compressed ({kinds.get(sys_flag & sysflag.COMPRESSION_TYPE, 'zlib')})")
    transaction = {sysflag.TRANSACTION_PREPARED: "prepared", sysflag.TRANSACTION_COMMIT: "commit",
                   sysflag.TRANSACTION_ROLLBACK: "rollback"}
    names += [transaction[kind]] if (kind := sysflag.transaction_type(sys_flag)) in transaction else []
    names += [name for bit, name in (
        (sysflag.MULTI_TAGS, "multi tags"), (sysflag.BORNHOST_V6, "IPv6 born host"),
        (sysflag.STOREHOST_V6, "IPv6 store host"), (sysflag.NEED_UNWRAP, "need unwrap"),
        (sysflag.INNER_BATCH, "inner batch"),
    ) if sys_flag & bit]
    return ", ".join(names)


def hex_dump(content: bytes, offset: int) -> str:
    """Sixteen bytes a line: offset, hex, printable characters."""
    lines = []
    for at in range(0, len(content), 16):
        row = content[at : at + 16]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        lines.append(f"{offset + at:012x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  {text}")
    return "\n".join(lines)
