"""Queues and index files that did not change since they were judged keep their verdicts; all others get new ones."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from fixtures import shapes
from fixtures.damage import RECIPES, NotApplicable, damage, of_area
from recover.broker.delays import SCHEDULE_TOPIC
from recover.errors import Refusal
from recover.evidence.expected import QueueKey
from recover.files.seen import seen_now
from recover.files.store import Store, StoreOptions
from recover.plan.model import Plan
from recover.plan.preconditions import seal
from recover.scan.engine import LocalEngine
from recover.verify.known_parts import KnownParts
from recover.verify.report import VerifyReport, verify
from recover.verify.survey import ScanOptions
from tests.support.looks import opened
from tests.support.sampling import sampled

STORES = (
    "clean-plain-4.9.7", "killed-lmq-4.9.7", "clean-expired-5.5.0", "clean-4.5.1", "killed-ext-5.5.0", "clean-5.3.3",
)
DERIVED = [name for area in ("queue", "index", "checkpoint", "config") for name in of_area(area)]
StoreCopy = Callable[[str], Path]


def looked_at(root: Path, options: ScanOptions | None = None) -> KnownParts:
    store = opened(root)
    seen = seen_now(store)
    return KnownParts(verify(store, options), seen)


def again(root: Path, known: KnownParts, **options: Any) -> VerifyReport:
    return verify(opened(root), ScanOptions(engine=known.engine(LocalEngine()), known=known, **options))


def kept(known: KnownParts, now: VerifyReport) -> tuple[set[QueueKey], bool]:
    """Queues that have their verdicts from before, and whether the index has its report."""
    before, after = known.report.survey.queues, now.survey.queues
    assert before is not None and after is not None
    same = {key for key, verdict in after.verdicts.items() if before.verdicts.get(key) is verdict}
    return same, now.index is known.report.index


def says(report: VerifyReport) -> dict[str, Any]:
    return {**report.json(), "seconds": 0, "findings": [structs.asdict(finding) for finding in report.findings]}


def queue_behind_a_link(root: Path, linked: str) -> tuple[QueueKey, Path]:
    """A queue, and a file of it, whose folder or whose topic's is now a link to one beside the store."""
    key, path = first_queue(root)
    folder = path.parent if linked == "queue" else path.parent.parent
    folder.rename(aside := root.with_name("aside"))
    folder.symlink_to(aside)
    return key, path


def change(path: Path, at: int = 0) -> None:
    """Flip a bit, and leave size and mtime as they were."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def queues_of(report: VerifyReport) -> set[QueueKey]:
    assert report.survey.queues is not None
    return set(report.survey.queues.verdicts)


def first_queue(root: Path) -> tuple[QueueKey, Path]:
    folder = opened(root).queue_folders[0]
    return QueueKey(folder.topic, folder.queue_id), sorted(folder.path.iterdir())[0]


@pytest.mark.parametrize("name", ["clean-plain-4.9.7", "clean-expired-5.5.0", "clean-4.5.1", "clean-multipath-4.9.7"])
def test_of_a_store_that_did_not_change_nothing_is_judged_again(name: str, store: StoreCopy) -> None:
    root = store(name)
    known = looked_at(root)
    now = again(root, known)
    assert kept(known, now) == (queues_of(now), True)
    assert says(now) == says(known.report) == says(verify(opened(root)))


@pytest.mark.parametrize("part", ["commitlog", "consumequeue", "index"])
def test_parts_that_lie_elsewhere_keep_their_verdicts_too(
    part: str, store: StoreCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = store("clean-plain-4.9.7")
    (root / part).rename(root.with_name("elsewhere"))
    monkeypatch.chdir(root)
    place = Path("..", "elsewhere")
    options = StoreOptions(**{part: (place,) if part == "commitlog" else place})  # type: ignore[arg-type]
    opened_there = Store.open(root, options)
    seen = seen_now(opened_there)
    known = KnownParts(verify(opened_there), seen)
    now = verify(Store.open(root, options), ScanOptions(engine=known.engine(LocalEngine()), known=known))
    assert kept(known, now) == (queues_of(now), True)
    assert now.survey.log is known.report.survey.log


def test_a_changed_queue_alone_is_judged_again(store: StoreCopy) -> None:
    root = store("clean-plain-4.9.7")
    known = looked_at(root)
    key, path = first_queue(root)
    change(path, 7)
    now = again(root, known)
    assert kept(known, now) == (queues_of(now) - {key}, True)
    assert {finding.code for finding in now.findings} == {"consumequeue-wrong-units"}


@pytest.mark.parametrize("gone", [True, False])
def test_a_queue_that_went_or_came_is_judged_again(gone: bool, store: StoreCopy) -> None:
    root = store("clean-plain-4.9.7")
    key, path = first_queue(root)
    aside = root.with_name("aside")
    if not gone:
        path.parent.rename(aside)
    known = looked_at(root)
    path.parent.rename(aside) if gone else aside.rename(path.parent)
    now = again(root, known)
    assert kept(known, now) == (queues_of(now) - {key}, True)
    assert bool(now.exit_code) is gone


@pytest.mark.parametrize("first", [True, False])
def test_a_queue_in_whose_folder_another_one_came_or_went_is_judged_again(first: bool, store: StoreCopy) -> None:
    root = store("clean-plain-4.9.7")
    key, path = first_queue(root)
    stray = path.with_name("backup")
    if first:
        stray.mkdir()
    known = looked_at(root)
    stray.rmdir() if first else stray.mkdir()
    now = again(root, known)
    assert kept(known, now) == (queues_of(now) - {key}, True)
    assert bool(now.exit_code) is not first


@pytest.mark.parametrize("linked", ["topic", "queue"])
def test_a_queue_behind_a_link_is_judged_again_if_it_changed(linked: str, store: StoreCopy) -> None:
    root = store("clean-plain-4.9.7")
    key, path = queue_behind_a_link(root, linked)
    known = looked_at(root)
    assert known.report.exit_code == 0
    assert kept(known, again(root, known)) == (queues_of(known.report), True)
    change(path, 7)
    now = again(root, known)
    assert key not in kept(known, now)[0]
    assert {finding.code for finding in now.findings} == {"consumequeue-wrong-units"}


@pytest.mark.parametrize("linked", ["topic", "queue"])
def test_a_file_behind_a_link_that_changed_is_no_longer_as_it_was_seen(linked: str, store: StoreCopy) -> None:
    root = store("clean-plain-4.9.7")
    _, path = queue_behind_a_link(root, linked)
    seen = seen_now(opened(root)).files
    assert path.relative_to(root).as_posix() in seen
    os.truncate(path, path.stat().st_size - 20)
    with pytest.raises(Refusal, match="changed while the store was read"):
        seal(Plan.of("rebuild", []), root, seen=seen)


def test_a_link_that_leads_out_of_the_store_is_not_followed_deeper_than_queues_lie(store: StoreCopy) -> None:
    root = store("clean-plain-4.9.7")
    (deep := root.with_name("deep") / "0" / "far" / "away").mkdir(parents=True)
    (deep / "file").touch()
    (deep.parent / "loop").symlink_to(root.with_name("deep"))
    (root / "consumequeue" / "Linked").symlink_to(root.with_name("deep"))
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "linked").symlink_to(root.with_name("deep"))
    (root / "consumequeue" / "broken").symlink_to(root / "nowhere")
    folders = {name for name in seen_now(opened(root)).folders if "inked" in name}
    assert folders == {"consumequeue/Linked", "consumequeue/Linked/0"}


def test_a_queue_that_could_not_be_read_is_judged_again(store: StoreCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    root = store("clean-plain-4.9.7")
    key, path = first_queue(root)
    read = os.preadv

    def failing(descriptor: int, *how: Any) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(path):
            raise OSError(5, os.strerror(5))
        return read(descriptor, *how)

    monkeypatch.setattr(os, "preadv", failing)
    known = looked_at(root)
    monkeypatch.setattr(os, "preadv", read)
    assert "consumequeue-unreadable" in {finding.code for finding in known.report.findings}
    now = again(root, known)
    assert now.exit_code == 0
    assert kept(known, now) == (queues_of(now) - {key}, True)


@pytest.mark.parametrize("name", ["index", "checkpoint", "abort"])
def test_an_index_is_judged_again_with_what_it_is_judged_by(name: str, store: StoreCopy) -> None:
    root = store("clean-plain-4.9.7")
    known = looked_at(root)
    if name == "abort":
        (root / name).touch()
    else:
        change(sorted((root / name).iterdir())[0] if name == "index" else root / name, 7)
    now = again(root, known)
    assert kept(known, now) == (queues_of(now), False)
    assert says(now) == says(verify(opened(root)))


@pytest.mark.parametrize("stray", ["folder", "file"])
def test_an_index_with_something_new_beside_it_is_judged_again(stray: str, store: StoreCopy) -> None:
    root = store("clean-plain-4.9.7")
    known = looked_at(root)
    (root / "index" / "stray").mkdir() if stray == "folder" else (root / "index" / "stray").touch()
    now = again(root, known)
    assert kept(known, now)[1] is False
    assert says(now) == says(verify(opened(root)))


def test_nothing_is_known_behind_a_log_that_changed(store: StoreCopy) -> None:
    root = store("clean-plain-4.9.7")
    known = looked_at(root)
    change(opened(root).commitlog.files[0].path, 95)
    now = again(root, known)
    assert kept(known, now) == (set(), False)
    assert now.survey.log.damaged


def test_all_queues_are_judged_again_where_the_log_asks_for_others(store: StoreCopy) -> None:
    root = store("clean-5.3.3")
    known = looked_at(root, ScanOptions(include_deleted=True))
    topics = root / "config" / "topics.json"
    key, _ = first_queue(root)
    topics.write_text(topics.read_text().replace(f'"{key.topic}"', '"Other"'))
    now = again(root, known)
    assert kept(known, now)[0] == set()
    assert says(now) == says(verify(opened(root)))


def test_all_queues_are_judged_again_where_their_files_would_have_another_length(tmp_path: Path) -> None:
    root = tmp_path / "s"
    shapes.many_queues(root, 3)
    known = looked_at(root)
    paths = [next(folder.path.iterdir()) for folder in opened(root).queue_folders]
    for path in paths[:2]:
        os.truncate(path, path.stat().st_size * 2)
    now = again(root, known)
    assert kept(known, now)[0] == set()
    assert now.exit_code and says(now) == says(verify(opened(root)))


def test_extended_queues_are_judged_again(store: StoreCopy) -> None:
    known = looked_at(root := store("killed-ext-5.5.0"))
    assert kept(known, again(root, known))[0] == set()


@pytest.mark.parametrize("change_one", ["changed", "new"])
def test_all_delayed_messages_are_judged_again_by_what_their_queues_agree_on(change_one: str, store: StoreCopy) -> None:
    root = store("clean-4.5.1")
    known = looked_at(root)
    assert known.report.survey.delays.observed
    delayed = {key for key in queues_of(known.report) if key.topic == SCHEDULE_TOPIC}
    folder = root / "consumequeue" / SCHEDULE_TOPIC
    if change_one == "changed":
        change(sorted((folder / str(min(delayed).queue_id)).iterdir())[0], 7)
    else:
        (folder / "77").mkdir()
    now = again(root, known)
    assert kept(known, now)[0] == queues_of(known.report) - delayed
    assert now.survey.delays.observed == known.report.survey.delays.observed
    assert says(now) == says(verify(opened(root)))


@pytest.mark.parametrize(("name", "first", "second"), [
    ("clean-plain-4.9.7", "queue-missing", "queue-behind"),
    ("clean-expired-5.5.0", "queue-behind", "index-all-missing"),
    ("clean-5.3.3", "checkpoint-missing", "queue-missing"), ("clean-5.3.3", "index-all-missing", "abort-added"),
])
def test_what_is_kept_is_what_a_whole_look_finds(name: str, first: str, second: str, store: StoreCopy) -> None:
    compare(store(name), first, second)


@pytest.mark.parametrize(("name", "recipe"), sampled(STORES, RECIPES, one_in=20))
def test_what_is_kept_is_what_a_whole_look_finds_anywhere(name: str, recipe: str, store: StoreCopy) -> None:
    # half of the first looks find a sound log, behind which most is known
    first = random.Random(f"{name}/{recipe}").choice(["none", *RECIPES, *DERIVED])
    compare(store(name), first, recipe)


def compare(root: Path, first: str, second: str) -> None:
    """Damage, look, damage again, look again with and without what the first look found."""
    try:
        if first != "none":
            damage(first, root, seed=4)
        known = looked_at(root)
        damage(second, root, seed=5)
    except NotApplicable:
        pytest.skip("the store lacks what this damages")
    assert says(again(root, known)) == says(verify(opened(root)))
