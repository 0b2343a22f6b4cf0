from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats import compaction
from formats.errors import FormatError
from tests.support.stores import unpacked

TOPICS = st.text(alphabet="abc_%-", max_size=8)


def test_the_real_position_file_is_reproduced() -> None:
    content = (unpacked("clean-5.3.3") / "compaction" / compaction.POSITION_FILE_NAME).read_bytes()
    assert compaction.decode_positions(content) == {}
    assert compaction.encode_positions({}) == content


@given(st.dictionaries(st.tuples(TOPICS, st.integers(0, 2**31 - 1)), st.integers(0, 2**63 - 1), max_size=5))
def test_positions_round_trip(positions: dict[tuple[str, int], int]) -> None:
    assert compaction.decode_positions(compaction.encode_positions(positions)) == positions


def test_an_underscore_in_a_topic_is_not_the_one_before_the_queue() -> None:
    assert compaction.decode_positions(b'{"queueOffsetMap":{"a_1_b_2":30}}') == {("a_1_b", 2): 30}


@pytest.mark.parametrize("text", [b"[]", b"{}", b'{"queueOffsetMap":{"a":1}}', b'{"queueOffsetMap":{"a_b":1}}',
                                  b'{"queueOffsetMap":{"a_1":"x"}}', b'{"queueOffsetMap":{"a_1":true}}'])
def test_other_text_is_refused(text: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        compaction.decode_positions(text)
    assert caught.value.reason == "bad-positions"


def test_file_sizes_are_the_brokers_odd_ones() -> None:
    assert compaction.cq_file_size() == 10_485_746
    assert compaction.log_file_size() == 104_857_460
    assert compaction.log_file_size(1, 46) == 5 * 46
    assert compaction.log_file_size(46 * 7 + 22, 46) == 46 * 7
    assert compaction.log_file_size(46 * 7 + 23, 46) == 46 * 8
