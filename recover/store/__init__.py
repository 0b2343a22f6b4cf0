"""The parts of a store: which files there are, how their bytes are read, which are unchanged, and which are not read.

The names below are for programs that import this package, as those of `formats` are (docs/api.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from formats import importing

if TYPE_CHECKING:
    from recover.findings.code import NotAStore, Refusal
    from recover.store.mapped_files import MappedFile
    from recover.store.source import open_file
    from recover.store.store import Store, StoreOptions

__all__ = ["MappedFile", "NotAStore", "Refusal", "Store", "StoreOptions", "open_file"]
PUBLIC = {
    "Store": "recover.store.store.Store",
    "StoreOptions": "recover.store.store.StoreOptions",
    "MappedFile": "recover.store.mapped_files.MappedFile",
    "open_file": "recover.store.source.open_file",
    "Refusal": "recover.findings.code.Refusal",
    "NotAStore": "recover.findings.code.NotAStore",
}

if not TYPE_CHECKING:
    __getattr__ = importing(__name__, PUBLIC)
