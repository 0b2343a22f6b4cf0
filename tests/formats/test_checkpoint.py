from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats import checkpoint
from formats.checkpoint import Checkpoint
from formats.errors import FormatError
from tests.support.stores import STORES, unpacked

I64 = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize("name", STORES)
def test_every_real_checkpoint_is_reproduced(name: str) -> None:
    content = (unpacked(name) / "checkpoint").read_bytes()
    assert len(content) == checkpoint.FILE_SIZE
    assert checkpoint.encode(checkpoint.decode(content)) == content
    assert checkpoint.rest_is_zero(content)


def test_a_5_5_0_store_killed_early_has_no_logics_timestamp() -> None:
    values = checkpoint.decode((unpacked("killed-5.5.0") / "checkpoint").read_bytes())
    assert values.logics_msg_timestamp == 0
    assert values.physic_msg_timestamp > 0
    assert checkpoint.min_timestamp(values) == 0


def test_the_fields_lie_where_each_generation_put_them() -> None:
    assert [checkpoint.CHECKPOINT.offset(name) for name in checkpoint.SINCE] == [0, 8, 16, 24, 32, 40]
    assert tuple(checkpoint.SINCE) == Checkpoint._fields


def test_the_minimum_is_three_seconds_early_as_in_the_brokers_own_test() -> None:
    values = checkpoint.EMPTY._replace(physic_msg_timestamp=0xAABB, logics_msg_timestamp=0xAABC)
    assert checkpoint.min_timestamp(values) == 0xAABB - 3000
    assert checkpoint.min_timestamp_index(values) == 0
    assert checkpoint.min_timestamp_index(values._replace(index_msg_timestamp=0xFFFFF)) == 0xAABB - 3000
    assert checkpoint.min_timestamp(checkpoint.EMPTY) == 0


@given(st.builds(Checkpoint, I64, I64, I64, I64, I64, I64))
def test_checkpoints_round_trip(values: Checkpoint) -> None:
    assert checkpoint.decode(checkpoint.encode(values)) == values


def test_bytes_of_a_younger_version_survive_a_rewrite() -> None:
    base = bytes(48) + b"\7" * 8 + bytes(checkpoint.FILE_SIZE - 56)
    written = checkpoint.encode(checkpoint.EMPTY._replace(physic_msg_timestamp=5), base)
    assert written[48:56] == b"\7" * 8
    assert not checkpoint.rest_is_zero(written)


def test_a_short_file_is_an_error_unless_read_as_a_broker_would() -> None:
    content = checkpoint.encode(checkpoint.EMPTY._replace(physic_msg_timestamp=9))[:12]
    with pytest.raises(FormatError) as caught:
        checkpoint.decode(content)
    assert caught.value.reason == "short"
    assert checkpoint.decode(content, extend=True) == checkpoint.EMPTY._replace(physic_msg_timestamp=9)


def test_a_base_longer_than_a_page_is_refused() -> None:
    with pytest.raises(FormatError):
        checkpoint.encode(checkpoint.EMPTY, bytes(checkpoint.FILE_SIZE + 1))
