"""Applying plans: what they leave, what stops them, which steps share records and syncs, and folders taken away."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given, strategies as st

from recover.change.carry_out import apply_plan, refuse_if_unfinished, resume, undo
from recover.change.content import LazyContent
from recover.change.journal import journal
from recover.change.lock import store_lock
from recover.change.model import Install, Plan, Retire, RetireFolder, WriteFile, WriteRange, ZeroRange, save_plan
from recover.change.places import can_be_retired
from recover.change.preconditions import seal
from recover.findings.code import Interrupted, Refusal
from recover.store.reading import crc_with_zeros, data_extents, file_crc
from tests.support.plans import (
    INDEX,
    LOG,
    LOG_SIZE,
    NEW_QUEUE,
    NEXT_LOG,
    QUEUE,
    count_operations,
    hole_map,
    killed_at,
    make_old,
    sealed,
    small_store,
)
from tests.support.system import reachable, small_disk
from tests.support.trees import assert_same_tree, assert_unchanged, contents, tree_digest

# --- Applying plans: what they leave, and what stops them between two steps.


def test_ranges_files_and_names_are_as_planned(store: Path) -> None:
    before = {name: (store / name).read_bytes() for name in (LOG, NEXT_LOG, INDEX)}
    result = apply_plan(store, sealed("everything", store))
    assert result is not None and result.state == "applied"
    log = before[LOG][:50_000] + b"m" * 70_000 + before[LOG][120_000:]
    assert (store / LOG).read_bytes() == log
    assert (store / NEXT_LOG).read_bytes() == before[NEXT_LOG][:19_000] + bytes(LOG_SIZE - 19_000)
    assert (store / "checkpoint").read_bytes() == b"c" * 4096
    assert not (store / "abort").exists() and not (store / INDEX).exists() and not (store / "lock").exists()
    assert (store / str(result.journal) / "retired/000000").read_bytes() == before[INDEX]
    assert (store / str(result.journal) / "preimages/000002").read_bytes() == before[LOG][50_000:120_000]


def test_a_plan_without_steps_creates_nothing(store: Path) -> None:
    with assert_unchanged(store):
        assert apply_plan(store, seal(Plan("recover", []), store)) is None


def test_zeros_of_new_content_take_no_blocks(store: Path) -> None:
    content = LazyContent(6_000_000, lambda: [b"u" * 20, bytes(5_999_980)], allocated=4096)
    apply_plan(store, seal(Plan("rebuild", [Install(QUEUE, content)]), store))
    assert (store / QUEUE).stat().st_size == 6_000_000
    assert (store / QUEUE).stat().st_blocks * 512 <= 128 << 10


def test_new_files_take_owner_and_mode_of_the_old_one_or_of_their_neighbours(store: Path) -> None:
    owner = (12345, 54321) if os.geteuid() == 0 else (os.getuid(), os.getgid())
    for path in [store, *store.rglob("*")]:
        os.chown(path, *owner)
    reachable(store)
    (store / "config/topics.json").chmod(0o600)
    (store / "index").chmod(0o750)
    (store / INDEX).chmod(0o640)
    steps = [WriteFile("config/topics.json", b"{}"), Install("index/2", b"i"), Install(NEW_QUEUE, b"q")]
    apply_plan(store, seal(Plan("recover", steps), store))
    paths = [path for path in store.rglob("*") if ".mqtool" not in path.parts]
    assert {(path.stat().st_uid, path.stat().st_gid) for path in paths} == {owner}
    assert (store / "config/topics.json").stat().st_mode & 0o777 == 0o600
    assert (store / "index/2").stat().st_mode & 0o777 == 0o640
    assert (store / NEW_QUEUE).stat().st_mode & 0o777 not in (0o600, 0o640)
    assert (store / "consumequeue/TopicB").stat().st_mode == (store / "consumequeue").stat().st_mode


def test_extended_attributes_stay_and_come_back(store: Path) -> None:
    for name in (LOG, "checkpoint"):
        os.setxattr(store / name, "user.note", b"kept")
    make_old(store)
    plan = Plan("recover", [WriteRange(LOG, 5, b"x"), WriteFile("checkpoint", b"c")])
    apply_plan(store, seal(plan, store))
    assert all(os.getxattr(store / name, "user.note") == b"kept" for name in (LOG, "checkpoint"))
    undo(store)
    assert all(os.getxattr(store / name, "user.note") == b"kept" for name in (LOG, "checkpoint"))


def test_a_hard_linked_file_is_replaced_and_its_other_name_keeps_the_old_bytes(store: Path, tmp_path: Path) -> None:
    os.link(store / NEXT_LOG, tmp_path / "backup")
    before, digest, mtime = (tmp_path / "backup").read_bytes(), tree_digest(store), store.stat().st_mtime_ns
    apply_plan(store, sealed("in-place", store))
    plain = small_store(tmp_path / "plain")
    apply_plan(plain, sealed("in-place", plain))
    assert contents(store) == contents(plain)
    assert (tmp_path / "backup").read_bytes() == before
    undo(store)
    assert_same_tree(digest, tree_digest(store))
    assert store.stat().st_mtime_ns == mtime
    assert (tmp_path / "backup").samefile(store / NEXT_LOG) and (store / NEXT_LOG).stat().st_nlink == 2


def test_what_a_symbolic_link_points_to_is_left_alone(store: Path, tmp_path: Path) -> None:
    shutil.move(store / LOG, tmp_path / "elsewhere")
    (store / LOG).symlink_to(tmp_path / "elsewhere")
    (tmp_path / "away").mkdir()
    shutil.move(store / "index", tmp_path / "away/index")
    (store / "index").symlink_to(tmp_path / "away/index")
    make_old(store)
    before, outside = tree_digest(store), (tmp_path / "elsewhere").read_bytes()
    link = tmp_path / "link"
    link.symlink_to(store)
    with assert_unchanged(tmp_path), pytest.raises(Refusal, match="index is a link to"):
        apply_plan(link, sealed("everything", link))
    apply_plan(link, sealed("everything", link), parts=[link / "index"])
    assert (tmp_path / "elsewhere").read_bytes() == outside
    assert (store / LOG).read_bytes() != outside
    assert not (tmp_path / "away/index/20240101000000000").exists(), "a linked folder that is named is a part"
    with pytest.raises(Refusal, match="index is a link to"):
        undo(link)
    undo(link, parts=[link / "index"])
    assert_same_tree(before, tree_digest(store))


def test_a_part_on_another_file_system(tmp_path: Path, disk: Path) -> None:
    other, store = tmp_path, small_store(disk / "s")
    shutil.move(store / "commitlog", other / "log")
    shutil.move(store / "index", other / "index")
    make_old(store), make_old(other)
    files = [f"{other}/log/00000000000000000000", f"{other}/index/20240101000000000", f"{other}/index/3"]
    before = tree_digest(store), tree_digest(other)
    plan = Plan(
        "recover", [ZeroRange(files[0], 5000, 70_000), Retire(f"{other}/log/00000000000000131072"),
                    Install(files[1], b"i" * 9000), Install(files[2], b"new")],
        parts=[str(other / "log"), str(other / "index")],
    )
    apply_plan(store, seal(plan, store), parts=plan.parts)
    assert Path(files[1]).read_bytes() == b"i" * 9000 and Path(files[2]).read_bytes() == b"new"
    assert sorted(path.name for path in other.rglob("*")) == sorted(
        ["log", "index", "00000000000000000000", "20240101000000000", "3"]
    )
    undo(store, parts=plan.parts)
    assert_same_tree(before[0], tree_digest(store))
    assert_same_tree(before[1], tree_digest(other))


def test_an_interrupt_stops_between_two_steps_and_can_be_resumed(tmp_path: Path) -> None:
    expected = small_store(tmp_path / "expected")
    apply_plan(expected, sealed("everything", expected))
    store = small_store(tmp_path / "s")
    done: list[int] = []
    with pytest.raises(Interrupted) as stop:
        apply_plan(
            store, sealed("everything", store), progress=lambda n, _all, _what: done.append(n),
            interrupted=lambda: len(done) == 2,
        )
    assert stop.value.exit_code == 32
    assert [(run.state, run.steps_done) for run in journal(store)] == [("unfinished", 3)]
    with pytest.raises(Refusal, match="is unfinished"):
        refuse_if_unfinished(store)
    with pytest.raises(Refusal, match="is unfinished"):
        apply_plan(store, sealed("everything", store))
    assert resume(store).state == "applied"
    assert contents(store) == contents(expected)


def test_applying_a_begun_plan_again_goes_on_with_it(store: Path) -> None:
    plan = sealed("everything", store)
    done: list[int] = []
    with pytest.raises(Interrupted):
        apply_plan(store, plan, progress=lambda n, _all, _what: done.append(n), interrupted=lambda: len(done) == 1)
    assert apply_plan(store, plan) is not None
    assert [run.state for run in journal(store)] == ["applied"]
    with pytest.raises(Refusal, match="was carried out already, by run 000001"):
        apply_plan(store, plan)


def test_two_mqtools_one_refuses(store: Path) -> None:
    plan = sealed("everything", store)
    before = contents(store)
    with store_lock(store), pytest.raises(Refusal, match="another mqtool"):
        apply_plan(store, plan)
    assert contents(store) == before


def test_a_plan_that_does_not_fit_its_disk_leaves_nothing_there(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    plan = seal(Plan("rebuild", [Install(QUEUE, random.Random(1).randbytes(60_000))]), store)
    with small_disk(tmp_path / "small", "64k") as small:
        with pytest.raises(Refusal, match="cannot be saved"):
            save_plan(plan, small / "plan.json")
        assert not [*small.iterdir()]


def test_a_disk_without_room_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "2m") as small:
        store = small_store(small / "s")
        plan = seal(Plan("rebuild", [Install(QUEUE, b"q" * 1_500_000)]), store)
        with assert_unchanged(store), pytest.raises(Refusal, match="bytes are needed"):
            apply_plan(store, plan)
        lying = LazyContent(1_900_000, lambda: [b"q" * 1_900_000], allocated=0)
        plan = seal(Plan("rebuild", [Retire(INDEX), Install(QUEUE, lying)]), store)
        with assert_unchanged(store), pytest.raises(Refusal, match="No space left"):
            apply_plan(store, plan)


# --- Which steps share records and syncs, and the arithmetic that lets zeros be counted.


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_a_file_that_grows_in_any_order_of_steps(order: tuple[int, ...], store: Path) -> None:
    steps = [WriteRange(QUEUE, 2000, b"g" * 3000), ZeroRange(QUEUE, 5000, 9000), WriteRange(QUEUE, 15_000, b"h" * 5000)]
    old, before, holes = (store / QUEUE).read_bytes(), tree_digest(store), hole_map(store)
    apply_plan(store, seal(Plan("recover", [steps[number] for number in order]), store))
    assert (store / QUEUE).read_bytes() == old[:2000] + b"g" * 3000 + bytes(10_000) + b"h" * 5000
    undo(store)
    assert_same_tree(before, tree_digest(store))
    assert hole_map(store) == holes


def test_many_steps_on_one_block_come_back_one_by_one(store: Path) -> None:
    before, holes = tree_digest(store), hole_map(store)
    steps = [WriteRange("commitlog/00000000000000131072", 40_000 + 10 * n, bytes([n + 1]) * 7) for n in range(200)]
    apply_plan(store, seal(Plan("recover", steps), store))
    undo(store)
    assert_same_tree(before, tree_digest(store))
    assert hole_map(store) == holes


@given(st.binary(max_size=40), st.integers(0, 5000))
def test_zeros_are_counted_as_if_they_were_read(data: bytes, count: int) -> None:
    assert crc_with_zeros(crc32c(data), count) == crc32c(data + bytes(count))


@pytest.mark.parametrize(
    ("start", "stop"),
    [(0, None), (0, 0), (5, 70_000), (30_000, 200_000), (65_000, 65_900), (199_999, 999_999)],
)
def test_a_checksum_over_holes_is_that_of_the_bytes(start: int, stop: int | None, tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(b"a" * 9000)
        file.seek(65_536)
        file.write(b"b" * 300)
        file.truncate(200_000)
    data = path.read_bytes()[start:stop]
    assert file_crc(path, start, stop) == (len(data), crc32c(data))
    with path.open("rb") as file:
        assert all(start <= a < b <= 200_000 for a, b in data_extents(file.fileno(), start, 200_000))


# --- The step that takes a folder away: everything in it moves with it, and comes back with it.


STRAY = "commitlog/lost+found"


def with_stray(root: Path) -> Path:
    """A small store with a folder in its commitlog that holds whatever a folder can hold."""
    store = small_store(root)
    stray = store / STRAY
    (stray / "deep" / "deeper").mkdir(parents=True)
    (stray / "deep" / "file").write_bytes(b"x" * 5000)
    (stray / "deep" / "deeper" / "empty").touch(mode=0o600)
    (stray / "link").symlink_to("deep/file")
    (stray / "nowhere").symlink_to("/does/not/exist")
    os.mkfifo(stray / "pipe")
    stray.chmod(0o700)
    make_old(store)
    return store


def retiring(store: Path, file: str = STRAY) -> Plan:
    return seal(Plan("recover", [RetireFolder(file)]), store)


def test_everything_in_it_goes_and_comes_back(folder: Path) -> None:
    store = with_stray(folder / "s")
    before, inode = tree_digest(store), (store / STRAY / "deep" / "file").stat().st_ino
    applied = apply_plan(store, retiring(store))
    assert not (store / STRAY).exists()
    assert applied is not None
    kept = store / applied.journal / "retired" / "000000"
    assert (kept / "deep" / "file").stat().st_ino == inode
    assert undo(store).restored == (STRAY,)
    assert_same_tree(before, tree_digest(store))


def test_a_link_to_a_folder_goes_and_what_it_leads_to_stays(folder: Path) -> None:
    store = small_store(folder / "s")
    target = folder / "elsewhere"
    target.mkdir()
    (target / "file").write_bytes(b"x")
    (store / STRAY).symlink_to(target)
    before = tree_digest(store)
    apply_plan(store, retiring(store))
    assert not (store / STRAY).is_symlink()
    assert (target / "file").read_bytes() == b"x"
    undo(store)
    assert_same_tree(before, tree_digest(store))


@pytest.mark.parametrize("change", ["new file", "longer file", "file gone", "touched", "gone", "a file now"])
def test_a_folder_that_changed_after_the_plan_is_refused(change: str, folder: Path) -> None:
    store = with_stray(folder / "s")
    plan = retiring(store)
    stray = store / STRAY
    if change == "new file":
        (stray / "deep" / "deeper" / "new").touch()
    elif change == "longer file":
        (stray / "deep" / "file").open("ab").write(b"y")
    elif change == "file gone":
        (stray / "deep" / "deeper" / "empty").unlink()
    elif change == "touched":
        os.utime(stray)
    else:
        shutil.rmtree(stray)
        if change == "a file now":
            stray.touch()
    with assert_unchanged(store), pytest.raises(Refusal, match=r"lost\+found"):
        apply_plan(store, plan)


@pytest.mark.parametrize("file", [LOG, "commitlog/nothing"])
def test_what_is_no_folder_is_not_taken_for_one(file: str, folder: Path) -> None:
    store = small_store(folder / "s")
    if file == LOG:
        with pytest.raises(Refusal, match="not a folder"):
            retiring(store, file)
    else:
        assert not retiring(store, file).preconditions[0].exists


def test_undo_is_refused_when_the_name_is_taken_again(folder: Path) -> None:
    store = with_stray(folder / "s")
    apply_plan(store, retiring(store))
    (store / STRAY).mkdir()
    with assert_unchanged(store, [".mqtool"]), pytest.raises(Refusal, match=r"lost\+found"):
        undo(store)
    (store / STRAY).rmdir()
    undo(store)
    assert (store / STRAY / "deep" / "file").exists()


# --- on another file system -----------------------------------------------------------------------------


def on_two_disks(store: Path, other: Path) -> Plan:
    """A store whose log lies on another file system, with an empty folder in it, as file systems make them."""
    small_store(store)
    shutil.move(store / "commitlog", other / "log")
    stray = other / "log" / "lost+found"
    stray.mkdir(mode=0o700)
    make_old(store)
    make_old(other)
    return seal(Plan("recover", [RetireFolder(str(stray))], parts=[str(other / "log")]), store)


def test_on_another_file_system_an_empty_folder_goes_and_comes_back_whenever_it_is_killed(
    folder: Path, disk: Path
) -> None:
    store, other = disk / "s", folder / "other"
    other.mkdir()
    plan = on_two_disks(store, other)
    stray = plan.steps[0].file
    assert can_be_retired(store, stray)
    operations = len(count_operations(lambda: apply_plan(store, plan, parts=[str(other / "log")])))
    assert not Path(stray).exists()
    undone = len(count_operations(lambda: undo(store, parts=[str(other / "log")])))
    for number in range(random.randrange(6), operations + undone, 6):
        shutil.rmtree(store)
        shutil.rmtree(other / "log")
        plan = on_two_disks(store, other)
        before = tree_digest(store), tree_digest(other)
        if number < operations:
            assert killed_at(number, lambda plan=plan: apply_plan(store, plan, parts=[str(other / "log")]))  # type: ignore[misc]
            if number % 4 > 1 and any(run.state == "unfinished" for run in journal(store)):
                resume(store, parts=[str(other / "log")])
                assert not Path(stray).exists()
        else:
            apply_plan(store, plan, parts=[str(other / "log")])
            assert killed_at(number - operations, lambda: undo(store, parts=[str(other / "log")]))
        try:
            undo(store, parts=[str(other / "log")])
        except Refusal:
            assert all(run.state == "undone" for run in journal(store))
        assert_same_tree(before[0], tree_digest(store))
        assert_same_tree(before[1], tree_digest(other))
