"""Parameter and result types of kernels, the library of their C versions, and the call of either version."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from operator import index
from typing import Any, TypeVar, cast

import numpy as np
from msgspec import Struct

from formats.native.build import LIBRARY, mark

Function = TypeVar("Function", bound=Callable[..., Any])

SWITCHED_OFF = "MQTOOL_REFERENCE"
SLOW: list[str] = []
"""Reasons why kernels of this process run as Python; empty if they do not."""


class Scalar(Struct, frozen=True):
    """A signed 64-bit integer, or a boolean."""

    name: str

    def coerce(self, value: Any) -> int:
        """Return the number as a Python int. `TypeError` if it is not an integer, `OverflowError` if it is too
        large."""
        if self is BOOL:
            return int(bool(value))
        number = index(value)
        if not -1 << 63 <= number < 1 << 63:
            raise OverflowError(f"{number} takes more than 64 bits")
        return number

    def pack(self, value: int) -> tuple[int, ...]:
        """Return the number as arguments of the C function."""
        return (value,)


INT = Scalar("int64")
BOOL = Scalar("boolean")


class Array:
    """A contiguous array of a dtype, with rows of `columns` elements unless 0. With `out` the kernel writes to it.

    It must have at least `least` elements or rows. A read-only argument that is not contiguous is copied.
    """

    def __init__(self, dtype: Any, columns: int = 0, *, out: bool = False, least: int = 0) -> None:
        self.dtype = np.dtype(dtype)
        self.columns = columns
        self.out = out
        self.least = least

    def coerce(self, value: Any) -> np.ndarray[Any, Any]:
        """Return `value`, or a copy that a kernel can read. `TypeError` or `ValueError` if that is impossible."""
        if not isinstance(value, np.ndarray) or value.dtype != self.dtype or value.ndim != (2 if self.columns else 1):
            given = f"{value.ndim} of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
            raise TypeError(f"an array of {self.dtype} is wanted, not {given}")
        if value.shape[0] < self.least or (self.columns and value.shape[1] != self.columns):
            raise ValueError(f"an array of at least {self.least} rows of {self.columns or 1} is wanted")
        if value.flags.carray or (not self.out and value.flags.c_contiguous and value.flags.aligned):
            return value
        if self.out:
            raise ValueError("an array that is contiguous and can be written is wanted")
        return np.require(value, requirements=["C", "A"])

    def pack(self, value: np.ndarray[Any, Any]) -> tuple[int, ...]:
        """Return the array as arguments of the C function: address and length."""
        return value.ctypes.data, value.shape[0]


Kind = Scalar | Array
Result = Scalar | tuple[Scalar, ...] | None


def kernel(*, returns: Result, **kinds: Kind) -> Callable[[Function], Function]:
    """Decorate a function as a kernel: the kind of each parameter, and what it returns."""
    # to type checkers it stays the plain function
    return lambda function: cast(Any, Kernel(function, kinds, returns))


class Kernel:
    """A C function, or the equivalent Python; called by position."""

    def __init__(self, function: Any, kinds: dict[str, Kind], returns: Result) -> None:
        parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
        if tuple(kinds) != parameters or function.__defaults__:
            raise TypeError(f"{function.__name__} takes {parameters}, and {tuple(kinds)} is declared")
        self.plain: Callable[..., Any] = function
        self.name: str = function.__name__
        self.kinds = tuple(kinds.values())
        self.returns = returns
        self.__doc__ = function.__doc__
        self._run: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Run it. `TypeError` or `ValueError` for arguments unlike the declaration, `OverflowError` for a large
        number."""
        values = [kind.coerce(value) for kind, value in zip(self.kinds, arguments, strict=True)]
        if self._run is None:
            found = library()
            self._run = self.plain if found is None else self.native(found)
        return self._run(*values)

    def native(self, found: ctypes.CDLL) -> Callable[..., Any]:
        """Return a function that calls the library's kernel with arguments from `coerce`."""
        function = found[f"mq_{self.name}"]
        function.argtypes = [
            ctypes_type for kind in self.kinds
            for ctypes_type in ((ctypes.c_void_p, ctypes.c_int64) if isinstance(kind, Array) else (ctypes.c_int64,))
        ]
        function.restype = ctypes.c_int64 if isinstance(self.returns, Scalar) else None
        if isinstance(self.returns, tuple):
            function.argtypes = [*function.argtypes, ctypes.c_void_p]

        def run(*arguments: Any) -> Any:
            packed = [word for kind, value in zip(self.kinds, arguments, strict=True) for word in kind.pack(value)]
            if not isinstance(self.returns, tuple):
                found = function(*packed)
                return bool(found) if self.returns is BOOL else found
            several = (ctypes.c_int64 * len(self.returns))()
            function(*packed, ctypes.addressof(several))
            return tuple(several)

        return run


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled kernels; None, with the reason in `SLOW`, if they cannot be used."""
    if os.environ.get(SWITCHED_OFF, "0") not in ("", "0"):
        SLOW.append(f"{SWITCHED_OFF} is set")
        return None
    try:
        place = _place()
    except OSError:
        SLOW.append("the compiled kernels are missing (python -m formats.native.build makes them)")
        return None
    try:
        return loaded(place, mark(_content))
    except (OSError, ValueError, AttributeError) as error:
        SLOW.append(f"the compiled kernels cannot be used ({error})")
        return None


def loaded(place: str, expected: bytes) -> ctypes.CDLL:
    """Load the library in a file. `OSError` or `ValueError` if it does not load or was built from other sources."""
    found = ctypes.CDLL(place)
    text = ctypes.cast(found.mqtool_mark, ctypes.c_char_p).value
    if text != expected:
        raise ValueError("they were built from other sources: run python -m formats.native.build")
    return found


def _content(name: str) -> bytes:
    """Return a file next to this one, in a folder or in the zip that Spark ships. `OSError` if it does not exist."""
    path = os.path.join(os.path.dirname(__file__), name)
    loader = cast(Any, __spec__).loader
    return bytes(loader.get_data(path))


def _place() -> str:
    """Return a path of the library that the system can load. `OSError` if there is none."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), LIBRARY)
    if os.path.exists(path):
        return path
    # in an archive: use a memory file, which lasts as long as the process
    content = _content(LIBRARY)
    descriptor = os.memfd_create("mqtool-kernels")
    with open(descriptor, "wb", closefd=False) as stream:
        stream.write(content)
    return f"/proc/self/fd/{descriptor}"
