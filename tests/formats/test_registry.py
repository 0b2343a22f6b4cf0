"""A format that is not in the registry is not in the docs either, so none may be forgotten."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import formats
from formats.layout import Layout
from formats.registry import BY_NAME, FORMATS, Format

MODULES = sorted(m.name for m in pkgutil.walk_packages(formats.__path__, "formats.")
                 if "kernel" not in m.name and m.name != "formats.layout")


@pytest.mark.parametrize("module", MODULES)
def test_every_layout_of_every_module_is_registered(module: str) -> None:
    registered = {id(entry.layout(name)) for entry in FORMATS for name in entry.layouts}
    members = vars(importlib.import_module(module)).items()
    assert [name for name, value in members if isinstance(value, Layout) and id(value) not in registered] == []


@pytest.mark.parametrize("entry", FORMATS, ids=lambda entry: entry.name)
def test_every_registered_format_has_a_module_and_notes_on_every_field(entry: Format) -> None:
    assert importlib.import_module(entry.module).__doc__
    for name in entry.layouts:
        layout = entry.layout(name)
        assert layout.record.__doc__
        assert all(field.note for field in layout.fields)
        assert layout.dtype.itemsize == layout.size
        assert [layout.dtype.fields[f.name][1] for f in layout.fields] == [f.offset for f in layout.fields]
        assert layout.arrow_schema.names == [f.name for f in layout.fields]


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(FORMATS)
