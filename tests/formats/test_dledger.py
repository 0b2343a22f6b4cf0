from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats import dledger
from formats.errors import FormatError

HEAD = dledger.DLedgerEntryHead(1, 48 + 5, 7, 2, 1000, 0, 99, 0, 5)


def entry(**changes: int) -> bytes:
    return dledger.DLEDGER_ENTRY_HEAD.encode(HEAD._replace(**changes)) + b"hello"


def test_an_entry_wraps_a_record_whose_offset_is_behind_the_head() -> None:
    head = dledger.decode(b"xx" + entry(), 2, 1000)
    assert head == HEAD
    assert dledger.body(b"xx" + entry(), 2, head) == b"hello"
    assert dledger.body_position(head) == 1048


def test_sizes_are_those_of_the_library() -> None:
    assert dledger.DLEDGER_ENTRY_HEAD.size == 48
    assert dledger.DLEDGER_INDEX_UNIT.size == 32


@pytest.mark.parametrize(("content", "reason"), [
    (dledger.DLEDGER_BLANK.encode(dledger.DLedgerBlank(-1, 500)), "end"), (bytes(60), "unwritten"),
    (entry(magic=2), "bad-magic"), (entry(position=999), "bad-position"), (entry(size=54), "bad-size"),
    (entry(body_size=-1, size=47), "bad-size"), (entry()[:-1], "short"), (entry()[:20], "short"), (b"", "short"),
])
def test_each_kind_of_bad_entry_has_its_reason(content: bytes, reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        dledger.decode(content, 0, 1000)
    assert caught.value.reason == reason


@given(st.binary(max_size=100), st.integers(0, 200))
def test_any_bytes_are_an_entry_or_a_format_error(content: bytes, offset: int) -> None:
    with pytest.raises(FormatError):
        dledger.decode(content, offset, 2**62 + 1)
