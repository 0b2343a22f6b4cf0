"""Plans from elsewhere: apply and resume count what they cost, and do not believe what they say about it."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from fixtures.damage import damage
from formats.record import decode, encode
from mqtool import exits
from recover.change.carry_out import apply_plan
from recover.change.model import Install, Plan, Retire, RetireFolder, Step, WriteRange, ZeroRange, save_plan
from recover.change.preconditions import seal
from recover.findings.code import Interrupted
from tests.cli.runner import Result, mqtool
from tests.support.sampling import few
from tests.support.stores import copy_store, real_store
from tests.support.trees import assert_unchanged

_STORE = "clean-5.3.3"
_LOSS = [{"topic": "TopicA", "queue": 0, "messages": 1, "first_offset": 0, "last_offset": 0, "begin": 0, "end": 0,
          "cause": "cut"}]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return real_store(_STORE, tmp_path)


def messages(root: Path) -> int:
    return int(mqtool("verify", root, "--json").document["commitlog"]["messages"])


def made_by_hand(root: Path, steps: Sequence[Step], loss: Sequence[dict[str, Any]] = (), **summary: object) -> Path:
    """A plan of somebody's own, bound to the store and with a right checksum; its path."""
    path = root.with_name("plan.json")
    save_plan(seal(Plan("recover", steps, loss=loss, summary=dict(summary)), root), path)
    return path


def logs(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def zeroed(root: Path) -> list[Step]:
    return [ZeroRange(f"commitlog/{log.name}", 0, log.stat().st_size) for log in logs(root)]


def retired(root: Path) -> list[Step]:
    return [Retire(f"commitlog/{log.name}") for log in logs(root)]


def replaced(root: Path) -> list[Step]:
    return [Install(f"commitlog/{log.name}", bytes(log.stat().st_size)) for log in logs(root)]


def rewritten(root: Path) -> list[Step]:
    """The first message with another body, and every checksum right."""
    log = logs(root)[0]
    record = decode(log.read_bytes())
    body = bytes(byte ^ 1 for byte in record.body)
    changed = encode(structs.replace(record, body=body, body_crc=zlib.crc32(body) & 0x7FFFFFFF))
    assert len(changed) == record.total_size
    return [WriteRange(f"commitlog/{log.name}", 0, changed)]


def _said(done: Result) -> str:
    return " ".join(done.stderr.split())


@few("make", [zeroed, retired, replaced], quick=1)
def test_a_plan_that_takes_the_log_away_is_refused_with_both_figures(make: Any, store: Path) -> None:
    held = messages(store)
    plan = made_by_hand(store, make(store), lost_messages=0)
    with assert_unchanged(store):
        for words in (["--dry-run"], ["--yes"], ["--yes", "--max-loss", held - 1]):
            done = mqtool("apply", plan, *words)
            assert done.code & exits.OPERATIONAL
            assert f"takes away {held:,} intact messages, and says 0" in _said(done)
            assert f"--max-loss {held}" in _said(done)
    done = mqtool("apply", plan, "--yes", "--max-loss", held)
    assert done.code & exits.MESSAGES and not done.code & exits.OPERATIONAL, done
    assert f"{held:,} messages" in done.stdout and "No message is known to be lost" not in done.stdout
    assert mqtool("undo", store, "--yes").code == 0 and messages(store) == held


def test_a_plan_that_says_less_than_it_takes_is_refused_too(store: Path) -> None:
    held = messages(store)
    plan = made_by_hand(store, zeroed(store), _LOSS)
    assert f"takes away {held:,} intact messages, and says 1 " in _said(mqtool("apply", plan, "--yes"))
    loss = [{**_LOSS[0], "messages": held}]
    plan.unlink()
    assert not mqtool("apply", made_by_hand(store, zeroed(store), loss), "--yes").code & exits.OPERATIONAL


def test_losses_of_damage_do_not_stand_for_others(store: Path) -> None:
    """Only what a plan says that it cuts, or takes from brokers, counts."""
    loss = [{**_LOSS[0], "messages": 10_000, "cause": "bad-body-crc"}]
    assert "and says 0" in _said(mqtool("apply", made_by_hand(store, zeroed(store), loss), "--yes"))


def test_a_message_with_another_body_is_one_that_is_gone(store: Path) -> None:
    done = mqtool("apply", made_by_hand(store, rewritten(store)), "--yes")
    assert done.code & exits.OPERATIONAL and "takes away 1 intact message, and says 0" in _said(done)


def test_a_queue_that_no_broker_writes_again_counts(store: Path) -> None:
    """After a clean stop a start dispatches only what comes after the last unit of all queues."""
    queue = max((path for path in (store / "consumequeue").rglob("0*0")),
                key=lambda path: len(path.read_bytes().rstrip(b"\0")))
    units = len(queue.read_bytes().rstrip(b"\0")) // 20 + 1
    done = mqtool("apply", made_by_hand(store, [RetireFolder(queue.parent.relative_to(store).as_posix())]), "--yes")
    assert done.code & exits.OPERATIONAL
    taken = int(re.findall(r"takes away ([\d,]+) intact", _said(done))[0].replace(",", ""))
    assert 0 < taken <= units


def test_a_run_that_was_never_ours_is_not_completed_at_that_cost(store: Path) -> None:
    held = messages(store)
    plan = seal(Plan("recover", zeroed(store)), store)
    with pytest.raises(Interrupted):
        apply_plan(store, plan, interrupted=lambda: True)
    with assert_unchanged(store):
        for words in (["--yes"], ["--dry-run"]):
            done = mqtool("resume", store, *words)
            assert done.code & exits.OPERATIONAL
            assert f"takes away {held:,} intact messages, and says 0" in _said(done) and "mqtool undo" in done.stderr
    assert mqtool("resume", store, "--yes", "--max-loss", "all").code & exits.MESSAGES


@few(("name", "recipe", "words"), [
    (_STORE, "bit-in-body", ("recover",)), (_STORE, "bit-in-body", ("recover", "--mend-bits")),
    (_STORE, "queue-behind", ("rebuild",)), ("killed-lmq-4.9.7", "bit-in-body", ("recover", "--policy", "broker")),
    ("killed-lmq-4.9.7", "queue-behind", ("truncate", "--to", "0")),
    ("clean-manyfiles-5.3.3", "bit-in-body", ("recover",)),
    ("clean-plain-4.9.7", "index-unit-hash", ("truncate", "--to", "131072")),
], quick=(3, 5, 6))
def test_plans_of_ours_say_what_they_cost(name: str, recipe: str, words: tuple[str, ...], tmp_path: Path) -> None:
    root = real_store(name, tmp_path)
    damage(recipe, root, 3)
    command, *options = words
    if command == "truncate" or "broker" in options:
        options += ["--max-loss", "all"]
    made = mqtool(command, root, *options, "--dry-run", "--plan-out", tmp_path / "plan.json")
    assert (tmp_path / "plan.json").exists(), made
    copy = copy_store(root, tmp_path / "copy")
    applied = mqtool("apply", tmp_path / "plan.json", "--yes")
    assert not applied.code & exits.OPERATIONAL, applied
    assert applied.code == mqtool(command, copy, *options, "--yes").code
