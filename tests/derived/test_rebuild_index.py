"""Index files built from the log are the broker's own, and in place nothing sound is touched."""

from __future__ import annotations

import shutil
import zoneinfo
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.damage import damage
from recover.change.model import Retire
from recover.findings.refusal import Refusal
from recover.store.store import Store
from tests.support.indexes import checked, index_bytes, opened, rebuilt, warnings, write
from tests.support.stores import STORES, unpacked

StoreCopy = Callable[[str], Path]
OTHERS = (
    "clean-manyfiles-5.3.3", "clean-plain-4.9.7", "clean-propcrc-5.3.3", "clean-restarts-4.9.7", "clean-restarts-5.5.0",
    "clean-v2-5.5.0", "killed-compressed-5.3.3", "killed-ext-4.5.1", "killed-ext-5.5.0", "killed-manyfiles-5.5.0",
)


@pytest.mark.parametrize("name", [*STORES, *OTHERS])
def test_files_built_from_the_log_alone_are_the_brokers_own(name: str) -> None:
    plan = rebuilt(unpacked(name), fresh=True)
    own = index_bytes(unpacked(name))
    assert [b"".join(file.content.chunks()) for file in plan.files] == list(own.values())
    for file, name_of_broker in zip(plan.files, own, strict=True):
        # a broker takes the clock when it dispatches the message, a moment after it stored it
        assert 0 <= int(name_of_broker) - int(file.name) < 100


@pytest.mark.parametrize("name", [*STORES, "clean-expired-5.5.0", "killed-expired-4.9.7"])
def test_nothing_is_rebuilt_in_a_sound_store(name: str) -> None:
    plan = rebuilt(unpacked(name))
    assert (plan.files, plan.retired) == ((), ())
    assert sorted(plan.kept) == sorted(index_bytes(unpacked(name)))


REPAIRED = (
    "index-torn", "index-page-zeroed", "index-short", "index-empty", "index-count-too-large", "index-count-too-small",
    "index-slot-count", "index-times-swapped", "index-chain-cycle", "index-slot-out-of-range", "index-slot-zeroed",
    "index-unit-elsewhere", "index-unit-hash", "index-all-zero",
)


@pytest.mark.parametrize("recipe", REPAIRED)
@pytest.mark.parametrize("name", ["clean-4.5.1", "killed-5.5.0"])
@pytest.mark.parametrize("seed", [1, 2])
def test_damaged_file_becomes_what_it_was(recipe: str, name: str, seed: int, store: StoreCopy) -> None:
    root = store(name)
    hit = damage(recipe, root, seed).facts["file"]
    plan = rebuilt(root)
    assert [file.name for file in plan.files if file.name != hit] == [] and plan.retired == ()
    write(plan, root / "index")
    assert index_bytes(root) == index_bytes(unpacked(name))


@pytest.mark.parametrize("recipe", ["index-last-missing", "index-middle-missing"])
@pytest.mark.parametrize("name", ["clean-5.3.3", "killed-5.5.0", "killed-v2-ipv6-5.3.3"])
def test_missing_file_comes_back_under_a_name_of_its_time(recipe: str, name: str, store: StoreCopy) -> None:
    root = store(name)
    gone = damage(recipe, root).facts["file"]
    plan = rebuilt(root)
    (file,) = plan.files
    assert abs(int(file.name) - int(gone)) < 100
    write(plan, root / "index")
    assert list(index_bytes(root).values()) == list(index_bytes(unpacked(name)).values())
    assert warnings(checked(root)) == []


def test_several_damages_are_repaired_in_one_go(store: StoreCopy) -> None:
    root = store("killed-v2-ipv6-5.3.3")
    paths = sorted((root / "index").iterdir())
    paths[0].write_bytes(bytes(42040))
    paths[1].unlink()
    paths[2].write_bytes(b"garbage")
    paths[4].unlink()
    paths[5].write_bytes(paths[5].read_bytes()[:3000])
    write(rebuilt(root), root / "index")
    assert warnings(checked(root)) == []
    assert list(index_bytes(root).values()) == list(index_bytes(unpacked("killed-v2-ipv6-5.3.3")).values())


def test_units_of_expired_messages_stay_in_a_file_that_is_built_anew(store: StoreCopy) -> None:
    root = store("clean-expired-5.5.0")
    damage("index-slot-zeroed", root, 1)
    before = index_bytes(unpacked("clean-expired-5.5.0"))
    write(rebuilt(root), root / "index")
    assert index_bytes(root) == before


def test_file_without_any_message_left_is_retired(store: StoreCopy) -> None:
    root = store("clean-4.5.1")
    (root / "index" / "20261121015611000").write_bytes(b"\1" * 42040)
    plan = rebuilt(root)
    assert (plan.files, plan.retired) == ((), ("20261121015611000",))
    (step,) = plan.steps(Store.open(root))
    assert isinstance(step, Retire) and step.file == "index/20261121015611000"


def test_names_follow_the_zone_and_never_meet(store: StoreCopy) -> None:
    tokyo = rebuilt(unpacked("clean-4.5.1"), fresh=True, zone=zoneinfo.ZoneInfo("Asia/Tokyo"))
    assert [file.name[:10] for file in tokyo.files] == ["2026112110"] * 3
    names = [file.name for file in rebuilt(unpacked("killed-v2-ipv6-5.3.3"), fresh=True).files]
    assert names == sorted(set(names)) and len(names) == 6


def test_switched_off_index_can_still_be_built(store: StoreCopy) -> None:
    root = store("clean-plain-4.9.7")
    own = index_bytes(root)
    shutil.rmtree(root / "index")
    from recover.derived.index_rebuild import rebuild_index

    plan = rebuild_index(*opened(root, index_slots=500, index_entries=2000))
    write(plan, root / "index")
    assert list(index_bytes(root).values()) == list(own.values())


def test_unknown_sizes_are_refused(store: StoreCopy) -> None:
    root = store("clean-4.5.1")
    for path in (root / "index").iterdir():
        path.write_bytes(b"\7" * 12_345)
    with pytest.raises(Refusal, match="how many slots"):
        rebuilt(root)
