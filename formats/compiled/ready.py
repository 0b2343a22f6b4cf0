"""How a kernel is run: by its machine code from the cache, by machine code just made, or by numba itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from formats.compiled import cache, image
from formats.compiled.closure import digest
from formats.compiled.declare import Kernel
from formats.compiled.environment import environment

DEBUGGING = "NUMBA_BOUNDSCHECK"
SWITCHED_OFF = "NUMBA_DISABLE_JIT"
SLOW: list[str] = []
"""Why kernels of this process are interpreted, if any is."""
_IMAGE = b"image   "
_OBJECT = b"object  "


def runner(kernel: Kernel) -> Callable[[list[Any]], Any]:
    """What runs the kernel with arguments that fit."""
    reason = why_interpreted()
    if reason is not None:
        return interpreted(kernel, reason)
    if _is_set(DEBUGGING):
        return by_numba(kernel)
    key = digest(kernel)
    code = cache.read(kernel.name, environment(), key)
    native = None if code is None else _native(code)
    if native is None:
        from formats.compiled.build import object_of
        from formats.compiled.machine import ENTRY

        try:
            made = object_of(kernel)
        except Exception:
            # a numba that compiles otherwise than those we know: right as well, only slower to start
            return by_numba(kernel)
        piece = image.image_of(made, ENTRY)
        code = _OBJECT + made if piece is None else _IMAGE + piece
        native = _native(code)
        if native is None:
            return by_numba(kernel)
        cache.write(kernel.name, environment(), key, code)
    return partial(kernel.through, native)


def why_interpreted() -> str | None:
    """Why no compiled code may run here, None where it may."""
    if _is_set(SWITCHED_OFF):
        return f"{SWITCHED_OFF} is set"
    return "this system refuses executable memory" if image.is_refused() else None


def interpreted(kernel: Kernel, reason: str) -> Callable[[list[Any]], Any]:
    """What interprets the kernel with arguments that fit; `SLOW` says so from then on."""
    from formats.compiled.interpreted import runner_of

    if reason not in SLOW:
        SLOW.append(reason)
    return runner_of(kernel)


def _is_set(name: str) -> bool:
    return os.environ.get(name, "0") != "0"


def _native(code: bytes) -> Callable[[int], int] | None:
    if code.startswith(_IMAGE):
        return image.put(code[len(_IMAGE) :])
    from formats.compiled.machine import load

    return load(code[len(_OBJECT) :])


def by_numba(kernel: Kernel) -> Callable[[list[Any]], Any]:
    """What lets numba run the kernel with arguments that fit."""
    from formats.compiled.build import dispatcher_of

    dispatcher = dispatcher_of(kernel)
    return lambda arguments: dispatcher(*arguments)
