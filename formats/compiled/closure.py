"""What a kernel is made of: its own code, the parts that it calls, and the values that are compiled in."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import cache
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from formats.compiled.declare import Array, Intrinsic, Kernel, Result, Scalar
from formats.compiled.digests import digest_of


def digest(kernel: Kernel) -> bytes:
    """Digest of all that decides which machine code the kernel becomes on a given machine with a given numba."""
    parts: list[bytes] = []
    for module in ("build", "machine", "image"):
        parts.append(source_of(f"formats.compiled.{module}"))
    parts.append(repr([_kind(kind) for kind in kernel.kinds] + [_result(kernel.returns)]).encode())
    seen: set[FunctionType] = set()
    rest = [kernel.function]
    while rest:
        function = rest.pop()
        if function in seen:
            continue
        seen.add(function)
        parts.append(repr((function.__name__, _code(function.__code__))).encode())
        for name, value in references(function):
            behind = called(value)
            if behind is not None:
                rest.append(behind)
                parts.append(f"{name} calls".encode())
            elif isinstance(value, Intrinsic):
                parts.append(repr((name, value)).encode() + source_of(value.module))
            else:
                parts.append(repr((name, _constant(function, name, value))).encode())
    return digest_of(*parts)


def references(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The names of its module that a function uses, and what they stand for; ascending."""
    names = set(_names(function.__code__))
    return ((name, function.__globals__[name]) for name in sorted(names) if name in function.__globals__)


def called(value: Any) -> FunctionType | None:
    """The function behind a kernel or a part, None for anything else."""
    if isinstance(value, Kernel):
        return value.function
    return value if isinstance(value, FunctionType) and value.__dict__.get("is_part") else None


@cache
def source_of(module: str) -> bytes:
    """The source of a module that is not imported for it, wherever it was imported from."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ImportError(f"no module {module}")
    loader: Any = spec.loader
    return bytes(loader.get_data(spec.origin))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _code(code: CodeType) -> tuple[Any, ...]:
    """Of code what does not change with the place of its file."""
    constants = [_code(it) if isinstance(it, CodeType) else (type(it).__name__, repr(it)) for it in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, code.co_argcount, code.co_exceptiontable, constants


def _constant(function: FunctionType, name: str, value: Any) -> Any:
    if value is None or isinstance(value, int | float | str | bytes | tuple):
        return repr(value)
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, np.generic | np.dtype):
        return repr(value)
    if isinstance(value, ModuleType | type | BuiltinFunctionType):
        return value.__name__
    raise TypeError(f"{function.__name__} uses {name}, which is neither a constant nor a @part")


def _kind(kind: Scalar | Array) -> str:
    return kind.name if isinstance(kind, Scalar) else f"{kind.dtype!r} {kind.dimensions}"


def _result(result: Result) -> str:
    return repr([it.name for it in result]) if isinstance(result, tuple) else result.name if result else ""
