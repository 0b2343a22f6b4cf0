"""Many stores in one job: each row is what verify reports of the store, and no store ends the run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

from fixtures.damage import damage
from fixtures.synth import synth_store
from mqtool import exits
from recover.cluster import fleet
from recover.cluster.engine import SparkEngine
from recover.cluster.fleet import (
    FleetTask,
    Listed,
    StoreRow,
    findings_of,
    last_run,
    listed,
    named_stores,
    verify_stores,
)
from recover.cluster.jobs import watch
from recover.cluster.session import session_for
from recover.findings.code import Refusal, UsageRefusal
from recover.store.store import Store
from tests.change.test_lock import held as locked, record_lock
from tests.cli.runner import Result, mqtool
from tests.cli.test_documents import held
from tests.cluster.cluster import Cluster
from tests.cluster.test_remote import uploaded
from tests.cluster.twice import needs_spark
from tests.support.command_docs import DOCS
from tests.support.stores import real_store, write_at
from tests.support.trees import assert_same_tree, contents, tree_digest

on_spark = [*needs_spark, pytest.mark.slow]
LOCAL = ("--master", "local[2]", "--conf", "spark.driver.memory=512m")
KINDS = (("clean-5.3.3", None), ("clean-manyfiles-5.3.3", "bit-in-body"), ("killed-5.5.0", None),
         ("clean-plain-4.9.7", "checkpoint-zero"))


@pytest.fixture
def backups(tmp_path: Path) -> Path:
    """Four stores, one of them sound."""
    for number, (name, recipe) in enumerate(KINDS):
        root = real_store(name, tmp_path / "new").rename(tmp_path / f"host-{number}")
        if recipe is not None:
            damage(recipe, root, 1)
        (tmp_path / "backups" / f"host-{number}").mkdir(parents=True)
        root.rename(tmp_path / "backups" / f"host-{number}" / "store")
    return tmp_path / "backups"


@pytest.fixture
def settled(backups: Path) -> Path:
    """The same, and nobody has written to them for a while."""
    time.sleep(2.1)
    return backups


def fleet_verify(*words: object) -> Result:
    return mqtool("fleet", "verify", *words, *LOCAL)


def table(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = pyarrow.dataset.dataset(document["tables"][name], format="parquet").to_table().to_pylist()
    assert isinstance(found, list)
    return found


def in_process(root: Path, folder: Path, *, fingerprint: str | None = None) -> StoreRow:
    """The row of one store, without Spark."""
    item = listed(str(root), "1") if fingerprint is None else Listed(str(root), fingerprint, 0, 0, None)
    folder.mkdir(exist_ok=True)
    ((row, file),) = verify_stores([FleetTask([item], str(folder), "1")])
    assert (folder / file).exists()
    return row


class TestOnSpark:
    pytestmark = on_spark

    def test_each_row_is_what_verify_reports_of_the_store(
        self, backups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "160")  # several workers of one suite see 80, where a row takes more lines
        before = tree_digest(backups)
        result = fleet_verify(f"{backups}/*/store", "--into", tmp_path / "into", "--json")
        assert_same_tree(before, tree_digest(backups))
        document = result.document
        held(document, "fleet")
        rows, findings = table(document, "stores"), table(document, "findings")
        assert [Path(row["store"]) for row in rows] == sorted(backups.glob("*/store"))
        codes = 0
        for row in rows:
            alone = mqtool("verify", row["store"], "--json")
            codes |= alone.code
            assert (row["exit_code"], row["error"], row["read"]) == (alone.code, None, True)
            assert row["messages"] == alone.document["commitlog"]["messages"]
            assert row["valid_to"] == alone.document["commitlog"]["valid_to"]
            assert row["bytes"] == alone.document["bytes"]
            names = ("code", "severity", "file", "offset")
            its = [{name: item[name] for name in names} for item in findings if item["store"] == row["store"]]
            assert its == [{name: item[name] for name in names} for item in alone.document["findings"]]
            wrong = {item["code"] for item in its if item["severity"] != "info"}
            assert row["worst"] in wrong or (row["worst"] is None and not wrong)
            assert row["findings"] == len(its)
        assert result.code == codes == document["exit_code"] == exits.MESSAGES | exits.DERIVED
        bad = {row["store"] for row in rows if row["exit_code"]}
        assert {item["file"] for item in document["findings"]} == bad == {row["store"] for row in document["stores"]}
        assert {step["command"] for step in document["next"]} == {f"mqtool verify {store}" for store in bad}
        # the one with damaged messages comes first
        assert document["next"][0]["command"].endswith("host-1/store")
        screen = fleet_verify(f"{backups}/*/store", "--into", tmp_path / "into").stdout
        assert [line.split()[1] for line in screen.splitlines() if "/store " in line and "next" not in line][:3] == [
            "4", "2", "2"]
        assert "3 of 4 stores with problems" in screen

    def test_what_did_not_change_keeps_its_rows_and_is_not_read(self, settled: Path, tmp_path: Path) -> None:
        words = (f"{settled}/*/store", "--into", tmp_path / "into", "--json")
        first = fleet_verify(*words).document
        again = fleet_verify(*words)
        assert again.document["total"]["read"] == 0
        assert again.code == first["exit_code"] == exits.MESSAGES | exits.DERIVED
        for name in ("stores", "findings"):
            rows = [row | {"read": True} if name == "stores" else row for row in table(again.document, name)]
            assert sorted(rows, key=str) == sorted(table(first, name), key=str)
        assert fleet_verify(*words, "--all").document["total"]["read"] == 4
        damage("bit-in-body", settled / "host-0" / "store", 3)
        third = fleet_verify(*words).document
        assert [row["store"] for row in table(third, "stores") if row["read"]] == [str(settled / "host-0" / "store")]
        assert third["total"]["bad"] == 4
        # it was written to just now: another write could leave the same times
        assert fleet_verify(*words).document["total"]["read"] == 1

    def test_a_store_that_cannot_be_verified_is_a_row_with_its_error(self, settled: Path, tmp_path: Path) -> None:
        (settled / "host-2" / "store" / "checkpoint").unlink()
        (settled / "host-2" / "store" / "checkpoint").mkdir()
        (settled / "empty" / "store").mkdir(parents=True)
        result = fleet_verify(f"{settled}/*/store", settled / "nowhere", "--into", tmp_path / "into", "--json")
        assert result.code == exits.MESSAGES | exits.DERIVED | exits.OPERATIONAL | exits.USAGE
        rows = {Path(row["store"]).relative_to(settled).parts[0]: row for row in table(result.document, "stores")}
        failed = {name: (row["exit_code"], row["error"]) for name, row in rows.items() if row["error"]}
        assert failed == {
            "host-2": (8, "checkpoint is a folder, but a file belongs there"),
            "empty": (16, f"{settled}/empty/store holds no RocketMQ store"),
            "nowhere": (16, f"{settled}/nowhere does not exist"),
        }
        assert rows["host-0"]["exit_code"] == 0
        assert result.codes == {"fleet-store-failed", "fleet-store-problems"}
        # nothing is known of them, so they are not taken for unchanged
        second = fleet_verify(f"{settled}/*/store", "--into", tmp_path / "into", "--json").document
        assert {row["store"] for row in table(second, "stores") if row["read"]} == {
            str(settled / "host-2" / "store"), str(settled / "empty" / "store")}

    def test_of_a_task_that_runs_twice_one_is_taken(
        self, backups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def twice(tasks: Any) -> Any:
            import os as system

            from recover.cluster.fleet import verify_stores as right

            every = list(tasks)
            rows = list(right(every))
            for item in (item for task in every for item in task.stores):
                system.utime(item.place)  # the store changes meanwhile
            list(right(every))
            yield from rows

        monkeypatch.setattr(fleet, "verify_stores", twice)
        document = fleet_verify(f"{backups}/*/store", "--into", tmp_path / "into", "--json").document
        rows, findings = table(document, "stores"), table(document, "findings")
        assert sum(row["findings"] for row in rows) == len(findings) > 3
        assert {row["error"] for row in rows} == {None}

    def test_large_stores_are_cut_into_splits_at_one_time_beside_the_small_ones(
        self, backups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        large = [backups / name / "store" for name in ("host-0", "host-2")]
        (backups / "host-2" / "store" / "large").write_bytes(bytes(64 << 20))
        (backups / "host-0" / "store" / "large").write_bytes(bytes(64 << 20))
        time.sleep(2.1)  # a store that was just written to has no fingerprint, and would have one in the second run
        words = (f"{backups}/*/store", "--json")
        whole = fleet_verify(*words, "--into", tmp_path / "whole").document
        scan, both = SparkEngine.scan_log, threading.Barrier(len(large))

        def waiting(*arguments: Any, **options: Any) -> Any:
            both.wait(60)  # passes when both have begun
            return scan(*arguments, **options)

        monkeypatch.setattr(SparkEngine, "scan_log", waiting)
        split = fleet_verify(*words, "--into", tmp_path / "split", "--split-above", "64M")
        assert [line.split(":")[0] for line in split.stderr.splitlines() if "by splits" in line] == [*map(str, large)]
        plain = ("store", "messages", "valid_to", "exit_code", "worst", "findings", "error", "fingerprint")
        assert [[row[name] for name in plain] for row in table(split.document, "stores")] == [
            [row[name] for name in plain] for row in table(whole, "stores")]
        assert sorted(table(split.document, "findings"), key=str) == sorted(table(whole, "findings"), key=str)

    def test_a_store_by_splits_whose_task_fails_costs_its_own_row_only(
        self, backups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scan, bad = SparkEngine.scan_log, backups / "host-1" / "store"

        def failing(engine: SparkEngine, queue: Any, **options: Any) -> Any:
            if bad in queue.files[0].path.parents:
                session = session_for(engine.settings)
                watch(session, lambda: session.context.parallelize([0]).map(lambda _: 1 // 0).collect(), "fails")
            return scan(engine, queue, **options)

        monkeypatch.setattr(SparkEngine, "scan_log", failing)
        rows = table(fleet_verify(f"{backups}/*/store", "--into", tmp_path / "into", "--json", "--split-above", "1K")
                     .document, "stores")
        assert [row["store"] for row in rows if row["error"]] == [str(bad)]
        assert "modulo by zero" in next(row["error"] for row in rows if row["error"])

    def test_a_run_that_spark_gives_up_leaves_the_last_one(
        self, backups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        words = (f"{backups}/*/store", "--into", tmp_path / "into", "--json")
        fleet_verify(*words)
        kept = contents(tmp_path / "into")

        def lost(*_: object, **__: object) -> None:
            raise Refusal("Spark gave up: an executor is gone")

        with monkeypatch.context() as patch:
            patch.setattr(fleet, "run_job", lost)
            assert fleet_verify(*words, "--all").code & exits.OPERATIONAL
        assert contents(tmp_path / "into") == kept

    def test_stores_on_s3_are_verified_where_they_are(self, endpoint: str, backups: Path, tmp_path: Path) -> None:
        place = uploaded(backups / "host-1" / "store", endpoint, "fleet")
        words = (place, backups / "host-1" / "store", "--into", tmp_path / "into", "--json")
        # a worker that has read from a server has threads, and a fork of it would wait for them for ever
        alone = mqtool("verify", place, "--engine", "spark", *LOCAL, "--json")
        assert alone.code & exits.MESSAGES
        assert named_stores([place.replace("deep/store", "*/st[o]re"), place]) == [place]
        assert named_stores([place.replace("deep/store", "d[e]ep/store")]) == [place]
        with pytest.raises(UsageRefusal, match="no folder matches"):
            named_stores([place.replace("deep/store", "deep/*/store")])
        document = fleet_verify(*words).document
        there, here = table(document, "stores")
        assert (there["store"], there["error"]) == (place, None)
        assert (there["messages"], there["worst"]) == (here["messages"], here["worst"])
        # each names a copy for what cannot be done there
        names = ("code", "message", "remedy")
        assert [[row[name] for name in names] for row in table(document, "findings") if row["store"] == place] == [
            [item[name] for name in names] for item in alone.document["findings"]]
        time.sleep(2.1)
        fleet_verify(*words)
        assert fleet_verify(*words).document["total"]["read"] == 0

    def test_a_run_is_appended_to_tables_of_the_catalog(self, spark: Any, backups: Path, tmp_path: Path) -> None:
        words = (f"{backups}/host-[12]/store", "--into", tmp_path / "into", "--json", "--all", "--tables")
        spark.sql(f"CREATE DATABASE found LOCATION '{tmp_path / 'warehouse'}'")
        runs = [fleet_verify(*words, "found").document for _ in range(2)]
        for name in ("stores", "findings"):
            assert runs[0]["appended"][name] == f"found.{name}"
            place = pyarrow.dataset.dataset(tmp_path / "warehouse" / name, format="parquet", partitioning="hive")
            appended = place.to_table().to_pylist()
            for run in runs:
                own = [{key: value for key, value in row.items() if key != "run"}
                       for row in appended if row["run"] == run["run"]]
                assert sorted(own, key=str) == sorted(table(run, name), key=str)
        spark.sql("DROP DATABASE found CASCADE")
        # the second table cannot be written: the run is in the first alone, and the query of the page names it
        spark.sql(f"CREATE DATABASE half LOCATION '{tmp_path / 'half'}'")
        spark.sql("CREATE TABLE half.stores (something DOUBLE) USING parquet")
        failed = fleet_verify(*words, "half")
        run = last_run(tmp_path / "into")
        assert failed.code & exits.OPERATIONAL
        assert f"run {run} is whole in" in failed.stderr
        assert "half.findings has it and half.stores does not" in failed.stderr, failed.stderr
        spark.sql("CREATE OR REPLACE TEMPORARY VIEW stores AS SELECT 'x' AS run")
        (query,) = re.findall(r"^```sql\n(SELECT DISTINCT run.*?)^```", (DOCS / "commands/fleet.md").read_text(),
                              re.MULTILINE | re.DOTALL)
        query = query.replace("lake.fleet.findings", "half.findings").replace("lake.fleet.stores", "stores")
        assert [row.run for row in spark.sql(query).collect()] == [run]
        spark.sql("DROP DATABASE half CASCADE")
        refused = fleet_verify(*words, "nowhere.at.all")
        assert refused.code & exits.OPERATIONAL and "is whole in" in refused.stdout + refused.stderr

    @pytest.mark.long
    def test_a_thousand_small_stores_need_a_driver_of_512_mb(self, tmp_path: Path) -> None:
        first = synth_store(tmp_path / "stores" / "0", messages=20, keys=1).root
        for number in range(1, 1000):
            shutil.copytree(first, first.with_name(str(number)))
        damage("bit-in-body", first.with_name("500"), 1)
        document = fleet_verify(f"{tmp_path}/stores/*", "--into", tmp_path / "into", "--json").document
        assert (document["total"]["read"], document["total"]["bad"]) == (1000, 1)

    @pytest.mark.deep
    def test_workers_of_a_cluster_verify_and_write(self, running: Cluster, backups: Path, tmp_path: Path) -> None:
        result = mqtool("fleet", "verify", f"{backups}/*/store", "--into", tmp_path / "into", "--json", *running.line())
        assert result.code == exits.MESSAGES | exits.DERIVED, result.stderr
        assert [row["error"] for row in table(result.document, "stores")] == [None] * 4

    def test_the_commands_of_the_runbook_run(self, backups: Path, tmp_path: Path) -> None:
        (tmp_path / "lib").mkdir()
        for place in ("runbooks/verify-last-nights-backups.md", "commands/fleet.md"):
            blocks = re.findall(r"^```(?:console|sh|python|cron)\n(.*?)^```", (DOCS / place).read_text(),
                                re.MULTILINE | re.DOTALL)
            lines = [line for block in blocks for line in re.findall(r"mqtool (?:fleet|export) [^\n\"]+", block)]
            assert lines
            (tmp_path / "lib" / "lake").mkdir(exist_ok=True)
            listing = tmp_path / "stores"
            listing.write_text(f"# one a line\n{backups}/host-0/store\n\n{backups}/*/store\n")
            for line in dict.fromkeys(lines):
                line = line.replace("/backups", str(backups)).replace("/etc/mqtool/stores", str(listing))
                line = line.replace("/shared/", "/var/lib/mqtool/").replace("/var/lib/mqtool", str(tmp_path / "lib"))
                line = line.replace("/a/store", "/host-0/store").replace("/b/store", "/host-1/store")
                words = shlex.split(line.replace("--master spark://head:7077", "").partition(" >")[0])[1:]
                result = mqtool(*words, *LOCAL)
                assert result.code & ~(exits.MESSAGES | exits.DERIVED) == 0, (line, result.stdout, result.stderr)


def test_a_run_of_which_a_table_is_gone_or_unreadable_is_not_built_on(tmp_path: Path) -> None:
    for run in ("run=1", "run=2"):
        for name in ("stores", "findings"):
            (tmp_path / name / run).mkdir(parents=True)
    assert fleet.last_run(tmp_path) == "2"
    (tmp_path / "findings" / "run=2").rmdir()
    assert fleet.last_run(tmp_path) == "1"
    for name in ("stores", "findings"):
        (tmp_path / name / "run=1" / "part-0.parquet").write_text("no table")
        with pytest.raises(Refusal, match="cannot be read"):
            list(fleet._batches(tmp_path, name, "1"))


def killed(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def broken(*_: object) -> None:
    raise ValueError("surprise")


def test_a_process_that_is_killed_costs_its_own_row_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = real_store("clean-5.3.3", tmp_path)
    for end, code, words in ((killed, 8, "ended by SIGKILL"), (broken, 128, "ValueError: surprise")):
        with monkeypatch.context() as patch:
            patch.setattr(fleet, "verify", end)
            row = in_process(root, tmp_path / "found")
        assert row.exit_code == code
        assert words in str(row.error)
        assert row.fingerprint == ""
    assert in_process(root, tmp_path / "found").exit_code == 0


def test_messages_and_remedies_are_those_of_verify(tmp_path: Path) -> None:
    root = real_store("clean-manyfiles-5.3.3", tmp_path)
    damage("log-middle-missing", root, 1)
    names = ("code", "file", "message", "remedy")
    rows = [tuple(row[name] for name in names) for row in findings_of(str(root))]
    alone = mqtool("verify", root, "--json").document["findings"]
    assert rows == [tuple(item[name] for name in names) for item in alone]
    assert any("--commitlog" in row[3] for row in rows)


def test_a_store_that_changes_while_it_is_read_is_not_taken_for_one_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = real_store("killed-5.5.0", tmp_path)
    real = fleet.verify

    def written(*arguments: Any) -> Any:
        (root / "config" / "new").write_text("")
        return real(*arguments)

    monkeypatch.setattr(fleet, "verify", written)
    row = in_process(root, tmp_path / "found")
    assert (row.exit_code, row.error, row.fingerprint) == (8 | 2, "it changed while it was read", "")


def test_a_store_that_a_broker_writes_to_is_seen_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may change since the driver listed it and while it is read, but not be another broker's."""
    root, later = (synth_store(tmp_path / name, messages=messages, keys=0).root
                   for name, messages in (("s", 60), ("later", 120)))
    (root / "lock").write_bytes(b"lock")
    item, real = listed(str(root), "1"), fleet.settled
    (root / "config" / "new").write_text("")

    def and_then_more(store: Store) -> Store:
        seen = real(store)
        shutil.copytree(later, root, dirs_exist_ok=True, ignore=shutil.ignore_patterns("lock"))
        return seen

    monkeypatch.setattr(fleet, "settled", and_then_more)
    (tmp_path / "found").mkdir()

    def row_of(item: Listed) -> StoreRow:
        return next(verify_stores([FleetTask([item], str(tmp_path / "found"), "1")]))[0]

    with locked(record_lock(root)):
        row = row_of(item)
        assert (row.exit_code, row.error, row.messages, row.fingerprint) == (0, None, 60, "")
        os.utime(root / "lock")  # as a start does
        row = row_of(item)
    assert row.exit_code == 8 and "lists other files than the driver" in str(row.error)


def test_a_worker_that_lists_other_files_than_the_driver_verifies_nothing(tmp_path: Path) -> None:
    row = in_process(real_store("clean-5.3.3", tmp_path), tmp_path / "found", fingerprint="of another store")
    assert row.exit_code == 8
    assert "lists other files than the driver" in str(row.error)
    assert row.messages == 0


def test_a_listing_notices_what_may_have_changed_a_file(tmp_path: Path) -> None:
    root = real_store("clean-5.3.3", tmp_path)
    seen = {listed(str(root), "1").fingerprint}
    log = next((root / "commitlog").iterdir())

    def swap() -> None:
        other = log.with_name("other")
        other.write_bytes(log.read_bytes())
        other.replace(log)

    def same_time() -> None:
        kept = log.stat()
        write_at(log, 0, b"\1")
        os.utime(log, ns=(kept.st_atime_ns, kept.st_mtime_ns))

    for change in (swap, same_time, lambda: (root / "abort").touch(), lambda: (root / "abort").unlink(),
                   lambda: (root / "loop").symlink_to(root)):
        change()
        now = listed(str(root), "1").fingerprint
        assert now and now not in seen
        seen.add(now)
    assert listed(str(root), "2").fingerprint not in seen
    assert listed(str(tmp_path / "nowhere"), "1").fingerprint == ""


def test_patterns_name_folders_and_each_store_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a/store", "b/store", "c [1]/store"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "note").write_text("")
    listing = tmp_path / "list"
    listing.write_text("# comment\n\n b/store \ns3://bucket/a/store\n")
    monkeypatch.chdir(tmp_path)
    assert named_stores(["*/store", "a/store"], listing) == [
        *(f"{tmp_path}/{name}" for name in ("a/store", "b/store", "c [1]/store")), "s3://bucket/a/store"]
    assert named_stores(["c [1]/store"]) == [f"{tmp_path}/c [1]/store"]
    listing.write_bytes(b"\xef\xbb\xbf# of Windows\r\nb/store\r\n\r\nb/store/\r\nb/\xff\r\n")
    assert named_stores([], listing) == [f"{tmp_path}/b/store", f"{tmp_path}/b/\udcff"]
    for words in (["x/*"], ["not*"], []):
        with pytest.raises(UsageRefusal):
            named_stores(words)


@pytest.mark.parametrize("words", [
    ("verify", "STORE"), ("verify", "--into", "DIR"), ("verify", "STORE", "--into", "STORE/config"),
    ("verify", "STORE", "--into", "DIR", "--stores", "nowhere"), ("look", "STORE", "--into", "DIR"),
    ("verify", "nothing/*", "--into", "DIR"), ("verify", "STORE", "--into", "DIR", "--master", "mesos://x"),
])
def test_a_wrong_line_writes_nothing(words: tuple[str, ...], tmp_path: Path) -> None:
    root = real_store("clean-5.3.3", tmp_path)
    before = tree_digest(tmp_path)
    line = [word.replace("STORE", str(root)).replace("DIR", str(tmp_path / "into")) for word in words]
    result = mqtool("fleet", *line, "--json")
    assert result.code == 8 if "nowhere" in words else 16
    held(result.document, "fleet")
    assert_same_tree(before, tree_digest(tmp_path))
