"""Commands that change a store: plans, questions, refusals, and rebuilds."""

from __future__ import annotations

import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest

from mqtool import exits
from mqtool.commands import changes
from recover.change.lock import store_lock
from recover.check.report import VerifyReport, verify
from recover.findings.code import Refusal
from recover.repair.losses import RecoverPlan
from recover.repair.recover import plan_recover
from tests.cli.runner import mqtool
from tests.support.stores import real_store, strike, unpacked, write_at
from tests.support.trees import assert_same_tree, assert_unchanged, tree_digest

# --- recover and truncate on copies of real stores: plan, question, change, proof, way back.


LOG = "commitlog/00000000000000000000"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A killed store with a zeroed page in mid-log."""
    store = real_store("killed-5.5.0", tmp_path)
    write_at(store / LOG, 46_684, bytes(4096))
    return store


def test_verify_only_narrows(damaged: Path) -> None:
    assert mqtool("verify", damaged, "--only", "checkpoint", "--json").code & 4 == 0
    assert mqtool("verify", damaged, "--only", "commitlog", "--json").code & 4
    assert mqtool("verify", damaged, "--only", "nonsense").code == 16


def test_dry_run_shows_plan_and_loss_and_writes_nothing(damaged: Path) -> None:
    with assert_unchanged(damaged):
        result = mqtool("recover", damaged, "--dry-run")
    assert result.code == 6
    assert "what is lost: 8 messages" in result.stdout
    assert "Dry run" in result.stdout
    assert f"mqtool recover {damaged}" in result.stdout


@pytest.mark.parametrize("words", [["recover"], ["truncate", "--to", "0"], ["rebuild"]])
def test_document_of_a_run_that_is_refused_before_its_plan_says_that_nothing_is_applied(
    damaged: Path, words: list[str]
) -> None:
    with store_lock(damaged):
        result = mqtool(words[0], damaged, *words[1:], "--yes", "--json")
    assert result.code & exits.OPERATIONAL
    assert (result.document["applied"], result.document["journal"]) == (False, None)


def test_a_recover_meanwhile_is_named_before_what_it_makes_of_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = real_store("clean-plain-4.9.7", tmp_path)
    strike("log-misnamed", root)

    def plan(*arguments: Any) -> RecoverPlan:
        made = plan_recover(*arguments)
        monkeypatch.undo()
        assert mqtool("recover", root, "--yes").code == 1
        return made

    monkeypatch.setattr(changes, "plan_recover", plan)
    refused = mqtool("recover", root, "--yes", "--json")
    assert refused.code & exits.OPERATIONAL
    assert refused.document["error"]["message"].endswith(" changed while the store was read")


@pytest.mark.parametrize("command", ["recover", "rebuild", "rebuild-index"])
@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_an_output_that_cannot_be_is_refused_before_the_scan(
    command: str, dry: tuple[str, ...], damaged: Path, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for place in (damaged, damaged / "inside", damaged.parent, tmp_path / "no" / "parent", tmp_path / "full"):
        with assert_unchanged(tmp_path):
            refused = mqtool(command, damaged, "--output", place, "--yes", "--json", *dry)
        assert (refused.code, refused.document["findings"]) == (8, [])


def test_no_terminal_and_no_yes_is_refused_with_the_bits_found(damaged: Path) -> None:
    with assert_unchanged(damaged):
        result = mqtool("recover", damaged, "--json")
    assert result.code == 8 | 6
    assert result.document["plan"]["steps"]


def until(stream: IO[str], text: str) -> str:
    """What is said up to and with that text, or all of it."""
    said = ""
    while not said.endswith(text) and (char := stream.read(1)):
        said += char
    return said


@pytest.mark.parametrize(("answer", "code"), [("no\n", 8 | 6), ("yes\n", None)])
def test_the_question_is_asked_once_on_a_terminal(damaged: Path, answer: str, code: int | None) -> None:
    before = tree_digest(damaged)
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-m", "mqtool", "recover", str(damaged)], stdin=theirs,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT) as running:
        os.close(theirs)
        assert running.stderr is not None
        asked = until(running.stderr, "[y/N] ")
        os.write(ours, answer.encode())
        # as long as it takes: with other work on the machine, the first compilation of the kernels alone takes minutes
        _, rest = running.communicate()
    os.close(ours)
    assert asked.endswith("[y/N] "), asked
    assert "[y/N]" not in asked[:-6] + rest, rest
    if code is not None:
        assert running.returncode == code
        assert_same_tree(before, tree_digest(damaged))
    else:
        assert running.returncode & 1
        assert running.returncode & 8 == 0


def test_plan_is_not_saved_inside_the_store(damaged: Path) -> None:
    with assert_unchanged(damaged):
        result = mqtool("recover", damaged, "--dry-run", "--plan-out", damaged / "plan.json")
    assert result.code == 16


def test_the_broker_is_to_be_started_on_what_was_repaired_and_not_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    root, copy, found = real_store("killed-manyfiles-5.5.0", tmp_path), tmp_path / "copy", tmp_path / "found"
    monkeypatch.chdir(tmp_path)
    said = mqtool("recover", root, "--output", "copy", "--yes", "--json").document["next"]
    assert f"storePathRootDir={copy} storePathCommitLog={copy}/commitlog" in said[-1]["why"]
    found.mkdir()
    names = sorted(path.name for path in (root / "commitlog").iterdir())
    (root / "commitlog" / names[5]).rename(found / names[5])
    (look,) = mqtool("verify", root, "--json").document["next"]
    line = re.search(r"\(mqtool (.*?)\)", look["command"])
    assert line is not None
    words = shlex.split(line[1].replace("DIR", str(found)))
    assert mqtool(*words).code & 4 == 0
    said = mqtool("recover", *words[1:], "--yes", "--json").document["next"]
    assert f"storePathCommitLog={root}/commitlog,{found}" in said[-1]["why"]


def test_a_result_that_cannot_be_checked_is_said_to_be_made(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([verify])

    def once(*arguments: Any) -> VerifyReport:
        for look in looks:
            return look(*arguments)
        raise Refusal("Spark gave up", "Spark's own log: /tmp/spark.log")

    monkeypatch.setattr("mqtool.changing.verify", once)
    done = mqtool("recover", damaged, "--yes", "--json")
    assert done.code == exits.OPERATIONAL and done.document["applied"] and not done.document["findings"]
    assert re.search(r"^\d+ steps done, .*, but the result could not be checked: ", done.document["error"]["message"])
    assert done.document["next"][-1]["command"] == f"mqtool verify {damaged}"
    assert done.document["error"]["remedy"] == f"`mqtool verify {damaged}` checks it. Spark's own log: /tmp/spark.log"
    assert mqtool("verify", damaged, "--json").code == 0


@pytest.mark.parametrize("root", ["store", "{here}/store"])
def test_a_part_is_named_relative_to_the_working_folder(
    root: str, damaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    damaged.rename("store")
    Path("store", "commitlog").rename("log")
    assert mqtool("recover", root.format(here=tmp_path), "--commitlog", "log", "--yes").code == 5
    assert mqtool("undo", root.format(here=tmp_path), "--commitlog", "log", "--yes").code & exits.OPERATIONAL == 0


def test_a_rebuild_beside_a_damaged_log_leads_to_its_repair(damaged: Path, tmp_path: Path) -> None:
    built = mqtool("rebuild", damaged, "--output", tmp_path / "built", "--json").document
    assert [step["command"] for step in built["next"]] == [f"mqtool recover {damaged} --dry-run"]


def test_no_bridge_refuses_with_the_count(damaged: Path) -> None:
    with assert_unchanged(damaged):
        result = mqtool("recover", damaged, "--no-bridge", "--yes")
    assert result.code == 8 | 6
    assert "2896" in result.stderr.replace(",", "")


def test_policy_broker_needs_max_loss(damaged: Path) -> None:
    with assert_unchanged(damaged):
        assert mqtool("recover", damaged, "--policy", "broker", "--broker", "5.3.3", "--yes").code & 8
    done = mqtool("recover", damaged, "--policy", "broker", "--broker", "5.3.3", "--max-loss", "all", "--yes", "--json")
    assert done.code & 1
    assert done.document["lost_messages"] == 2896


def test_an_option_of_a_remedy_takes_the_place_of_the_typed_one(damaged: Path) -> None:
    typed = ("recover", damaged, "--policy", "broker", "--max-loss=5", "--broker", "5.3.3", "--yes")
    told = mqtool(*typed).stderr.replace("\n", " ")
    assert f"`mqtool recover {damaged} --policy broker --broker 5.3.3 --yes --max-loss 2896`" in told


def test_truncate_between_boundaries_names_the_nearest_two(damaged: Path) -> None:
    result = mqtool("truncate", damaged, "--to", "46590", "--yes")
    assert result.code == 16
    assert "46584" in result.stderr
    assert "50859" in result.stderr


def test_truncate_cuts_and_undo_restores(tmp_path: Path) -> None:
    store = real_store("clean-5.3.3", tmp_path)
    before = tree_digest(store)
    boundary = mqtool("inspect", store / LOG, "--limit", "0", "--json").document["items"][100]["offset"]
    with assert_unchanged(store):
        assert mqtool("truncate", store, "--to", boundary, "--yes").code & 8
    done = mqtool("truncate", store, "--to", boundary, "--max-loss", "all", "--yes", "--json")
    assert done.code & 1
    assert done.document["verify"]["commitlog"]["log_end"] == boundary
    assert mqtool("undo", store, "--yes").code == 0
    assert_same_tree(before, tree_digest(store))


@pytest.mark.parametrize("line", [
    ("recover", "--max-loss", "few"), ("recover", "--policy", "hope"), ("truncate",),
    ("recover", "--timezone", "No/Zone"), ("recover", "--policy", "broker", "--mend-bits", "--dry-run"),
    ("recover", "--broker", "latest"), ("recover", "--set", "novalue"), ("verify", "--mapped-file-size", "12X"),
])
def test_usage_errors_of_changing_commands_are_16(line: tuple[str, ...], damaged: Path) -> None:
    name, *options = line
    with assert_unchanged(damaged):
        assert mqtool(name, damaged, *options).code == 16


def test_a_mistyped_setting_is_refused_with_the_nearest_name(damaged: Path) -> None:
    result = mqtool("predict", damaged, "--set", "forceVerifyPropCrc=true")
    assert result.code == 16
    assert "forceVerifyPropCRC" in result.stderr
    assert mqtool("predict", damaged, "--set", "flushIntervalCommitLog=500").code != 16


@pytest.mark.parametrize("line", [
    ("--engine", "local", "--master", "local[2]"), ("--conf", "spark.executor.memory=1g"), ("--master", "mesos://x"),
    ("--engine", "spark", "--conf", "executor.memory=1g"), ("--engine", "spark", "--conf", "mqtool.splitSize=few"),
    ("--engine", "spark", "--conf", "mqtool.speed=1"),
])
@pytest.mark.parametrize("name", ["verify", "recover", "predict", "query"])
def test_options_that_no_engine_could_mean_are_usage_errors(name: str, line: tuple[str, ...], damaged: Path) -> None:
    result = mqtool(name, damaged, *line)
    assert result.code == 16
    assert line[-2] in result.stderr or "--master" in result.stderr


def test_plan_remembers_parts_kept_elsewhere_and_settings(tmp_path: Path) -> None:
    from fixtures.shapes import multi_path

    root = tmp_path / "store"
    multi_path(root)
    folders = [tmp_path / "store-log-a", tmp_path / "store-log-b"]
    parts = [item for folder in folders for item in ("--commitlog", folder)]
    write_at(folders[1] / "00000000000000016384", 3000, b"\xee" * 500)
    before = [tree_digest(folder) for folder in (root, *folders)]
    plan = tmp_path / "plan.json"
    assert mqtool("recover", root, *parts, "--set", "checkCRCOnRecover=true", "--dry-run", "--plan-out", plan).code == 4
    for line in (["--dry-run"], ["--yes"]):
        refused = mqtool("apply", plan, *line)
        assert refused.code == 8 and str(folders[0]) in refused.stderr, "a plan does not say where may be written"
    done = mqtool("apply", plan, *parts, "--yes", "--json")
    assert done.code == 5, done.stderr
    assert done.document["verify"]["commitlog"]["messages"] == 397
    assert mqtool("verify", root, *parts).code == 0
    assert mqtool("undo", root, "--yes").code == 8
    assert mqtool("undo", root, *parts, "--yes").code == 0
    for digest, folder in zip(before, (root, *folders), strict=True):
        assert_same_tree(digest, tree_digest(folder))


def test_a_start_that_only_deletes_files_is_said_to_lose_no_message() -> None:
    result = mqtool("predict", unpacked("killed-5.5.0"), "--broker", "5.3.3")
    assert result.code == exits.DERIVED  # delayed messages come a second time
    line = " ".join(result.stdout.split())
    assert "5.3.3 would start and lose no message, but " in line and "delete 2 files" in line


def test_predict_says_whether_the_start_cuts_the_end_of_the_log_or_it_is_missing(damaged: Path, tmp_path: Path) -> None:
    cut = mqtool("predict", damaged, "--broker", "5.3.3", "--json").document
    assert cut["reason"].endswith(f"after {cut['max_phy']}, where its recovery cuts the log")

    short = real_store("clean-5.3.3", tmp_path / "other")
    (short / "commitlog" / "00000000000001048576").unlink()
    missing = mqtool("predict", short, "--broker", "5.3.3", "--json").document
    assert "missing" in missing["reason"] and "cuts" not in missing["reason"]


# --- The rebuild commands: in place only what is wrong, elsewhere everything anew.


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return real_store("clean-4.5.1", tmp_path)


def test_dry_run_writes_nothing(store: Path, tmp_path: Path) -> None:
    shutil.rmtree(store / "index")
    with assert_unchanged(store):
        assert mqtool("rebuild", store, "--dry-run").code == 2
        assert mqtool("rebuild", store, "--dry-run", "--output", tmp_path / "derived").code & 8 == 0
    assert not (tmp_path / "derived").exists()


@pytest.mark.parametrize("line", [("--queue", "1"), ("--topic", "NoSuchTopic"), ("--topic", "TopicA", "--queue", "99")])
def test_queues_that_nobody_knows_are_16(store: Path, line: tuple[str, ...]) -> None:
    with assert_unchanged(store):
        assert mqtool("rebuild-consumequeue", store, *line, "--yes").code == 16
