"""State table and redo log of RocketMQ 3.x. The oracle appends as TransactionStateService of 3.x does, from its source;
no 3.x broker that has it could be had."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

from formats.basics import hash32, offset_to_name
from formats.record import encode
from formats.record.message import make_record
from tests.cli.runner import mqtool
from tests.support.sampling import few
from tests.support.trees import assert_same_tree, tree_digest

PREPARED, COMMIT, ROLLBACK = 4, 8, 12
FILE_UNITS = 16
LOG_SIZE = 1 << 16
GROUPS = ("PG_a", "PG_b")


def store(root: Path, *, messages: int = 40) -> Path:
    """A store with a prepared message every time, of which every third stays open, and others are committed or rolled
    back; with table and redo log as a broker of 3.x writes them."""
    log, table, redo = bytearray(), bytearray(), bytearray()
    queue: list[tuple[int, int]] = []

    def put(kind: int, queue_offset: int, group: str, prepared: int) -> tuple[int, int]:
        rest = LOG_SIZE - len(log) % LOG_SIZE
        if rest < 200:
            log.extend(struct.pack(">iI", rest, 0xCBD43194).ljust(rest, b"\0"))
        phy_offset = len(log)
        content = encode(make_record(
            "Tx", f"body {phy_offset}".encode(), {"PGROUP": group}, store_timestamp=1_500_000_000_000 + phy_offset,
            queue_offset=queue_offset, phy_offset=phy_offset, sys_flag=kind, prepared_transaction_offset=prepared))
        log.extend(content)
        redo.extend(struct.pack(">qiq", phy_offset, len(content), -1 if kind == PREPARED else prepared))
        return phy_offset, len(content)

    for number in range(messages):
        group = GROUPS[number % 2]
        phy_offset, size = put(PREPARED, number, group, 0)
        state = (PREPARED, COMMIT, ROLLBACK)[number % 3]
        table.extend(struct.pack(
            ">qiiii", phy_offset, size, (1_500_000_000_000 + phy_offset) // 1000, hash32(group), state))
        if state != PREPARED:
            end = put(state, len(queue) if state == COMMIT else 0, group, phy_offset)
            if state == COMMIT:
                queue.append(end)
    cells = b"".join(struct.pack(">qiq", *each, 0) for each in queue)
    _files(root / "commitlog", bytes(log), LOG_SIZE)
    _files(root / "consumequeue" / "Tx" / "0", cells, 20 * 1000)
    _files(root / "transaction" / "statetable", bytes(table), 24 * FILE_UNITS)
    _files(root / "transaction" / "redolog", bytes(redo), 20 * 1000)
    return root


def _files(folder: Path, content: bytes, size: int) -> None:
    folder.mkdir(parents=True)
    for at in range(0, len(content), size):
        (folder / offset_to_name(at)).write_bytes(content[at : at + size].ljust(size, b"\0"))


def wrong(root: Path) -> list[dict[str, object]]:
    found = mqtool("verify", root, "--json").document["findings"]
    return [item for item in found if item["code"] == "transaction-table-wrong"]


def content(root: Path, name: str) -> bytes:
    """All units of one of the two; a file that is made where none was has the default length."""
    return b"".join(path.read_bytes() for path in sorted((root / "transaction" / name).iterdir())).rstrip(b"\0")


def test_what_a_broker_wrote_is_right(tmp_path: Path) -> None:
    root = store(tmp_path / "store")
    assert not wrong(root)
    assert mqtool("verify", root).code & 64 == 0


def _file(root: Path, name: str, number: int = 0) -> Path:
    return sorted((root / "transaction" / name).iterdir())[number]


def _patch(at: int, new: bytes, name: str = "statetable") -> Callable[[Path], None]:
    def harm(root: Path) -> None:
        path = _file(root, name)
        old = path.read_bytes()
        path.write_bytes(old[:at] + new + old[at + len(new) :])
    return harm


HARMS: dict[str, Callable[[Path], None]] = {
    "table gone": lambda root: shutil.rmtree(root / "transaction" / "statetable"),
    "redo log gone": lambda root: shutil.rmtree(root / "transaction" / "redolog"),
    "first file of the table gone": lambda root: _file(root, "statetable").unlink(),
    "table cut": lambda root: _file(root, "statetable", 2).unlink(),
    "unit zeroed": _patch(24 * 3, bytes(24)),
    "state flipped": _patch(24 * 4 + 23, b"\x04"),
    "open message said to be ended": _patch(24 * 3 + 23, b"\x0c"),
    "group flipped": _patch(24 * 6 + 17, b"\x55"),
    "redo log: offset flipped": _patch(20 * 5 + 3, b"\x7f", "redolog"),
    "redo log cut": _patch(20 * 30, bytes(20 * 40), "redolog"),
}


@few("harm", HARMS, quick=(1, 3, 5, 7, 8))
def test_recover_makes_them_again_from_the_log(harm: str, tmp_path: Path) -> None:
    root = store(tmp_path / "store")
    sound = content(root, "statetable"), content(root, "redolog")
    HARMS[harm](root)
    before = tree_digest(root)
    assert wrong(root)
    done = mqtool("recover", root, "--yes", "--json")
    assert done.code & 1
    assert (content(root, "statetable"), content(root, "redolog")) == sound
    assert not wrong(root)
    assert mqtool("recover", root, "--yes", "--json").document["plan"]["steps"] == []
    assert mqtool("undo", root, "--yes").code == 0
    assert_same_tree(before, tree_digest(root))


def test_table_numbered_anew_after_a_kill_is_right(tmp_path: Path) -> None:
    root = store(tmp_path / "store")
    units = content(root, "statetable")
    still = [units[at : at + 24] for at in range(0, 24 * 40, 24) if units[at + 23] == PREPARED]
    shutil.rmtree(root / "transaction" / "statetable")
    _files(root / "transaction" / "statetable", b"".join(still), 24 * FILE_UNITS)
    assert not wrong(root)


def test_state_of_a_damaged_end_is_what_the_table_says(tmp_path: Path) -> None:
    root = store(tmp_path / "store")
    sound = content(root, "statetable")
    path = root / "commitlog" / offset_to_name(0)
    log = path.read_bytes()
    # the end of the second message, a commit
    end = log.index(b"body", log.index(b"body", log.index(b"body") + 1) + 1)
    path.write_bytes(log[:end] + b"BODY" + log[end + 4 :])
    assert not wrong(root)
    assert mqtool("recover", root, "--yes", "--max-loss", "all").code & 8 == 0
    assert content(root, "statetable") == sound
    assert not wrong(root)


def test_places_of_expired_messages_stay(tmp_path: Path) -> None:
    root = store(tmp_path / "store", messages=900)
    sound = content(root, "statetable")
    (root / "commitlog" / offset_to_name(0)).unlink()
    _patch(24 * 4 + 23, b"\x07")(root)
    first = content(root, "statetable")[: 24 * 4 + 23]
    assert mqtool("recover", root, "--yes", "--max-loss", "all").code & 8 == 0
    made = content(root, "statetable")
    assert made[: len(first) - 23] == sound[: len(first) - 23]
    assert made[24 * 5 :] == sound[24 * 5 :]
    assert not wrong(root)
