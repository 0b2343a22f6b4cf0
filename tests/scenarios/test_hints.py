"""Every hint is followed to its end, on every store and every damage: none is refused, none leads back.

A hint that is no command of ours ("start the broker", "mount the disk") is an end.
"""

from __future__ import annotations

import os
import random
import re
import shlex
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage import RECIPES, damage
from mqtool import exits
from mqtool.commands import COMMANDS, command_of
from mqtool.next_steps import START_BROKER, TAKES
from recover.findings.code import Code
from recover.findings.model import CODES
from tests.change.test_lock import held, record_lock
from tests.cli.runner import mqtool
from tests.scenarios.drill import all_stores, log_options
from tests.support import sampling
from tests.support.sampling import few
from tests.support.stores import KINDS, broker_conf, copy_store, real_store, strike, unmount_log

STORES = all_stores()
#: What stores of every kind meet; the recipes are of a part that most of them have.
OF_KINDS = ("nothing", "log-unmounted", "bit-in-body", "topics-missing")
_LONGEST = 8
_SAMPLE = 1
CHOSEN = {
    ("clean-5.3.3", "bit-in-body"), ("clean-multipath-4.9.7", "page-random"),
    ("clean-5.3.3", "consumer-offset-above-max"), ("clean-4.5.1", "log-all-missing"),
    ("clean-manyfiles-5.3.3", "log-middle-missing"), ("clean-plain-4.9.7", "topics-missing"),
    ("clean-expired-5.5.0", "nothing"), ("kinds/killed-dledger-5.3.3", "log-unmounted"),
    ("kinds/killed-rocksdb-5.3.3", "bit-in-body"), ("kinds/clean-batch-5.5.0", "topics-missing"),
    ("clean-expired-4.5.1", "log-file-of-another-store"),
}


def _cases() -> list[Any]:
    """All pairs of store and recipe (and each store undamaged); the chosen ones and a sample in every run."""
    pairs = sorted(product(STORES, ["nothing", *RECIPES]))
    quick = {*CHOSEN, *random.Random(27).sample(pairs, _SAMPLE)}
    pairs += product(KINDS, OF_KINDS)
    assert quick <= set(pairs), "a chosen case that there is not"
    return [pytest.param(*pair, id="-".join(pair), marks=() if pair in quick else pytest.mark.long) for pair in pairs
            if pair in quick or sampling.with_long]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A sound store."""
    return real_store("clean-5.3.3", tmp_path)


class Follower:
    """Follows hints about one store. What changes the store is done in place; other ways from there on copies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.copies = 0
        self.ends: list[str] = []

    def follow(self, root: Path, command: str, trail: tuple[str, ...] = ()) -> None:
        """Run `command` and all that it hints at."""
        if not command.startswith("mqtool "):
            assert command.strip()
            self.ends.append(command)
            return
        plain = command.replace(str(root), "STORE")
        assert plain not in trail, f"a circle: {[*trail, plain]}"
        assert len(trail) < _LONGEST, f"no end: {[*trail, plain]}"
        *before, last = command.split(" && ")
        for line in before:
            assert mqtool(*shlex.split(line)[1:], "--yes").code == exits.CLEAN
        words = shlex.split(last)[1:]
        name = words[0]
        assert not log_options(root) or name in ("undo", "resume", "journal", "apply", "explain") \
            or "--commitlog" in words, f"an option was lost: {plain}"
        changes = name not in ("inspect", "verify", "predict", "query", "explain", "journal")
        if changes and "--dry-run" not in words:
            words.append("--yes")
        result = mqtool(*words, "--json")
        document = result.document
        # that the broker alone delivers more than any plan is an end: the store stays as it is
        kept = {"plan-loses-delivered", "plan-overwrites-named"} & document["finding_counts"].keys()
        assert not trail or kept or "error" not in document, f"refused: {[*trail, plain]}: {document['error']}"
        assert result.code & (exits.USAGE | exits.INTERRUPTED | exits.BUG) == 0, result.stderr
        steps = document["next"]
        if "error" in document:
            assert steps or not document["error"]["remedy"]
            # to accept a loss is the user's choice, and no way on from a plan that a hint led to
            steps = [] if trail else steps
            self.ends += kept
        assert all(step.keys() == {"command", "why"} and step["why"] for step in steps)
        if "undo" in document:
            assert document["undo"]["command"].startswith("mqtool undo ")
            assert document["undo"] not in steps
        if name == "recover" and document.get("applied"):
            assert steps, "nothing to do next after a repair"
            if result.code in (exits.CORRECTED, exits.CORRECTED | exits.MESSAGES):
                assert steps[0]["command"] == START_BROKER
        if not steps and "error" not in document:
            assert result.code & exits.UNSUPPORTED or name == "explain", f"no end: {[*trail, plain]}, {result.code}"
            self.ends.append("")
        for step in reversed(steps):
            here = root
            if step is not steps[0]:
                self.copies += 1
                here = _copied(root, self.folder / f"way-{self.copies}" / "store")
            self.follow(here, step["command"].replace(str(root), str(here)), (*trail, plain))


def _conf(root: Path) -> Path:
    return root.with_name(f"{root.name}.conf")


def _copied(root: Path, target: Path) -> Path:
    """A copy of the store, and of the broker.conf beside it, which names the store."""
    copy_store(root, target)
    if _conf(root).exists():
        _conf(target).write_text(_conf(root).read_text().replace(str(root), str(target)))
    return target


@pytest.mark.parametrize(("store", "recipe"), _cases())
def test_every_hint_leads_to_an_end(store: str, recipe: str, tmp_path: Path) -> None:
    root = real_store(store, tmp_path / "first")
    if recipe == "log-unmounted":
        unmount_log(root)
    elif recipe != "nothing":
        strike(recipe, root, 27)
    given = log_options(root)
    if store in KINDS:
        given = ("--broker-conf", broker_conf(store, root, _conf(root)))
    options = shlex.join(map(str, given))
    follower = Follower(tmp_path)
    for name in ("inspect", "predict"):
        copy = _copied(root, tmp_path / name / "store")
        follower.follow(copy, f"mqtool {name} {root} {options}".replace(str(root), str(copy)))
    follower.follow(root, f"mqtool recover {root} {options} --dry-run --plan-out {tmp_path}/p.json")
    assert follower.ends


def test_the_options_that_hints_keep_are_those_that_a_command_takes() -> None:
    for name, place in COMMANDS.items():
        taken = set(command_of(place).__annotations__)
        assert set(TAKES.get(name, ())) <= taken, name


def test_a_remedy_that_begins_as_a_command_is_one() -> None:
    typed = {code.name: code.remedy.split()[1] for code in CODES.values() if code.remedy.startswith("mqtool ")}
    assert typed and not {name: word for name, word in typed.items() if word not in COMMANDS}


@pytest.mark.parametrize("code", [code for code in CODES.values() if code.remedy], ids=lambda code: code.name)
def test_a_row_says_who_repairs_what_it_names_as_its_remedy_does(code: Code) -> None:
    ours = {"recover": "mqtool recover {store} --dry-run", "mend-bits": "mqtool recover {store} --mend-bits",
            "clamp": "mqtool recover {store} --clamp-offsets", "rebuild": "mqtool rebuild", "resume": "mqtool resume"}
    named = next((name for name, words in ours.items() if code.remedy.startswith(words)), "hand")
    if code.repaired_by == "search":
        assert named == "hand" and "mqtool recover {store}" in code.remedy
    else:
        assert code.repaired_by == named


def test_a_saved_plan_is_what_comes_next(tmp_path: Path) -> None:
    root = real_store("killed-5.5.0", tmp_path)
    plan = tmp_path / "p.json"
    done = mqtool("recover", root, "--dry-run", "--plan-out", plan, "--json").document
    assert [step["command"] for step in done["next"]] == [f"mqtool apply {plan}"]
    other = tmp_path / "q.json"
    assert f"next: mqtool apply {other}" in mqtool("recover", root, "--dry-run", "--plan-out", other).stdout


def test_mend_bits_comes_first_where_it_saves_messages(root: Path) -> None:
    damage("bit-in-body", root, 3)
    checked = mqtool("verify", root, "--json").document["next"]
    assert [step["command"].split(str(root))[1] for step in checked] == [" --mend-bits --dry-run", " --dry-run"]
    planned = mqtool("recover", root, "--dry-run", "--json").document["next"]
    assert "--mend-bits" in planned[0]["command"] and "--mend-bits" not in planned[1]["command"]


def test_a_part_without_problems_does_not_clear_the_store(tmp_path: Path) -> None:
    root = real_store("killed-5.5.0", tmp_path)
    damage("log-last-missing", root, 69)
    assert mqtool("verify", root).code & 4
    part = mqtool("verify", root, "--only", "commitlog", "--json")
    assert part.code == 0, "the end of the log is missing, which the log itself does not show"
    assert part.document["summary"].startswith("No problem found in the checked parts: 1,571 intact messages, "
                                               "not checked: consumequeue, index, checkpoint, config")
    assert [step["command"] for step in part.document["next"]] == [f"mqtool verify {root}"]


def test_all_that_was_given_about_the_store_is_in_the_next_command(tmp_path: Path) -> None:
    root = real_store("killed-5.5.0", tmp_path)
    conf = tmp_path / "my broker.conf"
    conf.write_text("fileReservedTime=72\n")
    (root / "index").rename(tmp_path / "index")
    given = ["--index", str(tmp_path / "index"), "--mapped-file-size", str(1 << 20), "--index-slots", "500",
             "--index-entries", "2000", "--broker", "5.5.0", "--broker-conf", str(conf),
             "--set", "flushDiskType=SYNC_FLUSH"]
    for name, then in (("verify", "predict"), ("inspect", "verify")):
        steps = mqtool(name, root, *given, "--json").document["next"]
        assert shlex.split(steps[0]["command"]) == ["mqtool", then, str(root), *given]
    assert mqtool("verify", root, *given).stdout.count("next: ") == 1


@few(("place", "kind"), [
    ("consumequeue/Orders-2026/0", "a pipe"), ("consumequeue/Orders-2026/0", "a folder"), ("commitlog", "a pipe"),
    ("commitlog", "a folder"), ("index", "a pipe"),
], quick=(1, 4))
def test_what_stands_in_the_place_of_a_file_is_moved_by_hand_first(place: str, kind: str, root: Path) -> None:
    path = max((root / place).iterdir())
    path.unlink()
    if kind == "a pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    file = str(path.relative_to(root))
    commands = [("verify",), ("predict", "--broker", "5.3.3"), ("recover", "--dry-run"), ("rebuild", "--dry-run")]
    if place == "index":
        del commands[2:]  # these do their work beside it
    for name, *more in commands:
        done = mqtool(name, root, *more, "--json").document
        first = done["error"]["remedy"] if "error" in done else done["next"][0]["command"]
        assert f"{file} out of the store" in first and f"mqtool verify {root}" in first, (name, first)


def test_a_link_to_nothing_in_the_place_of_a_queue_file_is_replaced_and_undone(root: Path) -> None:
    path = max((root / "consumequeue/Orders-2026/0").iterdir())
    path.unlink()
    path.symlink_to("/mnt/not-mounted/file")
    assert mqtool("predict", root, "--broker", "5.3.3", "--json").code == exits.MESSAGES
    assert mqtool("recover", root, "--yes").code == exits.CORRECTED
    assert mqtool("verify", root).code == exits.CLEAN
    assert mqtool("undo", root, "--yes").code == exits.CLEAN
    assert path.is_symlink() and not path.exists()


@pytest.mark.parametrize("place", ["checkpoint", "config/topics.json", "index/20300101000000000"])
def test_what_a_start_makes_of_a_pipe_is_not_foretold(place: str, root: Path) -> None:
    (root / place).unlink(missing_ok=True)
    os.mkfifo(root / place)
    done = mqtool("predict", root, "--broker", "5.3.3", "--json")
    assert done.code & exits.UNSUPPORTED and "by hand" in done.document["next"][0]["command"]


@pytest.mark.parametrize("name", ["clean-5.3.3", "killed-5.5.0"])
def test_a_config_folder_that_is_missing_is_looked_for_first(name: str, tmp_path: Path) -> None:
    root = real_store(name, tmp_path)
    shutil.rmtree(root / "config")
    for command in ("verify", "predict"):
        steps = [step["command"] for step in mqtool(command, root, "--json").document["next"]]
        assert steps[0].startswith("Find it first"), (command, steps)
        assert f"mqtool recover {root}" in " ".join(steps), (command, steps)
    assert mqtool("verify", root, "--json").document["next"][-1]["command"] == f"mqtool recover {root} --dry-run"


def test_what_only_an_option_repairs_is_named_with_it_alone(root: Path) -> None:
    damage("consumer-offset-above-max", root, 27)
    steps = [step["command"] for step in mqtool("verify", root, "--json").document["next"]]
    assert steps == [f"mqtool recover {root} --clamp-offsets --dry-run"]


def test_a_repair_that_bridged_what_one_bit_explains_says_how_to_restore_it(root: Path) -> None:
    damage("bit-in-body", root, 3)
    steps = mqtool("recover", root, "--yes", "--json").document["next"]
    assert steps[0]["command"] == START_BROKER and "gives up 1 damaged message that --mend-bits" in steps[0]["why"]
    undo, again = steps[1]["command"].split(" && ")
    assert mqtool(*shlex.split(undo)[1:], "--yes").code == exits.CLEAN
    mended = mqtool(*shlex.split(again)[1:], "--yes", "--json")
    assert mended.code == exits.CORRECTED and mended.document["next"][0]["command"] == START_BROKER


def test_a_refusal_says_what_to_type_next(tmp_path: Path) -> None:
    root = real_store("clean-manyfiles-5.3.3", tmp_path)
    damage("log-middle-missing", root, 27)
    typed = ("recover", root, "--set", "flushDiskType=SYNC_FLUSH", "--dry-run")
    refused = mqtool(*typed, "--json").document
    first, step = refused["next"]
    assert first["command"].startswith("Find them")
    assert step["command"].startswith(shlex.join(["mqtool", *map(str, typed)]) + " --max-loss ")
    assert step["command"] in refused["error"]["remedy"] and step["why"] == refused["error"]["message"]
    assert mqtool(*shlex.split(step["command"])[1:]).code == exits.MESSAGES
    asked = mqtool("recover", real_store("killed-5.5.0", tmp_path / "k"), "--json").document["next"]
    assert [step["command"].rpartition(" ")[2] for step in asked] == ["--dry-run", "--yes"]
    unknown = mqtool("recover", root, "--broker", "no release", "--json").document["next"]
    assert [step["command"].startswith("mqtool") for step in unknown] == [False]


def test_a_loss_counts_messages_that_undo_loses_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")  # one of several workers sees 80, where a time takes two lines
    root = real_store("clean-5.3.3", tmp_path)
    damage("log-last-missing", root, 27)
    lost = re.search(r"at least ([\d,]+) messages", mqtool("recover", root, "--yes").stderr)
    assert lost is not None
    done = mqtool("recover", root, "--max-loss", "all", "--yes")
    assert f"what is lost: {lost[1]} messages" in done.stdout and " near 20" in done.stdout
    undone = mqtool("undo", root, "--yes").stdout
    assert "what is lost" not in undone and f"{lost[1]} messages that it gave up will be missing or damaged" in undone


def test_a_release_that_nobody_knows_is_refused_and_a_newer_patch_starts_like_the_nearest(root: Path) -> None:
    refused = mqtool("predict", root, "--broker", "9.9")
    assert refused.code == exits.USAGE and "5.3.3" in refused.stderr
    newer = mqtool("predict", root, "--broker", "5.4.9", "--json").document
    assert any("like 5.4.0" in line for line in newer["assumptions"])
    known = mqtool("predict", root, "--broker", "5.3.1", "--json").document
    assert not any("is unknown" in line for line in known["assumptions"])


def test_a_config_file_that_names_nothing_is_not_whole(root: Path) -> None:
    for name in ("topics.json", "topics.json.bak"):
        (root / "config" / name).write_text("{}")
    states = {item["name"]: item["state"] for item in mqtool("inspect", root, "--json").document["config"]}
    assert states["topics.json"] == "has an empty table" and states["consumerFilter.json"] == "whole"


def test_no_start_comes_before_what_has_to_be_done_first(tmp_path: Path) -> None:
    root = real_store("kinds/clean-pop-5.5.0", tmp_path)
    conf = broker_conf("kinds/clean-pop-5.5.0", root, tmp_path / "broker.conf")
    shutil.rmtree(root / "kvStore")
    steps = mqtool("recover", root, "--broker-conf", conf, "--dry-run", "--json").document["next"]
    assert [step["command"].partition(" before")[0] for step in steps] == ["Do not start the broker"]


def test_no_start_is_named_beside_a_running_broker(root: Path) -> None:
    with held(record_lock(root)):
        # half messages come again
        for line, code in ((("predict",), exits.DERIVED), (("recover", "--dry-run"), exits.CLEAN)):
            done = mqtool(line[0], root, *line[1:], "--json")
            assert (done.code, done.document["next"]) == (code, [])
            assert "broker-running" in done.codes


def test_a_start_rests_on_what_was_assumed(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")
    step = mqtool("recover", root, "--yes", "--json").document["next"][0]
    assert step["command"] == START_BROKER and "provided that it has mappedFileSizeConsumeQueue=6000000" in step["why"]


def test_whether_a_log_is_meant_to_begin_late_is_asked_before_a_start(root: Path) -> None:
    min((root / "commitlog").iterdir()).unlink()
    for command, *options in (["predict", "--broker", "5.3.3"], ["recover", "--yes"]):
        played = mqtool(command, root, *options, "--json")
        asked, start, *_ = played.document["next"]
        assert asked["command"].startswith("Find them: another path"), command
        assert start["command"] == START_BROKER and "if its log is meant to begin where it does" in start["why"]
        assert "commitlog-begins-late" in {item["code"] for item in played.document["findings"]}


@few("options", [("recover",), ("truncate", "--to", "0", "--max-loss", "all"), ("rebuild-index",)], quick=(0, 2))
def test_a_stale_plan_is_made_again_by_the_command_that_made_it(options: tuple[str, ...], tmp_path: Path) -> None:
    root = real_store("clean-5.3.3", tmp_path)
    damage("index-unit-hash", root)
    command, *more = options
    assert mqtool(command, root, *more, "--dry-run", "--plan-out", tmp_path / "plan.json").code & exits.OPERATIONAL == 0
    touched = min((root / "commitlog").iterdir())
    os.utime(touched, ns=(touched.stat().st_atime_ns, touched.stat().st_mtime_ns + 1))
    refused = mqtool("apply", tmp_path / "plan.json", "--yes", "--json")
    (step,) = refused.document["next"]
    assert refused.code & exits.OPERATIONAL and step["command"].startswith(f"mqtool {command} {root} ")
    again = mqtool(*shlex.split(step["command"])[1:], "--max-loss", "all") if command == "truncate" else mqtool(
        *shlex.split(step["command"])[1:])
    assert again.code & (exits.OPERATIONAL | exits.USAGE) == 0, again.stderr


def test_no_row_of_predict_names_a_repair_beside_a_missing_log_file(tmp_path: Path) -> None:
    root = real_store("clean-manyfiles-5.3.3", tmp_path)
    damage("log-middle-missing", root)
    shutil.rmtree(min((root / "consumequeue").glob("*/*")))
    played = mqtool("predict", root, "--broker", "4.9.7", "--json").document
    assert {"commitlog-missing-file", "start-reuses-offsets"} <= played["finding_counts"].keys()
    assert not any("mqtool re" in item["remedy"] for item in played["findings"])
    assert not any(step["command"].startswith("mqtool re") for step in played["next"])


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root gives files away")
def test_predict_names_files_that_a_broker_may_not_read(root: Path) -> None:
    os.chown(min((root / "commitlog").iterdir()), 12345, 12345)
    played = mqtool("predict", root, "--broker", "5.3.3", "--json")
    assert played.code == 2 and played.document["next"][0]["command"].startswith("chown")


@pytest.mark.parametrize(("store", "first"), [
    ("kinds/clean-tiered-5.5.0", "mqtool recover"), ("kinds/killed-dledger-5.3.3", "Try the start"),
])
def test_what_stops_a_start_is_repaired_first_if_it_can_be(store: str, first: str, tmp_path: Path) -> None:
    """Whatever else is unknown about the start; beside the log of a DLedger, recover would refuse."""
    root = real_store(store, tmp_path)
    queue = min(root.glob("consumequeue/*/*/*"))
    queue.write_bytes(queue.read_bytes() + bytes(50))
    told = mqtool("predict", root, "--broker", "5.3.3" if "5.3.3" in store else "5.5.0", "--json")
    assert told.code == exits.MESSAGES | exits.UNSUPPORTED
    assert told.document["next"][0]["command"].startswith(first)
