"""Stores that are written to while somebody looks at them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fixtures.synth import synth_store
from mqtool import changing, exits
from recover.broker.settings import BrokerSettings
from recover.broker.versions import BrokerVersion
from recover.change.lock import store_lock
from recover.check.report import verify
from recover.export.sources import Scanned, scan_source
from recover.look.live import settled
from recover.repair.planned import planned_store
from recover.repair.recover import RecoverOptions, plan_recover
from recover.store.store import Store
from tests.change.test_lock import held, record_lock
from tests.cli.runner import mqtool
from tests.support.stores import flip, write_at
from tests.support.trees import assert_unchanged


def _written(root: Path, messages: int) -> Path:
    """A store that readers of each queue have read to its end."""
    synth_store(root, messages=messages, keys=0, topics=3, queues=2)
    (root / "lock").write_bytes(b"lock")
    read = {str(queue): messages // 6 for queue in range(2)}
    table = {f"Topic{topic}@readers": read for topic in range(3)}
    (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    return root


def _break(folder: Path) -> None:
    write_at(folder / f"{0:020}", 20_000, bytes(1000))


@pytest.mark.parametrize("more", [6, 600, 1800])
def test_what_is_written_after_the_look_began_does_not_count(tmp_path: Path, more: int) -> None:
    """Some records, a queue file, several log files: neither they nor their units and keys, nor offsets of readers."""
    root, later = _written(tmp_path / "s", 600), _written(tmp_path / "later", 600 + more)
    before = verify(Store.open(root))
    assert not before.exit_code
    with held(record_lock(root)):
        seen = settled(Store.open(root))
        shutil.copytree(later, root, dirs_exist_ok=True, ignore=shutil.ignore_patterns("lock"))
        report, now = verify(seen), verify(settled(Store.open(root)))
    assert not report.exit_code, report.findings
    assert report.analysis.log.log_end == before.analysis.log.log_end < now.analysis.log.log_end
    for part in ("consumequeue", "index"):
        assert report.json()[part] == before.json()[part] != now.json()[part]
    running = next(item for item in report.findings if item.code == "broker-running")
    assert str(report.analysis.log.log_end) in running.message
    assert settled(Store.open(root)).settled_at is None, "no process holds the lock"


def test_damage_before_the_end_is_found_while_a_broker_runs(tmp_path: Path) -> None:
    root = _written(tmp_path / "s", 600)
    flip(root / "consumequeue" / "Topic1" / "0" / f"{0:020}", 20 * 7 + 5)
    _break(root / "commitlog")
    free = {item.code for item in verify(Store.open(root)).findings}
    with held(record_lock(root)):
        found = {item.code for item in verify(settled(Store.open(root))).findings}
    assert found ^ free == {"broker-running"}
    assert {"commitlog-damaged-range", "consumequeue-wrong-units", "index-lost-units"} <= found


@pytest.mark.parametrize("search", [("--topic", "Topic1"), ("--include-ghosts",), ("--key", "none", "--scan")])
def test_a_record_that_is_being_written_is_no_damage_for_a_query_that_scans(
    search: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    root, later = _written(tmp_path / "s", 600), _written(tmp_path / "later", 1200)
    end = verify(Store.open(root)).analysis.log.log_end

    def write(*arguments: Any, **options: Any) -> Scanned:
        shutil.copytree(later, root, dirs_exist_ok=True, ignore=shutil.ignore_patterns("lock"))
        write_at(root / "commitlog" / f"{0:020}", end + 20, bytes(200))
        return scan_source(*arguments, **options)

    monkeypatch.setattr("mqtool.commands.query.scan_source", write)
    with held(record_lock(root)):
        answer = mqtool("query", root, *search, "--limit", 0, "--json").document
    assert (answer["exit_code"], answer["notes"]) == (0, [])
    assert all(message["phy_offset"] < end for message in answer["messages"])


def test_what_recover_would_do_is_told_of_the_store_that_was_looked_at(tmp_path: Path) -> None:
    """A report plays the start over the store as a plan would leave it; more is written before that."""
    root, later = _written(tmp_path / "s", 600), _written(tmp_path / "later", 1200)
    _break(root / "commitlog")
    settings = BrokerSettings(BrokerVersion.parse("5.3.3"))
    with held(record_lock(root)):
        seen = settled(Store.open(root))
        before = verify(seen)
        shutil.copytree(later, root, dirs_exist_ok=True, ignore=shutil.ignore_patterns("lock", f"{0:020}"))
        made = plan_recover(seen, RecoverOptions(settings=settings), before)
        with planned_store(seen, made.plan.steps) as (planned, _):
            after = verify(planned)
    assert made.bridged and not after.analysis.log.damaged
    assert after.analysis.log.log_end == before.analysis.log.log_end


def test_a_dry_run_beside_a_broker_plans_for_the_store_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written once it looks, to a log kept elsewhere, too, is neither planned on nor refused."""
    root, later = _written(tmp_path / "s", 600), _written(tmp_path / "later", 1200)
    log = (root / "commitlog").rename(tmp_path / "log")
    _break(log)
    command = "recover", root, "--commitlog", log, "--dry-run", "--json"
    free = mqtool(*command)

    def and_then_more(store: Store) -> Store:
        seen = settled(store)
        shutil.copytree(later, root, dirs_exist_ok=True, ignore=shutil.ignore_patterns("lock", "commitlog"))
        shutil.copytree(later / "commitlog", log, dirs_exist_ok=True, ignore=shutil.ignore_patterns(f"{0:020}"))
        return seen

    monkeypatch.setattr(changing, "settled", and_then_more)
    with held(record_lock(root)):
        beside = mqtool(*command)
    assert beside.code == free.code == exits.MESSAGES
    for key in ("bridged", "valid_to", "damaged_messages"):
        assert beside.document[key] == free.document[key], key
    assert beside.document["plan"]["steps"] == free.document["plan"]["steps"]
    assert [step["command"] for step in beside.document["next"]] == ["stop the broker"]


@pytest.mark.parametrize("command", [
    ("recover", "--output", "copy"), ("recover", "--output", "copy", "--dry-run"),
    ("recover", "--dry-run", "--plan-out", "plan"), ("rebuild", "--output", "copy"),
    ("rebuild-index", "--output", "copy", "--dry-run"), ("recover", "--dry-run", "--engine", "spark"),
])
def test_copies_and_plans_to_be_kept_are_refused_at_once_beside_a_broker(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = _written(tmp_path / "s", 60)
    monkeypatch.chdir(tmp_path)
    with held(record_lock(root)) as (pid, _), assert_unchanged(tmp_path):
        refused = mqtool(command[0], root, *command[1:], "--yes", "--json")
    assert refused.code == exits.OPERATIONAL
    assert f"process {pid} holds" in refused.stderr and "snapshot" in refused.stderr


def test_no_dry_run_plans_on_what_another_mqtool_changes(tmp_path: Path) -> None:
    root = _written(tmp_path / "s", 60)
    with store_lock(root):
        refused = mqtool("recover", root, "--dry-run")
    assert refused.code == exits.OPERATIONAL and "another mqtool" in refused.stderr
