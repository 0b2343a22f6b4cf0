from __future__ import annotations

import pytest

from formats import compaction
from formats.errors import FormatError
from tests.support.stores import unpacked


def test_the_real_position_file_is_read() -> None:
    content = (unpacked("clean-5.3.3") / "compaction" / compaction.POSITION_FILE_NAME).read_bytes()
    assert compaction.decode_positions(content) == {}


def test_an_underscore_in_a_topic_is_not_the_one_before_the_queue() -> None:
    assert compaction.decode_positions(b'{"queueOffsetMap":{"a_1_b_2":30}}') == {("a_1_b", 2): 30}


@pytest.mark.parametrize("text", [b"[]", b"{}", b'{"queueOffsetMap":{"a":1}}', b'{"queueOffsetMap":{"a_b":1}}',
                                  b'{"queueOffsetMap":{"a_1":"x"}}', b'{"queueOffsetMap":{"a_1":true}}'])
def test_other_text_is_refused(text: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        compaction.decode_positions(text)
    assert caught.value.reason == "bad-positions"
