"""LLVM's code generator for this processor, and its linker for code that `formats.compiled.image` cannot place."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite.binding as llvm

ENTRY = "mqtool_kernel"

_lock = threading.Lock()
_engines: list[Any] = []


@cache
def machine() -> Any:
    """The code generator, for position-independent code."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3, reloc="pic",
        codemodel="small", jit=True,
    )


def load(code: bytes) -> Callable[[int], int] | None:
    """The function ENTRY of an object file, callable with an address and without the interpreter's lock.

    None for what is no object file of this machine. It stays in memory until the process ends.
    """
    with _lock:
        try:
            engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine())
            engine.add_object_file(llvm.ObjectFileRef.from_data(code))
            engine.finalize_object()
            address = engine.get_function_address(ENTRY)
        except RuntimeError:
            return None
        _engines.append(engine)
    return ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(address) if address else None
