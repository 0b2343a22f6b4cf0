"""The screen of `mqtool inspect FILE`; fields of records and units in words."""

from __future__ import annotations

import ipaddress

from formats import sysflag
from mqtool.next_steps import Step
from mqtool.printer import Printer, Table, Text, facts, table
from mqtool.text import clean, count, exact_size, human_time
from recover.look.file import bits_of
from recover.look.items import Field, FileReport, Item

_MARKS = {True: ("ok", "green"), False: ("FAILED", "bold red"), None: ("-", "dim")}
_HEX_NAMES = {"magic", "body_crc", "sys_flag", "flag"}
_BODY = 200
_FLAGS = (
    (sysflag.MULTI_TAGS, "multi tags"), (sysflag.BORNHOST_V6, "IPv6 born host"),
    (sysflag.STOREHOST_V6, "IPv6 store host"), (sysflag.NEED_UNWRAP, "need unwrap"),
    (sysflag.INNER_BATCH, "inner batch"),
)
_TRANSACTIONS = {sysflag.TRANSACTION_PREPARED: "prepared", sysflag.TRANSACTION_COMMIT: "commit",
                 sysflag.TRANSACTION_ROLLBACK: "rollback"}
_COMPRESSIONS = {sysflag.COMPRESSION_LZ4: "LZ4", sysflag.COMPRESSION_ZSTD: "ZSTD"}


def show_file(out: Printer, report: FileReport, *, chosen: bool, hexadecimal: bool) -> int:
    """Show a file and return the exit bits; `chosen`: the user named the offset."""
    out.answer(**report.json())
    pairs: list[tuple[str, object]] = [("file", report.path), ("kind", f"{report.title} (by {report.why})"),
                                       ("length", exact_size(report.length))]
    if report.base is not None:
        pairs.append(("starts at", f"{report.base:,}"))
    pairs += [(name.replace("_", " "), _fact(value)) for name, value in report.facts.items()]
    out.show(facts("", pairs))
    if len(report.items) == 1 or chosen:
        for item in report.items:
            _detail(out, item)
    elif report.items:
        if report.items[0].kind == "header":
            _detail(out, report.items[0])
        out.show(_list(report, [item for item in report.items if item.kind != "header"]))
    for item in report.items if hexadecimal else ():
        cut = f", the first {len(item.raw)} bytes" if len(item.raw) < item.size else ""
        out.show(Text(f"{item.kind} at {item.offset:,}{cut}", style="bold"), Text(hex_dump(item.raw, item.offset)))
    bad = [item for item in report.items if not item.ok]
    at_damage = chosen and bool(bad) and bad[0] is report.items[0]
    steps = [] if report.complete else [
        Step(out.given.line("inspect", "--offset", report.next_offset, "--limit", "20"), "the items after these")]
    out.summary(_summary(report, bad, at_damage=at_damage), steps)
    return bits_of(report, chosen=chosen)


def _summary(report: FileReport, bad: list[Item], *, at_damage: bool) -> str:
    first = bad[0] if at_damage else None
    if first is not None and first.kind == "damage":
        end = first.offset + first.size
        after = f"the next one starts at {end:,}" if end < report.length else "and none follows in this file"
        return f"{report.title}: no intact record starts at {first.offset:,} ({first.reason}); {after}"
    bad = [first] if first is not None else bad
    shown = count(len(report.items), "item") if report.items else "looked at"
    wrong = f", {len(bad)} with failed checks: {', '.join(sorted(set(map(_why, bad))))}"
    return f"{report.title}: {shown}{wrong if bad else ', nothing wrong with what is shown'}"


def _why(item: Item) -> str:
    return item.reason or ", ".join(check.name for check in item.checks if check.ok is False)


def _fact(value: object) -> object:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value) if isinstance(value, int) else value


def _list(report: FileReport, items: list[Item]) -> Table:
    if report.kind in ("commitlog", "compaction-log"):
        columns = [">at", ">offset", ">size", "what", "topic", ">queue", ">queue offset", "stored", "*body"]
        return table("", columns, (_record_row(item) for item in items))
    names = [field.name for field in max(items, key=lambda item: len(item.fields)).fields if field.name != "reserved"]
    columns = [">at", "what", ">number", *(">" + name.replace("_", " ") for name in names)]
    return table("", columns, (_unit_row(item, names) for item in items))


def _kind(item: Item) -> Text:
    words = f"zeros to {item.offset + item.size:,}" if item.kind == "zeros" else item.kind
    return Text(words) if item.ok else Text(f"{words}: {_why(item)}", style="bold red")


def _record_row(item: Item) -> list[object]:
    where = [item.offset, item.number, item.size, _kind(item)]
    if item.kind != "record":
        return [*where, *[Text("")] * 5]
    return [*where, item.value("topic"), item.value("queue_id"), item.value("queue_offset"),
            human_time(item.value("store_timestamp")), body_text(item.value("body"), 30)]


def _unit_row(item: Item, names: list[str]) -> list[object]:
    values = {field.name: field for field in item.fields}
    cells: list[object] = [item.offset, _kind(item), item.number]
    for name in names:
        field = values.get(name)
        stamp = None if field is None else _time_of(field)
        cells.append(Text("") if field is None else field_text(field) if stamp is None else human_time(stamp))
    return cells


def _detail(out: Printer, item: Item) -> None:
    where = f" (log offset {item.number:,})" if item.number is not None else ""
    title = f"{item.kind} at {item.offset:,}{where}, {exact_size(item.size)} bytes"
    out.show(Text(title, style="bold") if item.ok else Text(f"{title}: {_why(item)}", style="bold red"))
    if item.fields:
        rows = [(field.offset, field.size, field.name, Text(field_text(field)), field.note) for field in item.fields]
        out.show(table("", [">at", ">bytes", "field", "*value", "*meaning"], rows))
    if item.checks:
        checks = [(check.name, Text(*_MARKS[check.ok]), check.detail) for check in item.checks]
        out.show(table("", ["check", "verdict", "*detail"], checks))


# --- fields --------------------------------------------------------------------------------------


def field_text(field: Field) -> str:
    """The value of a field in words, harmless for a terminal."""
    value = field.value
    if isinstance(value, bytes):
        return _bytes_text(field.name, value)
    if not isinstance(value, int):
        return clean(value)
    if (milliseconds := _time_of(field)) is not None:
        return f"{value} ({human_time(milliseconds)})"
    if field.name in _HEX_NAMES:
        extra = flag_text(value) if field.name == "sys_flag" else ""
        return f"{value} (0x{value & 0xFFFFFFFF:08X}{', ' + extra if extra else ''})"
    return str(value)


def _time_of(field: Field) -> int | None:
    """The time of a field (ms since 1970), None for a field that holds no time."""
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
    return clean(value) if name == "topic" else body_text(value)


def body_text(value: bytes, limit: int = _BODY) -> str:
    """A body as text where it is text, else as hex; cut to `limit` characters."""
    try:
        return clean(value.decode("utf-8"), limit)
    except UnicodeDecodeError:
        shown = value[: limit // 2].hex()
        return f"hex {shown}{'…' if len(value) > limit // 2 else ''}"


def properties_text(value: bytes) -> str:
    """`name=value` pairs, one a line."""
    pairs = [item.partition(b"\x01") for item in value.split(b"\x02") if item]
    return "\n".join(f"{clean(name)}={clean(text, _BODY)}" for name, _, text in pairs)


def flag_text(sys_flag: int) -> str:
    names = []
    if sys_flag & sysflag.COMPRESSED:
        names.append(f"compressed ({_COMPRESSIONS.get(sys_flag & sysflag.COMPRESSION_TYPE, 'zlib')})")
    transaction = sys_flag & sysflag.TRANSACTION
    names += [_TRANSACTIONS[transaction]] if transaction in _TRANSACTIONS else []
    return ", ".join(names + [name for bit, name in _FLAGS if sys_flag & bit])


def hex_dump(content: bytes, offset: int) -> str:
    """Sixteen bytes a line: offset, hex, printable characters."""
    lines = []
    for at in range(0, len(content), 16):
        row = content[at : at + 16]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        lines.append(f"{offset + at:012x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  {text}")
    return "\n".join(lines)
