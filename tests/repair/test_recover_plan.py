"""What recover plans, where no scenario of a real store shows it."""

from __future__ import annotations

from pathlib import Path

from fixtures.damage import damage
from fixtures.synth import synth_store
from formats.consumequeue import CQ_UNIT, PRE_BLANK
from recover.change.carry_out import apply_plan
from recover.change.model import Retire
from recover.change.preconditions import seal
from recover.check.report import verify
from recover.repair.recover import RecoverOptions, plan_recover
from tests.support.looks import opened
from tests.support.stores import real_store


def _recovered(root: Path) -> list[object]:
    plan = plan_recover(opened(root), RecoverOptions()).plan
    apply_plan(root, seal(plan, root))
    return list(plan.steps)


def test_an_empty_last_queue_file_behind_a_full_one_is_found_and_put_aside(tmp_path: Path) -> None:
    root = tmp_path / "s"
    synth_store(root, messages=100, topics=1, queues=1)
    folder = root / "consumequeue" / "Topic0" / "0"
    last = folder / f"{2000:020d}"
    last.write_bytes(bytes(2000))
    report = verify(opened(root))
    assert [(item.code, item.file) for item in report.findings if item.severity != "info"] == [
        ("consumequeue-empty-last-file", f"consumequeue/Topic0/0/{last.name}")
    ]
    assert _recovered(root) == [Retire(f"consumequeue/Topic0/0/{last.name}")]
    assert verify(opened(root)).exit_code == 0


def test_a_queue_whose_messages_are_all_gone_leaves_no_file_of_zeros(tmp_path: Path) -> None:
    root = tmp_path / "s"
    written = synth_store(root, messages=100, topics=1, queues=2)
    ghost = root / "consumequeue" / "Topic0" / "7"
    ghost.mkdir()
    unit = (written.log_end + 100).to_bytes(8, "big") + (200).to_bytes(4, "big") + bytes(8)
    (ghost / f"{0:020d}").write_bytes(unit.ljust(2000, b"\0"))
    found = [item.code for item in verify(opened(root)).findings if item.severity != "info"]
    assert found == ["consumequeue-beyond-log"]
    _recovered(root)
    assert not list(ghost.iterdir())
    assert verify(opened(root)).exit_code == 0


def test_no_queue_of_lost_messages_ends_with_a_pre_blank(tmp_path: Path) -> None:
    """LMQ queues whose records are all lost: a pre-blank at the end of a queue stops the dispatch of 4.x."""
    root = real_store("killed-5.5.0", tmp_path)
    damage("log-middle-empty", root, 0)
    assert _recovered(root)
    ends = {}
    for path in sorted(root.glob("consumequeue/*/*/*")):
        units = [unit for unit in CQ_UNIT.decode_all(path.read_bytes()) if unit.size > 0]
        ends[path.parent.parent.name] = units[-1]
    assert ends["%LMQ%one"].phy_offset + ends["%LMQ%one"].size <= 1 << 20
    assert not [topic for topic, unit in ends.items() if unit == PRE_BLANK]
    assert not _recovered(root)
