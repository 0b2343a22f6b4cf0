"""What a kernel takes and gives, and its call: numbers and addresses of arrays in one table of words."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from operator import index
from types import FunctionType
from typing import Any, TypeVar, cast

import numpy as np
from msgspec import Struct

Function = TypeVar("Function", bound=Callable[..., Any])

FRONT = (0, 0, 0)
"""The words in front of the arguments: two for the result, one for the exception that no kernel raises."""


class Scalar(Struct, frozen=True):
    """A whole number of 64 bits with sign, or a truth."""

    name: str

    def fitting(self, value: Any) -> int:
        """The number as Python's own. `TypeError` when it is not whole."""
        return index(value) if self is INT else int(bool(value))

    def words(self, value: int) -> tuple[int, ...]:
        """As a kernel takes it."""
        return (value,)


INT = Scalar("int64")
BOOL = Scalar("boolean")


class Array:
    """An array of a dtype and number of dimensions, contiguous. The kernel writes to it with `out`.

    With `some` it must not be empty. One that is only read is copied where it is not contiguous.
    """

    def __init__(self, dtype: Any, dimensions: int = 1, *, out: bool = False, some: bool = False) -> None:
        self.dtype = np.dtype(dtype)
        self.dimensions = dimensions
        self.out = out
        self.some = some

    def fitting(self, value: Any) -> np.ndarray[Any, Any]:
        """`value`, or a copy of it that a kernel can read. `TypeError` or `ValueError` when there can be none."""
        if not isinstance(value, np.ndarray) or value.dtype != self.dtype or value.ndim != self.dimensions:
            given = f"{value.ndim} of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
            raise TypeError(f"an array of {self.dimensions} dimensions of {self.dtype} is wanted, not {given}")
        if self.some and not value.size:
            raise ValueError("an array with something in it is wanted")
        if value.flags.carray or (not self.out and value.flags.c_contiguous and value.flags.aligned):
            return value
        if self.out:
            raise ValueError("an array that is contiguous and can be written is wanted")
        return np.require(value, requirements=["C", "A"])

    def words(self, value: np.ndarray[Any, Any]) -> tuple[int, ...]:
        """As a kernel takes an array: owner, parent, size, size of an item, address, shape, strides."""
        return 0, 0, value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides


Kind = Scalar | Array
Result = Scalar | tuple[Scalar, Scalar] | None


class Intrinsic(Struct, frozen=True):
    """A name in a module that needs numba: nothing but the compilation of kernels imports it."""

    module: str
    name: str


def intrinsic(module: str, name: str) -> Any:
    """Stands for numba's intrinsic `name` of `module` in kernels and parts."""
    return Intrinsic(module, name)


def part(function: Function) -> Function:
    """Lets kernels and other parts call the function."""
    function.__dict__["is_part"] = True
    return function


def kernel(*, returns: Result, **kinds: Kind) -> Callable[[Function], Function]:
    """Makes a function a kernel: the kind of each parameter, and what it returns."""
    # for whoever checks types it stays the function that it is
    return lambda function: cast(Any, Kernel(function, kinds, returns))


class Kernel:
    """A compiled function: found on disk or compiled when it is called first, and called by position."""

    def __init__(self, function: Any, kinds: dict[str, Kind], returns: Result) -> None:
        parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
        if tuple(kinds) != parameters or function.__defaults__:
            raise TypeError(f"{function.__name__} takes {parameters}, and {tuple(kinds)} is declared")
        self.function: FunctionType = function
        self.name: str = function.__name__
        self.kinds = tuple(kinds.values())
        self.returns = returns
        self.__doc__ = function.__doc__
        self._lock = threading.Lock()
        self._run: Callable[[list[Any]], Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Run it. `TypeError` or `ValueError` for arguments that are not as declared, `OverflowError` for a number."""
        fitting = [kind.fitting(value) for kind, value in zip(self.kinds, arguments, strict=True)]
        return (self._run or self._prepared())(fitting)

    def _prepared(self) -> Callable[[list[Any]], Any]:
        from formats.compiled.ready import runner

        with self._lock:
            if self._run is None:
                self._run = runner(self)
            return self._run

    def through(self, native: Callable[[int], int], arguments: list[Any]) -> Any:
        """Call machine code with the address of a table of words; it answers with 0 unless it failed."""
        words = array("q", FRONT)
        for kind, value in zip(self.kinds, arguments, strict=True):
            words.extend(kind.words(value))
        status = native(words.buffer_info()[0])
        if status:
            raise RuntimeError(f"kernel {self.name} gave up ({status})")
        if self.returns is None:
            return None
        if isinstance(self.returns, tuple):
            return words[0], words[1]
        return words[0] if self.returns is INT else words[0] != 0
