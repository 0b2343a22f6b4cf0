"""The plain reader, the oracle of fuzz and mutation: it imports nothing of what it judges, and reads real stores."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fixtures.lab.packed import manifest
from tests.support import plain_reader as plain
from tests.support.stores import unpacked
from tests.torture import anatomy, excuses

STORES = ("clean-4.5.1", "clean-plain-4.9.7", "clean-restarts-5.5.0", "killed-ext-5.5.0", "clean-multipath-4.9.7")
CODE_UNDER_TEST = {"formats", "recover", "mqtool", "fixtures"}


@pytest.mark.parametrize("module", [plain, excuses, anatomy], ids=lambda each: each.__name__)
def test_oracle_imports_nothing_of_what_it_judges(module: object) -> None:
    seen: set[str] = set()
    waiting = [str(module.__file__)]  # type: ignore[attr-defined]
    while waiting:
        for node in ast.walk(ast.parse(Path(waiting.pop()).read_text("utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [
                each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [f"{node.module}.{each.name}" for each in node.names] if isinstance(node, ast.ImportFrom) else []
            for name in set(names) - seen:
                seen.add(name)
                path = Path(*name.split(".")).with_suffix(".py")
                source = Path(__file__).resolve().parents[2] / path
                if name.startswith("tests.") and source.is_file():
                    waiting.append(str(source))
    assert not {name.split(".")[0] for name in seen} & CODE_UNDER_TEST


@pytest.mark.parametrize("name", STORES)
def test_every_record_queue_and_index_entry_of_a_real_store_is_read(name: str) -> None:
    root, known = unpacked(name), manifest(name)
    records = [record for base, file in plain.log_files(root).items() for record in plain.chain(file, base)]
    assert len(records) == known["records"]
    for record in records:
        assert b"".join(record.raw().values()) == record.content
    assert len(plain.delivered(root)) == known["units"]
    files = [path.read_bytes() for path in sorted((root / "index").iterdir())]
    geometry = plain.geometry_of(files[0])
    assert geometry is not None
    indexes = [plain.index_file(content, geometry) for content in files]
    assert sum(len(index.entries) for index in indexes) == known["index_entries"]
    for record in records:
        keys = plain.index_keys(record, tags=name.endswith("5.5.0"))
        for text in keys:
            assert any(record.phy_offset in index.offsets(text) for index in indexes), text


def test_hash_of_a_key_is_that_of_java() -> None:
    assert (plain.java_hash("TagA"), plain.java_hash("polygenelubricants")) == (2598919, -2147483648)
    assert plain.key_hash("polygenelubricants") == 0


def test_index_file_of_another_length_and_a_chain_that_loops_do_no_harm() -> None:
    content = next((unpacked("clean-plain-4.9.7") / "index").iterdir()).read_bytes()
    geometry = plain.geometry_of(content)
    assert geometry is not None
    with pytest.raises(ValueError, match="bytes"):
        plain.index_file(content[:-1], geometry)
    file = plain.index_file(content, geometry)
    looped = file._replace(entries=tuple(entry._replace(before=number)
                                         for number, entry in enumerate(file.entries, start=1)))
    assert all(len(list(looped.chain(slot))) <= len(file.entries) for slot in range(geometry.slots))


@pytest.mark.parametrize(("text", "value"), [
    (b'{"a":{0:1,},}', {"a": {"0": 1}}), (b"{'a':'b'}", {"a": "b"}), (b'{/* c */a:1}// d', {"a": 1}),
    (b"\xef\xbb\xbf{}", {}), (b'{"a":1}x', None), (b'{"a":1', None), (b"[]", None), (b"", None), (b'{"a":"x}', None),
])
def test_config_text_is_read_in_the_dialect_of_brokers(text: bytes, value: object) -> None:
    assert plain.config(text) == value
