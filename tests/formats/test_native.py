"""Kernels: the C does what the Python under its declaration does, knows the same constants, and stays in its arrays."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from formats import sysflag
from formats.native import build, index, rows, walk
from formats.native.library import BOOL, INT, Array, Kernel, kernel, library, loaded
from formats.native.walk import AT_BLANK, FALLBACK, QUEUE_COLUMNS, crc32, crc_name, walk_records
from formats.properties import QUEUE_ID_DIGITS, TIME_DIGITS
from formats.record import layout, rows as record_columns
from formats.record.grammar import range_table
from formats.record.rows import RECORD
from tests.support.kernel_inputs import INPUTS
from tests.support.stores import STORES, unpacked

HEAD_FIELDS = [field.name for field in layout.HEAD.fields]
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "formats" / "native"
MODULES = (walk, rows, index)
KERNELS = {it.name: it for module in MODULES for it in vars(module).values() if isinstance(it, Kernel)}
_C_TYPES = {
    "record_row": RECORD, "expected_row": record_columns.EXPECTED, "queue_tally": record_columns.QUEUE_TALLY,
    "int64_t": np.dtype(np.int64),
    "bool": np.dtype(bool), "int32_t": np.dtype(np.int32), "uint8_t": np.dtype(np.uint8),
}


def test_header_and_declarations_have_the_same_kernels_with_the_same_types() -> None:
    header = (FOLDER / "kernels.h").read_text()
    found = {
        name: (result, [" ".join(each.split()) for each in arguments.split(",")])
        for result, name, arguments in re.findall(r"KERNEL (\w+) mq_(\w+)\(([^)]*)\);", header)
        if arguments != "void"
    }
    assert found.keys() == KERNELS.keys()
    for name, (result, arguments) in found.items():
        expected: list[str] = []
        for kind in KERNELS[name].kinds:
            if isinstance(kind, Array):
                (text,) = (text for text, dtype in _C_TYPES.items() if dtype == kind.dtype)
                expected += [f"{text} *" if kind.out else f"const {text} *", "int64_t "]
            else:
                expected.append("int64_t ")
        returns = KERNELS[name].returns
        expected += ["int64_t *"] if isinstance(returns, tuple) else []
        assert [re.sub(r"\w+$", "", argument) for argument in arguments] == expected, name
        assert result == ("int64_t" if returns in (INT, BOOL) else "void"), name


def _enumerated(text: str) -> dict[str, int]:
    """The names of a C file's enums, with their values."""
    found: dict[str, int] = {}
    for block in re.findall(r"enum \{([^}]*)\}", re.sub(r"/\*.*?\*/", "", text, flags=re.S)):
        last = -1
        for entry in filter(None, map(str.strip, block.split(","))):
            name, _, value = map(str.strip, entry.partition("="))
            last = eval(value, {}, found) if value else last + 1
            found[name] = last
    return found


@pytest.mark.parametrize(
    ("file", "module"), [("walk.c", walk), ("rows.c", rows), ("index.c", index)]
)
def test_constants_are_those_of_the_codecs(file: str, module: ModuleType) -> None:
    header = (FOLDER / "kernels.h").read_text() + (FOLDER / "layout.h").read_text()
    shared, own = _enumerated(header), _enumerated(header + (FOLDER / file).read_text())
    offsets = {f"OFFSET_{name.replace('_ip', '_host').upper()}": layout.HEAD.offset(name) for name in HEAD_FIELDS}
    places = [module, layout, SimpleNamespace(__name__="HEAD", **offsets), sysflag, record_columns, *MODULES]
    checked = set()
    for name, value in own.items():
        place = next((it for it in places if isinstance(getattr(it, name, None), int)), None)
        if place is not None and (name in shared or not place.__name__.startswith("formats.native") or place is module):
            assert getattr(place, name) == value, (name, place.__name__)
            checked.add(name)
    assert len(checked) > 40
    if module is walk:
        assert (own["QUEUE_ID_DIGITS"], own["TIME_DIGITS"]) == (QUEUE_ID_DIGITS, TIME_DIGITS)


def _answer(run: Any, name: str, seed: int) -> tuple[Any, list[Any]]:
    given = INPUTS[name](random.Random(seed))
    arguments = [kind.coerce(value) for kind, value in zip(KERNELS[name].kinds, given, strict=True)]
    return run(*arguments), [it.tolist() if isinstance(it, np.ndarray) else it for it in arguments]


def _native(name: str) -> Any:
    found = library()
    assert found is not None
    return KERNELS[name].native(found)


@pytest.mark.parametrize("name", INPUTS)
@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=40)
def test_c_and_python_give_the_same(name: str, seed: int) -> None:
    assert _answer(_native(name), name, seed) == _answer(KERNELS[name].plain, name, seed)


def _walked(run: Any, content: bytes, keys: bool, room: int) -> tuple[tuple[int, int], list[Any]]:
    out = [
        np.zeros(room, RECORD), np.zeros(4 * room, np.int32), np.full(64, -1, np.int32), np.zeros(600, np.uint8),
        np.zeros((32, QUEUE_COLUMNS), np.int64), 7, np.zeros(4, np.int64),
    ]
    data = np.frombuffer(bytearray(content), np.uint8)
    result = run(data, 0, data.size, 0, 1 << 30, *out, keys, data.size, range_table())
    state = out[6].tolist()
    return result, [out[0][: state[0]].tolist(), out[1][: state[1]].tolist(), out[4][: state[2]].tolist(), state]


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("keys", [False, True])
def test_both_walks_take_the_same_records_of_a_store(name: str, keys: bool) -> None:
    first = min((unpacked(name) / "commitlog").iterdir())
    content = first.read_bytes()[:60_000]
    for room in (1, 30, 1000):
        fast = _walked(_native("walk_records"), content, keys, room)
        slow = _walked(walk_records.plain, content, keys, room)
        if fast[0][1] == FALLBACK:
            assert slow[0][0] >= fast[0][0]
        else:
            assert slow == fast
        assert fast[1][3][0] or fast[0][1] in (AT_BLANK, FALLBACK)


@given(data=st.binary(max_size=900), start=st.integers(0, 600), length=st.integers(0, 900))
def test_every_way_to_a_checksum_agrees_with_zlib(data: bytes, start: int, length: int) -> None:
    content = np.frombuffer(data, dtype=np.uint8)
    expected = zlib.crc32(data[start : start + length]) if start + length <= len(data) else 0
    assert {crc32(content, start, length, portable) for portable in (False, True)} == {expected}


@pytest.mark.parametrize(("start", "length"), [(-1, 4), (0, -1), (0, 65), (64, 1), (2**62, 2**62)])
def test_a_checksum_of_what_is_not_there_is_not_taken(start: int, length: int) -> None:
    content = np.full(64, 7, dtype=np.uint8)
    assert {crc32(content, start, length, portable) for portable in (False, True)} == {0}
    assert crc_name() in ("hardware", "portable")


@kernel(numbers=Array(np.int64, out=True, least=1), pairs=Array(np.int32, 2), factor=INT, flag=BOOL, returns=INT)
def _own(numbers: Any, pairs: Any, factor: int, flag: bool) -> int:
    numbers[0] = factor * int(pairs.sum()) if flag else 0
    return int(numbers[0])


def test_arguments_that_do_not_fit_are_refused_before_the_call() -> None:
    numbers, pairs = np.zeros(4, np.int64), np.ones((3, 2), np.int32)
    for wrong in (
        [[0], pairs, 1, True], [numbers.astype(np.int32), pairs, 1, True], [numbers, pairs.ravel(), 1, True],
        [numbers, pairs, 1.5, True], [numbers, pairs, 1],
    ):
        with pytest.raises((TypeError, ValueError)):
            _own(*wrong)
    frozen = numbers.copy()
    frozen.flags.writeable = False
    for wrong in ([numbers[:0], pairs, 1, True], [numbers[::2], pairs, 1, True],
                  [numbers, np.ones((3, 5), np.int32), 1, True], [frozen, pairs, 1, True]):
        with pytest.raises(ValueError, match="array"):
            _own(*wrong)
    with pytest.raises(OverflowError):
        _own(numbers, pairs, 1 << 63, True)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package `formats` alone, to be spoilt."""
    shutil.copytree(ROOT / "formats", tmp_path / "formats", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def _asked(root: Path, **environment: str) -> list[str]:
    """Name of the CRC and why kernels are slow, as a process of its own has it with the package in a folder."""
    script = "from formats.native import library, walk; print(walk.crc_name()); print(*library.SLOW, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(root), **environment},
    )
    return done.stdout.split("\n")[:2]


def test_a_library_that_is_missing_broken_or_of_other_sources_is_not_used(copy: Path) -> None:
    native = copy / "formats" / "native"
    assert _asked(copy) == [crc_name(), ""]
    assert _asked(copy, MQTOOL_REFERENCE="1") == ["zlib", "MQTOOL_REFERENCE is set"]
    source = native / "rows.c"
    source.write_text(source.read_text() + "\n")
    assert not build.is_fresh(native)
    name, reason = _asked(copy)
    assert name == "zlib" and "built from other sources" in reason
    (native / build.LIBRARY).write_bytes(b"no library")
    assert _asked(copy)[0] == "zlib"
    (native / build.LIBRARY).unlink()
    name, reason = _asked(copy)
    assert name == "zlib" and "missing" in reason


@pytest.mark.slow
def test_a_changed_source_is_compiled_again_and_nothing_else_is(copy: Path) -> None:
    if build.compiler() is None:
        pytest.skip("there is no C compiler")
    native = copy / "formats" / "native"
    before = (native / build.LIBRARY).stat().st_mtime_ns
    build.ensure(native)
    assert (native / build.LIBRARY).stat().st_mtime_ns == before
    source = native / "rows.c"
    source.write_text(source.read_text() + "\n")
    build.ensure(native)
    assert build.is_fresh(native) and _asked(copy) == [crc_name(), ""]
    assert loaded(str(native / build.LIBRARY), build.mark_of(native))
    source.write_text("int broken(")
    with pytest.raises(build.BuildError, match="error"):
        build.ensure(native)
    assert sorted(path.name for path in native.glob("*.bin*")) == [build.LIBRARY]


def test_kernels_are_loaded_out_of_an_archive_as_spark_sends_it(copy: Path) -> None:
    shutil.make_archive(str(copy / "code"), "zip", copy, "formats")
    shutil.rmtree(copy / "formats")
    assert _asked(copy, PYTHONPATH=str(copy / "code.zip")) == [crc_name(), ""]



@pytest.mark.parametrize("length", range(18))
def test_a_queue_has_the_same_slot_in_both_walks_whatever_the_length_of_its_topic(length: int) -> None:
    names = np.arange(1, 19, dtype=np.uint8)
    table = np.array([[0, length, 7]], dtype=np.int64)
    found, plain = (np.full(1 << 16, -1, dtype=np.int32) for _ in range(2))
    assert walk.fill_slots(found, names, table, 0, 1, 12345)
    plain[walk.queue_hash(names[:length].tobytes(), 7, 12345) % plain.size] = 0
    assert np.array_equal(found, plain)
