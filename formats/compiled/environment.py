"""What compiled code depends on besides its source: the versions that made it, and the processor."""

from __future__ import annotations

import importlib.util
import os
import sys
from functools import cache

import numpy as np

_CPU = "/proc/cpuinfo"
_CPU_LINES = (
    "vendor_id", "cpu family", "model", "model name", "stepping", "flags", "CPU implementer", "CPU architecture",
    "CPU variant", "CPU part", "CPU revision", "Features", "cpu", "isa",
)


@cache
def environment() -> str:
    """Versions of Python, numpy, numba and llvmlite; model and features of the processor."""
    versions = (_version_of("numba"), _version_of("llvmlite"))
    return "\n".join((sys.version, np.__version__, *versions, os.uname().machine, sys.byteorder, processor()))


def processor() -> str:
    """The first processor as the system tells of it, else as LLVM does."""
    try:
        # of many processors the rest would be longer than what is wanted, and is like the first
        with open(_CPU, encoding="utf-8", errors="replace") as file:
            first = file.read(1 << 14).partition("\n\n")[0]
    except OSError:
        first = ""
    lines = [line for line in first.splitlines() if line.partition(":")[0].strip() in _CPU_LINES]
    if lines:
        return "\n".join(lines)
    import llvmlite.binding as llvm

    return f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


def _version_of(package: str) -> str:
    """What changes with the version of a package, without importing it, which takes long."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return ""
    for name in ("_version.py", "__init__.py"):
        try:
            with open(os.path.join(os.path.dirname(spec.origin), name), encoding="utf-8") as file:
                return file.read()
        except (OSError, ValueError):
            continue
    return ""
