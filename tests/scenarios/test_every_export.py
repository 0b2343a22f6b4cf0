"""An export holds exactly the intact records, whatever is broken: counted by a reader that shares no code with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.damage import RECIPES, NotApplicable, damage
from tests.cli.runner import mqtool
from tests.scenarios.test_every_recipe import STORES
from tests.support import plain_reader as plain
from tests.support.sampling import sampled

SAMPLE = [
    ("clean-manyfiles-5.3.3", "page-random"), ("clean-plain-4.9.7", "bit-in-size"),
    ("killed-lmq-4.9.7", "log-misnamed"),
    ("killed-5.5.0", "ghosts-behind-tail"), ("clean-5.3.3", "crash-after-truncation"),
]


def by_reader(root: Path) -> dict[int, plain.Record]:
    """Every intact record of a store that is no stand-in, by its own place, whatever its file is called."""
    found: dict[int, plain.Record] = {}
    for folder in plain.log_folders(root):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if not path.is_file() or not path.name.isdecimal():
                continue
            content = path.read_bytes()
            # the place that most records name: by the file's name, or by its first bytes
            places = {int(path.name), int.from_bytes(content[28:36], "big")}
            for record in max(([*plain.all_records(content, base)] for base in places), key=len):
                found.setdefault(record.phy_offset, record)
    return {at: record for at, record in found.items() if not record.stands_in and not ends_in_zeros(record)}


def ends_in_zeros(record: plain.Record) -> bool:
    """Whether a page was lost before it reached the disk, under properties that no checksum covers (docs/format.md)."""
    return bool(record.properties) and record.content.endswith(b"\0")


def held_to(store: str, recipe: str, make: Callable[[str], Path], tmp_path: Path) -> None:
    root, out = make(store), tmp_path / "out.ndjson"
    try:
        damage(recipe, root, 3)
    except NotApplicable as reason:
        pytest.skip(str(reason))
    due = by_reader(root)
    result = mqtool("export", root, "-o", out, "--include", "stale,superseded,system", "--json")
    if not due and result.code in (8, 16):
        return  # nothing is left that looks like a store, or its log is missing and that is told
    assert result.code == 0, result.stdout[-2000:]
    lines = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert len(lines) == result.document["messages"]
    got = {line["phy_offset"]: line for line in lines}
    assert len(got) == len(lines)
    # the reader takes no text that is no UTF-8; brokers do, where no checksum speaks against it
    doubtful = {at for at in got.keys() - due.keys() if "\ufffd" in str(got[at]["properties"])}
    assert got.keys() - doubtful == due.keys()
    for at, record in due.items():
        line = got[at]
        assert (line["stored_topic"], line["stored_queue"], line["queue_offset"], line["store_time"], line["size"]) == (
            record.topic, record.queue_id, record.queue_offset, record.store_time, record.size)


@pytest.mark.parametrize(("store_name", "recipe"), SAMPLE)
def test_an_export_holds_exactly_the_intact_records(
    store_name: str, recipe: str, store: Callable[[str], Path], tmp_path: Path,
) -> None:
    held_to(store_name, recipe, store, tmp_path)


@pytest.mark.parametrize(("store_name", "recipe"), sampled(STORES, RECIPES, one_in=60))
def test_so_does_that_of_every_store_and_recipe(
    store_name: str, recipe: str, store: Callable[[str], Path], tmp_path: Path,
) -> None:
    held_to(store_name, recipe, store, tmp_path)
