"""`mqtool inspect`: one screen about a store, or the records of one file."""

from __future__ import annotations

from typing import Annotated

from formats.index import IndexGeometry
from mqtool import exits
from mqtool.options import BrokerChoice, StoreChoice, command, flag, option
from mqtool.printer import Printer
from mqtool.screens.file import show_file
from mqtool.screens.store import show_store
from recover.findings.refusal import UsageRefusal
from recover.look.file import inspect_file

_PANEL = "One file"


@command(
    examples=[
        ("/data/store", "parts, sizes, broker generation, offsets, exit state, config health"),
        ("/data/store/commitlog/00000000001073741824", "the first records of a commitlog file"),
        ("/data/store/commitlog/00000000001073741824 --offset 1073742000 --hex",
         "one record, field by field, with every check"),
        ("/data/store/index/20260101120000000 --limit 100", "header and entries of an index file"),
    ],
    bits=(exits.DERIVED, exits.MESSAGES, exits.UNSUPPORTED),
)
def inspect(
    out: Printer,
    store: StoreChoice,
    broker: BrokerChoice,
    offset: Annotated[int | None, option(
        "--offset", "Start here: a byte of the file, or a log offset.", _PANEL, metavar="N")] = None,
    limit: Annotated[int | None, option(
        "--limit", "Show at most N items, 0 for all (default: 20; 1 with --offset).", _PANEL, metavar="N",
        min=0)] = None,
    hexadecimal: Annotated[bool, flag("--hex", "Show the bytes, too.", _PANEL)] = False,
) -> int:
    """Show one screen about a store: its parts, how it was stopped, what a broker would start from.

    Given a single file, show its kind and its records; with --offset one record, field by field.
    """
    if store.root.is_dir():
        if offset is not None or limit is not None or hexadecimal:
            raise UsageRefusal("--offset, --limit and --hex are for single files", "Name a file of the store.")
        return show_store(out, store, broker)
    if limit is None:
        limit = 20 if offset is None else 1
    slots, entries = store.index_slots, store.index_entries
    geometry = None if slots is None or entries is None else IndexGeometry(slots, entries)
    return show_file(out, inspect_file(store.root, offset, limit, geometry), chosen=offset is not None,
                     hexadecimal=hexadecimal)
