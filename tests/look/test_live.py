"""Stores that are written to while somebody looks at them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fixtures.synth import synth_store
from recover.broker.settings import BrokerSettings
from recover.broker.versions import BrokerVersion
from recover.check.report import verify
from recover.look.live import settled
from recover.repair.never_worse import as_planned
from recover.repair.recover import RecoverOptions, plan_recover
from recover.store.store import Store
from tests.change.test_lock import held, record_lock


def _written(root: Path, messages: int) -> Path:
    """A store that readers of each queue have read to its end."""
    synth_store(root, messages=messages, keys=0, topics=3, queues=2)
    (root / "lock").write_bytes(b"lock")
    read = {str(queue): messages // 6 for queue in range(2)}
    table = {f"Topic{topic}@readers": read for topic in range(3)}
    (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    return root


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
    assert report.survey.log.log_end == before.survey.log.log_end < now.survey.log.log_end
    for part in ("consumequeue", "index"):
        assert report.json()[part] == before.json()[part] != now.json()[part]
    running = next(item for item in report.findings if item.code == "broker-running")
    assert str(report.survey.log.log_end) in running.message
    assert settled(Store.open(root)).settled_at is None, "no process holds the lock"


def test_damage_before_the_end_is_found_while_a_broker_runs(tmp_path: Path) -> None:
    root = _written(tmp_path / "s", 600)
    unit = root / "consumequeue" / "Topic1" / "0" / f"{0:020}"
    content = bytearray(unit.read_bytes())
    content[20 * 7 + 5] ^= 1
    unit.write_bytes(content)
    log = root / "commitlog" / f"{0:020}"
    content = bytearray(log.read_bytes())
    content[20_000:21_000] = bytes(1000)
    log.write_bytes(content)
    free = {item.code for item in verify(Store.open(root)).findings}
    with held(record_lock(root)):
        found = {item.code for item in verify(settled(Store.open(root))).findings}
    assert found ^ free == {"broker-running"}
    assert {"commitlog-damaged-range", "consumequeue-wrong-units", "index-lost-units"} <= found


def test_what_recover_would_do_is_told_of_the_store_that_was_looked_at(tmp_path: Path) -> None:
    """A report plays the start over the store as a plan would leave it; more is written before that."""
    root, later = _written(tmp_path / "s", 600), _written(tmp_path / "later", 1200)
    log = root / "commitlog" / f"{0:020}"
    content = bytearray(log.read_bytes())
    content[20_000:21_000] = bytes(1000)
    log.write_bytes(content)
    settings = BrokerSettings(BrokerVersion.parse("5.3.3"))
    with held(record_lock(root)):
        seen = settled(Store.open(root))
        before = verify(seen)
        shutil.copytree(later, root, dirs_exist_ok=True, ignore=shutil.ignore_patterns("lock", f"{0:020}"))
        made = plan_recover(seen, RecoverOptions(settings=settings), before)
        with as_planned(seen, made.plan.steps) as (planned, _):
            after = verify(planned)
    assert made.bridged and not after.survey.log.damaged
    assert after.survey.log.log_end == before.survey.log.log_end
