"""Rebuilds of whole stores, and the checkpoint: in place only what is wrong, and never on the wrong ground."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.damage import damage
from fixtures.lab.packed import settings
from formats.basics import offset_to_name
from formats.checkpoint import Checkpoint, decode, encode
from recover.change.carry_out import apply_plan
from recover.change.model import Plan
from recover.change.preconditions import seal
from recover.check.report import verify
from recover.derived.checkpoint import check_checkpoint, checkpoint_steps, right_checkpoint
from recover.findings.code import Interrupted, Refusal, UsageRefusal
from recover.log.scan import LocalEngine
from recover.reading.facts import ScanOptions
from recover.repair.rebuild import CHECKPOINT, CONSUMEQUEUE, INDEX, RebuildOptions, plan_rebuild, write_rebuild
from recover.store.store import Store, StoreOptions
from tests.support.analysed import carry_out, opened
from tests.support.harm import gone, zeroed
from tests.support.stores import unpacked
from tests.support.trees import assert_unchanged, tree_digest

# --- Rebuilds of whole stores: in place only what is wrong, from scratch all of it, and never on the wrong ground.


Copy = Callable[[str], Path]
SOUND = ("clean-plain-4.9.7", "clean-expired-5.5.0", "clean-propcrc-5.3.3", "clean-multipath-4.9.7")


def store_of(root: Path, name: str = "") -> Store:
    """The store with its broker's settings."""
    return opened(root, settings={key: str(value) for key, value in settings(name or root.name).items()})


def plan_of(root: Path, name: str = "", **options: object) -> Plan:
    return plan_rebuild(store_of(root, name), RebuildOptions(ScanOptions(), **options)).plan  # type: ignore[arg-type]


def apply(root: Path, plan: Plan) -> None:
    apply_plan(root, seal(plan, root), parts=plan.parts)


def wrong_derived(root: Path) -> list[str]:
    """Codes of what is wrong in queues, index and checkpoint."""
    found = verify(store_of(root)).findings
    return [item.code for item in found if item.bits and item.code.startswith((CONSUMEQUEUE, INDEX, CHECKPOINT))]


def test_only_the_named_parts_are_touched(store: Copy) -> None:
    root = store("clean-plain-4.9.7")
    (root / "checkpoint").unlink()
    damage("queue-unit-zeroed", root)
    shutil.rmtree(root / "index")
    for part, folder in ((CONSUMEQUEUE, "consumequeue/"), (INDEX, "index/"), (CHECKPOINT, "checkpoint")):
        steps = plan_of(root, parts=(part,)).steps
        assert steps
        assert all(step.file.startswith(folder) for step in steps)


def test_an_index_that_is_switched_off_is_made_only_on_demand(store: Copy) -> None:
    root = store("clean-plain-4.9.7")
    shutil.rmtree(root / "index")
    checkpoint = (root / "checkpoint").read_bytes()
    (root / "checkpoint").write_bytes(checkpoint[:16] + bytes(8) + checkpoint[24:])
    assert plan_of(root).steps == ()
    assert [step.kind for step in plan_of(root, parts=(INDEX,)).steps] == ["install"]


def test_a_deleted_topic_is_not_rebuilt_unless_asked_for(store: Copy) -> None:
    root = store("clean-5.3.3")
    shutil.rmtree(root / "consumequeue" / "TopicA")
    topics = root / "config" / "topics.json"
    topics.write_text(topics.read_text().replace('"TopicA"', '"TopicGone"'))
    assert plan_of(root, parts=(CONSUMEQUEUE,)).steps == ()
    with pytest.raises(UsageRefusal, match="deleted"):
        plan_of(root, parts=(CONSUMEQUEUE,), topic="TopicA")
    scan = ScanOptions(include_deleted=True)
    wanted = RebuildOptions(scan, (CONSUMEQUEUE,), "TopicA")
    assert len(plan_rebuild(store_of(root), wanted).plan.steps) == 4


@pytest.mark.parametrize("recipe", ["torn-tail", "bit-in-topic-legal", "bit-in-body", "crash-torn-tail"])
def test_what_tells_recover_how_to_mend_the_log_stays(recipe: str, store: Copy) -> None:
    root = store("clean-plain-4.9.7")
    damage(recipe, root, seed=1)
    before = verify(store_of(root))
    plan = plan_of(root)
    apply(root, plan)
    after = verify(store_of(root))
    assert after.damaged_messages == before.damaged_messages
    assert len(after.analysis.contradictions) == len(before.analysis.contradictions)
    assert after.exit_code & 4 == before.exit_code & 4
    assert plan_of(root).steps == ()


@pytest.mark.parametrize("name", [*SOUND, "killed-ext-4.5.1", "killed-lmq-4.9.7"])
def test_output_equals_the_store(name: str, tmp_path: Path, store: Copy) -> None:
    root = store(name)
    expired = "expired" in name
    with assert_unchanged(root):
        done = write_rebuild(store_of(root), RebuildOptions(), tmp_path / "out")
    for part in ("consumequeue", "consumequeue_ext"):
        theirs = {path.relative_to(root) for path in root.glob(f"{part}/*/*/*")}
        ours = {path.relative_to(tmp_path / "out") for path in (tmp_path / "out").glob(f"{part}/*/*/*")}
        assert ours <= theirs if expired else ours == theirs
        differing = {path for path in ours if (root / path).read_bytes() != (tmp_path / "out" / path).read_bytes()}
        assert expired or not differing
    left = [item.code for item in done.findings if item.bits and item.code != "abort-present"]
    assert left == ["commitlog-begins-late"] * expired
    assert set(done.files) == {
        path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()
    }
    newest = verify(store_of(root)).analysis.log.tally.newest_timestamp
    assert decode((tmp_path / "out" / "checkpoint").read_bytes()).physic_msg_timestamp <= newest


def test_output_of_one_queue_holds_no_other(tmp_path: Path, store: Copy) -> None:
    root = store("clean-5.3.3")
    options = RebuildOptions(parts=(CONSUMEQUEUE,), topic="TopicA", queue=1)
    done = write_rebuild(store_of(root), options, tmp_path / "out")
    name = f"TopicA/1/{offset_to_name(0)}"
    assert done.files == (f"consumequeue/{name}", f"consumequeue_ext/{name}")


def test_output_goes_into_an_empty_folder_outside_of_the_store(tmp_path: Path, store: Copy) -> None:
    root = store("clean-plain-4.9.7")
    with assert_unchanged(tmp_path):
        for place in (root / "out", root, root.parent, tmp_path / "no" / "such"):
            with pytest.raises(Refusal):
                write_rebuild(store_of(root), RebuildOptions(), place)


def test_a_stopped_output_leaves_nothing(tmp_path: Path, store: Copy) -> None:
    root = store("clean-plain-4.9.7")
    out, most = tmp_path / "out", 0

    def stops() -> bool:
        nonlocal most
        most = max(most, len([path for path in out.rglob("*") if path.is_file()]))
        return most > 3

    with pytest.raises(Interrupted):
        write_rebuild(store_of(root), RebuildOptions(), out, interrupted=stops)
    assert most == 4
    assert not out.exists()


def test_parts_kept_elsewhere_are_rebuilt_where_they_are(tmp_path: Path, store: Copy) -> None:
    root = store("clean-plain-4.9.7")
    before = tree_digest(root / "consumequeue")
    queues, index = tmp_path / "queues", tmp_path / "index"
    (root / "consumequeue").rename(queues)
    (root / "index").rename(index)
    victim = next(path for path in sorted(queues.glob("*/*/*")) if any(path.read_bytes()))
    content = victim.read_bytes()
    victim.write_bytes(bytes(len(content)))
    elsewhere = Store.open(root, StoreOptions(consumequeue=queues, index=index))
    plan = plan_rebuild(elsewhere, RebuildOptions()).plan
    assert [step.file for step in plan.steps] == [str(victim)]
    apply(root, plan)
    assert victim.read_bytes() == content
    assert tree_digest(queues).keys() == before.keys()


# --- The checkpoint: what is wrong, what is normal, and what recover writes.


Make = Callable[[str], Path]


def codes(root: Path, broker: str | None = None) -> list[str]:
    store = Store.open(root, StoreOptions(broker=broker))
    return [f.code for f in check_checkpoint(store, LocalEngine().scan_log(store.commitlog)).findings]


def recovered(root: Path) -> Checkpoint:
    store = opened(root)
    carry_out(root, checkpoint_steps(store, LocalEngine().scan_log(store.commitlog)))
    return decode((root / "checkpoint").read_bytes())


def with_field(name: str, value: int) -> Callable[[Path], object]:
    """Another value in one field of the checkpoint."""
    def change(root: Path) -> None:
        path = root / "checkpoint"
        path.write_bytes(encode(decode(path.read_bytes())._replace(**{name: value})))
    return change


@pytest.mark.parametrize(("name", "change", "broker", "found"), [
    ("clean-4.5.1", lambda root: damage("checkpoint-old", root), None, []),
    *(("clean-4.5.1", with_field(field, 0), None, []) for field in (
        "logics_msg_timestamp", "index_msg_timestamp", "logics_physical_offset")),
    ("clean-v2-5.5.0", zeroed("checkpoint"), None, []), ("clean-4.5.1", zeroed("checkpoint"), "5.5.0", []),
    ("clean-4.5.1", zeroed("checkpoint"), "4.9.7", ["checkpoint-all-zero"]),
    ("clean-empty-5.3.3", gone("checkpoint"), None, []),
    ("clean-expired-5.5.0", with_field("logics_physical_offset", 17), None, []),
])
def test_what_healthy_brokers_leave_is_no_finding(
    name: str, change: Callable[[Path], object], broker: str | None, found: list[str], store: Make
) -> None:
    root = store(name)
    change(root)
    assert codes(root, broker) == found


def test_the_report_says_how_much_a_start_would_read(store: Make) -> None:
    root = store("clean-manyfiles-5.3.3")
    damage("checkpoint-missing", root)
    opened_store = opened(root)
    log = LocalEngine().scan_log(opened_store.commitlog)
    facts = check_checkpoint(opened_store, log).findings[0].facts
    assert facts["log_bytes"] == log.log_end - log.min_offset
    by_broker = {item["broker"]: item for item in facts["rescan"]}
    assert by_broker["5.3.3"]["bytes"] == log.log_end - log.min_offset
    assert by_broker["5.3.3"]["file"] == log.queue.files[0].name
    assert by_broker["5.4.0"]["bytes"] < by_broker["5.3.3"]["bytes"]  # ten files at most


def test_sane_fields_survive_and_an_offset_stays_where_a_record_starts(store: Make) -> None:
    root = store("clean-restarts-5.5.0")
    before = decode((root / "checkpoint").read_bytes())
    after = recovered(root)
    assert after.logics_physical_offset == before.logics_physical_offset > 0
    assert after.confirm_phy_offset == before.confirm_phy_offset > 0


def test_the_index_time_of_a_store_without_one_is_that_of_its_last_full_file() -> None:
    root = unpacked("clean-4.5.1")
    store = opened(root)
    before = decode((root / "checkpoint").read_bytes())
    fields = decode(right_checkpoint(store, LocalEngine().scan_log(store.commitlog)))
    assert fields.index_msg_timestamp == before.index_msg_timestamp > 0
