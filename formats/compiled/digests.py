"""The digest by which kernels on disk are told apart."""

from __future__ import annotations

try:
    # hashlib's own, which imports OpenSSL beside it: 4 ms of every start
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

SIZE = 32


def digest_of(*parts: bytes) -> bytes:
    """BLAKE2b of these parts one behind the other, SIZE bytes."""
    state = blake2b(digest_size=SIZE)
    for part in parts:
        state.update(part)
    return bytes(state.digest())
