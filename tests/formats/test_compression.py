"""Bodies as their producers wrote them."""

from __future__ import annotations

import importlib
import sys
import zlib
from collections.abc import Callable

import pytest

from formats import compression, sysflag
from formats.compression import MissingCodecError, decompress
from formats.errors import FormatError

BODY = b"a body that is worth it " * 200


def _lz4(body: bytes) -> bytes:
    return bytes(importlib.import_module("lz4.frame").compress(body))


def _zstd(body: bytes) -> bytes:
    return bytes(importlib.import_module("zstandard").ZstdCompressor().compress(body))


TYPES = [
    pytest.param(sysflag.COMPRESSION_LEGACY_ZLIB, zlib.compress, id="zlib-before-5.0"),
    pytest.param(sysflag.COMPRESSION_ZLIB, zlib.compress, id="zlib"),
    pytest.param(sysflag.COMPRESSION_LZ4, _lz4, id="lz4"),
    pytest.param(sysflag.COMPRESSION_ZSTD, _zstd, id="zstd"),
]


def _reason(body: bytes, sys_flag: int, max_size: int = compression.DEFAULT_MAX_SIZE) -> str:
    with pytest.raises(FormatError) as caught:
        decompress(body, sys_flag, max_size)
    return caught.value.reason


@pytest.mark.parametrize(("kind", "compress"), TYPES)
def test_each_type_is_read_back(kind: int, compress: Callable[[bytes], bytes]) -> None:
    assert decompress(compress(BODY), sysflag.COMPRESSED | kind, len(BODY)) == BODY


@pytest.mark.parametrize(("kind", "compress"), TYPES)
def test_a_cut_stream_is_damage(kind: int, compress: Callable[[bytes], bytes]) -> None:
    assert _reason(compress(BODY)[:-3], sysflag.COMPRESSED | kind) == "bad-compressed-body"


@pytest.mark.parametrize(("kind", "compress"), TYPES)
def test_other_bytes_are_damage(kind: int, compress: Callable[[bytes], bytes]) -> None:
    assert _reason(b"no stream of any kind", sysflag.COMPRESSED | kind) == "bad-compressed-body"


@pytest.mark.parametrize(("kind", "compress"), TYPES)
def test_a_body_beyond_the_limit_is_refused(kind: int, compress: Callable[[bytes], bytes]) -> None:
    assert _reason(compress(BODY), sysflag.COMPRESSED | kind, len(BODY) - 1) == "body-too-large"


def test_an_unknown_type_is_named() -> None:
    assert _reason(BODY, sysflag.COMPRESSED | 0x700) == "bad-compression-type"


@pytest.mark.parametrize(("kind", "package"), [
    (sysflag.COMPRESSION_LZ4, "lz4"),
    (sysflag.COMPRESSION_ZSTD, "zstandard"),
])
def test_a_missing_package_is_named_and_is_no_damage(
    kind: int, package: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("lz4", "lz4.frame", "zstandard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingCodecError, match=package):
        decompress(BODY, sysflag.COMPRESSED | kind)
