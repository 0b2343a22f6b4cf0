"""This machine as LLVM sees it, and machine code put into this process."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numpy as np

ENTRY = "mqtool_kernel"

_lock = threading.Lock()
_engines: list[Any] = []


@cache
def environment() -> str:
    """What compiled code depends on besides its source: versions, processor."""
    return "\n".join((
        sys.version, np.__version__, llvmlite.__version__, repr(llvm.llvm_version_info), _version_of_numba(),
        llvm.get_default_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(), sys.byteorder,
    ))


def _version_of_numba() -> str:
    """numba's version, or what changes with it, without importing numba."""
    spec = importlib.util.find_spec("numba")
    if spec is None or spec.origin is None:
        return ""
    for name in ("_version.py", "__init__.py"):
        try:
            with open(os.path.join(os.path.dirname(spec.origin), name), encoding="utf-8") as file:
                return file.read()
        except (OSError, ValueError):
            continue
    return ""


@cache
def machine() -> Any:
    """LLVM's code generator for this processor."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3, reloc="pic", jit=True,
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
