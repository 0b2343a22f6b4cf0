"""Plans: what is refused, what a saved one keeps and is bound to; staged content, pieces, and the recovered copy."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, strategies as st

from mqtool import exits
from recover.change import disk
from recover.change.carry_out import apply_plan
from recover.change.content import INLINE_LIMIT, BytesContent, LazyContent
from recover.change.copy_store import copy_store, relocated
from recover.change.model import (
    Install,
    Plan,
    Retire,
    WriteFile,
    WriteRange,
    ZeroRange,
    canonical,
    load_plan,
    save_plan,
)
from recover.change.preconditions import check, seal
from recover.findings.code import Interrupted, Refusal
from recover.store.memo import stamp_of
from recover.store.reading import BLANK, crc32c, crc_joined, file_crc, in_order
from recover.store.store import Store, StoreOptions
from tests.cli.runner import mqtool
from tests.support.plans import (
    INDEX,
    LOG,
    NEW_QUEUE,
    NEXT_LOG,
    PLANS,
    QUEUE,
    count_operations,
    failing,
    hole_map,
    hooked,
    make_old,
    sealed,
    small_store,
)
from tests.support.stores import flip, write_at
from tests.support.trees import assert_same_tree, assert_unchanged, contents, tree_digest

# --- Plans: what is refused, what a saved plan keeps, what it is bound to.


@pytest.mark.parametrize("file", [
    "../other", "commitlog/../../other", "", "/etc/passwd", ".", "commitlog/", "a//b", "nul\0", ".mqtool/runs/1",
    "lock",
])
def test_a_path_outside_of_the_store_is_refused(file: str) -> None:
    with pytest.raises(Refusal, match="outside of the store"):
        Plan("recover", [Retire(file)])


def test_an_absolute_path_needs_a_declared_part() -> None:
    Plan("recover", [Retire("/data/commitlog/0")], parts=["/data/commitlog"])
    for file in ("/data/commitlog2/0", "/data/commitlog/../0", "/data/commitlog/.mqtool/x"):
        with pytest.raises(Refusal):
            Plan("recover", [Retire(file)], parts=["/data/commitlog"])


@pytest.mark.parametrize("steps", [
    [ZeroRange(LOG, 0, 10), WriteRange(LOG, 9, b"xx")], [Retire(LOG), ZeroRange(LOG, 0, 1)],
    [WriteFile(LOG, b""), Retire(LOG)], [ZeroRange(LOG, 9, 3)], [ZeroRange(LOG, -1, 3)],
])
def test_steps_in_each_others_way_are_a_bug_of_the_planner(steps: list[ZeroRange]) -> None:
    with pytest.raises(ValueError, match=r"overlap|replace|range"):
        Plan("recover", steps)


@pytest.mark.parametrize("name", sorted(PLANS))
def test_a_saved_plan_does_the_same(name: str, tmp_path: Path) -> None:
    stores = [small_store(tmp_path / "a"), small_store(tmp_path / "b")]
    for store in stores:
        plan = sealed(name, store)
        if store is stores[1]:
            with assert_unchanged(store):
                save_plan(plan, tmp_path / "plan.json")
                again = load_plan(tmp_path / "plan.json")
            assert (again.id, again.store, again.preconditions) == (plan.id, plan.store, plan.preconditions)
            assert [step.json() for step in again.steps] == [step.json() for step in plan.steps]
            plan = again
        assert apply_plan(store, plan) is not None
    assert contents(stores[0]) == contents(stores[1])


def test_large_content_stands_next_to_the_plan_and_small_content_in_it(tmp_path: Path) -> None:
    large = LazyContent(3 * INLINE_LIMIT, lambda: [b"L" * INLINE_LIMIT] * 3)
    plan = Plan("rebuild", [Install(QUEUE, large), Install(INDEX, b"small")])
    save_plan(plan, tmp_path / "plan.json")
    sidecar = tmp_path / f"plan.json.{plan.id}.content"
    assert [path.stat().st_size for path in sidecar.iterdir()] == [3 * INLINE_LIMIT]
    assert (tmp_path / "plan.json").stat().st_size < 4000
    next(sidecar.iterdir()).write_bytes(b"M" * 3 * INLINE_LIMIT)
    content = load_plan(tmp_path / "plan.json").steps[0].content
    assert content is not None
    with pytest.raises(Refusal, match="not the content"):
        list(content.chunks())


@pytest.mark.parametrize(("damage", "reason"), [
    (lambda body: body["body"]["steps"].pop(), "checksum"), (lambda body: body.update(version=99), "plan format 99"),
    (lambda body: body.update(format="other"), "another format"), (lambda body: body.pop("body"), "body"),
])
def test_a_changed_plan_file_is_refused_with_the_reason(damage: object, reason: str, tmp_path: Path) -> None:
    save_plan(Plan("recover", [Retire(INDEX)]), tmp_path / "plan.json")
    whole = json.loads((tmp_path / "plan.json").read_text())
    damage(whole)  # type: ignore[operator]
    (tmp_path / "plan.json").write_text(json.dumps(whole))
    with pytest.raises(Refusal, match=reason):
        load_plan(tmp_path / "plan.json")


@pytest.mark.parametrize(("at", "value"), [
    (("summary", "store_options", "settings"), None), (("summary", "store_options", "mapped_file_size"), "4096"),
    (("summary", "assumed_settings"), None), (("summary", "config"), "x"), (("loss",), "x"), (("loss", 0), None),
    (("loss", 0, "messages"), None), (("loss", 0, "begin"), "x"), (("steps", 0, "before", "file"), None),
    (("steps", 0, "before", "stop"), "x"), (("watched", 0, "file"), 7), (("store", "root"), None), (("parts",), {}),
    (("steps", 0, "before", "file"), "commitlog/\ud800"),
])
def test_a_part_that_nothing_can_be_done_with_is_refused_even_if_the_checksum_fits(
    at: tuple[str | int, ...], value: object, tmp_path: Path
) -> None:
    store, file = small_store(tmp_path / "store"), tmp_path / "plan.json"
    made = Plan("recover", [ZeroRange(LOG, 0, 10)], [{"messages": 1, "begin": 0}],
                {"store_options": {"settings": {}, "mapped_file_size": 131_072}, "config": [], "assumed_settings": {}})
    save_plan(seal(made, store, seen={INDEX: stamp_of(store / INDEX)}), file)
    whole = json.loads(file.read_text())
    assert mqtool("apply", file, "--dry-run").code == 0
    part = whole["body"]
    for name in at[:-1]:
        part = part[name]
    part[at[-1]] = value
    file.write_text(json.dumps(whole | {"crc32c": crc32c(canonical(whole["body"]))}))
    with assert_unchanged(store):
        refused = mqtool("apply", file, "--yes", "--json")
    assert refused.code == exits.OPERATIONAL
    assert "is not a plan" in refused.document["error"]["message"]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"[" * 100_000, b"\xff\xfe", b'{"format":"mqtool-plan"}'])
def test_a_file_that_is_no_plan_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(data)
    with pytest.raises(Refusal):
        load_plan(tmp_path / "plan.json")


def test_a_plan_is_bound_to_its_store(tmp_path: Path) -> None:
    store = small_store(tmp_path / "a")
    plan = sealed("everything", store)
    shutil.copytree(store, tmp_path / "b", symlinks=True)
    with assert_unchanged(tmp_path / "b"), pytest.raises(Refusal, match="was made for"):
        apply_plan(tmp_path / "b", plan)
    with pytest.raises(Refusal, match="not bound"):
        apply_plan(store, Plan("recover", [Retire(INDEX)]))


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def _flip(path: Path) -> None:
    status = path.stat()
    flip(path, status.st_size // 2)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(("change", "reason"), [
    (lambda root: _append(root / LOG), f"{LOG} has 131073 bytes"),
    (lambda root: (root / LOG).touch(), f"{LOG} was written after"),
    (lambda root: _flip(root / INDEX), f"{INDEX} holds different bytes"),
    (lambda root: (root / INDEX).unlink(), f"{INDEX} is gone"),
    (lambda root: (root / NEW_QUEUE).parent.mkdir(parents=True) or (root / NEW_QUEUE).touch(), f"{NEW_QUEUE} appeared"),
    (lambda root: (root / "lock").write_bytes(b"lock"), "lock appeared"),
    (lambda root: (root / "commitlog/00000000000000262144").touch(), "commitlog files differ"),
])
def test_a_store_that_changed_since_the_plan_is_refused_and_left_alone(
    change: object, reason: str, store: Path
) -> None:
    plan = sealed("everything", store)
    change(store)  # type: ignore[operator]
    with assert_unchanged(store), pytest.raises(Refusal, match=reason):
        apply_plan(store, plan)


def test_a_file_that_changed_under_the_scan_is_refused(store: Path) -> None:
    stamp = stamp_of(store / LOG)
    assert stamp is not None
    seen = {LOG: stamp}
    seal(PLANS["in-place"](), store, seen=seen)
    _append(store / LOG)
    with pytest.raises(Refusal, match="changed while the store was read"):
        seal(PLANS["in-place"](), store, seen=seen)


def test_watched_files_refuse_too(store: Path) -> None:
    stamp = stamp_of(store / QUEUE)
    assert stamp is not None
    plan = seal(Plan("rebuild", [Retire(INDEX)]), store, seen={QUEUE: stamp})
    check(plan, store)
    _append(store / QUEUE)
    with pytest.raises(Refusal, match=QUEUE):
        check(plan, store)


def test_a_step_on_something_that_is_no_file_is_refused(store: Path) -> None:
    os.mkfifo(store / "pipe")
    for file in ("commitlog", "pipe"):
        with pytest.raises(Refusal, match="is not a file but a"):
            seal(Plan("recover", [Retire(file)]), store)
    with pytest.raises(Refusal, match="does not exist"):
        seal(Plan("recover", [ZeroRange("commitlog/1", 0, 1)]), store)


def test_names_that_are_no_utf8_survive(store: Path, tmp_path: Path) -> None:
    name = os.fsdecode(b"consumequeue/\xff\xe4/0/00000000000000000000")
    make_old(store)
    plan = seal(Plan("rebuild", [Install(name, b"unit")]), store)
    save_plan(plan, tmp_path / "plan.json")
    apply_plan(store, load_plan(tmp_path / "plan.json"))
    assert (store / name).read_bytes() == b"unit"


def test_content_is_counted_and_checked() -> None:
    assert BytesContent(b"123456789").crc32c == 0xE3069283
    wrong = LazyContent(3, lambda: [b"four"])
    with pytest.raises(RuntimeError):
        list(wrong.chunks())


# --- Content written into a run's folder: synced, checked, and given up as one.


@pytest.mark.parametrize("name", ["everything", "whole-files"])
def test_every_content_is_synced_before_the_run_gets_its_name(name: str, store: Path) -> None:
    plan = sealed(name, store)
    done = [(item.name, item.path) for item in count_operations(lambda: apply_plan(store, plan))]
    named = next(number for number, (what, _) in enumerate(done) if what == "rename")
    made = [path for what, path in done if what == "create" and "/staged/" in path]
    assert len(made) >= 2
    for path in made:
        last = max(number for number, item in enumerate(done[:named]) if item == ("fsync", path))
        assert all(number < last for number, (what, own) in enumerate(done) if own == path and what == "write")


def test_a_staged_file_that_is_written_to_before_it_has_its_name_is_noticed_and_taken_back(store: Path) -> None:
    plan = seal(Plan("rebuild", [Install(QUEUE, b"u" * 20)]), store)

    def hook(item: disk.Operation) -> None:
        if item.name == "rename" and item.path.endswith("staged/000000"):
            write_at(Path(item.path), 0, b"w")
            os.utime(item.path, ns=(0, os.stat(item.path).st_mtime_ns + 1))

    before = contents(store)
    with hooked(hook), pytest.raises(Refusal, match=r"reads back differently .*; the begun steps were reverted"):
        apply_plan(store, plan)
    assert contents(store) == before


def test_a_staged_file_that_nobody_wrote_to_since_it_was_read_back_is_not_read_again(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = seal(Plan("rebuild", [Install(QUEUE, b"u" * 20)]), store)
    monkeypatch.setattr("recover.change.steps.file_crc", lambda *_: pytest.fail("it was read again"))
    apply_plan(store, plan)
    assert (store / QUEUE).read_bytes() == b"u" * 20


# --- Recovering a copy: it is whole, and the original is left alone.


def test_a_copy_is_recovered_and_the_original_left_alone(store: Path, tmp_path: Path) -> None:
    shutil.move(store / "commitlog", tmp_path / "log")
    (store / "commitlog").mkdir()
    (store / "config/link").symlink_to(store / "checkpoint")
    (store / "lock").write_bytes(b"lock")
    make_old(store), make_old(tmp_path / "log")
    log = tmp_path / "log"
    plan = Plan("recover", [ZeroRange(f"{log}/00000000000000000000", 9, 9000), Retire("abort")], parts=[str(log)])
    target = tmp_path / "copy"
    with assert_unchanged(store), assert_unchanged(log):
        copy_store([(store, "."), (log, "commitlog")], target)
        assert_same_tree(tree_digest(log), tree_digest(target / "commitlog"))
        assert (target / "abort").stat().st_mtime_ns == (store / "abort").stat().st_mtime_ns
        assert hole_map(target)[NEXT_LOG] == hole_map(log)["00000000000000131072"]
        assert not (target / "config/link").is_symlink()
        split = Store.open(store, StoreOptions(commitlog=(log,)))
        apply_plan(target, seal(relocated(plan, split, ()), target))
    assert (target / LOG).read_bytes()[9:9000] == bytes(8991)
    assert not (target / "abort").exists()


@pytest.mark.parametrize("where", ["s", "s/inside", "full", "missing/new", ".", "file"])
def test_a_copy_needs_an_empty_place_of_its_own(where: str, store: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").touch()
    (tmp_path / "file").touch()
    with assert_unchanged(tmp_path), pytest.raises(Refusal):
        copy_store([(store, ".")], tmp_path / where)


def test_a_copy_that_fails_is_removed(store: Path, tmp_path: Path) -> None:
    for place in (tmp_path / "new", tmp_path / "empty"):
        if place.name == "empty":
            place.mkdir()
        with assert_unchanged(store):
            with (
                failing(lambda _number, operation: operation.path.endswith("checkpoint"), errno.ENOSPC),
                pytest.raises(Refusal, match="removed"),
            ):
                copy_store([(store, ".")], place)
            with pytest.raises(Interrupted):
                copy_store([(store, ".")], place, interrupted=lambda: True)
        assert place.exists() == (place.name == "empty")
    os.symlink(store, store / "config/loop")
    with pytest.raises(Refusal, match="leads back"):
        copy_store([(store, ".")], tmp_path / "new")


# --- New files written piece by piece, in whatever order the pieces come: the same bytes, length and checksum.


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_the_checksum_of_two_parts_joined_is_that_of_the_whole(one: bytes, other: bytes) -> None:
    assert crc_joined(crc32c(one), crc32c(other), len(other)) == crc32c(one + other)


@given(st.lists(st.binary(max_size=200_000) | st.integers(0, 200_000).map(bytes), max_size=6), st.randoms())
def test_pieces_in_any_order_make_the_file_that_they_make_in_order(chunks: list[bytes], order: random.Random) -> None:
    pieces = list(in_order(chunks))
    order.shuffle(pieces)
    with TemporaryDirectory() as folder:
        path, other = Path(folder, "one"), Path(folder, "other")
        made = disk.create_from_pieces(path, pieces, sync=False)
        assert path.read_bytes() == b"".join(chunks)
        assert made == file_crc(path) == disk.create_file(other, chunks, sync=False)


def test_zeros_between_pieces_are_not_written(tmp_path: Path) -> None:
    pieces = [(len(BLANK) + 1, b"end"), (1, BLANK), (0, b"b")]
    size, crc = disk.create_from_pieces(tmp_path / "f", pieces)
    assert (tmp_path / "f").read_bytes() == b"b" + BLANK + b"end"
    assert (size, crc) == (len(BLANK) + 4, crc32c(b"b" + BLANK + b"end"))
    assert (tmp_path / "f").stat().st_blocks * 512 < len(BLANK)


@pytest.mark.parametrize("pieces", [
    pytest.param([(1, b"x")], id="nothing-in-front"), pytest.param([(0, b"xy"), (1, b"z")], id="overlap"),
    pytest.param([(0, b"x"), (2, b"y")], id="gap"), pytest.param([(0, b"x"), (0, b"x")], id="twice"),
])
def test_pieces_that_do_not_hold_each_byte_once_are_refused(pieces: list[tuple[int, bytes]], tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="not as announced"):
        disk.create_from_pieces(tmp_path / "f", pieces)
