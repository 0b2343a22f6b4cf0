"""What a kernel takes and gives, the library that has it in C, and the call of one or the other."""

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
"""Why kernels of this process run as Python, if they do."""


class Scalar(Struct, frozen=True):
    """A whole number of 64 bits with sign, or a truth."""

    name: str

    def fitting(self, value: Any) -> int:
        """The number as Python's own. `TypeError` when it is not whole, `OverflowError` when it is too large."""
        if self is BOOL:
            return int(bool(value))
        number = index(value)
        if not -1 << 63 <= number < 1 << 63:
            raise OverflowError(f"{number} takes more than 64 bits")
        return number

    def words(self, value: int) -> tuple[int, ...]:
        """As a kernel takes it."""
        return (value,)


INT = Scalar("int64")
BOOL = Scalar("boolean")


class Array:
    """A contiguous array of a dtype, of rows of so many `columns` unless 0. The kernel writes to it with `out`.

    It has at least so many elements or rows. One that is only read is copied where it is not contiguous.
    """

    def __init__(self, dtype: Any, columns: int = 0, *, out: bool = False, least: int = 0) -> None:
        self.dtype = np.dtype(dtype)
        self.columns = columns
        self.out = out
        self.least = least

    def fitting(self, value: Any) -> np.ndarray[Any, Any]:
        """`value`, or a copy of it that a kernel can read. `TypeError` or `ValueError` when there can be none."""
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

    def words(self, value: np.ndarray[Any, Any]) -> tuple[int, ...]:
        """As a kernel takes an array: address and length."""
        return value.__array_interface__["data"][0], value.shape[0]


Kind = Scalar | Array
Result = Scalar | tuple[Scalar, Scalar] | None


def kernel(*, returns: Result, **kinds: Kind) -> Callable[[Function], Function]:
    """Makes a function a kernel: the kind of each parameter, and what it returns."""
    # for whoever checks types it stays the function that it is
    return lambda function: cast(Any, Kernel(function, kinds, returns))


class Kernel:
    """A function in C, or the Python that does the same; called by position."""

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
        """Run it. `TypeError` or `ValueError` for arguments that are not as declared, `OverflowError` for a number."""
        fitting = [kind.fitting(value) for kind, value in zip(self.kinds, arguments, strict=True)]
        if self._run is None:
            found = library()
            self._run = self.plain if found is None else self.native(found)
        return self._run(*fitting)

    def native(self, found: ctypes.CDLL) -> Callable[..., Any]:
        """What calls the kernel of a library with arguments that fit."""
        function = found[f"mq_{self.name}"]
        function.argtypes = [
            ctypes_type for kind in self.kinds
            for ctypes_type in ((ctypes.c_void_p, ctypes.c_int64) if isinstance(kind, Array) else (ctypes.c_int64,))
        ]
        function.restype = ctypes.c_int64 if isinstance(self.returns, Scalar) else None
        if isinstance(self.returns, tuple):
            function.argtypes = [*function.argtypes, ctypes.c_void_p]

        def run(*arguments: Any) -> Any:
            words = [word for kind, value in zip(self.kinds, arguments, strict=True) for word in kind.words(value)]
            if not isinstance(self.returns, tuple):
                found = function(*words)
                return bool(found) if self.returns is BOOL else found
            pair = (ctypes.c_int64 * 2)()
            function(*words, ctypes.addressof(pair))
            return tuple(pair)

        return run


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels; None, and the reason in `SLOW`, where they cannot be used."""
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
    """The library in a file. `OSError` or `ValueError` where it does not load or was made of other sources."""
    found = ctypes.CDLL(place)
    text = ctypes.cast(found.mqtool_mark, ctypes.c_char_p).value
    if text != expected:
        raise ValueError("they were built from other sources: run python -m formats.native.build")
    return found


def _content(name: str) -> bytes:
    """A file beside this one, in a folder or in the zip that Spark sends along. `OSError` where there is none."""
    path = os.path.join(os.path.dirname(__file__), name)
    loader = cast(Any, __spec__).loader
    return bytes(loader.get_data(path))


def _place() -> str:
    """A path of the library that the system can load. `OSError` where there is none."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), LIBRARY)
    if os.path.exists(path):
        return path
    # from an archive: memory that looks like a file, for as long as the process runs
    content = _content(LIBRARY)
    descriptor = os.memfd_create("mqtool-kernels")
    with open(descriptor, "wb", closefd=False) as stream:
        stream.write(content)
    return f"/proc/self/fd/{descriptor}"
