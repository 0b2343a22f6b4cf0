"""What recover plans: for the log, as a broker would, and for config files."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from fixtures.damage import damage
from fixtures.damage.config import BAK, STROKES, strike
from fixtures.synth import StoreWriter, synth_store
from formats.config.tables import BY_NAME
from formats.consumequeue import CQ_UNIT, PRE_BLANK
from recover.broker.settings import BrokerSettings
from recover.broker.versions import BrokerVersion
from recover.change.carry_out import apply_plan
from recover.change.model import Retire, ZeroRange
from recover.change.preconditions import seal
from recover.check.config import ConfigReport, queue_ranges
from recover.check.report import verify
from recover.derived.expected import QueueKey
from recover.findings.code import UsageRefusal
from recover.predict.start import predict
from recover.reading.facts import ScanOptions
from recover.repair.config_repair import ConfigRepair, offsets_of
from recover.repair.log_changes import Lost
from recover.repair.recover import RecoverOptions, plan_recover
from recover.store.config_files import read_config
from recover.store.store import Store
from tests.support.analysed import analysed, carry_out, opened
from tests.support.sampling import chosen
from tests.support.stores import real_store, write_at

# --- What recover plans, where no scenario of a real store shows it.


def _recovered(root: Path) -> list[object]:
    plan = plan_recover(opened(root), RecoverOptions()).plan
    apply_plan(root, seal(plan, root))
    return list(plan.steps)


def test_a_queue_whose_messages_are_all_gone_leaves_no_file_of_zeros(tmp_path: Path) -> None:
    root = tmp_path / "s"
    written = synth_store(root, messages=100, topics=1, queues=2)
    extra = root / "consumequeue" / "Topic0" / "7"
    extra.mkdir()
    unit = (written.log_end + 100).to_bytes(8, "big") + (200).to_bytes(4, "big") + bytes(8)
    (extra / f"{0:020d}").write_bytes(unit.ljust(2000, b"\0"))
    found = [item.code for item in verify(opened(root)).findings if item.severity != "info"]
    assert found == ["consumequeue-beyond-log"]
    _recovered(root)
    assert not list(extra.iterdir())
    assert verify(opened(root)).exit_code == 0


def test_no_queue_of_lost_messages_ends_with_a_pre_blank(tmp_path: Path) -> None:
    """LMQ queues whose records are all lost: a pre-blank at the end of a queue stops the dispatch of 4.x."""
    root = real_store("killed-5.5.0", tmp_path)
    damage("log-middle-empty", root, 0)
    assert _recovered(root)
    ends = {}
    for path in sorted(root.glob("consumequeue/*/*/*")):
        units = [unit for unit in CQ_UNIT.decode_all(path.read_bytes()) if unit.size > 0]
        ends[path.parent.parent.name] = units[-1]
    assert ends["%LMQ%one"].phy_offset + ends["%LMQ%one"].size <= 1 << 20
    assert not [topic for topic, unit in ends.items() if unit == PRE_BLANK]
    assert not _recovered(root)


@pytest.mark.parametrize(("lost", "phantom"), [("gap", None), ("repeat", "T\ufffdpic"), ("repeat", "To pic")])
def test_a_queue_that_lost_its_only_message_is_right_once_it_leads_to_the_bridge(
    lost: Lost, phantom: str | None, tmp_path: Path
) -> None:
    """A broker that dispatches a record with a damaged topic makes a queue of it, and no record can belong there."""
    writer = StoreWriter(tmp_path / "s", mapped_file_size=1 << 16)
    writer.put("Topic")
    record = writer.put("Topic", b"lost" * 100, queue_id=7)
    writer.put("Topic")
    root = writer.close().root
    if phantom is not None:
        shutil.copytree(root / "consumequeue" / "Topic" / "7", root / "consumequeue" / phantom / "7")
    log = root / "commitlog" / f"{0:020d}"
    log.write_bytes(log.read_bytes().replace(b"lost" * 4, b"gone" * 4))
    plan = plan_recover(opened(root), RecoverOptions(lost=lost)).plan
    apply_plan(root, seal(plan, root))
    assert verify(opened(root)).exit_code == 0
    (file,) = (root / "consumequeue" / (phantom or "Topic") / "7").iterdir()
    assert CQ_UNIT.decode(file.read_bytes()).phy_offset == record.phy_offset
    assert not _recovered(root)


# --- `--policy broker`: the state that a broker's own recovery would leave, no worse at the start that comes after.


def _plan(store: Store, version: str) -> list[object]:
    settings = BrokerSettings(BrokerVersion.parse(version), {})
    options = RecoverOptions(policy="broker", settings=settings, max_loss=None)
    return list(plan_recover(store, options).plan.steps)


@pytest.mark.parametrize("lost", ["repeat", "visible"])
def test_the_unit_of_a_lost_message_is_hidden_though_its_marker_is_as_long(lost: Lost, tmp_path: Path) -> None:
    """The marker of a small message stands in its place with its length: its old unit would deliver the marker."""
    writer = StoreWriter(tmp_path / "s", mapped_file_size=1 << 20)
    queues = [[writer.put("Topic", b"x" * (20 + 4 * queue), queue_id=queue) for _ in range(3)] for queue in range(40)]
    root = writer.close().root
    log = root / "commitlog" / f"{0:020d}"
    content = log.read_bytes()
    for _, record, _ in queues:
        write_at(log, content.index(b"x" * len(record.body), record.phy_offset), b"lost")
    ticks: list[None] = []
    scan = ScanOptions(tick=lambda: ticks.append(None))
    made = plan_recover(opened(root), RecoverOptions(scan=scan, lost=lost))
    assert len(ticks) == len(queues), "progress counts each queue once"
    assert any(item["markers"] and not item["fillers"] for item in made.bridged), "some markers fill their range"
    apply_plan(root, seal(made.plan, root))
    for queue, records in enumerate(queues):
        (file,) = (root / "consumequeue" / "Topic" / str(queue)).iterdir()
        unit = list(CQ_UNIT.decode_all(file.read_bytes()))[1]
        assert unit.phy_offset == records[lost == "visible"].phy_offset
    assert verify(opened(root)).exit_code == 0


def test_a_log_file_that_begins_at_the_cut_stays_and_becomes_zeros(tmp_path: Path) -> None:
    """MappedFileQueue.truncateDirtyFiles deletes files that begin after the cut, not the one that begins at it."""
    root = real_store("clean-5.3.3", tmp_path)
    damage("first-page-zeroed", root, 0)
    (step,) = [step for step in _plan(opened(root), "4.5.1") if str(getattr(step, "file", "")).startswith("commitlog")]
    assert isinstance(step, ZeroRange) and step.file == f"commitlog/{1 << 20:020d}"


def test_abort_stays_while_the_log_holds_damage_that_the_recovery_did_not_look_at(tmp_path: Path) -> None:
    """After an orderly stop 4.x looks at the last three files, and would cut at damage that it passed over before."""
    root = real_store("clean-4.5.1", tmp_path)
    damage("crash-power-loss", root, 0)
    store, analysis = analysed(root)
    assert not [step for step in _plan(store, "4.9.7") if isinstance(step, Retire) and step.file == "abort"]
    normal = predict(store, analysis.log, BrokerSettings(BrokerVersion.parse("4.9.7"), {}), mode="normal")
    assert normal.lost_messages > 0


@pytest.mark.parametrize(("recipe", "goes"), [("crash-bit-without-checkpoint", True), ("bit-in-topic", False)])
def test_abort_goes_where_the_next_abnormal_recovery_would_look_at_one_file_more_and_cut(
    tmp_path: Path, recipe: str, goes: bool
) -> None:
    """5.4 and later look at the ten newest files; a recovery takes the empty last one away."""
    root = real_store("killed-manyfiles-5.5.0", tmp_path)
    damage(recipe, root, 0)
    store, _ = analysed(root)
    steps = _plan(store, "5.5.0")
    assert any(isinstance(step, Retire) and step.file == f"commitlog/{15 * 65536:020d}" for step in steps)
    assert any(isinstance(step, Retire) and step.file == "abort" for step in steps) is goes


def test_the_unit_of_a_record_whose_topic_changed_stays(tmp_path: Path) -> None:
    """A broker that does not dispatch the record again goes on serving it where its queue has it."""
    root = real_store("clean-4.5.1", tmp_path)
    damage("bit-in-topic-legal", root, 0)
    assert not [step for step in _plan(opened(root), "5.5.0") if getattr(step, "file", "").startswith("consumequeue")]


# --- Repairing config files: verify comes out clean, or goes on saying what is lost; nothing is made up.


Make = Callable[[str], Path]


def repair(root: Path, *, clamp: bool = False) -> ConfigRepair:
    """Repair the store at `root`, and check that a second run has nothing left to do."""
    store, analysis = analysed(root)
    done = ConfigRepair(store, analysis, ConfigReport(analysis), clamp_offsets=clamp)
    carry_out(root, done.steps)
    store, analysis = analysed(root)
    assert ConfigRepair(store, analysis, ConfigReport(analysis), clamp_offsets=clamp).steps == []
    return done


def codes(root: Path) -> list[str]:
    """What is wrong; that topics are a guess is a note."""
    return [item.code for item in ConfigReport(analysed(root)[1]).findings if item.severity != "info"]


def members(path: Path) -> dict[str, object]:
    """The entries of a config file, as far as they can be read."""
    return dict(read_config(path, BY_NAME[path.name.removesuffix(".bak")]).table)


NAMES = ("consumerOffset.json", "subscriptionGroup.json", "topics.json")
CASES = [(stroke, bak, NAMES[number % 3]) for number, (stroke, bak) in enumerate(product(STROKES, BAK))]
CASES += [(stroke, bak, "topics.json") for stroke in ("cut", "zeros") for bak in BAK]


@pytest.mark.parametrize(("stroke", "bak", "name"), chosen(CASES, quick=12))
def test_t28_config_file_gets_its_best_copy_and_nothing_is_made_up(
    store: Make, stroke: str, bak: str, name: str
) -> None:
    """Or what cannot be read is put aside with its backup, as if it had never been there."""
    root = store("clean-4.5.1")
    main = root / "config" / name
    content, whole = main.read_bytes(), members(main)
    strike(root, random.Random(1), stroke, bak, name)
    readable = members(main)
    is_sound, is_guessed = bak == "sound" or stroke == "trailing-garbage", name == "topics.json"
    (found,) = ConfigReport(analysed(root)[1]).findings
    code = "config-broken" if is_sound else "config-topics-guessed" if is_guessed else "config-lost"
    assert (found.code, found.file, found.severity) == (code, f"config/{name}", "warning")
    (choice,) = repair(root).choices
    left = []
    if is_sound:
        assert main.read_bytes() == content
    elif not readable and not is_guessed:
        assert choice["action"] == "taken-away"
        assert not main.exists() and not main.with_name(f"{name}.bak").exists()
        left = ["config-missing"] * (name == "consumerOffset.json")
    else:
        assert choice["action"] == ("guessed" if is_guessed else "put-together")
        kept = members(main)
        assert {key: kept[key] for key in readable} == readable
        assert is_guessed or kept == {key: whole[key] for key in kept}
        notes = {"topics.json": ["config-topics-are-a-guess"], "consumerOffset.json": ["config-partly-kept"]}
        assert [item.code for item in ConfigReport(analysed(root)[1]).findings] == notes.get(name, [])
    assert codes(root) == left
    assert all(pair.starts for pair in ConfigReport(analysed(root)[1]).pairs), "whatever is left, every broker starts"


@pytest.mark.parametrize("name", ["consumerOffset.json", "subscriptionGroup.json", "delayOffset.json"])
def test_a_backup_with_an_empty_table_does_not_take_the_place_of_what_can_be_read(store: Make, name: str) -> None:
    root = store("clean-4.5.1")
    main, backup = root / "config" / name, root / "config" / f"{name}.bak"
    whole = members(main)
    main.write_bytes(main.read_bytes()[: main.stat().st_size * 2 // 3])
    backup.write_bytes(b'{"%s":{}}' % BY_NAME[name].required[0].encode())
    assert codes(root) == ["config-lost"]
    (choice,) = repair(root).choices
    assert choice["action"] == "put-together" and choice["members"] > 0
    assert members(main) == members(backup) == {key: whole[key] for key in members(main)}


NAMED = ("topics.json", "consumerOffset.json", "delayOffset.json", "subscriptionGroup.json")


@pytest.mark.parametrize("bak", ["sound", "missing", "flipped"])
@pytest.mark.parametrize("name", NAMED)
def test_a_flipped_bit_in_the_name_of_a_table_is_turned_back(store: Make, name: str, bak: str) -> None:
    root = store("clean-4.5.1")
    main, backup = root / "config" / name, root / "config" / (name + ".bak")
    sound = main.read_bytes()
    (table,) = BY_NAME[name].required
    at = sound.index(f'"{table}"'.encode()) + 3
    flipped = sound[:at] + bytes([sound[at] ^ 4]) + sound[at + 1 :]
    main.write_bytes(flipped)
    if bak == "missing":
        backup.unlink(missing_ok=True)
    elif bak == "flipped":
        backup.write_bytes(flipped)
    (found,) = ConfigReport(analysed(root)[1]).findings
    assert (found.code, found.offset, found.severity) == ("config-broken", at, "warning")
    assert f"bit 2 of byte {at}" in found.message
    assert [choice["action"] for choice in repair(root).choices] == ["name-restored"]
    assert main.read_bytes() == sound and (bak != "flipped" or backup.read_bytes() == sound)
    assert not ConfigReport(analysed(root)[1]).findings


@pytest.mark.parametrize("bak", [b"", bytes(100), b"{\"topicConfigTable\":{"])
def test_guessed_topics_are_those_with_queues_and_hold_no_topic_of_the_broker_itself(store: Make, bak: bytes) -> None:
    root = store("clean-5.3.3")
    path = root / "config" / "topics.json"
    known = members(path)
    path.write_bytes(bytes(path.stat().st_size))
    path.with_name("topics.json.bak").write_bytes(bak)
    (choice,) = repair(root).choices
    assert choice["guess"] and "GUESS" in choice["text"]
    guessed = members(path)
    assert {"TopicA", "TopicB", "TopicTx", "Orders-2026", "%RETRY%CG_retry"} <= guessed.keys()
    assert not {"SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"} & guessed.keys()
    assert not any(name.startswith("%LMQ%") for name in guessed)
    for name in ("TopicA", "TopicTx"):
        assert {**known[name], "attributes": None} == {**guessed[name], "attributes": None}  # type: ignore[dict-item]
    assert guessed["%RETRY%CG_retry"]["writeQueueNums"] == 1  # type: ignore[index]
    assert codes(root) == []


def test_config_that_is_gone_gets_guessed_topics_and_stays_reported(store: Make) -> None:
    root = store("clean-expired-5.5.0")
    shutil.rmtree(root / "config")
    (root / "config").mkdir()
    (choice,) = repair(root).choices
    assert choice["action"] == "guessed"
    missing, guess = sorted(ConfigReport(analysed(root)[1]).findings, key=lambda item: item.code)
    assert (missing.code, missing.file) == ("config-missing", "config/consumerOffset.json")
    assert (guess.code, guess.file) == ("config-topics-are-a-guess", "config/topics.json")
    # a broker writes the file without the mark
    path = root / "config" / "topics.json"
    path.write_bytes(path.read_bytes().replace(b'"guessedBy":"mqtool",', b""))
    assert codes(root) == []


ODD_TEXTS = (
    # of these a broker gives up the whole text
    ("delayOffset.json", b"{1:40", b"{q:40", "not a number"), ("delayOffset.json", b"1:40", b'1:"4p"', "not a number"),
    ("consumerOffset.json", b"{0:77", b"{p:77", "not a number"),
    ("consumerOffset.json", b"0:77", b"0:{}", "not a number"),
    ("consumerOffset.json", b"0:77", b"0:9223372036854775808", "not a number"),
    # these it reads as they are
    ("consumerOffset.json", b"TopicA@CG_retry", b"Topi" + bytes(10) + b"y", "no broker wrote"),
    ("topics.json", b'"TopicB":{', b'"TopxQ7":{', "no broker wrote"),
    ("topics.json", b'"writeQueueNums"', b'"wraeeQueueNums"', "no broker wrote"),
    ("topics.json", b'"topicName":', b'"topixName":', "no broker wrote"),
    ("topics.json", b'"TBW102":', b'"TXW102":', "no broker wrote"),
)


@pytest.mark.parametrize("bak", ["sound", "missing"])
@pytest.mark.parametrize(("name", "right", "wrong", "problem"), ODD_TEXTS)
def test_a_text_that_no_broker_wrote_is_restored_or_goes_without_what_is_wrong(
    store: Make, name: str, right: bytes, wrong: bytes, problem: str, bak: str
) -> None:
    root = store("clean-4.5.1")
    main = root / "config" / name
    content, backup = main.read_bytes(), main.with_name(f"{name}.bak")
    backup.write_bytes(content)
    if bak == "missing":
        backup.unlink()
    assert right in content
    main.write_bytes(content.replace(right, wrong, 1))
    left, is_topics = members(main), name == "topics.json"
    (found,) = ConfigReport(analysed(root)[1]).findings
    without = ("config-topics-guessed", "guessed") if is_topics else ("config-lost", "put-together")
    code, action = ("config-broken", "restored") if bak == "sound" else without
    assert found.code == code
    gives_up = problem == "not a number"
    if gives_up or bak == "sound":
        assert problem in found.message
    if not gives_up:
        opened_store, analysis = analysed(root)
        started = predict(opened_store, analysis.log, BrokerSettings(BrokerVersion.parse("5.3.3")))
        assert [*started.config_lost] == [f"config/{name}"], "a broker reads the text as it is"
    assert [choice["action"] for choice in repair(root).choices] == [action]
    assert (main.read_bytes() == content) == (bak == "sound")
    assert wrong not in main.read_bytes() and codes(root) == []
    if gives_up and bak == "missing":
        assert right not in main.read_bytes() and len(members(main)) == len(left) > 2


def test_nothing_is_done_about_offsets_that_are_gone(store: Make) -> None:
    root = store("clean-4.5.1")
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (root / "config" / name).write_bytes(b'{"offsetTable":{}}')
    assert repair(root).steps == []
    assert codes(root) == ["config-missing"]


def test_two_cut_offset_files_give_what_both_still_say_and_the_newer_one_wins(store: Make) -> None:
    root = store("clean-4.5.1")
    path = root / "config" / "consumerOffset.json"
    path.write_bytes(b'{\n\t"offsetTable":{\n\t\t"TopicA@CG_retry":{0:131,1:1')
    path.with_name("consumerOffset.json.bak").write_bytes(
        b'{\n\t"offsetTable":{\n\t\t"TopicA@CG_retry":{0:100,1:90\n\t\t},\n\t\t"TopicTx@CG_retry":{0:5,1:')
    repair(root)
    table = read_config(path, BY_NAME["consumerOffset.json"]).table
    assert table == {"TopicA@CG_retry": {0: 131, 1: 90}, "TopicTx@CG_retry": {0: 5}}
    assert codes(root) == []


def test_a_statistic_nobody_can_read_is_taken_away(store: Make) -> None:
    root = store("clean-5.3.3")
    for name in ("timermetrics", "timermetrics.bak"):
        (root / "config" / name).write_bytes(bytes(141))
    (choice,) = repair(root).choices
    assert choice["action"] == "taken-away"
    assert not (root / "config" / "timermetrics").exists()
    assert codes(root) == []


def test_offsets_are_clamped_only_when_asked_and_only_those_above(store: Make) -> None:
    root = store("clean-5.3.3")
    path = root / "config" / "lmqConsumerOffset.json"
    content = path.read_bytes().replace(b'"TopicA@CG_retry":{0:148,1:136', b'"TopicA@CG_retry":{0:9148,1:136')
    path.write_bytes(content)
    assert codes(root) == ["consumer-offset-above-max"]
    assert repair(root).steps == []
    (choice,) = repair(root, clamp=True).choices
    assert choice["action"] == "clamped"
    assert codes(root) == []
    changed = read_config(path, BY_NAME["lmqConsumerOffset.json"]).table
    assert changed["TopicA@CG_retry"][1] == 136  # type: ignore[index,call-overload]
    assert path.read_bytes().count(b"\n") == content.count(b"\n")  # laid out as before


def _offsets(path: Path) -> dict[str, dict[int, int]]:
    table = read_config(path, BY_NAME[path.name]).value["offsetTable"]
    assert isinstance(table, dict)
    return {str(member): {int(queue): int(offset) for queue, offset in queues.items()}  # type: ignore[union-attr,arg-type]
            for member, queues in table.items()}


def test_offsets_of_another_file_are_taken_where_they_are_ahead_and_never_past_the_end_of_the_queue(
    store: Make, tmp_path: Path,
) -> None:
    root = store("clean-5.3.3")
    mine = root / "config" / "lmqConsumerOffset.json"
    before = _offsets(mine)
    other = tmp_path / "of-the-slave.json"
    other.write_text(json.dumps({"offsetTable": {
        "TopicA@CG_retry": {"0": 10**9, "1": before["TopicA@CG_retry"][1] - 1, "2": before["TopicA@CG_retry"][2]},
        "TopicA@CG_new": {"0": 3}, "NoSuchTopic@CG_retry": {"0": 7}}}))
    theirs = other.read_bytes()
    store_, analysis = analysed(root)
    ends = queue_ranges(analysis)
    done = ConfigRepair(store_, analysis, ConfigReport(analysis), offsets_from=offsets_of(other))
    carry_out(root, done.steps)
    (choice,) = done.choices
    end = ends[QueueKey("TopicA", 0)].stop
    ahead = int(end > before["TopicA@CG_retry"][0])
    assert (choice["raised"], choice["to_end"], choice["kept"], choice["unknown"]) == (1 + ahead, ahead, 3 - ahead, 1)
    expected = {**before, "TopicA@CG_retry": {**before["TopicA@CG_retry"], 0: end}, "TopicA@CG_new": {0: 3}}
    assert _offsets(mine) == expected
    assert other.read_bytes() == theirs
    store_, analysis = analysed(root)
    assert ConfigRepair(store_, analysis, ConfigReport(analysis), offsets_from=offsets_of(other)).steps == []


def test_a_lost_file_of_offsets_is_taken_from_the_one_that_the_user_names(store: Make, tmp_path: Path) -> None:
    root = store("clean-5.3.3")
    mine = root / "config" / "lmqConsumerOffset.json"
    before = _offsets(mine)
    other = tmp_path / mine.name
    shutil.copy(mine, other)
    mine.write_bytes(b"")
    mine.with_name(f"{mine.name}.bak").unlink()
    store_, analysis = analysed(root)
    carry_out(root, ConfigRepair(store_, analysis, ConfigReport(analysis), offsets_from=offsets_of(other)).steps)
    assert _offsets(mine) == before


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b'{"offsetTable":{}}', b"\0" * 40])
def test_a_file_without_offsets_is_a_usage_error(tmp_path: Path, content: bytes) -> None:
    other = tmp_path / "consumerOffset.json"
    other.write_bytes(content)
    with pytest.raises(UsageRefusal):
        offsets_of(other)
    with pytest.raises(UsageRefusal):
        offsets_of(tmp_path / "missing.json")


def test_what_was_pulled_ahead_is_lowered_with_the_offset(store: Make) -> None:
    root = store("killed-5.5.0")
    path = root / "config" / "lmqConsumerOffset.json"
    path.write_bytes(path.read_bytes().replace(b"0:116", b"0:99116"))
    repair(root, clamp=True)
    assert b"99116" not in path.read_bytes()


def test_delay_offsets_and_light_queues_are_clamped_too(store: Make) -> None:
    root = store("clean-5.3.3")
    config = root / "config"
    (config / "delayOffset.json").write_bytes(b'{"offsetTable":{3:777777,1:1}}')
    topic = next(path.name for path in (root / "consumequeue").iterdir() if path.name.startswith("%LMQ%"))
    (config / "lmqConsumerOffset.json").write_bytes(b'{"lmqOffsetTable":{"%s@G":888888}}' % topic.encode())
    ends = queue_ranges(analysed(root)[1])
    found = {item.code: item.facts for item in ConfigReport(analysed(root)[1]).findings}
    assert found["delay-offset-above-max"]["end"] == ends[QueueKey("SCHEDULE_TOPIC_XXXX", 2)].stop
    assert found["consumer-offset-above-max"]["topic"] == topic
    repair(root, clamp=True)
    assert codes(root) == []
    assert b"777777" not in (config / "delayOffset.json").read_bytes()
    assert b"1:1" in (config / "delayOffset.json").read_bytes()


def test_offsets_that_a_rejected_file_still_shows_outrank_its_older_backup(tmp_path: Path) -> None:
    root = real_store("clean-5.3.3", tmp_path)
    main, backup = (root / "config" / f"lmqConsumerOffset.json{end}" for end in ("", ".bak"))
    content = main.read_bytes()
    backup.write_bytes(content.replace(b"0:148", b"0:48"))
    main.write_bytes(content[: content.index(b'"TopicTx@CG_retry"')])
    settings = BrokerSettings(BrokerVersion.parse("5.3.3"), {"enableLmq": "true"})
    before = predict(opened(root), verify(opened(root)).analysis.by_names, settings)
    assert (before.exit_code, [*before.config_lost]) == (4, ["config/lmqConsumerOffset.json"])
    _recovered(root)
    table = read_config(main, BY_NAME["lmqConsumerOffset.json"]).table
    assert table["TopicA@CG_retry"] == {0: 148, 1: 136, 2: 140, 3: 140} and len(table) == 5
    assert predict(opened(root), verify(opened(root)).analysis.by_names, settings).exit_code == 0
