"""Parts that must be there, or whole, though mqtool does not read what they hold: never "clean", never "start it".

What 5.5.0 does with each was asked of a real broker (`NO_START`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.lab.packed import manifest
from mqtool import exits
from tests.cli.runner import Result, mqtool
from tests.support.stores import KINDS, real_store
from tests.support.trees import assert_unchanged

Harm = Callable[[Path], None]
ROCKSDB, ACL = "kinds/clean-rocksdb-5.5.0", "kinds/clean-acl-5.5.0"
NO_START, STARTS, CANNOT_SAY = exits.MESSAGES, None, exits.UNSUPPORTED


def newest(root: Path, pattern: str) -> Path:
    return sorted(root.glob(pattern))[-1]


def gone(pattern: str) -> Harm:
    def harm(root: Path) -> None:
        for path in root.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return harm


def cut(pattern: str, left: float) -> Harm:
    def harm(root: Path) -> None:
        path = newest(root, pattern)
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * left)])
    return harm


def noise(pattern: str) -> Harm:
    def harm(root: Path) -> None:
        path = newest(root, pattern)
        path.write_bytes(bytes(byte ^ 0x5A for byte in path.read_bytes()))
    return harm


def notable(result: Result) -> set[str]:
    return {item["code"] for item in result.document["findings"] if item["severity"] != "info"}


def predicted(root: Path, *settings: str) -> Result:
    options = [word for setting in settings for word in ("--set", setting)]
    return mqtool("predict", root, "--broker", "5.5.0", *options, "--json")


@pytest.mark.parametrize(("name", "part", "harm", "start"), [
    (ROCKSDB, "consumequeue", gone("consumequeue/CURRENT"), NO_START),
    (ROCKSDB, "consumequeue", gone("consumequeue/MANIFEST-*"), NO_START),
    (ROCKSDB, "consumequeue", noise("consumequeue/MANIFEST-*"), NO_START),
    (ROCKSDB, "consumequeue", cut("consumequeue/MANIFEST-*", 0.5), STARTS),
    (ROCKSDB, "consumequeue", gone("consumequeue/000010.sst"), NO_START),
    (ROCKSDB, "consumequeue", cut("consumequeue/000010.sst", 0.5), NO_START),
    (ROCKSDB, "consumequeue", noise("consumequeue/000010.sst"), NO_START),
    (ROCKSDB, "config/topics", cut("config/topics/MANIFEST-*", 0.9), STARTS),
    (ACL, "config/users", cut("config/users/MANIFEST-*", 0), NO_START),
    (ACL, "config/users", cut("config/users/MANIFEST-*", 0.1), NO_START),
    (ACL, "config/acls", noise("config/acls/*.sst"), NO_START),
    (ACL, "rocksdbstore", gone("rocksdbstore/CURRENT"), NO_START),
])
def test_a_database_that_is_not_whole_is_damaged(
    name: str, part: str, harm: Harm, start: int | None, folder: Path,
) -> None:
    root = real_store(name, folder)
    harm(root)
    with assert_unchanged(root):
        found = mqtool("verify", root, "--json")
    assert [item["file"] for item in found.document["findings"] if item["code"] == "part-damaged"] == [part]
    assert found.code & exits.DERIVED
    said = predicted(root)
    assert said.code & (start or CANNOT_SAY)
    assert said.document["starts"] is (False if start == NO_START else None if name == ROCKSDB else True)
    if start == NO_START:
        assert part in said.document["reason"]


def test_a_database_needs_no_options(folder: Path) -> None:
    root = real_store(ROCKSDB, folder)
    gone("consumequeue/OPTIONS-*")(root)
    assert "part-damaged" not in notable(mqtool("verify", root, "--json"))


@pytest.mark.parametrize(("name", "part", "settings", "harm"), [
    (ROCKSDB, "consumequeue", (), gone("consumequeue")),
    ("kinds/clean-batch-5.5.0", "batchconsumequeue/Batched", (), gone("batchconsumequeue")),
    ("kinds/clean-batch-5.5.0", "batchconsumequeue/Batched", (), gone("batchconsumequeue/Batched")),
    ("kinds/clean-compaction-5.5.0", "compaction/compactionCq/Compacted/0", (), gone("compaction/compactionCq")),
    ("kinds/clean-compaction-5.5.0", "compaction/compactionLog/Compacted/0", (), gone("compaction/compactionLog")),
    ("kinds/clean-compaction-5.5.0", "compaction/compactionLog/Compacted/0", (), gone("compaction/compaction*")),
    ("clean-v2-5.5.0", "kvStore", ("popConsumerKVServiceInit=true",), gone("kvStore")),
    (ACL, "config/users", ("authenticationMetadataProvider=org.example.LocalAuthenticationMetadataProvider",),
     gone("config/users")),
])
def test_a_part_that_is_gone_is_missed_by_who_knows_of_it(
    name: str, part: str, settings: tuple[str, ...], harm: Harm, folder: Path,
) -> None:
    root = real_store(name, folder)
    harm(root)
    options = [word for setting in settings for word in ("--set", setting)]
    with assert_unchanged(root):
        found = mqtool("verify", root, *options, "--json")
    missing = [item["file"] for item in found.document["findings"] if item["code"] == "part-missing"]
    assert missing == [part] and found.code & exits.DERIVED
    said = predicted(root, *settings)
    assert said.code & CANNOT_SAY
    assert part in str(said.document["unsupported"])
    assert "lose nothing" not in mqtool("predict", root, *options, "--quiet").stdout
    with assert_unchanged(root):
        assert mqtool("recover", root, "--yes", *options, "--json").code == found.code


@pytest.mark.parametrize("name", [name for name in KINDS if manifest(name)["kind"] == "combined"])
def test_settings_of_two_queue_stores_that_stop_a_start(name: str, folder: Path) -> None:
    root = real_store(name, folder)
    double, lmq, separate = (f"{setting}=true" for setting in (
        "rocksdbCQDoubleWriteEnable", "combineCQUseRocksdbForLmq", "useSeparateStorePathForRocksdbCQ"))
    assert predicted(root, double).document["starts"] is False
    assert "combineCQUseRocksdbForLmq" in predicted(root, double).document["reason"]
    assert predicted(root, double, lmq).document["starts"] is True
    assert "consumequeue" in predicted(root, double, lmq, separate).document["reason"]
    assert mqtool("predict", root, "--broker", "5.3.3", "--set", double, "--json").document["starts"] is True


def test_the_other_folder_of_a_rocksdb_of_queues_stops_a_start(folder: Path) -> None:
    root = real_store(ROCKSDB, folder)
    separate, rocksdb = "useSeparateStorePathForRocksdbCQ=true", "storeType=defaultRocksDB"
    assert predicted(root, rocksdb).document["starts"] is None
    assert predicted(root, rocksdb, separate).document["starts"] is False
    shutil.move(root / "consumequeue", root / "consumequeue_rocksdb")
    assert predicted(root, rocksdb, separate).document["starts"] is None
    assert predicted(root, rocksdb).document["starts"] is False
