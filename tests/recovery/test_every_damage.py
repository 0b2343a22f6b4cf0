"""Every damage recipe on real stores: recovered without losing an intact message, settled, and undone bit for bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage import RECIPES, NotApplicable, damage
from mqtool import exits
from mqtool.cli import main
from tests.support.stores import STORES
from tests.support.trees import assert_same_tree, tree_digest

# Queues without any log: most likely a disk is not mounted, so nothing may be changed.
REFUSED = {"log-all-missing"}
# What no recovery can know or may decide: offsets of consumers, and folders that somebody made.
LEFT = {"consumer-offset-above-max", "delay-offset-above-max"}
LEFT_BY = {"log-stray-folder": {"commitlog-odd-name"}}
SAMPLE = [
    "bit-in-body", "bit-in-size", "page-zeroed", "blank-zeroed", "torn-tail", "ghosts-behind-tail", "log-last-short",
    "log-last-empty", "queue-units-swapped", "queue-ahead", "topic-queues-missing", "index-chain-cycle",
    "checkpoint-garbage", "config-cut-bak-sound", "crash-power-loss", "log-all-missing",
]


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main([*arguments, "--json"])
    said = capsys.readouterr()
    assert code < exits.BUG, said.err
    return code, json.loads(said.out)


def _recovered_and_undone(name: str, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        damage(name, root)
    except NotApplicable:
        pytest.skip("the store lacks what this damages")
    damaged = tree_digest(root)
    _, before = _run(capsys, "verify", str(root))
    code, _ = _run(capsys, "recover", str(root), "--yes")
    if code & exits.OPERATIONAL:
        assert name in REFUSED
        assert_same_tree(damaged, tree_digest(root))
        return
    _, after = _run(capsys, "verify", str(root))
    left = {item["code"] for item in after["findings"] if item["severity"] == "warning"}
    assert left <= LEFT | LEFT_BY.get(name, set())
    assert after["commitlog"]["messages"] >= before["commitlog"]["messages"]
    settled = tree_digest(root)
    again, _ = _run(capsys, "recover", str(root), "--yes")
    assert again & ~(exits.MESSAGES | exits.DERIVED) == exits.CLEAN
    assert_same_tree(settled, tree_digest(root))
    if not code & exits.CORRECTED:
        assert_same_tree(damaged, settled)
        return
    code, _ = _run(capsys, "undo", str(root), "--yes")
    assert code & (exits.OPERATIONAL | exits.USAGE) == 0
    assert_same_tree(damaged, tree_digest(root))


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_a_damage_is_recovered_and_undone(
    name: str, store: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _recovered_and_undone(name, store("killed-5.5.0"), capsys)


@pytest.mark.deep
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("source", STORES)
def test_every_damage_is_recovered_and_undone(
    name: str, source: str, store: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _recovered_and_undone(name, store(source), capsys)
