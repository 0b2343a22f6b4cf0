"""Offset message ids and the unique keys of clients."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats.errors import FormatError
from formats.message_id import offset_id, parse_offset_id

IPV6 = bytes.fromhex("20010db8000000000000000000000001")


def test_offset_id_of_an_ipv4_store() -> None:
    assert offset_id(b"\x7f\x00\x00\x01", 2, 114) == "7F000001000000020000000000000072"


def test_offset_id_of_an_ipv6_store_has_56_digits() -> None:
    assert offset_id(IPV6, 5, 390) == "20010DB8000000000000000000000001" "00000005" "0000000000000186"


@given(st.sampled_from([4, 16]).flatmap(lambda n: st.binary(min_size=n, max_size=n)),
       st.integers(0, 65535), st.integers(0, 2**63 - 1))
def test_offset_id_is_read_back(ip: bytes, port: int, phy_offset: int) -> None:
    text = offset_id(ip, port, phy_offset)
    assert parse_offset_id(text) == parse_offset_id(text.lower()) == (ip, port, phy_offset)


def test_address_of_another_length_is_no_host() -> None:
    with pytest.raises(FormatError) as caught:
        offset_id(b"\x7f", 1, 1)
    assert caught.value.reason == "bad-host"


@pytest.mark.parametrize("text", [
    "", "order-4711", "7F00", "7F 00" * 8, "G" * 32, "7F000001000000020000000000000072" * 2,
])
def test_other_text_is_no_id(text: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_offset_id(text)
    assert caught.value.reason == "bad-message-id"
