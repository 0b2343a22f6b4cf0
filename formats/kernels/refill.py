"""Compiled code fills its own buffer with what the page cache holds, without a way back to the interpreter.

A buffer that fits into the processor's cache is full every fraction of a millisecond. The interpreter took as long to
have it filled again as the records in it to be checked, and runs one thread at a time. What is not in the page cache
is left to it: it knows what to ask of the system ahead, and what to do about a disk that fails.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from formats.compiled import intrinsic, part

_INTRINSICS = "formats.kernels.byte_intrinsics"
_call_preadv2 = intrinsic(_INTRINSICS, "call_preadv2")
_address_of = intrinsic(_INTRINSICS, "address_of")

REFILL_SIZE = 10
START, FILLED, LOADS, STOP, LENGTH, CALL, DESCRIPTOR, FLAGS, _BASE, _SIZE = range(REFILL_SIZE)
"""Places in the int64 array that says how a buffer over a file is filled.

It holds FILLED bytes of the file from START on. It may be filled LOADS more times, from places in front of STOP, with
bytes in front of LENGTH. CALL is the address of `preadv2`; DESCRIPTOR and FLAGS are what it is called with.
What begins at STOP or behind is another's; with a STOP of 0 nothing is.
"""


@part
def is_over(refill: Any, inside: int) -> bool:
    """Whether what stands at `inside` in the buffer is another's; `refill` is a pointer."""
    return bool(0 < refill[STOP] <= refill[START] + inside)


@part
def may_refill(refill: Any, inside: int) -> bool:
    """Whether the buffer may be filled again from `inside` it on; `refill` is a pointer."""
    at = refill[START] + inside
    return inside > 0 and refill[LOADS] > 0 and at < refill[STOP] and at < refill[LENGTH]


@part
def fill_again(refill: Any, data: Any, size: int, inside: int) -> Any:
    """Fill the buffer (pointer, `size` bytes) from `inside` it on: bytes in it, 0 unless all of them came at once."""
    at = refill[START] + inside
    wanted = min(size, refill[LENGTH] - at)
    refill[LOADS] -= 1
    refill[START] = at
    refill[FILLED] = 0
    refill[_BASE] = _address_of(data, 0)
    refill[_SIZE] = wanted
    got = _call_preadv2(refill[CALL], refill[DESCRIPTOR], _address_of(refill, 8 * _BASE), at, refill[FLAGS])
    if got != wanted:
        return np.int64(0)
    refill[FILLED] = wanted
    return np.int64(wanted)
