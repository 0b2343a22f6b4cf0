"""What brokers alone deliver from a damaged store, they deliver after recover, or recover refuses and lists it."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from msgspec import structs

from fixtures.damage import of_area, walk
from fixtures.synth import StoreWriter
from formats.basics import offset_to_name
from formats.consumequeue import CQ_UNIT, CqUnit
from mqtool import exits
from recover.broker.settings import BrokerSettings
from recover.broker.versions import BrokerVersion
from recover.change.model import Plan, Retire, Step, WriteFile, WriteRange, ZeroRange
from recover.check.surroundings import Surroundings
from recover.findings.code import Refusal
from recover.findings.model import FindingList
from recover.log.scan import LocalEngine
from recover.predict.start import play
from recover.repair.never_worse import Missed, missed_between, refuse_worse
from recover.repair.planned import planned_store
from recover.repair.recover import RecoverOptions, plan_recover, plan_truncate
from recover.store.config_files import LMQ_PREFIX
from recover.store.source import open_file
from recover.store.store import Store
from tests.cli.runner import mqtool
from tests.scenarios.conftest import Start
from tests.support import plain_reader as plain
from tests.support.sampling import sampled
from tests.support.stores import copy_store, unpacked
from tests.support.trees import assert_same_tree, assert_unchanged, tree_digest
from tests.torture.hunt import older_records_at_the_end

STORES = ("clean-plain-4.9.7", "clean-manyfiles-5.3.3", "killed-5.5.0", "killed-lmq-4.9.7", "clean-5.3.3")
RECIPES = (*of_area("witness"), "queue-units-swapped")
scan_log = LocalEngine().scan_log


def settings(version: str) -> BrokerSettings:
    return BrokerSettings(BrokerVersion.parse(version))


def missed(before: Path, after: Path, version: str) -> list[Missed]:
    """What a broker of that release delivers of the first store and not of the second."""
    one, other = (Surroundings(store, scan_log(store.commitlog)) for store in map(Store.open, (before, after)))
    return missed_between(play(one, settings(version), counted=False, rights=False), other, settings(version))


@pytest.mark.parametrize(("name", "recipe", "seed"), [
    *sampled(("killed-5.5.0",), RECIPES, (0,), quick=4), *sampled(STORES, RECIPES, (1, 2, 3), one_in=20),
])
def test_recover_is_never_worse_than_the_broker_alone(drill: Start, name: str, recipe: str, seed: int) -> None:
    """Or it refuses, lists messages, and writes nothing."""
    store = drill(name)
    store.strike(recipe, seed)
    before = copy_store(store.root, store.root.parent / "before")
    damaged = tree_digest(store.root)
    done = store.run("recover", "--yes")
    if done.code & exits.OPERATIONAL:
        assert_same_tree(damaged, tree_digest(store.root))
        for item in done.found("plan-loses-delivered"):
            offsets = [span for entry in item["facts"]["lost"] for span in entry["offsets"]]
            assert sum(last - first + 1 for first, last in offsets) == item["facts"]["count"] > 0
        return
    for version in (name.rsplit("-", 1)[1], "5.5.0"):
        assert missed(before, store.root, version) == []


@given(st.data())
def test_a_planned_file_reads_as_its_steps_would_leave_it(data: st.DataObject) -> None:
    store = Store.open(unpacked("clean-plain-4.9.7"))
    path, name = store.commitlog.files[0].path, store.relative(store.commitlog.files[0].path)
    wanted = bytearray(path.read_bytes())
    places = st.integers(0, len(wanted) + 100)
    steps: list[WriteRange | ZeroRange] = []
    for start in sorted(data.draw(st.lists(places, min_size=1, max_size=8))):
        if data.draw(st.booleans()):
            steps.append(WriteRange(name, start, data.draw(st.binary(min_size=1, max_size=90))))
        else:
            steps.append(ZeroRange(name, start, start + data.draw(st.integers(1, 5_000))))
        wanted += bytes(max(0, steps[-1].stop - len(wanted)))
        wanted[start : steps[-1].stop] = b"".join(steps[-1].new_bytes())
    with planned_store(store, steps) as (_, planned), open_file(planned(path)) as reader:
        assert reader.length == len(wanted)
        for start in [0, *data.draw(st.lists(places, max_size=5)), *(step.start for step in steps)]:
            length = data.draw(st.integers(0, 9_000))
            assert reader.read(start, length) == wanted[start : start + length]


def test_a_plan_that_is_worse_is_refused_with_its_messages_and_both_sums_unless_max_loss_covers_them(
    drill: Start
) -> None:
    opened = Store.open(drill("clean-manyfiles-5.3.3").root)
    last = opened.commitlog.files[-1].path
    gone = [hit for hit in walk.records(opened.root) if hit.file.path == last and not hit.record.sys_flag & 12]
    made = plan_recover(opened, RecoverOptions(settings=settings("5.3.3")))
    made.plan = Plan("recover", [Retire(opened.relative(last))])
    expected = {(hit.record.topic_name, hit.record.queue_id, hit.record.queue_offset) for hit in gone}
    findings = FindingList()
    with pytest.raises(Refusal) as refused:
        refuse_worse(opened, made, settings("5.3.3"), 0, findings)
    (found,) = findings
    listed = {
        (entry["topic"], entry["queue"], offset)
        for entry in found.facts["lost"] for first, last in entry["offsets"] for offset in range(first, last + 1)
    }
    assert f"`{{typed}} --max-loss {found.facts['count']}`" in found.remedy
    assert found.code == "plan-loses-delivered" and expected <= listed and len(listed) == found.facts["count"]
    alone = len(plain.delivered(opened.root))
    assert (found.facts["alone"], found.facts["after"]) == (alone, alone - len(listed))
    assert f"alone {alone:,} messages, after the plan {alone - len(listed)}" in refused.value.message
    allowed = refuse_worse(opened, made, settings("5.3.3"), found.facts["count"])
    assert allowed.lost_messages == found.facts["count"] == sum(entry["messages"] for entry in allowed.plan.loss)


def test_a_plan_leaves_the_bytes_alone_whose_messages_only_the_broker_alone_would_deliver(drill: Start) -> None:
    opened = Store.open(drill("clean-manyfiles-5.3.3").root)
    hits = walk.records(opened.root)[200:203]
    worse = [ZeroRange(opened.relative(hit.file.path), hit.position, hit.end) for hit in hits[::2]]
    other = WriteFile("config/topics.json", b"{}")
    made = plan_recover(opened, RecoverOptions(settings=settings("5.3.3")))
    made.plan = Plan("recover", [worse[0], other, worse[1]])

    def left(steps: list[Step]) -> list[Step]:
        nothing = structs.replace(made, plan=Plan("recover", steps))
        return [*refuse_worse(opened, made, settings("5.3.3"), 0, again=lambda _: nothing).plan.steps]

    assert left([]) == [other]
    with pytest.raises(Refusal):
        left([other])  # the next run would change what this one leaves alone
    assert refuse_worse(opened, made, settings("5.3.3"), None).plan.steps == made.plan.steps


def test_queues_of_one_topic_are_not_made_where_a_broker_alone_would_make_all(drill: Start) -> None:
    store = drill("clean-manyfiles-5.3.3")
    shutil.rmtree(store.root / "consumequeue")
    with assert_unchanged(store.root):
        refused = store.run("rebuild-consumequeue", "--topic", "Orders", "--yes")
    assert refused.code & (exits.OPERATIONAL | exits.CORRECTED) == exits.OPERATIONAL
    assert "plan-loses-delivered" in refused.codes
    assert store.run("rebuild-consumequeue", "--yes").code & exits.CORRECTED


@pytest.mark.parametrize("name", ["clean-manyfiles-5.3.3", "killed-lmq-4.9.7"])
def test_what_a_cut_states_is_what_brokers_do_not_deliver_any_more(drill: Start, name: str) -> None:
    store = drill(name)
    before = copy_store(store.root, store.root.parent / "before")
    hits = store.records()
    cut = hits[len(hits) // 2].record.phy_offset
    done = store.run("truncate", "--to", cut, "--max-loss", "all", "--yes").document
    stated = {(row["topic"], row["queue"]): row["messages"] for row in done["plan"]["loss"]}
    own = [(item.topic, item.queue) for item in missed(before, store.root, name.rsplit("-", 1)[1])
           if not item.topic.startswith(LMQ_PREFIX)]
    assert done["lost_messages"] == sum(stated.values()) == len(own)
    assert stated == {queue: own.count(queue) for queue in own}


def test_a_cut_that_costs_more_than_it_states_is_refused(drill: Start) -> None:
    opened = Store.open(drill("clean-manyfiles-5.3.3").root)
    broker = settings("5.3.3")
    hits = walk.records(opened.root)
    asked = RecoverOptions(settings=broker, max_loss=None, command="truncate")
    made = plan_truncate(opened, hits[-20].record.phy_offset, asked)
    assert refuse_worse(opened, made, broker, 20).lost_messages == made.lost_messages == 20
    early = hits[200]
    steps = (*made.plan.steps, ZeroRange(opened.relative(early.file.path), early.position, early.end))
    made.plan = Plan("truncate", steps, loss=made.plan.loss)
    findings = FindingList()
    with pytest.raises(Refusal):
        refuse_worse(opened, made, broker, 20, findings)
    (found,) = findings
    listed = sum(entry["messages"] for entry in found.facts["lost"])
    assert listed == found.facts["count"] > 0
    assert early.record.topic_name in {entry["topic"] for entry in found.facts["lost"]}
    allowed = refuse_worse(opened, made, broker, 20 + listed)
    assert allowed.lost_messages == 20 + listed == sum(entry["messages"] for entry in allowed.plan.loss)


@pytest.mark.parametrize(("recipe", "version"), sampled(
    ["bit-in-body", "log-middle-missing", "first-page-zeroed"], ["4.9.7", "5.5.0"], quick=3,
))
def test_a_brokers_own_cut_states_all_that_it_costs(drill: Start, recipe: str, version: str) -> None:
    store = drill("killed-5.5.0")
    store.strike(recipe)
    before = copy_store(store.root, store.root.parent / "before")
    line = ("recover", "--policy", "broker", "--broker", version, "--yes", "--max-loss", "all")
    done = store.run(*line).document
    stated = {(row["topic"], row["queue"], row["first_offset"], row["last_offset"]) for row in done["plan"]["loss"]}
    for release in (version, "5.5.0"):
        for item in missed(before, store.root, release):
            assert any((item.topic, item.queue) == row[:2] and row[2] <= item.queue_offset <= row[3] for row in stated)


def test_a_file_of_another_store_costs_no_sound_file_after_it(drill: Start) -> None:
    store = drill("killed-lmq-4.9.7")
    name = "commitlog/00000000000000000000"
    (store.root / name).write_bytes((unpacked("clean-restarts-5.5.0") / name).read_bytes())
    with assert_unchanged(store.root):
        done = store.run("recover", "--yes")
    assert done.code & exits.OPERATIONAL
    assert "belong to another log" in done.document["error"]["message"]
    sound = {place: content for place, content in plain.delivered(unpacked("killed-lmq-4.9.7")).items()
             if int.from_bytes(content[28:36], "big") >= 131072}
    assert store.run("recover", "--yes", "--max-loss", "all").document["applied"]
    assert sound.items() <= plain.delivered(store.root).items()


def test_an_older_record_in_the_place_of_a_newer_message_is_not_asked_for(drill: Start) -> None:
    store = drill("killed-v2-ipv6-5.3.3")
    older_records_at_the_end(store.root, random.Random(1), back=3_600_000)
    store.struck()
    for path in sorted(store.root.glob("consumequeue/*/*/*")):
        content = path.read_bytes()  # one unit gone, the later ones moved up: a broker appends after the last
        used = next((at for at in range(0, len(content), 20) if not any(content[at:at + 20])), len(content))
        path.write_bytes(content[:200] + content[220:used] + bytes(len(content) - used + 20))
    done = store.run("recover", "--yes")
    assert done.document["applied"]
    assert plain.delivered(unpacked("killed-v2-ipv6-5.3.3")).items() <= plain.delivered(store.root).items()


@pytest.mark.parametrize(("newer", "stored", "taken"), [(3, 0, True), (2, 0, True), (1, 0, False), (3, 2, False)])
def test_a_deleted_topic_gives_way_to_the_one_created_again(
    newer: int, stored: int, taken: bool, tmp_path: Path
) -> None:
    """Unless units lead to its messages, or the restart is one message, whose queue offset may be damaged."""
    writer = StoreWriter(tmp_path / "s")
    older = [writer.put("T", b"t" * 100) for _ in range(5)]
    writer.put("O", b"o" * 100)
    writer.delete_topic("T")
    records = [writer.put("T", b"n" * 100) for _ in range(newer)]
    writer.put("O", b"o" * 100)
    root = writer.close(clean=False).root
    queue = root / "consumequeue" / "T" / "0" / offset_to_name(0)
    units = b"".join(CQ_UNIT.encode(CqUnit(each.phy_offset, each.total_size, 0)) for each in older[:stored])
    queue.write_bytes(units.ljust(100 * CQ_UNIT.size, b"\0"))
    if not stored:
        shutil.rmtree(root / "consumequeue")
    done = mqtool("recover", root, "--yes", "--json", "--set", "mappedFileSizeConsumeQueue=2000")
    assert done.code == (exits.CORRECTED if taken else exits.OPERATIONAL | exits.DERIVED)
    if taken:
        led_to = [unit.phy_offset for unit in CQ_UNIT.decode_all(queue.read_bytes()) if unit.size]
        assert led_to == [record.phy_offset for record in records]


def test_whole_files_are_not_given_up_as_old_ones(drill: Start) -> None:
    store = drill("clean-propcrc-5.3.3")
    name = "commitlog/00000000000000000000"
    (store.root / name).write_bytes((unpacked("clean-restarts-5.5.0") / name).read_bytes())
    for part in ("consumequeue", "index"):  # either would tell whose file it is
        shutil.rmtree(store.root / part)
    with assert_unchanged(store.root):
        done = store.run("recover", "--yes")
    assert done.code & exits.OPERATIONAL
    assert "intact messages of whole log files as old ones" in done.document["error"]["message"]
