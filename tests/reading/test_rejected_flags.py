"""sysFlags that say another thing of a body than it is: no checksum covers them, and no client reads the message."""

from __future__ import annotations

import zlib
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec import structs

from fixtures import shapes
from fixtures.damage.patch import flip_bit
from fixtures.synth import StoreWriter
from formats import sysflag
from formats.record import OFFSET_SYS_FLAG, Record, make_record
from formats.record.message import ZSTD, decompress
from recover.reading.bits import right_flag
from recover.reading.policy import POLICIES
from tests.cli.runner import mqtool
from tests.support.commitlog import Placed, placed_records
from tests.support.stores import real_store
from tests.support.trees import Node, assert_same_tree, contents, tree_digest

LOG = "commitlog/00000000000000000000"
CODE, BIT = "commitlog-contradicted-flag", "commitlog-flipped-field"
_LAST_BYTE = OFFSET_SYS_FLAG + 3
_PLAIN, _LEGACY, _ZLIB, _LZ4, _ZSTD = 0, 0x001, 0x301, 0x101, 0x201
_BODY = b"a body that is worth the trouble " * 8
_PACKED = {
    _PLAIN: _BODY, _LEGACY: zlib.compress(_BODY), _ZLIB: zlib.compress(_BODY),
    _LZ4: bytes(import_module("lz4.frame").compress(_BODY)),
    _ZSTD: bytes(import_module(ZSTD).compress(_BODY)),
}


def _flip(store: Path, hit: Placed, number: int) -> int:
    """Turn bit `number` of a record's sysFlag over; where in its file that is."""
    at = hit.phy_offset + _LAST_BYTE - number // 8
    flip_bit(store, store / LOG, at, number % 8)
    return at


def _some(name: str, *, compressed: bool) -> list[Placed]:
    return [it for it in placed_records(name) if it.phy_offset < 1 << 20 and it.record.body
            and bool(it.record.sys_flag & sysflag.COMPRESSED) == compressed]


def _record(flag: int, body: bytes = b"") -> Record:
    record = make_record("T", body or _PACKED[flag], store_timestamp=1)
    return structs.replace(record, sys_flag=flag)


@pytest.mark.parametrize("flag", _PACKED)
def test_what_a_producer_stores_is_not_contradicted(flag: int) -> None:
    assert not sysflag.contradicted_by(flag, _PACKED[flag])
    assert not sysflag.contradicted_by(flag, b"")


@pytest.mark.parametrize("stored", _PACKED)
@pytest.mark.parametrize("bit", [0x001, 0x100, 0x200, 0x400])
def test_each_bit_that_makes_a_client_read_something_else_is_seen(stored: int, bit: int) -> None:
    def read(flag: int) -> bytes | None:
        try:
            return decompress(_PACKED[stored], flag)
        except ValueError:
            return None

    flipped = stored ^ bit
    other = read(flipped) != _BODY
    # a body that is said to be as it is has nothing that speaks of zlib but the type
    unseen = stored == _LEGACY and flipped == 0
    assert sysflag.contradicted_by(flipped, _PACKED[stored]) == (other and not unseen)


@given(st.sampled_from(sorted(_PACKED)), st.sampled_from([0x001, 0x100, 0x200, 0x400]),
       st.dictionaries(st.sampled_from(sorted(_PACKED)), st.integers(1, 9)))
def test_a_bit_that_is_turned_back_makes_the_body_what_was_sent(stored: int, bit: int, usual: dict[int, int]) -> None:
    flipped = _record(stored ^ bit, _PACKED[stored])
    if not sysflag.contradicted_by(flipped.sys_flag, flipped.body):
        return
    right = right_flag(flipped, Counter(usual))
    if right is None:
        # as likely a producer's own LZ4 or Zstandard: nobody else has it compressed so
        assert stored in (_LZ4, _ZSTD) and not usual.get(stored)
    elif stored != _PLAIN:
        assert decompress(_PACKED[stored], right) == _BODY
        assert right == stored or (stored in (_LEGACY, _ZLIB) and right in (_LEGACY, _ZLIB))
    else:
        assert right == _PLAIN


@pytest.mark.parametrize(("compressed", "number"), [(False, 0), (True, 8)])
def test_a_flipped_flag_is_told_and_put_back(compressed: bool, number: int, tmp_path: Path) -> None:
    store = real_store("clean-5.3.3", tmp_path)
    sound, hit = contents(store), _some("clean-5.3.3", compressed=compressed)[7]
    at = _flip(store, hit, number)
    item, left, mended = told_and_put_back(store, sound, CODE, LOG, at, number % 8)
    assert item["offset"] == hit.phy_offset + OFFSET_SYS_FLAG
    assert (item["facts"]["topic"], item["facts"]["queue"], item["facts"]["queue_offset"]) == (
        hit.record.topic_name, hit.record.queue_id, hit.record.queue_offset)
    assert (left["exit_code"], left["mendable_messages"], left["applied"]) == (4, 1, False)
    assert any("--mend-bits" in step["command"] for step in left["next"])
    assert int(mended["before"], 16) ^ int(mended["after"], 16) == 1 << number
    flip_bit(store, store / LOG, at, number % 8)
    assert contents(store) == sound


def told_and_put_back(
    store: Path, sound: dict[str, Node], code: str, log: str, at: int, bit: int
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """A flipped bit in what no checksum covers is told, left unasked, put back when asked to, and undone.

    The finding of that code, the document of the recover that was not asked to, and what the other one wrote.
    """
    struck, flipped = tree_digest(store), (store / log).read_bytes()
    told = mqtool("verify", store, "--json")
    assert told.code & 4 and told.document["commitlog"]["damaged_messages"] == 1
    ((item,), (found,)) = told.found(code), told.found(BIT)
    assert (item["file"], item["severity"]) == (log, "error")
    assert (found["offset"], found["facts"]["bit"]) == (at, bit)
    assert mqtool("verify", store, "--only", "commitlog").code == 4
    assert_same_tree(struck, tree_digest(store))

    # no checksum is wrong: unasked, nothing of the record is written
    left = mqtool("recover", store, "--yes", "--json").document
    assert (store / log).read_bytes() == flipped
    done = mqtool("recover", store, "--mend-bits", "--yes", "--json")
    (mended,) = done.document["bridged"]
    assert done.code == 1 and done.document["damaged_messages"] == 0 and done.document["plan"]["loss"] == []
    assert contents(store) == sound
    assert mqtool("verify", store).code == 0
    assert mqtool("undo", store, "--yes").code == 0
    assert_same_tree(struck, tree_digest(store))
    return item, left, mended | {"value": found["facts"].get("value")}


def test_beside_other_damage_and_a_wrong_tag_all_is_put_right(tmp_path: Path) -> None:
    store = real_store("clean-4.5.1", tmp_path)
    plain = [it for it in _some("clean-4.5.1", compressed=False) if it.record.topic_name == "TopicA"]
    _flip(store, plain[5], 0)
    flip_bit(store, store / LOG, plain[20].phy_offset + 90, 3)
    assert mqtool("recover", store, "--mend-bits", "--yes").code == 1
    assert mqtool("verify", store).code == 0
    assert (store / LOG).read_bytes() == (real_store("clean-4.5.1", tmp_path / "sound") / LOG).read_bytes()


def test_each_type_is_put_back_where_others_are_compressed_so(tmp_path: Path) -> None:
    store = tmp_path / "s"
    shapes.compressed(store)
    records = list(_walked(store))
    sound = (store / LOG).read_bytes()
    for flag, number in ((_LZ4, 0), (_LZ4, 9), (_ZSTD, 10), (_ZSTD, 0), (_ZLIB, 10), (_PLAIN, 0)):
        at = next(start for start, one in records if one == flag)
        flip_bit(store, store / LOG, at + _LAST_BYTE - number // 8, number % 8)
        assert mqtool("verify", store).code == 4
        assert mqtool("recover", store, "--mend-bits", "--yes").code == 1
        assert (store / LOG).read_bytes() == sound


def _walked(store: Path) -> list[tuple[int, int]]:
    """(position, sysFlag) of the first records of a log."""
    content, at, found = (store / LOG).read_bytes(), 0, []
    while size := int.from_bytes(content[at : at + 4], "big"):
        found.append((at, int.from_bytes(content[at + OFFSET_SYS_FLAG : at + OFFSET_SYS_FLAG + 4], "big")))
        at += size
    return found


def test_a_property_crc_says_that_it_was_stored_so(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.put("T", b"not compressed at all", sys_flag=sysflag.COMPRESSED, property_crc=True)
    writer.close()
    assert mqtool("verify", tmp_path / "s").code == 0


def test_neighbours_are_one_finding(tmp_path: Path) -> None:
    _odd_store(tmp_path / "s", [3, 4, 5, 9])
    result = mqtool("verify", tmp_path / "s", "--json")
    assert [item["facts"]["count"] for item in result.found(CODE)] == [3, 1]
    assert result.document["commitlog"]["damaged_messages"] == 4 and result.code == 4
    first, last = (result.found(CODE)[0]["facts"][name] for name in ("first", "last"))
    assert [start for start, flag in _walked(tmp_path / "s") if flag][::2] == [first, last]


def test_what_no_single_bit_explains_is_left_and_said_to_be(tmp_path: Path) -> None:
    _odd_store(tmp_path / "s", [3, 9], _LZ4)
    before = tree_digest(tmp_path / "s")
    result = mqtool("recover", tmp_path / "s", "--yes")
    assert result.code == 4 and "2 damaged messages left" in " ".join(result.stdout.split())
    result = mqtool("verify", tmp_path / "s", "--json")
    assert result.found(BIT) == [] and {item["remedy"] for item in result.found(CODE)} == {f"mqtool explain {CODE}"}
    assert_same_tree(before, tree_digest(tmp_path / "s"))


def test_a_producer_that_stores_all_of_its_messages_so_is_a_warning(tmp_path: Path) -> None:
    many = POLICIES["flag"].limit + 20
    _odd_store(tmp_path / "s", range(many))
    before = tree_digest(tmp_path / "s")
    result = mqtool("verify", tmp_path / "s", "--json")
    ((item,), bits) = result.found(CODE), result.found(BIT)
    assert (item["facts"]["count"], item["severity"], result.code, bits) == (many, "warning", 2, [])
    assert result.document["commitlog"]["damaged_messages"] == 0
    assert mqtool("recover", tmp_path / "s", "--yes").code == 2
    assert_same_tree(before, tree_digest(tmp_path / "s"))


def _odd_store(root: Path, odd: Any, flag: int = _LEGACY) -> None:
    """A store of 150 messages, of which some say that they are compressed and are not."""
    writer = StoreWriter(root)
    for number in range(150):
        writer.put("T", b"body %d" % number, sys_flag=flag if number in odd else 0)
    writer.close()
