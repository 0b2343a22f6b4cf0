"""Plans and journals that somebody made up, with checksums that fit: refused with a reason, and nothing is touched."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from mqtool import exits
from recover.change.journal import decode_records, encode_record
from recover.change.plan_file import canonical
from tests.cli.runner import mqtool
from tests.scenarios.interrupted import recovering
from tests.support.plans import count_operations, killed_at
from tests.support.stores import copy_store, real_store
from tests.support.trees import assert_unchanged
from tests.torture.hostile import BOMBS
from tests.torture.test_hostile_input import speaks_cleanly

QUEUE = "consumequeue/Orders/0/00000000000000000000"
ESCAPES = "\x1b[31mRED\x1b]0;owned\x07\r\n\x9b2J\u202e"
PATHS = ("../../x", "..", "/etc/x", "nul\0", "", ".mqtool/runs/1", "lock", f"{ESCAPES}/../../x")
ODD = (ESCAPES, "a\nb", "x" * 300, f"{ESCAPES}/{ESCAPES}")
Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def store(folder: Path) -> Path:
    """A store with a queue that lost its units."""
    root = real_store("clean-plain-4.9.7", folder / "around")
    (root / QUEUE).write_bytes(bytes((root / QUEUE).stat().st_size))
    return root


@pytest.fixture
def plan(store: Path, folder: Path) -> Path:
    """The saved plan of its recover."""
    assert mqtool("recover", store, "--dry-run", "--plan-out", folder / "plan.json").code
    return folder / "plan.json"


def rewrite(path: Path, change: Change) -> None:
    """Change the body of a plan file, and let its checksum fit."""
    whole = json.loads(path.read_text())
    change(whole["body"])
    whole["crc32c"] = crc32c(canonical(whole["body"]))
    path.write_text(json.dumps(whole))


def rewrite_journal(run: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """Change the records of a journal, and let their checksums fit."""
    path = run / "journal.ndjson"
    records = decode_records(path.read_bytes())
    change(records)
    path.write_bytes(b"".join(map(encode_record, records)))


def applied(store: Path) -> Path:
    """The folder of a run that recovered the store."""
    assert mqtool("recover", store, "--yes").code == exits.CORRECTED
    return next((store / ".mqtool/runs").iterdir())


@pytest.mark.parametrize("name", [*PATHS, *ODD], ids=repr)
def test_a_plan_with_a_hostile_path_touches_nothing(name: str, store: Path, plan: Path, folder: Path) -> None:
    rewrite(plan, lambda body: body["steps"][0].update(file=name))
    with assert_unchanged(folder):
        assert speaks_cleanly(store, "apply", plan, "--yes") & exits.OPERATIONAL


@pytest.mark.parametrize("change", [
    lambda body: body.update(id="../../x"), lambda body: body.update(sidecar="../.."),
    lambda body: body["steps"][0].update(content={"size": 9, "crc32c": 1, "file": "../../x"}),
    lambda body: body["steps"][0].update(content={"size": 1 << 60, "crc32c": 1, "zlib": "eJwDAAAAAAE="}),
    lambda body: body["steps"][0].update(kind=ESCAPES), lambda body: body["steps"][0].update(start=-1, stop=1 << 70),
    lambda body: body.update(steps=[[[]]]), lambda body: body.update(store={"root": ESCAPES}),
    lambda body: body.update(created_ms=ESCAPES),
])
def test_a_plan_with_a_hostile_field_touches_nothing(change: Change, store: Path, plan: Path, folder: Path) -> None:
    rewrite(plan, change)
    with assert_unchanged(folder):
        assert speaks_cleanly(store, "apply", plan, "--yes") & exits.OPERATIONAL


def test_hostile_text_of_a_plan_does_not_drive_the_terminal(store: Path, plan: Path) -> None:
    loss = {"topic": ESCAPES, "queue": 0, "messages": 1, "first_offset": 0, "last_offset": 0, "begin": 0, "end": 0,
            "cause": ESCAPES}
    rewrite(plan, lambda body: body.update(command=ESCAPES, loss=[loss]))
    assert speaks_cleanly(store, "apply", plan, "--dry-run") & exits.BUG == 0
    assert speaks_cleanly(store, "apply", plan, "--yes") & exits.BUG == 0
    for line in (["journal", store], ["verify", store], ["undo", store, "--dry-run"], ["undo", store, "--yes"]):
        assert speaks_cleanly(store, *line) & exits.BUG == 0


@pytest.mark.parametrize("bomb", range(len(BOMBS)))
def test_a_bomb_in_a_journal_or_plan_is_a_refusal(bomb: int, store: Path, folder: Path) -> None:
    run = applied(store)
    for name in ("journal.ndjson", "plan.json"):
        kept = (run / name).read_bytes()
        (run / name).write_bytes(b"\n" + BOMBS[bomb])
        with assert_unchanged(folder):
            assert speaks_cleanly(store, "undo", store, "--yes") & exits.OPERATIONAL
            assert speaks_cleanly(store, "verify", store) & exits.BUG == 0
        (run / name).write_bytes(kept)
    assert speaks_cleanly(store, "undo", store, "--yes") & exits.OPERATIONAL == 0


@pytest.mark.parametrize("change", [
    lambda records: records[0]["directories"].update({"../..": 1}),
    lambda records: records[0]["directories"].update({"/etc": 1}),
    lambda records: records[0].update(directories={".": ESCAPES}), lambda records: records[0].update(directories=[]),
    lambda records: next(r for r in records if r["event"] == "begin").update(mkdirs=["../../x"]),
    lambda records: records[0].update(steps=ESCAPES), lambda records: records[0].update(steps=1 << 62),
    lambda records: records[1].update(event=[]), lambda records: records[1].update(step=1 << 70),
])
def test_a_journal_that_names_other_places_changes_nothing(
    change: Callable[[list[dict[str, Any]]], object], store: Path, folder: Path
) -> None:
    rewrite_journal(applied(store), change)
    with assert_unchanged(folder):
        assert speaks_cleanly(store, "undo", store, "--yes") & exits.OPERATIONAL
        assert speaks_cleanly(store, "verify", store) & exits.BUG == 0


def test_hostile_text_of_a_journal_does_not_drive_the_terminal(store: Path) -> None:
    rewrite_journal(applied(store), lambda records: records[0].update(command=ESCAPES, plan=ESCAPES, store=ESCAPES))
    for line in (["journal", store], ["verify", store], ["undo", store, "--yes"]):
        assert speaks_cleanly(store, *line) & (exits.BUG | exits.OPERATIONAL) == 0


@pytest.mark.parametrize("command", ["resume", "undo"])
def test_hostile_text_of_an_unfinished_run_does_not_drive_the_terminal(command: str, store: Path) -> None:
    copy = copy_store(store, store.with_name("copy"))
    assert killed_at(len(count_operations(recovering(copy))) * 3 // 4, recovering(store))
    (run,) = (store / ".mqtool/runs").iterdir()
    rewrite_journal(run, lambda records: records[0].update(command=ESCAPES))
    for line in (["verify", store], ["journal", store], [command, store, "--dry-run"], [command, store, "--yes"]):
        assert speaks_cleanly(store, *line) & (exits.BUG | exits.OPERATIONAL) == 0


def test_a_run_of_another_format_version_is_refused_with_the_reason(store: Path, folder: Path) -> None:
    run = applied(store)
    whole = json.loads((run / "plan.json").read_text())
    (run / "plan.json").write_text(json.dumps({**whole, "version": 2}))
    with assert_unchanged(folder):
        refused = mqtool("undo", store, "--yes")
    assert refused.code & exits.OPERATIONAL and "plan format 2" in refused.stderr
