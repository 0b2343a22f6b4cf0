"""Plans: what is refused, what a saved plan keeps, what it is bound to."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from recover.change.carry_out import apply_plan
from recover.change.content import INLINE_LIMIT, BytesContent, LazyContent
from recover.change.model import Install, Plan, Retire, WriteFile, WriteRange, ZeroRange, load_plan, save_plan
from recover.change.preconditions import check, seal
from recover.findings.refusal import Refusal
from recover.store.memo import stamp_of
from tests.support.plans import INDEX, LOG, NEW_QUEUE, PLANS, QUEUE, make_old, sealed, small_store
from tests.support.trees import assert_unchanged, contents


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
            assert again.json() == plan.json()
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
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(("change", "reason"), [
    (lambda root: _append(root / LOG), f"{LOG} has 131073 bytes"),
    (lambda root: (root / LOG).touch(), f"{LOG} was written after"),
    (lambda root: _flip(root / INDEX), f"{INDEX} holds other bytes"),
    (lambda root: (root / INDEX).unlink(), f"{INDEX} is gone"),
    (lambda root: (root / NEW_QUEUE).parent.mkdir(parents=True) or (root / NEW_QUEUE).touch(), f"{NEW_QUEUE} appeared"),
    (lambda root: (root / "lock").write_bytes(b"lock"), "lock appeared"),
    (lambda root: (root / "commitlog/00000000000000262144").touch(), "other files"),
])
def test_a_store_that_changed_since_the_plan_is_refused_and_left_alone(
    change: object, reason: str, tmp_path: Path
) -> None:
    store = small_store(tmp_path / "s")
    plan = sealed("everything", store)
    change(store)  # type: ignore[operator]
    with assert_unchanged(store), pytest.raises(Refusal, match=reason):
        apply_plan(store, plan)


def test_a_file_that_changed_under_the_scan_is_refused(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    stamp = stamp_of(store / LOG)
    assert stamp is not None
    seen = {LOG: stamp}
    seal(PLANS["in-place"](), store, seen=seen)
    _append(store / LOG)
    with pytest.raises(Refusal, match="changed while the store was read"):
        seal(PLANS["in-place"](), store, seen=seen)


def test_watched_files_refuse_too(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    stamp = stamp_of(store / QUEUE)
    assert stamp is not None
    plan = seal(Plan("rebuild", [Retire(INDEX)]), store, seen={QUEUE: stamp})
    check(plan, store)
    _append(store / QUEUE)
    with pytest.raises(Refusal, match=QUEUE):
        check(plan, store)


def test_a_step_on_something_that_is_no_file_is_refused(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    os.mkfifo(store / "pipe")
    for file in ("commitlog", "pipe"):
        with pytest.raises(Refusal, match="is no file but a"):
            seal(Plan("recover", [Retire(file)]), store)
    with pytest.raises(Refusal, match="does not exist"):
        seal(Plan("recover", [ZeroRange("commitlog/1", 0, 1)]), store)


def test_names_that_are_no_utf8_survive(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
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
