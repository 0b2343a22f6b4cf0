"""From a kernel to the machine code of one object file, by numba; nothing imports this while the cache will do.

numba gives a compiled function parameters of its own: where to put the result, where to put an exception, then the
arguments, an array as seven numbers and more (`Array.words`). A function in front of it takes them out of a table of
words, so that all kernels are called alike. The types of its parameters are compared with those expected: code from a
numba that does it otherwise is not used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

import llvmlite.binding as llvm
import numba
from numba import types

from formats.compiled.closure import called, references
from formats.compiled.declare import FRONT, INT, Array, Intrinsic, Kernel, Scalar
from formats.compiled.machine import ENTRY, machine

_LIBRARY = frozenset({"memset", "memcpy", "memmove", "memcmp", "bcmp"})
"""Of the C library what compiled code may call: LLVM makes such calls by itself."""


class NotSelfContainedError(Exception):
    """The compiled kernel would call what is not there without numba, or takes its arguments in an unknown way."""


def object_of(kernel: Kernel) -> bytes:
    """An object file with the kernel behind the symbol ENTRY. `NotSelfContainedError` when there can be none."""
    # numba's own exceptions are left out: a kernel that divides by the size of an array asks for one that is not empty
    options: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False}
    dispatcher = _Compilation(numba.njit(error_model="numpy", nogil=True, **options)).of(kernel.function)
    dispatcher.compile(_signature(kernel))
    (text,) = dispatcher.inspect_llvm().values()
    module = llvm.parse_assembly(text)
    native = [it for it in module.functions if not it.is_declaration and it.linkage == llvm.Linkage.external]
    if len(native) != 1:
        raise NotSelfContainedError(f"{kernel.name}: {len(native)} functions instead of one")
    module.link_in(llvm.parse_assembly(_front(kernel, native[0])))
    _strip(module)
    needed = {it.name for it in module.functions if it.is_declaration and not it.name.startswith("llvm.")}
    if not needed <= _LIBRARY:
        raise NotSelfContainedError(f"{kernel.name} needs {', '.join(sorted(needed - _LIBRARY))}")
    return bytes(machine().emit_object(module))


def dispatcher_of(kernel: Kernel) -> Callable[..., Any]:
    """The kernel as numba itself runs it, which raises where numba would."""
    dispatcher: Callable[..., Any] = _Compilation(numba.njit(nogil=True)).of(kernel.function)
    return dispatcher


class _Compilation:
    """Functions as numba wants them: each in front of a module where what it calls is numba's as well."""

    def __init__(self, jit: Any) -> None:
        self._jit = jit
        self._known: dict[FunctionType, Any] = {}

    def of(self, function: FunctionType) -> Any:
        """The dispatcher of a function."""
        if function not in self._known:
            names = dict(function.__globals__)
            names.update((name, self._resolved(value)) for name, value in references(function))
            copy = FunctionType(function.__code__, names, function.__name__)
            copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
            self._known[function] = self._jit(copy)
        return self._known[function]

    def _resolved(self, value: Any) -> Any:
        if isinstance(value, Intrinsic):
            return getattr(importlib.import_module(value.module), value.name)
        function = called(value)
        return value if function is None else self.of(function)


def _type(kind: Scalar | Array) -> Any:
    if isinstance(kind, Array):
        return types.Array(numba.from_dtype(kind.dtype), kind.dimensions, "C")
    return getattr(types, kind.name)


def _signature(kernel: Kernel) -> Any:
    returns = kernel.returns
    result, pair = types.void, cast(Any, types.Tuple)
    if returns is not None:
        result = pair(tuple(map(_type, returns))) if isinstance(returns, tuple) else _type(returns)
    return result(*map(_type, kernel.kinds))


def _expected(kernel: Kernel) -> list[str]:
    """Types of the parameters of the function that numba makes."""
    wanted = ["ptr", "ptr"]
    for kind in kernel.kinds:
        if isinstance(kind, Array):
            wanted += ["ptr", "ptr", "i64", "i64", "ptr", *["i64"] * (2 * kind.dimensions)]
        else:
            wanted.append("i64" if kind is INT else "i8")
    return wanted


def _front(kernel: Kernel, native: Any) -> str:
    """LLVM assembly of ENTRY: takes the arguments of `native` out of the table of words at its one argument."""
    given = [str(it.type) for it in native.arguments]
    if given != _expected(kernel):
        raise NotSelfContainedError(f"{kernel.name} takes its arguments as {', '.join(given)}")
    # a table begins with the result, then the exception
    lines, passed = [f"%e = getelementptr i64, ptr %table, i64 {len(FRONT) - 1}"], ["ptr %table", "ptr %e"]
    for number, kind in enumerate(given[2:]):
        lines.append(f"%p{number} = getelementptr i64, ptr %table, i64 {len(FRONT) + number}")
        lines.append(f"%w{number} = load i64, ptr %p{number}")
        if kind != "i64":
            cast = "inttoptr" if kind == "ptr" else "trunc"
            lines.append(f"%v{number} = {cast} i64 %w{number} to {kind}")
        passed.append(f"{kind} %{'w' if kind == 'i64' else 'v'}{number}")
    lines += [f'%status = call i32 @"{native.name}"({", ".join(passed)})', "ret i32 %status"]
    body = "\n  ".join(lines)
    return (f'declare i32 @"{native.name}"({", ".join(given)})\n'
            f"define i32 @{ENTRY}(ptr %table) {{\n  {body}\n}}\n")


def _strip(module: Any) -> None:
    """Leave ENTRY and what it reaches."""
    for it in (*module.functions, *module.global_variables):
        if not it.is_declaration and it.name != ENTRY:
            it.linkage = "internal"
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, llvm.create_pass_builder(machine(), llvm.create_pipeline_tuning_options()))
