"""Without compiled kernels: the same answers, later, and one line that says so."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from msgspec import structs

from fixtures.damage import damage
from fixtures.synth import synth_store
from formats.basics import FormatError, index_key_hash
from formats.native.walk import QUEUE_COLUMNS, crc_name, new_queue_slots, walk_records
from formats.record import (
    BLANK_SIZE,
    SERVICE_TOPICS,
    Record,
    check_strict,
    delay_level,
    encode,
    iter_index_keys,
    make_record,
    tags_code,
)
from formats.record.grammar import range_table, unserved
from formats.record.message import with_property_crc
from formats.record.rows import BIT_CONTRADICTED_FLAG, BIT_DELAY, BIT_UNSERVED, RECORD, row_of
from formats.sysflag import contradicted_by
from tests.cli.runner import mqtool
from tests.cluster.twice import plain
from tests.formats.test_native import KERNELS
from tests.scenarios.drill import all_stores, log_options
from tests.support.commitlog import placed_records
from tests.support.sampling import few
from tests.support.stores import STORES, real_store
from tests.support.trees import contents

ROOT = Path(__file__).parents[2]
IN_EVERY_RUN = ("clean-propcrc-5.3.3",)
_REFUSING = """
import ctypes, sys
# PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN: as MemoryDenyWriteExecute of systemd has it
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):
    print("no such prctl")
    sys.exit(77)
from mqtool.__main__ import run
run()
"""


def _run(*arguments: object, refused: bool = False, **environment: str) -> tuple[int, dict[str, Any], str]:
    start = ["-c", _REFUSING] if refused else ["-m", "mqtool"]
    done = subprocess.run(
        [sys.executable, *start, *map(str, arguments), "--json"], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    if done.returncode == 77 and refused:
        pytest.skip("this kernel has no PR_SET_MDWE")
    document = json.loads(done.stdout)
    kept = {name: value for name, value in document.items() if name not in ("seconds", "summary", "time")}
    return done.returncode, kept, done.stderr


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("reference") / "store"
    synth_store(root, messages=400, mapped_file_size=64 * 1024)
    for seed, recipe in enumerate(("bit-in-body", "page-zeroed", "index-unit-hash")):
        damage(recipe, root, seed)
    return root


def test_a_system_that_makes_no_memory_executable_runs_the_kernels(damaged: Path) -> None:
    assert _run("verify", damaged, refused=True) == _run("verify", damaged)
    assert _run("verify", damaged)[2] == ""


def test_a_first_start_writes_nothing_and_is_not_slow(damaged: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for environment in ({"HOME": str(home), "XDG_CACHE_HOME": ""}, {"HOME": "/proc/nowhere", "PATH": ""}):
        assert _run("verify", damaged, **environment)[2] == ""
    assert not any(home.iterdir())


def test_kernels_that_are_switched_off_are_no_bug(damaged: Path, tmp_path: Path) -> None:
    code, document, said = _run("verify", damaged, MQTOOL_REFERENCE="1")
    assert said.count("MQTOOL_REFERENCE is set") == 1 == len(said.splitlines())
    own_code, expected, nothing = _run("verify", damaged)
    assert (document["engine"].pop("crc"), expected["engine"].pop("crc")) == ("zlib", crc_name())
    assert (code, document, "") == (own_code, expected, nothing)
    for name, environment in (("slow", {"MQTOOL_REFERENCE": "1"}), ("fast", {})):
        code, _, _ = _run("rebuild", damaged, "--output", tmp_path / name, "--timezone", "UTC", **environment)
        assert code & ~6 <= 1
    assert contents(tmp_path / "slow") == contents(tmp_path / "fast") != {}


def _said(root: Path) -> list[Any]:
    said: list[Any] = []
    for line in (("verify",), ("rebuild", "--dry-run"), ("recover", "--dry-run")):
        result = mqtool(line[0], root, *log_options(root), *line[1:], "--json")
        document = plain(result.document, root)
        document.get("engine", {}).pop("crc", None)
        said.append((result.code, document))
    return said


@pytest.mark.slow
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in IN_EVERY_RUN else pytest.mark.long) for name in all_stores()
])
def test_every_store_is_judged_the_same_without_kernels(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, damaged = real_store(name, tmp_path), real_store(name, tmp_path / "damaged")
    damage("page-random", damaged)
    ours = [_said(whole), _said(damaged)]
    for kernel in KERNELS.values():
        monkeypatch.setattr(kernel, "_run", kernel.plain)
    assert [_said(whole), _said(damaged)] == ours


# --- The compiled walk against the reference codec: it may refuse more, and accept nothing else.


Row = tuple[Any, list[int]]


def _walk(content: bytes, phy_offset: int, with_keys: bool = True) -> Row | None:
    """The row and hashes that the compiled walk makes of one record, None if it refuses; whatever stands after it."""
    room = BLANK_SIZE + random.Random(content[-1]).randrange(80)
    first, *others = (
        _walk_in_front_of(rest, content, phy_offset, with_keys)
        for rest in (bytes(BLANK_SIZE), b"\x01\x02 \xff" * 20, bytes([content[-1]]) * room)
    )
    assert all(other == first for other in others)
    return first


def _walk_in_front_of(rest: bytes, content: bytes, phy_offset: int, with_keys: bool) -> Row | None:
    names, queues = np.zeros(1 << 10, np.uint8), np.zeros((8, QUEUE_COLUMNS), np.int64)
    records, hashes, state = np.zeros(2, RECORD), np.zeros(1 << 10, np.int32), np.zeros(4, np.int64)
    data = np.frombuffer(bytearray(content + rest), np.uint8)
    slots, seed = new_queue_slots(16, names, queues, int(state[2]))
    walk_records(
        data, 0, data.size, phy_offset, phy_offset + data.size,
        records, hashes, slots, names, queues, seed, state, with_keys,
        1 << 62, range_table(),
    )
    return (records[0], hashes[:state[1]].tolist()) if state[0] else None


def _judge(content: bytes, phy_offset: int) -> Record | None:
    try:
        return check_strict(content, 0, len(content) + BLANK_SIZE, phy_offset)
    except FormatError:
        return None


def _disagreement(content: bytes, phy_offset: int) -> str:
    return _differs(content, phy_offset) or _differs_without_keys(content, phy_offset)


def _differs_without_keys(content: bytes, phy_offset: int) -> str:
    walked = _walk(content, phy_offset, with_keys=False)
    if walked is None:
        return "refused without its keys" if _walk(content, phy_offset) is not None else ""
    record = _judge(content, phy_offset)
    if record is None:
        return f"took without its keys what is damage: {content!r}"
    expected, _ = row_of(record, int(walked[0]["queue"]))
    expected["hashes"] = 0
    expected["tags_code"] *= (expected["bits"] & BIT_DELAY) != 0
    return "" if walked[0] == expected[0] and not walked[1] else f"other row: {content!r}"


def _differs(content: bytes, phy_offset: int) -> str:
    walked = _walk(content, phy_offset)
    if walked is None:
        return ""
    record = _judge(content, phy_offset)
    if record is None:
        return f"took what is damage: {content!r}"
    row, hashes = walked
    if hashes != [index_key_hash(text) for text in iter_index_keys(record)]:
        return f"other keys: {content!r}"
    level = delay_level(record)
    code = level if row["bits"] & BIT_DELAY else tags_code(record)
    if bool(row["bits"] & BIT_DELAY) != (level is not None and level > 0) or row["tags_code"] != code:
        return f"other tags code: {content!r}"
    fields = ("queue_offset", "phy_offset", "store_timestamp", "sys_flag")
    same = all(row[name] == getattr(record, name) for name in fields) and row["size"] == record.total_size
    return "" if same else f"other fields: {content!r}"


@pytest.mark.parametrize("property_crc", [False, True])
def test_a_flag_that_its_body_contradicts_is_marked_as_the_codec_does(property_crc: bool) -> None:
    heads = (
        b"", b"\x78", b"\x78\x9c", b"\x78\x01\x00", b"\xf8\x01\x00\x00", b"\x79\x9c\x00\x00", b"\x04\x22\x4d\x18",
        b"\x28\xb5\x2f\xfd", b"\x5b\x2a\x4d\x18", b"\x4b\x2a\x4d\x18", b"\x04\x22\x4d", b"hello",
    )
    seen = set()
    for head in (*heads, *(head + b"and more of it" for head in heads)):
        record = make_record("T", head, store_timestamp=1, property_crc=property_crc)
        for flag in [compressed | kind << 8 for compressed in (0, 1) for kind in range(8)]:
            changed = structs.replace(record, sys_flag=flag)
            content = encode(with_property_crc(changed) if property_crc else changed)
            assert _walk(content, 0) is not None and _disagreement(content, 0) == ""
            walked = _walk(content, 0)
            assert walked is not None
            marked = bool(walked[0]["bits"] & BIT_CONTRADICTED_FLAG)
            assert marked == (contradicted_by(flag, head) and not property_crc)
            seen.add(marked)
    assert seen == ({False} if property_crc else {False, True})


@given(
    st.sampled_from([*SERVICE_TOPICS, "SCHEDULE_TOPIC_XXXY", "rmq_sys_wheel_time"]),
    st.lists(st.tuples(
        st.sampled_from(["REAL_TOPIC", "REAL_QID", "TIMER_OUT_MS", "REAL_QIE", "KEYS", "REAL_TOPI"]),
        st.sampled_from(["0", "999999999", "1234567890", "Topic-1", "%RETRY%a+b", "a b", "1" * 18, "1" * 19, "x"]),
    ), max_size=6),
    st.booleans(),
)
def test_what_a_service_cannot_deliver_is_marked_as_the_codec_does(
    topic: str, items: list[tuple[str, str]], property_crc: bool
) -> None:
    text = "".join(f"{name}\x01{value}\x02" for name, value in items).encode()
    content = encode(make_record(topic, b"", text, store_timestamp=1, property_crc=property_crc))
    assert _disagreement(content, 0) == ""
    walked, judged = _walk(content, 0), _judge(content, 0)
    assert judged is not None
    if walked is not None:
        assert bool(walked[0]["bits"] & BIT_UNSERVED) == bool(unserved(judged))
    elif not property_crc:
        assert any(value in ("%RETRY%a+b", "a b") for _, value in items)


@pytest.mark.parametrize("name", STORES)
def test_overwritten_records_are_never_taken_where_the_codec_refuses(name: str) -> None:
    dice = random.Random(name)
    for it in dice.sample(placed_records(name), 30):
        for _ in range(10):
            content = bytearray(it.raw)
            start = dice.randrange(len(content))
            patch = dice.choice([bytes(dice.randint(1, 60)), b"\x01", b"\x02", b"\x02\x00", dice.randbytes(1)])
            content[start:start + len(patch)] = patch[:len(content) - start]
            assert _disagreement(bytes(content), it.phy_offset) == ""


@few("name", STORES, quick=(0, 3))
def test_properties_of_any_bytes_get_the_same_verdict_or_a_refusal(name: str) -> None:
    dice = random.Random(name)
    for it in dice.sample(placed_records(name), 30):
        for _ in range(20):
            text = bytearray(it.record.properties)
            for _ in range(dice.randint(1, 3)):
                at = dice.randrange(len(text) + 1)
                patch = dice.choices(b"\x00\x01\x02 a\xc3\xa9\xed\xa0", k=dice.randint(0, 4))
                text[at:at + dice.randint(0, 4)] = bytes(patch)
            size = it.record.total_size - len(it.record.properties) + len(text)
            record = structs.replace(it.record, properties=bytes(text), total_size=size)
            assert _disagreement(encode(record), it.phy_offset) == ""
