"""Stored bodies as their producers wrote them."""

from __future__ import annotations

import zlib
from importlib import import_module
from typing import Any

from formats import sysflag
from formats.errors import FormatError

DEFAULT_MAX_SIZE = 1 << 30
_ZSTD_STEP = 1024


class MissingCodecError(ImportError):
    """A body cannot be shown because an optional package is not installed."""


def decompress(body: bytes, sys_flag: int, max_size: int = DEFAULT_MAX_SIZE) -> bytes:
    """The body before compression; as it is when the sysFlag does not say compressed.

    Raises FormatError `bad-compressed-body` (not a whole stream of its type),
    `bad-compression-type`, `body-too-large` (more than `max_size` bytes), and
    MissingCodecError when the package for LZ4 or ZSTD is absent.
    """
    if not sys_flag & sysflag.COMPRESSED:
        return body
    kind = sys_flag & sysflag.COMPRESSION_TYPE
    if kind in (sysflag.COMPRESSION_LEGACY_ZLIB, sysflag.COMPRESSION_ZLIB):
        content, whole = _zlib(body, max_size)
    elif kind == sysflag.COMPRESSION_LZ4:
        content, whole = _lz4(body, max_size)
    elif kind == sysflag.COMPRESSION_ZSTD:
        content, whole = _zstd(body, max_size)
    else:
        raise FormatError("bad-compression-type", 0, f"unknown compression type in sysFlag {sys_flag:#x}", kind=kind)
    if len(content) > max_size:
        raise FormatError("body-too-large", 0, f"decompresses to more than {max_size} bytes", limit=max_size)
    if not whole:
        raise FormatError("bad-compressed-body", len(body), "the compressed stream does not end")
    return content


def _zlib(body: bytes, max_size: int) -> tuple[bytes, bool]:
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(body, max_size + 1)
    except zlib.error as error:
        raise FormatError("bad-compressed-body", 0, str(error)) from error
    return content, stream.eof


def _lz4(body: bytes, max_size: int) -> tuple[bytes, bool]:
    stream = _codec("lz4.frame", "lz4", "LZ4").LZ4FrameDecompressor()
    try:
        content: bytes = stream.decompress(body, max_length=max_size + 1)
    except RuntimeError as error:
        raise FormatError("bad-compressed-body", 0, str(error)) from error
    return content, bool(stream.eof)


def _zstd(body: bytes, max_size: int) -> tuple[bytes, bool]:
    zstd = _codec("zstandard", "zstandard", "ZSTD")
    stream = zstd.ZstdDecompressor().decompressobj()
    content = bytearray()
    try:
        # In small steps, because this decompressor cannot be told a greatest size.
        for start in range(0, len(body), _ZSTD_STEP):
            content += stream.decompress(body[start:start + _ZSTD_STEP])
            if stream.eof or len(content) > max_size:
                break
    except zstd.ZstdError as error:
        raise FormatError("bad-compressed-body", 0, str(error)) from error
    return bytes(content), bool(stream.eof)


def _codec(module: str, package: str, kind: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingCodecError(f"this body is {kind}: install the `{package}` package to read it") from error
