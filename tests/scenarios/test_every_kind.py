"""A store of every kind, as its broker left it and with its log not mounted: what mqtool says of it and does to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.lab.packed import manifest
from mqtool import exits
from tests.cli.runner import mqtool
from tests.support.sampling import sampled
from tests.support.stores import KINDS, broker_conf, real_store, unmount_log
from tests.support.trees import assert_same_tree, assert_unchanged, tree_digest

#: What a kill leaves to correct. In the log nothing.
_AFTER_A_KILL = ("abort", "checkpoint", "consumequeue", "index", "config")
#: Kinds that keep in a part of their own what consumers get: no prediction can be made without it.
_ELSEWHERE = ("dledger", "mixed", "rocksdb", "batch", "compaction", "tiered", "services", "config2", "separate")

every_kind = pytest.mark.parametrize(("name", "settings"), sampled(KINDS, ("broker.conf", "nothing"), quick=len(KINDS)))


def ready(name: str, folder: Path, settings: str) -> tuple[Path, list[object]]:
    """A copy of the store, and the options that a user gives who has its settings, or has not."""
    root = real_store(name, folder)
    conf = broker_conf(name, root, folder / "broker.conf")
    return root, ["--broker-conf", conf] if settings == "broker.conf" else []


@every_kind
def test_a_healthy_store_has_no_damaged_message_and_no_part_missing(name: str, settings: str, tmp_path: Path) -> None:
    root, options = ready(name, tmp_path, settings)
    with assert_unchanged(root):
        verified = mqtool("verify", root, *options, "--json")
        predicted = mqtool("predict", root, *options, "--json")
    found = [item for item in verified.document["findings"] if item["severity"] != "info"]
    assert not [item for item in found if item["severity"] == "error"]
    assert not {item["code"] for item in found} & {"part-missing", "part-damaged"}
    assert verified.code & ~(exits.DERIVED | exits.UNSUPPORTED) == 0
    # a prediction does not promise what an unread part decides
    assert not predicted.code & exits.MESSAGES and predicted.document["starts"] in (True, None)
    assert predicted.code & exits.UNSUPPORTED == verified.code & exits.UNSUPPORTED
    assert predicted.code & exits.UNSUPPORTED or manifest(name)["kind"] not in _ELSEWHERE
    assert len(set(predicted.document["unsupported"])) == len(predicted.document["unsupported"])
    if predicted.code & exits.UNSUPPORTED:
        said = mqtool("predict", root, *options).stdout.lower()
        assert "lose nothing" not in said and "loses nothing" not in said


@every_kind
def test_recover_changes_nothing_of_a_healthy_store(name: str, settings: str, tmp_path: Path) -> None:
    """Or it refuses. What a kill left in what derives from the log it may correct; whether rightly real brokers say."""
    root, options = ready(name, tmp_path, settings)
    before = tree_digest(root)
    result = mqtool("recover", root, "--yes", *options, "--json")
    after = tree_digest(root)
    assert not result.code & exits.MESSAGES
    if manifest(name)["exit_state"] == "killed" and not result.code & exits.OPERATIONAL:
        before, after = ({path: node for path, node in tree.items() if path != "." and not
                          path.startswith(_AFTER_A_KILL)} for tree in (before, after))
        assert before == after
    else:
        assert_same_tree(before, after)


@every_kind
def test_log_that_is_not_mounted_is_said_and_nothing_is_written(name: str, settings: str, tmp_path: Path) -> None:
    root, options = ready(name, tmp_path, settings)
    unmount_log(root)
    with assert_unchanged(root):
        assert mqtool("verify", root, *options).code & exits.MESSAGES
        assert mqtool("predict", root, *options).code & (exits.MESSAGES | exits.UNSUPPORTED)
        assert mqtool("recover", root, "--yes", *options).code & exits.OPERATIONAL
