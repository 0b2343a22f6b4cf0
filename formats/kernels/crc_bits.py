"""Which single bit of a text changes its CRC-32 in a given way.

The CRC is linear: what a bit changes depends on how far from the end it stands, and on nothing else of the text.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from formats.compiled import INT, Array, kernel
from formats.crc import CRC31_MASK


@kernel(tables=Array(np.uint32, 2), length=INT, change=INT, found=Array(np.int64, out=True), returns=INT)
def bits_that_change(tables: Any, length: int, change: int, found: Any) -> int:
    """How many single bits of a text of `length` bytes change the lower 31 bits of its CRC-32 by `change` (xor).

    The first of them go to `found` (int64) as 8 * byte + bit, bit 0 being the lowest. `tables` are `crc_tables()`.
    """
    count = 0
    for bit in range(8):
        value = tables[0, 1 << bit]
        for behind in range(length):
            if (np.int64(value) & CRC31_MASK) == change:
                if count < found.size:
                    found[count] = 8 * (length - 1 - behind) + bit
                count += 1
            value = tables[0, np.int64(value) & 0xFF] ^ (value >> np.uint32(8))
    return count
