"""File and topic names. Sources: UtilAll.offset2FileName, UtilAll.timeMillisToHumanString, TopicValidator."""

from __future__ import annotations

import datetime
import re

from formats.errors import FormatError

OFFSET_DIGITS = 20
INDEX_NAME_DIGITS = 17
MAX_OFFSET = 2**63 - 1

LEGAL_TOPIC = re.compile(rb"[%|a-zA-Z0-9_-]+")
"""A topic that TopicValidator takes, its length aside."""
_DIRECTORY_NAME_MAX_BYTES = 255
_INDEX_SECONDS_DIGITS = INDEX_NAME_DIGITS - 3


def offset_to_name(offset: int) -> str:
    """The name of the mapped file that starts at `offset` bytes; `FormatError("bad-offset")` beyond an i64."""
    if not 0 <= offset <= MAX_OFFSET:
        raise FormatError("bad-offset", 0, f"{offset} is no file offset", value=offset)
    return str(offset).zfill(OFFSET_DIGITS)


def offset_in_name(name: str) -> int | None:
    """The start offset (bytes) in a mapped file's name; None for any other name.

    Digits of every script count, as they do for Java: a broker formats names in its default
    locale. Names that Java could parse but no broker writes (a sign, fewer digits) are refused.
    """
    if len(name) != OFFSET_DIGITS or not name.isdecimal():
        return None
    offset = int(name)
    return offset if offset <= MAX_OFFSET else None


def index_name(timestamp: int, zone: datetime.tzinfo) -> str:
    """The name of an index file made at `timestamp` (ms since 1970) by a broker in that time zone."""
    seconds, millis = divmod(timestamp, 1000)
    try:
        local = datetime.datetime.fromtimestamp(seconds, zone)
    except (OverflowError, OSError, ValueError):
        raise FormatError("bad-timestamp", 0, f"{timestamp} ms is no date", timestamp=timestamp) from None
    # strftime does not pad years below 1000 everywhere
    return f"{local.year:04d}{local:%m%d%H%M%S}{millis:03d}"


def parse_index_name(name: str, zone: datetime.tzinfo) -> int:
    """When an index file was made (ms since 1970), given the broker's time zone.

    Of two equal local times, when clocks go back, it is the first.
    `FormatError("bad-file-name")` when the name is not 17 digits of a date and time.
    """
    try:
        if len(name) != INDEX_NAME_DIGITS or not (name.isascii() and name.isdecimal()):
            raise ValueError(name)
        local = datetime.datetime.strptime(name[:_INDEX_SECONDS_DIGITS], "%Y%m%d%H%M%S").replace(tzinfo=zone)
        seconds = local.timestamp()
    except (OverflowError, ValueError):
        raise FormatError("bad-file-name", 0, f"{name!r} is not the name of an index file", name=name) from None
    return round(seconds) * 1000 + int(name[_INDEX_SECONDS_DIGITS:])


def is_index_name(name: str) -> bool:
    """True for 17 digits of a date and time, in whatever zone."""
    try:
        parse_index_name(name, datetime.UTC)
    except FormatError:
        return False
    return True


def is_legal_topic(topic: str) -> bool:
    """True when a broker would let a client create the topic, its length aside."""
    return LEGAL_TOPIC.fullmatch(topic.encode("utf-8", "surrogatepass")) is not None


def is_safe_directory_name(name: str) -> bool:
    """True when the name can be one directory below a queue folder and nothing else.

    Damaged bytes must never lead out of the store, so this is asked before a path is made of a
    topic that was read from a record.
    """
    if name in ("", ".", "..") or "/" in name or "\\" in name or not name.isprintable():
        return False
    return len(name.encode("utf-8", "replace")) <= _DIRECTORY_NAME_MAX_BYTES
