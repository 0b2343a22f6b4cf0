"""The broker's own check of a record, release by release (CommitLog.checkMessageAndReturnSize).

It is laxer than mqtool's: `Rule.broker` of the grammar says which rules a release applies. The effect of a start on a
log depends on this check alone, so its order is that of the Java code, exceptions included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct, field

from formats import properties as props, sysflag
from formats.basics import Buffer, crc31, java_string, tags_code as hash_of_tags
from formats.record import BLANK, BLANK_SIZE, HEADS, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, PROPERTY_CRC_SIZE, TOPIC_SCHEDULE
from formats.record.grammar import ALWAYS, BODY_CRC, INNER_BATCH, NEVER, PROPERTY_CRC, RULES
from formats.record.layout import PROPERTIES_LENGTH, TOPIC_LENGTH_V1, TOPIC_LENGTH_V2, Head
from formats.record.message import inner_batch, java_number
from recover.broker import versions
from recover.broker.settings import BrokerSettings, delay_of, deliver_time

ReadAt = Callable[[int, int], Buffer]
"""(position in the mapped file, bytes wanted) -> that many bytes, fewer at the end of the file."""

LARGEST_JAVA_ARRAY = 0x7FFFFFFF - 2
"""Bytes; a longer array is an OutOfMemoryError with any heap."""
_SIZE_FIELD = 4


class CheckRules(Struct, frozen=True):
    """The parts of the check that depend on release and settings.

    `looks_at`: names of the grammar's rules that apply. `heap` (bytes): a larger record size kills a broker that does
    not check `size`. `delays` is level -> ms.
    """

    looks_at: frozenset[str]
    read_body: bool = True
    duplicated: bool = False
    v2: bool = True
    ipv6: bool = True
    old_parser: bool = False
    delays: Mapping[int, int] = field(default_factory=dict)
    heap: int = LARGEST_JAVA_ARRAY

    @classmethod
    def of(cls, settings: BrokerSettings, *, recovering: bool = True, heap: int = LARGEST_JAVA_ARRAY) -> CheckRules:
        """Return the rules of a recovery; with `recovering=False` those of ordinary dispatch, which does not check
        bodies."""
        version = settings.version
        known = {rule.name for rule in RULES if rule.broker == ALWAYS or (
            rule.broker != NEVER and version.has(versions.BY_NAME[rule.broker]))}
        forced = PROPERTY_CRC in known and settings.flag("forceVerifyPropCRC")
        # at most one checksum is checked
        skipped = {BODY_CRC if forced else PROPERTY_CRC}
        if not (recovering and settings.flag("checkCRCOnRecover")):
            skipped = {BODY_CRC, PROPERTY_CRC}
        return cls(
            looks_at=frozenset(known - skipped),
            read_body=recovering,
            duplicated=recovering and version.has(versions.DUP_INFO_CHECKED) and settings.flag("duplicationEnable"),
            v2=version.has(versions.V2_RECORDS),
            ipv6=version.has(versions.IPV6_HOSTS),
            old_parser=not version.has(versions.NEW_PROPERTIES_PARSER),
            delays={} if recovering and version.has(versions.DELAY_TABLE_LATE) else settings.delay_table,
            heap=heap,
        )


class Checked(Struct, frozen=True):
    """The result as `(size, ok)`: `(n > 0, True)` a message, `(0, True)` a blank, `(n > 0, False)` lengths that do not
    add up, `(-1, False)` anything else.

    `consumed`: how far the broker's buffer has moved (bytes). `fatal`: the JVM died. The fields of the message are set
    for a message only; `tags_code` is the deliver time of a delayed one.
    """

    size: int
    ok: bool
    reason: str = ""
    consumed: int = 0
    fatal: bool = False
    topic: str = ""
    queue_id: int = 0
    queue_offset: int = 0
    phy_offset: int = 0
    sys_flag: int = 0
    store_timestamp: int = 0
    tags_code: int = 0
    properties: Mapping[str, str] | None = None


class _RefusedError(Exception):
    """Ends the check with (-1, False)."""


class _Cursor:
    """A ByteBuffer over one mapped file, starting at the record."""

    def __init__(self, read: ReadAt, start: int, limit: int) -> None:
        self.read = read
        self.start = start
        self.limit = limit
        self.at = start

    @property
    def remaining(self) -> int:
        return self.limit - self.at

    def take(self, length: int, room: int = LARGEST_JAVA_ARRAY) -> Buffer:
        """Return the next bytes; a length at which Java would throw is a refusal."""
        if length < 0 or length > room or length > self.remaining:
            raise _RefusedError("underflow")
        content = self.read(self.at, length)
        if len(content) < length:
            raise _RefusedError("unreadable")
        self.at += length
        return content

    def skip(self, length: int) -> None:
        if length > self.remaining:
            raise _RefusedError("underflow")
        self.at += length


def check_message(read: ReadAt, position: int, limit: int, rules: CheckRules) -> Checked:
    """Check the bytes at `position` of a mapped file whose readable part ends at `limit` (both bytes in the file)."""
    cursor = _Cursor(read, position, limit)
    try:
        return _check(cursor, rules)
    except _RefusedError as refused:
        return Checked(-1, False, str(refused), cursor.at - position)


def _check(cursor: _Cursor, rules: CheckRules) -> Checked:
    total_size, magic = _start(cursor, rules)
    if magic == MAGIC_BLANK:
        return Checked(0, True, "blank", BLANK_SIZE)
    if magic != MAGIC_V1 and not (rules.v2 and magic == MAGIC_V2):
        raise _RefusedError("bad-magic")
    if total_size < 0:
        raise _RefusedError("negative-size")
    if total_size > rules.heap:
        return Checked(-1, False, "out-of-memory", cursor.at - cursor.start, fatal=True)
    head = _head_and_body(cursor, rules, total_size)
    topic_length = TOPIC_LENGTH_V2 if magic == MAGIC_V2 else TOPIC_LENGTH_V1
    (length,) = topic_length.struct.unpack(cursor.take(topic_length.size))
    topic = java_string(bytes(cursor.take(length, total_size)))
    (properties_length,) = PROPERTIES_LENGTH.struct.unpack(cursor.take(PROPERTIES_LENGTH.size))
    properties = None
    tags = 0
    if properties_length > 0:
        properties = props.parse(bytes(cursor.take(properties_length, total_size)), old=rules.old_parser)
        tags = _judge_properties(rules, properties, topic, head)
    if PROPERTY_CRC in rules.looks_at:
        _check_property_crc(cursor, total_size, properties)
    counted = cursor.at - cursor.start
    if counted != total_size:
        return Checked(total_size, False, "bad-length-sum", counted)
    if INNER_BATCH in rules.looks_at and properties is not None:
        try:
            inner_batch(properties)
        except ValueError:
            raise _RefusedError("not-a-number") from None
    return Checked(
        total_size, True, "", counted, False, topic, head.queue_id, head.queue_offset, head.phy_offset, head.sys_flag,
        head.store_timestamp, tags, properties,
    )


def _start(cursor: _Cursor, rules: CheckRules) -> tuple[int, int]:
    """Consume and return size and magic. The room is checked before the magic, so for blanks, too."""
    fits = "size" in rules.looks_at
    if fits and cursor.remaining <= _SIZE_FIELD:
        raise _RefusedError("no-room")
    content = cursor.read(cursor.at, BLANK_SIZE)
    if len(content) < BLANK_SIZE or cursor.remaining < BLANK_SIZE:
        raise _RefusedError("underflow")
    start = BLANK.decode(content)
    if fits and (cursor.remaining < start.size or start.size < _SIZE_FIELD - (1 << 31)):
        raise _RefusedError("larger-than-room")
    cursor.at += BLANK_SIZE
    return start.size, start.magic


def _head_and_body(cursor: _Cursor, rules: CheckRules, total_size: int) -> Head:
    fixed = cursor.read(cursor.start, HEADS[0].size)
    if len(fixed) < HEADS[0].size:
        raise _RefusedError("underflow")
    # releases before IPv6 ignore these bits of the sysFlag
    flags = HEADS[0].decode(fixed).sys_flag & sysflag.HOSTS_V6 if rules.ipv6 else 0
    layout = HEADS[flags]
    ip_length = 16 if flags else 4
    # hosts are read into an array of the record's size
    if total_size < ip_length + _SIZE_FIELD:
        raise _RefusedError("underflow")
    cursor.at = cursor.start
    head = layout.decode(cursor.take(layout.size))
    if head.body_length > 0:
        if rules.read_body and head.body_length > total_size:
            raise _RefusedError("underflow")
        if BODY_CRC in rules.looks_at:
            if crc31(bytes(cursor.take(head.body_length))) != head.body_crc:
                raise _RefusedError("bad-body-crc")
        else:
            cursor.skip(head.body_length)
    return head


def _judge_properties(rules: CheckRules, properties: Mapping[str, str], topic: str, head: Head) -> int:
    """Return the tags code; `_RefusedError` if the broker refuses the properties."""
    if rules.duplicated and not _is_dup_info(properties.get(props.DUP_INFO)):
        raise _RefusedError("no-dup-info")
    code = hash_of_tags(properties.get(props.TAGS))
    text = properties.get(props.DELAY)
    if topic != TOPIC_SCHEDULE or text is None:
        return code
    try:
        level = java_number(text)
    except ValueError:
        raise _RefusedError("not-a-number") from None
    is_delayed = level > 0 and bool(rules.delays)
    return deliver_time(head.store_timestamp, delay_of(rules.delays, level)) if is_delayed else code


def _is_dup_info(text: str | None) -> bool:
    """Whether `split("_")` gives two parts; Java drops trailing empty ones."""
    if text is None:
        return False
    parts = text.split("_")
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return len(parts) == 2


def _check_property_crc(cursor: _Cursor, total_size: int, properties: Mapping[str, str] | None) -> None:
    """Check the CRC; the covered bytes end at the broker's buffer position, less the size of the property itself."""
    text = (properties or {}).get(props.CRC32)
    expected = -1 if text is None else _digits(text)
    if expected < 0:
        raise _RefusedError("no-property-crc")
    start = cursor.at - total_size
    covered = total_size - PROPERTY_CRC_SIZE
    if start < 0 or covered < 0:
        raise _RefusedError("underflow")
    if crc31(bytes(cursor.read(start, covered))) != expected:
        raise _RefusedError("bad-property-crc")


def _digits(text: str) -> int:
    """Return the number whose digits are stored lowest first (an i32); other characters take part in the arithmetic."""
    value = 0
    for character in reversed(text):
        value = (value * 10 + ord(character) - ord("0")) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
