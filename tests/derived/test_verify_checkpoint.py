"""The checkpoint: what is wrong, what is normal, and what recover writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fixtures.damage import damage
from formats.checkpoint import Checkpoint, decode, encode
from recover.derived.checkpoint import check_checkpoint, checkpoint_steps, right_checkpoint
from recover.log.scan import scan_log
from recover.store.store import Store, StoreOptions
from tests.support.looks import carry_out, opened
from tests.support.stores import unpacked

Make = Callable[[str], Path]


def codes(root: Path, broker: str | None = None) -> list[str]:
    store = Store.open(root, StoreOptions(broker=broker))
    return [f.code for f in check_checkpoint(store, scan_log(store.commitlog)).findings]


def recovered(root: Path) -> Checkpoint:
    store = opened(root)
    carry_out(root, checkpoint_steps(store, scan_log(store.commitlog)))
    return decode((root / "checkpoint").read_bytes())


def test_old_times_and_single_zeros_are_what_healthy_brokers_leave(store: Make) -> None:
    root = store("clean-4.5.1")
    damage("checkpoint-old", root)
    assert codes(root) == []
    fields = decode((root / "checkpoint").read_bytes())
    for name in ("logics_msg_timestamp", "index_msg_timestamp", "logics_physical_offset"):
        (root / "checkpoint").write_bytes(encode(fields._replace(**{name: 0})))
        assert codes(root) == []


def test_all_zero_is_normal_in_a_store_of_5_5(store: Make) -> None:
    root = store("clean-v2-5.5.0")
    damage("checkpoint-zero", root)
    assert codes(root) == []
    plain = store("clean-4.5.1")
    damage("checkpoint-zero", plain)
    assert codes(plain, "5.5.0") == []
    assert codes(plain, "4.9.7") == ["checkpoint-all-zero"]


def test_an_empty_store_needs_no_checkpoint(store: Make) -> None:
    root = store("clean-empty-5.3.3")
    damage("checkpoint-missing", root)
    assert codes(root) == []


def test_the_report_says_how_much_a_start_would_read(store: Make) -> None:
    root = store("clean-manyfiles-5.3.3")
    damage("checkpoint-missing", root)
    opened_store = opened(root)
    log = scan_log(opened_store.commitlog)
    facts = check_checkpoint(opened_store, log).findings[0].facts
    assert facts["log_bytes"] == log.log_end - log.min_offset
    by_broker = {item["broker"]: item for item in facts["rescan"]}
    assert by_broker["5.3.3"]["bytes"] == log.log_end - log.min_offset
    assert by_broker["5.3.3"]["file"] == log.queue.files[0].name
    assert by_broker["5.4.0"]["bytes"] < by_broker["5.3.3"]["bytes"]  # ten files at most


def test_an_offset_below_the_log_is_only_old(store: Make) -> None:
    root = store("clean-expired-5.5.0")
    fields = decode((root / "checkpoint").read_bytes())
    (root / "checkpoint").write_bytes(encode(fields._replace(logics_physical_offset=17)))
    assert codes(root) == []


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
    fields = decode(right_checkpoint(store, scan_log(store.commitlog)))
    assert fields.index_msg_timestamp == before.index_msg_timestamp > 0
