"""What a kernel takes and gives back through our cache, and which changes of its code make it another one."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest

from formats.compiled import BOOL, INT, Array, Kernel, closure, kernel, part
from formats.compiled.closure import digest, source_of

ROOT = Path(__file__).parents[2]

_LIMIT = 3


@part
def _twice(number: int) -> int:
    return number * 2


def _uses(number: int) -> int:
    return _twice(number) + _LIMIT


def _kernel_of(function: Any, **names: Any) -> Kernel:
    copy = FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__)
    return Kernel(copy, {"number": INT}, INT)


def test_the_key_changes_with_code_parts_constants_and_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    @part
    def thrice(number: int) -> int:
        return number * 3

    def other(number: int) -> int:
        return _twice(number) - _LIMIT

    ours = _kernel_of(_uses)
    keys = [
        digest(ours), digest(_kernel_of(_uses, _LIMIT=4)), digest(_kernel_of(_uses, _LIMIT=np.uint8(3))),
        digest(_kernel_of(_uses, _LIMIT=np.array([3]))), digest(_kernel_of(_uses, _twice=thrice)),
        digest(_kernel_of(other)),
        digest(Kernel(ours.function, {"number": BOOL}, INT)), digest(Kernel(ours.function, {"number": INT}, BOOL)),
    ]
    assert len(set(keys)) == len(keys)
    assert digest(_kernel_of(_uses)) == keys[0]
    monkeypatch.setattr(closure, "source_of", lambda module: b"another way to build")
    assert digest(_kernel_of(_uses)) not in keys


def test_the_key_stays_where_only_the_place_changes() -> None:
    moved = _uses.__code__.replace(co_filename="/elsewhere.py", co_firstlineno=99)
    copy = FunctionType(moved, _uses.__globals__, "_uses")
    assert digest(Kernel(copy, {"number": INT}, INT)) == digest(_kernel_of(_uses))


def test_what_cannot_be_compiled_in_is_refused_by_name() -> None:
    for value in ([1], {}, lambda number: number):
        with pytest.raises(TypeError, match="_uses uses _LIMIT"):
            digest(_kernel_of(_uses, _LIMIT=value))


def test_the_source_of_a_module_is_read_without_importing_it() -> None:
    assert b"from numba" in source_of("formats.kernels.byte_intrinsics")
    with pytest.raises(ImportError):
        source_of("formats.nothing_of_that_name")


# --- the call --------------------------------------------------------------------------------------------


@kernel(data=Array(np.int32, 2), out=Array(np.int64, out=True, some=True), number=INT, flag=BOOL, returns=(INT, INT))
def _sums(data: Any, out: Any, number: int, flag: bool) -> tuple[int, int]:
    total = 0
    for row in range(data.shape[0]):
        for column in range(data.shape[1]):
            total += data[row, column]
    out[0] = total % out.size
    return total if flag else -total, number


@kernel(number=INT, returns=BOOL)
def _is_odd(number: int) -> bool:
    return number & 1 == 1


@kernel(out=Array(np.int64, out=True), returns=None)
def _allocates(out: Any) -> None:
    out[:] = np.zeros(out.size, dtype=np.int64) + 7


@kernel(number=INT, returns=INT)
def _raises(number: int) -> int:
    if number < 0:
        raise ValueError("negative")
    return number


def test_numbers_and_arrays_arrive_as_they_are(folder: Path) -> None:
    data, out = np.arange(12, dtype=np.int32).reshape(4, 3), np.zeros(7, dtype=np.int64)
    assert _sums(data, out, -(2**63), True) == (66, -(2**63))
    assert _sums(data, out, np.int32(5), np.bool_(False)) == (-66, 5)  # type: ignore[arg-type]
    assert out[0] == 66 % 7
    assert _sums(data[::2, 1:], out, 0, True) == (1 + 2 + 7 + 8, 0)
    assert _sums(data.T, out, 0, True) == (66, 0)
    data.flags.writeable = False
    assert _sums(data, out, 0, True) == (66, 0)
    assert (_is_odd(3), _is_odd(4)) == (True, False)


def test_arrays_at_any_byte_are_read(folder: Path) -> None:
    content = np.frombuffer(b"." + np.arange(6, dtype=np.int32).tobytes(), dtype=np.uint8)
    data = content[1:].view(np.int32).reshape(2, 3)
    assert not data.flags.aligned
    assert _sums(data, np.zeros(1, dtype=np.int64), 0, True) == (15, 0)


@pytest.mark.parametrize(("arguments", "error"), [
    ((np.zeros((2, 2), dtype=np.int64), None, 0, True), TypeError),
    ((np.zeros((2, 2), dtype=">i4"), None, 0, True), TypeError),
    ((np.zeros(4, dtype=np.int32), None, 0, True), TypeError),
    (([[1]], None, 0, True), TypeError),
    ((None, np.zeros(0, dtype=np.int64), 0, True), ValueError),
    ((None, np.zeros(8, dtype=np.int64)[::2], 0, True), ValueError),
    ((None, np.frombuffer(bytes(8), dtype=np.int64), 0, True), ValueError),
    ((None, None, 1.5, True), TypeError),
    ((None, None, "1", True), TypeError),
    ((None, None, 2**63, True), OverflowError),
    ((None, None, 0), ValueError),
    ((None, None, 0, True, 0), ValueError),
])
def test_what_does_not_fit_is_refused(arguments: tuple[Any, ...], error: type[Exception], folder: Path) -> None:
    good = (np.zeros((2, 2), dtype=np.int32), np.zeros(1, dtype=np.int64), 0, True)
    given = [good[number] if value is None else value for number, value in enumerate(arguments)]
    with pytest.raises(error):
        _sums(*given)


def test_a_declaration_names_the_parameters_in_order() -> None:
    for kinds in ({}, {"numbers": INT}, {"number": INT, "more": INT}):
        with pytest.raises(TypeError, match="_uses takes"):
            kernel(returns=INT, **kinds)(_uses)


def test_a_kernel_that_allocates_is_left_to_numba(folder: Path) -> None:
    out = np.zeros(3, dtype=np.int64)
    _allocates(out)
    assert out.tolist() == [7, 7, 7]
    assert not isinstance(_allocates._run, partial)  # type: ignore[attr-defined]
    assert not folder.exists()


def test_a_kernel_that_raises_is_never_taken_for_an_answer(folder: Path) -> None:
    assert _raises(5) == 5
    with pytest.raises((RuntimeError, ValueError)):
        _raises(-5)


def test_bounds_are_checked_on_request(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import numpy as np\nfrom formats.kernels.index import phy_offsets\n"
        "try:\n    phy_offsets(np.zeros((3, 5), np.int32), 9, np.zeros(2, np.int64))\n"
        "except IndexError:\n    print('refused')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "NUMBA_BOUNDSCHECK": "1"}, cwd=ROOT,
        capture_output=True, text=True, check=False,
    )
    assert done.stdout == "refused\n", done.stderr
    assert not folder.exists()
