"""What a plan remembers of the store's files: those behind links, too, and nothing further away."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from recover.change.model import Plan
from recover.change.preconditions import seal
from recover.derived.expected import QueueKey
from recover.findings.refusal import Refusal
from recover.store.memo import seen_now
from tests.support.looks import opened

StoreCopy = Callable[[str], Path]


def queue_behind_a_link(root: Path, linked: str) -> tuple[QueueKey, Path]:
    """A queue, and a file of it, whose folder or whose topic's is now a link to one beside the store."""
    key, path = first_queue(root)
    folder = path.parent if linked == "queue" else path.parent.parent
    folder.rename(aside := root.with_name("aside"))
    folder.symlink_to(aside)
    return key, path


def first_queue(root: Path) -> tuple[QueueKey, Path]:
    folder = opened(root).queue_folders[0]
    return QueueKey(folder.topic, folder.queue_id), sorted(folder.path.iterdir())[0]


@pytest.mark.parametrize("linked", ["topic", "queue"])
def test_a_file_behind_a_link_that_changed_is_no_longer_as_it_was_seen(linked: str, store: StoreCopy) -> None:
    root = store("clean-plain-4.9.7")
    _, path = queue_behind_a_link(root, linked)
    seen = seen_now(opened(root))
    assert path.relative_to(root).as_posix() in seen
    os.truncate(path, path.stat().st_size - 20)
    with pytest.raises(Refusal, match="changed while the store was read"):
        seal(Plan("rebuild", []), root, seen=seen)


def test_a_link_that_leads_out_of_the_store_is_not_followed_deeper_than_queues_lie(store: StoreCopy) -> None:
    root = store("clean-plain-4.9.7")
    (deep := root.with_name("deep") / "0" / "far" / "away").mkdir(parents=True)
    (deep / "file").touch()
    (deep.parent / "loop").symlink_to(root.with_name("deep"))
    (root / "consumequeue" / "Linked").symlink_to(root.with_name("deep"))
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "linked").symlink_to(root.with_name("deep"))
    (root / "consumequeue" / "broken").symlink_to(root / "nowhere")
    linked = {name for name in seen_now(opened(root)) if "inked" in name}
    assert linked == {"consumequeue/Linked", "consumequeue/Linked/0"}
