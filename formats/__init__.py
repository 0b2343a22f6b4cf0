"""Codecs for the files of a RocketMQ store: pure functions, bytes in and values out.

The names below are for programs that import this package, and keep their meaning within a major version (docs/api.md);
the modules behind them may change. Each is imported when it is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from formats.basics import FormatError
    from formats.checkpoint import CHECKPOINT
    from formats.config.json import loads as load_config
    from formats.consumequeue import CQ_UNIT
    from formats.index import INDEX_HEADER, INDEX_SLOT, INDEX_UNIT, IndexGeometry
    from formats.record import Record, decode as decode_record, encode as encode_record
    from formats.record.message import decompress as decompress_body, make_record, parse_offset_id as parse_message_id

__all__ = [
    "CHECKPOINT",
    "CQ_UNIT",
    "INDEX_HEADER",
    "INDEX_SLOT",
    "INDEX_UNIT",
    "FormatError",
    "IndexGeometry",
    "Record",
    "decode_record",
    "decompress_body",
    "encode_record",
    "load_config",
    "make_record",
    "parse_message_id",
]
PUBLIC = {
    "FormatError": "formats.basics.FormatError",
    "Record": "formats.record.Record",
    "decode_record": "formats.record.decode",
    "encode_record": "formats.record.encode",
    "make_record": "formats.record.message.make_record",
    "decompress_body": "formats.record.message.decompress",
    "parse_message_id": "formats.record.message.parse_offset_id",
    "CQ_UNIT": "formats.consumequeue.CQ_UNIT",
    "INDEX_HEADER": "formats.index.INDEX_HEADER",
    "INDEX_SLOT": "formats.index.INDEX_SLOT",
    "INDEX_UNIT": "formats.index.INDEX_UNIT",
    "IndexGeometry": "formats.index.IndexGeometry",
    "CHECKPOINT": "formats.checkpoint.CHECKPOINT",
    "load_config": "formats.config.json.loads",
}
"""Public name: where it is defined."""


def importing(package: str, public: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package with these public names: it imports the one that is asked for."""

    def get(name: str) -> Any:
        if name not in public:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = public[name].rpartition(".")
        return getattr(import_module(module), attribute)

    return get


if not TYPE_CHECKING:
    __getattr__ = importing(__name__, PUBLIC)
