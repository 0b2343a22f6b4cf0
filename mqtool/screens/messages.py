"""Messages as documents and as screens."""

from __future__ import annotations

import base64
from typing import Any

from formats.compression import MissingCodecError, decompress
from formats.errors import FormatError
from formats.message_id import offset_id
from formats.record import Record, host_text
from mqtool.printer import Printer, Text, facts, table
from mqtool.screens.file import body_text, flag_text, properties_text
from mqtool.text import exact_size, human_time
from recover.look.query import Found


def message_document(found: Found, *, body: bool) -> dict[str, Any]:
    """One message as the document shows it; the body (decompressed) only if asked for."""
    record = found.record
    document: dict[str, Any] = {
        "phy_offset": record.phy_offset, "size": record.total_size, "topic": record.topic_name,
        "queue_id": record.queue_id, "queue_offset": record.queue_offset, "store_timestamp": record.store_timestamp,
        "born_timestamp": record.born_timestamp, "store_host": host_text(record.store_host),
        "born_host": host_text(record.born_host), "msg_id": offset_id(*record.store_host, record.phy_offset),
        "uniq_key": record.uniq_key, "keys": record.keys, "tags": record.tags, "sys_flag": record.sys_flag,
        "flag": record.flag, "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset, "properties": record.property_map(),
        "body_length": len(record.body), "body_crc": record.body_crc, "ghost": found.ghost,
        "superseded": found.superseded,
    }
    if body:
        document.update(_body_document(record))
    return document


def _body_document(record: Record) -> dict[str, Any]:
    content, problem = _plain_body(record)
    try:
        text: dict[str, Any] = {"body": content.decode("utf-8")}
    except UnicodeDecodeError:
        text = {"body": None, "body_base64": base64.b64encode(content).decode("ascii")}
    return {**text, "body_problem": problem} if problem else text


def _plain_body(record: Record) -> tuple[bytes, str]:
    """(body as its producer wrote it, ""), or the stored bytes and why they could not be decompressed."""
    try:
        return decompress(record.body, record.sys_flag), ""
    except (FormatError, MissingCodecError) as error:
        return record.body, str(error)


def show_messages(out: Printer, messages: list[Found], *, body: bool, as_list: bool = False) -> None:
    """One message in full, several (or one `as_list`) as a table."""
    if len(messages) == 1 and not as_list:
        _show_one(out, messages[0], body)
    elif messages:
        columns = [">log offset", "topic", ">queue", ">queue offset", "stored", "tags", "keys", "*unique key"]
        columns += ["*body"] if body else []
        out.show(table("", columns, (_row(found, body) for found in messages)))


def _mark(found: Found) -> str:
    return " stale" if found.ghost else " superseded" if found.superseded else ""


def _row(found: Found, body: bool) -> list[object]:
    record = found.record
    where = Text(f"{record.phy_offset:,}{_mark(found)}", style="yellow" if _mark(found) else "")
    row: list[object] = [
        where, record.topic_name, record.queue_id, record.queue_offset,
        human_time(record.store_timestamp), record.tags or "", record.keys or "", record.uniq_key or "",
    ]
    return [*row, body_text(_plain_body(record)[0], 60)] if body else row


def _show_one(out: Printer, found: Found, body: bool) -> None:
    record = found.record
    out.show(facts("", [
        ("topic", record.topic_name), ("queue", f"{record.queue_id}, queue offset {record.queue_offset:,}"),
        ("log offset", f"{record.phy_offset:,}{_mark(found)}"), ("size", exact_size(record.total_size)),
        ("stored", f"{human_time(record.store_timestamp)} by {host_text(record.store_host)}"),
        ("born", f"{human_time(record.born_timestamp)} at {host_text(record.born_host)}"),
        ("message id", offset_id(*record.store_host, record.phy_offset)), ("unique key", record.uniq_key),
        ("keys", record.keys), ("tags", record.tags), ("flags", flag_text(record.sys_flag) or "none"),
        ("redelivered", record.reconsume_times), ("properties", Text(properties_text(record.properties))),
        ("body", f"{exact_size(len(record.body))} bytes stored"),
    ]))
    if body:
        content, problem = _plain_body(record)
        out.show(Text(body_text(content, 100_000)))
        if problem:
            out.say(f"the body is shown as stored: {problem}")
