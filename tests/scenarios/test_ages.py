"""Parts of one store that are of different ages, as after a restore from several backups."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mqtool import exits
from tests.cli.runner import mqtool
from tests.scenarios.drill import readers_of
from tests.support import plain_reader as plain
from tests.support.sampling import sampled
from tests.support.stores import copy_store, unpacked
from tests.support.trees import assert_unchanged

Aged = Callable[[str, int], Path]
BACK = (0, 7, 60, 200)
"""So many records before the end of the log."""


@pytest.fixture(scope="module")
def aged(tmp_path_factory: pytest.TempPathFactory) -> Aged:
    """A packed store as it was before its last so many records were stored."""
    folder, made = tmp_path_factory.mktemp("aged"), dict[tuple[str, int], Path]()

    def at(name: str, back: int) -> Path:
        if (name, back) not in made:
            root = made[name, back] = copy_store(unpacked(name), folder / f"{name}-{back}")
            if back:
                end = plain.records(root)[-back].phy_offset
                done = mqtool("truncate", root, "--to", end, "--max-loss", back, "--yes")
                assert done.code & (exits.OPERATIONAL | exits.USAGE) == 0
                shutil.rmtree(root / ".mqtool")
        return made[name, back]

    return at


@pytest.mark.parametrize(("name", "log", "queues", "index", "checkpoint"), sampled(
    ("clean-plain-4.9.7", "clean-5.3.3"), BACK, BACK, BACK, BACK, quick=2, one_in=25,
))
def test_parts_of_several_ages_lose_no_message_and_what_is_gone_is_said(
    aged: Aged, folder: Path, name: str, log: int, queues: int, index: int, checkpoint: int
) -> None:
    root = copy_store(aged(name, log), folder / "store")
    for part, back in (("consumequeue", queues), ("index", index), ("checkpoint", checkpoint)):
        source, target = aged(name, back) / part, root / part
        if target.is_dir():
            shutil.rmtree(target)
            shutil.copytree(source, target)
        else:
            shutil.copy2(source, target)
    with assert_unchanged(root):
        assert mqtool("verify", root).code & exits.BUG == 0
    done = mqtool("recover", root, "--yes", "--max-loss", "all", "--json")
    assert done.code & (exits.OPERATIONAL | exits.BUG) == 0
    said = done.document["damaged_messages"] + done.document["unproven_messages"]
    assert said <= max(0, log - min(queues, index, checkpoint))
    assert said or log - min(queues, index) <= 7  # the last seven have no key
    assert plain.delivered(root).items() >= plain.delivered(aged(name, log)).items()
    assert mqtool("verify", root).code & ~exits.DERIVED == 0
    for version in readers_of(name):
        assert mqtool("predict", root, "--broker", version).code & exits.MESSAGES == 0
