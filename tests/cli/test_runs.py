"""journal, undo, resume and apply over runs that tests make themselves."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fixtures.damage import damage
from formats.record import HEAD
from mqtool import exits
from recover.change.carry_out import apply_plan
from recover.change.journal import open_runs
from recover.change.model import Plan, WriteFile, WriteRange, save_plan
from recover.change.preconditions import seal
from tests.change.test_lock import held, record_lock
from tests.cli.runner import mqtool
from tests.support.plans import count_operations, killed_at
from tests.support.sampling import few
from tests.support.stores import broker_conf, copy_store, real_store, write_at
from tests.support.trees import assert_same_tree, assert_unchanged, tree_digest

CHECKPOINT = "checkpoint"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return real_store("clean-5.3.3", tmp_path)


def harmless(store: Path) -> Plan:
    """Writes the checkpoint as it is, and puts zeros where zeros are."""
    content = (store / CHECKPOINT).read_bytes()
    last = max((store / "commitlog").iterdir())
    end = last.stat().st_size - 4096
    return seal(Plan("recover", [
        WriteRange(f"commitlog/{last.name}", end, bytes(4096)), WriteFile(CHECKPOINT, content),
    ], loss=[{"topic": "evil\x1b[2J", "queue": 0, "messages": 2, "first": 1795226071956, "last": None}]), store)


def test_journal_tells_what_was_done_by_whom_and_with_what(store: Path) -> None:
    plan = harmless(store)
    apply_plan(store, plan)
    (run,) = mqtool("journal", store, "--json").document["runs"]
    assert (run["state"], run["plan_id"], run["command"]) == ("applied", plan.id, "recover")
    assert "applied" in mqtool("journal", store).stdout
    assert "mqtool undo" in mqtool("journal", store).stdout
    assert run["user"] and run["host"] and run["tool"].startswith("mqtool") and run["command_line"].startswith("mqtool")
    assert run["host"] in mqtool("journal", store).stdout


def test_what_follows_a_run_by_a_configuration_asks_for_the_parts_that_it_named(tmp_path: Path) -> None:
    name = "killed-multipath-5.3.3"
    root = real_store(name, tmp_path)
    conf = broker_conf(name, root, tmp_path / "broker.conf")
    line = [sys.executable, "-m", "mqtool", "recover", "--broker-conf", str(conf), "--yes"]
    assert subprocess.run(line, check=False, capture_output=True).returncode == 1
    lines = mqtool("journal", root).stdout.splitlines()
    assert all("--commitlog" in line for line in lines if line.startswith(("next: ", "undo: ")))
    step, = mqtool("journal", root, "--json").document["next"]
    assert mqtool(*shlex.split(step["command"])[1:]).code == 0, step


def test_apply_runs_a_saved_plan_once(store: Path, tmp_path: Path) -> None:
    plan_file = tmp_path / "plan.json"
    save_plan(harmless(store), plan_file)
    before = tree_digest(store)
    with assert_unchanged(store):
        shown = mqtool("apply", plan_file, "--dry-run")
    assert shown.code == 0
    assert "evil\\x1b[2J" in shown.stdout
    assert "\x1b" not in shown.stdout
    done = mqtool("apply", plan_file, "--yes", "--json")
    assert done.code == 5, done.stderr
    assert "lost" in done.document["summary"]
    assert done.document["applied"] is True
    assert (store / done.document["journal"]).is_dir()
    assert done.document["verify"]["exit_code"] == 0
    assert mqtool("apply", plan_file, "--yes").code == 8, "the store is no longer what the plan was made on"
    assert mqtool("undo", store, "--yes").code == 0
    assert_same_tree(before, tree_digest(store))


def test_apply_refuses_what_is_no_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"format": "other"}))
    assert mqtool("apply", path, "--yes").code == 8
    assert mqtool("apply", tmp_path / "nowhere.json", "--yes").code == 8


def test_resume_completes_a_killed_run(half_done: Path) -> None:
    store, runs = half_done, mqtool("journal", half_done, "--json").document["runs"]
    assert runs[0]["state"] == "unfinished"
    assert 0 < runs[0]["steps_begun"] <= runs[0]["steps"]
    assert "mqtool resume" in mqtool("journal", store).stdout
    with assert_unchanged(store):
        dry = mqtool("resume", store, "--dry-run")
    assert dry.code == 0 and f"{runs[0]['steps_begun']} begun" in dry.stdout
    done = mqtool("resume", store, "--yes", "--json")
    assert done.code == 5, done.stderr
    assert "lost" in done.document["summary"]
    assert done.document["verify"]["exit_code"] == 0
    assert mqtool("journal", store, "--json").document["runs"][0]["state"] == "applied"


def test_a_byte_that_changed_under_the_same_mtime_is_noticed(store: Path, tmp_path: Path) -> None:
    log = min((store / "commitlog").iterdir())
    queue = min((store / "consumequeue").rglob("0*0"))
    queue.write_bytes(bytes(queue.stat().st_size))
    for number, path in enumerate((log, queue, min((store / "index").iterdir()))):
        plan = tmp_path / f"{number}.json"
        assert mqtool("recover", store, "--dry-run", "--plan-out", plan).code
        status = path.stat()
        write_at(path, status.st_size - 1, b"\x01")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        for how in ("--dry-run", "--yes"):
            refused = mqtool("apply", plan, how)
            assert refused.code & 8 and str(path.relative_to(store)) in refused.stderr, (path, refused.stderr)


def test_a_file_outside_of_the_plan_that_came_or_changed_is_noticed(store: Path, tmp_path: Path) -> None:
    queue = min((store / "consumequeue").rglob("0*0"))
    queue.write_bytes(bytes(queue.stat().st_size))
    plan = tmp_path / "plan.json"
    assert mqtool("recover", store, "--dry-run", "--plan-out", plan).code
    (store / "index/20300101000000000").write_bytes(b"")
    refused = mqtool("apply", plan, "--yes")
    assert refused.code & 8 and "index" in refused.stderr


def test_the_same_plan_has_the_same_id_and_is_not_overwritten(store: Path, tmp_path: Path) -> None:
    queue = min((store / "consumequeue").rglob("0*0"))
    queue.write_bytes(bytes(queue.stat().st_size))
    ids = [mqtool("recover", store, "--dry-run", "--json", "--plan-out", tmp_path / f"{n}").document["plan"]["id"]
           for n in range(2)]
    assert ids[0] == ids[1]
    before = (tmp_path / "0").read_bytes()
    refused = mqtool("recover", store, "--dry-run", "--plan-out", tmp_path / "0")
    assert refused.code & 8 and "exists already" in refused.stderr and (tmp_path / "0").read_bytes() == before
    assert mqtool("apply", tmp_path / "0", "--yes").code == mqtool("verify", store).code | 1


def test_a_plan_names_what_of_it_is_missing(store: Path, tmp_path: Path) -> None:
    for queue in (store / "consumequeue").rglob("0*0"):
        queue.unlink()
    plan = tmp_path / "plan.json"
    mqtool("rebuild", store, "--dry-run", "--plan-out", plan)
    sidecars = list(tmp_path.glob("plan.json.*.content"))
    for sidecar in sidecars:
        sidecar.rename(tmp_path / "away")
        refused = mqtool("apply", plan, "--yes")
        assert refused.code & 8 and sidecar.name in refused.stderr and "copy that folder" in refused.stderr


def refused_alike(words: list[object], *names: str) -> None:
    """A dry run refuses what the run itself refuses, for the same reason, and neither changes anything."""
    dry, real = mqtool(*words, "--dry-run"), mqtool(*words, "--yes")
    assert (dry.code, real.code) == (8, 8), (dry.stdout, dry.stderr, real.stderr)
    for name in names:
        assert name in dry.stderr and name in real.stderr, (dry.stderr, real.stderr)


def test_undo_tells_files_that_it_takes_away_from_those_that_it_restores(store: Path) -> None:
    shutil.rmtree(store / "consumequeue" / "TopicA")
    shutil.rmtree(store / "config")
    planned = mqtool("recover", store, "--dry-run").stdout
    assert "A GUESS" in planned and "broken text" not in planned
    assert mqtool("rebuild-consumequeue", store, "--yes").code & 1
    assert "undone, 4 files removed again" in mqtool("undo", store, "--yes", "--json").document["summary"]


@pytest.fixture
def half_done(store: Path) -> Path:
    """A store with a run that was killed within the first of its steps."""
    (store / "lock").write_bytes(b"lock")
    copy = copy_store(store, store.with_name("copy"))
    operations = count_operations(lambda: apply_plan(copy, harmless(copy)))
    log = max((store / "commitlog").iterdir()).name
    write = next(number for number, each in enumerate(operations) if each.name == "write" and each.path.endswith(log))
    plan = harmless(store)
    assert killed_at(write, lambda: apply_plan(store, plan))
    assert [run.statuses for run in open_runs(store)] == [["begun", "untouched"]]
    return store


def test_the_dry_run_of_undo_promises_no_more_than_undo_does(store: Path) -> None:
    (store / "lock").write_bytes(b"lock")
    apply_plan(store, harmless(store))
    with held(record_lock(store)) as (pid, _), assert_unchanged(store):
        refused_alike(["undo", store], f"process {pid}")
    (store / CHECKPOINT).write_bytes(b"another")
    with assert_unchanged(store):
        refused_alike(["undo", store], "checkpoint is not as the run")


def test_the_dry_run_of_resume_promises_no_more_than_resume_does(half_done: Path) -> None:
    with held(record_lock(half_done)) as (pid, _), assert_unchanged(half_done):
        refused_alike(["resume", half_done], f"process {pid}")
    (half_done / CHECKPOINT).write_bytes(b"another")
    with assert_unchanged(half_done):
        refused_alike(["resume", half_done], CHECKPOINT)


def test_a_run_that_cannot_be_resumed_is_taken_back(half_done: Path) -> None:
    (half_done / CHECKPOINT).write_bytes(b"another")
    refused = mqtool("resume", half_done, "--yes", "--json")
    (step,) = refused.document["next"]
    assert (refused.code & 8, step["command"]) == (8, f"mqtool undo {half_done}")
    assert mqtool("undo", half_done, "--yes").code == 0
    assert (half_done / CHECKPOINT).read_bytes() == b"another"


def test_the_folder_of_a_run_that_cannot_be_taken_back_is_put_aside(half_done: Path, tmp_path: Path) -> None:
    step = open_runs(half_done)[0].plan.steps[0]
    assert isinstance(step, WriteRange)
    write_at(half_done / step.file, step.start + 100, b"another")
    refused = mqtool("undo", half_done, "--yes", "--json")
    (run,) = (half_done / ".mqtool" / "runs").iterdir()
    assert refused.code == 8 and f"are in {run}; move that folder out" in refused.document["next"][0]["command"]
    run.rename(tmp_path / "aside")
    assert mqtool("recover", half_done, "--yes").code & ~3 == 0


def test_the_dry_run_of_apply_promises_no_more_than_apply_does(store: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    (store / "lock").write_bytes(b"lock")
    save_plan(harmless(store), plan)
    with held(record_lock(store)) as (pid, _), assert_unchanged(store):
        refused_alike(["apply", plan], f"process {pid}")
    assert mqtool("apply", plan, "--dry-run").code == 0


def test_the_dry_run_of_apply_sees_another_run_that_is_not_complete(half_done: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    save_plan(seal(Plan("rebuild", [WriteFile(CHECKPOINT, b"x" * 4096)]), half_done), plan)
    with assert_unchanged(half_done):
        refused_alike(["apply", plan], "is unfinished", "resume")
        assert mqtool("recover", half_done, "--yes").code & 8, "a second run on top of half of one"


@pytest.fixture
def flag() -> Iterator[Callable[[str, Path], None]]:
    """`flag("i", path)`: that path immutable until the test ends; "a": append-only."""
    flagged: list[tuple[str, Path]] = []

    def set_flag(letter: str, path: Path) -> None:
        done = subprocess.run(["chattr", f"+{letter}", str(path)], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"NOT RUN: chattr needs root and a file system with flags ({done.stderr.strip()})")
        flagged.append((letter, path))

    if shutil.which("chattr") is None:
        pytest.skip("NOT RUN: there is no chattr")
    yield set_flag
    for letter, path in flagged:
        subprocess.run(["chattr", f"-{letter}", str(path)], check=True)


@pytest.mark.parametrize("letter", ["i", "a"])
@pytest.mark.parametrize("name", ["checkpoint", "commitlog/00000000000000000000", "."])
def test_a_file_that_no_step_can_change_is_named_before_the_first(
    store: Path, tmp_path: Path, flag: Callable[[str, Path], None], letter: str, name: str,
) -> None:
    plan = tmp_path / "plan.json"
    steps = [WriteRange("commitlog/00000000000000000000", 0, bytes(8)), WriteFile(CHECKPOINT, b"x" * 4096)]
    (store / "lock").write_bytes(b"lock")
    flag(letter, store / name)
    save_plan(seal(Plan("recover", steps), store), plan)
    word = {"i": "immutable", "a": "append-only"}[letter]
    shown = "the store's root" if name == "." else name
    with assert_unchanged(store):
        refused_alike(["apply", plan], shown, word, f"chattr -{letter}")
    assert not (store / ".mqtool").exists() or mqtool("journal", store, "--json").document["runs"] == []


@pytest.mark.parametrize("name", ["checkpoint", "commitlog", "retired"])
def test_undo_and_resume_ask_before_the_first_step_too(
    half_done: Path, flag: Callable[[str, Path], None], name: str,
) -> None:
    (run,) = (half_done / ".mqtool/runs").iterdir()
    places = {"checkpoint": half_done / CHECKPOINT, "commitlog": max((half_done / "commitlog").iterdir()),
              "retired": run / "retired"}
    flag("i", places[name])
    with assert_unchanged(half_done):
        refused_alike(["resume", half_done], name, "immutable")
        if name != "checkpoint":  # which no step has touched yet
            refused_alike(["undo", half_done], name, "immutable")


def test_every_look_at_a_store_mentions_a_run_that_is_not_complete(half_done: Path) -> None:
    for command in ("verify", "inspect", "predict"):
        with assert_unchanged(half_done):
            done = mqtool(command, half_done, "--json")
        (found,) = done.found("run-unfinished")
        starts = command == "predict"
        assert (found["severity"], done.code & 6) == (("error", 4) if starts else ("warning", 2)), command
        assert not starts or found["message"] in done.document["reason"]
    assert "mqtool resume" in done.document["next"][0]["command"]


def test_a_plan_names_the_folder_that_belongs_to_it(store: Path, tmp_path: Path) -> None:
    for number, (command, beside) in enumerate((("rebuild", True), ("recover", False))):
        queues = [*(store / "consumequeue").rglob("0*0")] if beside else []
        for queue in queues:
            queue.unlink()
        if not beside:
            (store / CHECKPOINT).write_bytes(bytes(4096))
        plan = tmp_path / f"{number}.json"
        done = mqtool(command, store, "--dry-run", "--json", "--plan-out", plan)
        folders = [str(path) for path in tmp_path.glob(f"{number}.json.*.content")]
        assert (done.document["plan_file"], done.document["plan_folder"]) == (str(plan), (folders or [None])[0])
        assert len(folders) == beside
        assert all(folder in done.stderr.replace("\n", "") for folder in folders), done.stderr
        if beside:
            assert mqtool("rebuild", store, "--yes").code & 8 == 0


def test_a_plan_file_that_is_there_is_refused_before_the_scan(store: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(b"reviewed")
    names_what_it_opens = (
        "import sys; sys.addaudithook(lambda event, args: event == 'open' and print(args[0], file=sys.stderr)); "
        "from mqtool.cli import main; sys.exit(main())"
    )
    for name, scans in (("plan.json", False), ("other.json", True)):
        ran = subprocess.run(
            [sys.executable, "-c", names_what_it_opens, "recover", store, "--dry-run", "--plan-out", tmp_path / name],
            capture_output=True, text=True,
        )
        assert (str(store / "commitlog") in ran.stderr) == scans, ran.stderr
        assert ("exists already" in ran.stderr) != scans and (ran.returncode == 8) != scans, ran.stderr


@few("how", [("--dry-run",), ("--yes", "--mend-bits")], quick=(1,))
def test_a_recover_opens_each_file_of_the_store_a_few_times(store: Path, how: tuple[str, ...]) -> None:
    path = store / "commitlog" / "00000000000000000000"
    content = bytearray(path.read_bytes())
    content[HEAD.size + 3] ^= 1  # a body
    path.write_bytes(content)
    names_what_it_opens = (
        "import sys; sys.addaudithook(lambda event, args: event == 'open' and print(args[0], file=sys.stderr)); "
        "from mqtool.cli import main; sys.exit(main())"
    )
    ran = subprocess.run([sys.executable, "-c", names_what_it_opens, "recover", store, *how],
                         capture_output=True, text=True)
    assert ran.returncode == (4 if "--dry-run" in how else 1), ran.stderr
    opened = Counter(line for line in ran.stderr.splitlines() if line.startswith(f"{store}/") and Path(line).exists())
    assert opened[str(path)] and max(opened.values()) <= 8, opened.most_common(5)


@few("said", [("--set", "aclSecretKey=geheim"), ("--set=aclSecretKey=geheim",), None], quick=(1, 2))
def test_secrets_of_a_command_line_are_in_no_file_and_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: tuple[str, ...] | None
) -> None:
    root = real_store("clean-5.3.3", tmp_path / "s")
    shutil.rmtree(root / "index")
    (tmp_path / "broker.conf").write_text("rocketmqPassword = geheim\n")
    said = said or ("--broker-conf", str(tmp_path / "broker.conf"))
    monkeypatch.setattr("sys.argv", ["mqtool", "recover", str(root), *said])
    answers = [mqtool(*line) for line in (
        ("recover", root, *said, "--dry-run", "--json", "--plan-out", tmp_path / "plan.json"),
        ("predict", root, *said), ("report", root, *said, "-o", tmp_path / "report.html"),
        ("recover", root, *said, "--yes", "--json"), ("journal", root, "--json"),
    )]
    assert [answer.code & 16 for answer in answers] == [0] * len(answers)
    written = [*tmp_path.glob("[pr]*.*"), *(root / ".mqtool").rglob("*")]
    files = [path for path in written if path.is_file()]
    assert {"plan.json", "report.html"} < {path.name for path in files} and any("runs" in path.parts for path in files)
    said_of = [(answer.stdout + answer.stderr).encode() for answer in answers]
    assert not [text for text in [*(path.read_bytes() for path in files), *said_of] if b"geheim" in text]


def test_a_run_with_a_broker_conf_keeps_its_path_in_the_next_commands(tmp_path: Path) -> None:
    """Not one --set for each of its lines."""
    root = real_store("clean-5.3.3", tmp_path)
    conf = tmp_path / "my broker.conf"
    lines = [f"storePathRootDir={root}", "mappedFileSizeCommitLog=1048576", "mappedFileSizeConsumeQueue=20000",
             "maxHashSlotNum=500", "maxIndexNum=2000", "enableLmq=true", "brokerName=broker-a"]
    conf.write_text("\n".join(lines))
    damage("bit-in-body", root, 3)
    plan = tmp_path / "plan.json"
    given = [root, "--broker-conf", conf, "--set", "fileReservedTime=100000"]
    assert mqtool("recover", *given, "--dry-run", "--plan-out", plan).code == exits.MESSAGES
    tail = f"{root} --broker-conf '{conf}' --set fileReservedTime=100000"
    applied = mqtool("apply", plan, "--yes", "--json")
    assert applied.code & exits.CORRECTED
    again = [step["command"] for step in applied.document["next"] if "mqtool recover" in step["command"]]
    assert all(tail in command for command in again)
    listed = mqtool("journal", root, "--json").document["next"]
    assert [step["command"] for step in listed] == [f"mqtool verify {tail}"]
    undone = mqtool("undo", root, "--yes", "--json").document["next"]
    assert [step["command"] for step in undone] == [f"mqtool verify {tail}"]
    conf.unlink()
    listed = mqtool("journal", root, "--json").document["next"]
    assert "--broker-conf" not in listed[0]["command"] and "--set enableLmq=true" in listed[0]["command"]


# --- Undo data on another disk, and what they take.


def test_undo_data_go_where_journal_says_and_undo_finds_them(store: Path, tmp_path: Path) -> None:
    damage("log-middle-short", store)
    shutil.rmtree(store / "index")
    before, place = tree_digest(store), tmp_path / "other-disk"
    assert mqtool("recover", store, "--yes", "--journal", place).code == exits.USAGE, "is its disk mounted?"
    assert mqtool("recover", store, "--yes", "--journal", store / "config").code == exits.USAGE
    place.mkdir()
    shown = mqtool("recover", store, "--dry-run", "--journal", place, "--json").document
    assert shown["room"][0]["place"] == str(place)
    assert 0 < shown["room"][0]["undo"] < shown["room"][0]["needed"] < shown["room"][0]["free"]
    assert f"--journal {place}" in shown["next"][0]["command"]
    done = mqtool("recover", store, "--yes", "--journal", place)
    data, = place.iterdir()
    assert str(data) in done.stderr
    folders = {"staged", "preimages", "retired"}
    assert not [path for path in (store / ".mqtool").rglob("*") if path.parent.name in folders]
    assert mqtool("journal", store, "--json").document["runs"][0]["undo_data"] == str(data)
    away = place.rename(tmp_path / "not-mounted")
    with assert_unchanged(store):
        refused = mqtool("undo", store, "--yes")
        assert refused.code == exits.OPERATIONAL and str(data) in refused.stderr and "mount" in refused.stderr
    away.rename(place)
    assert mqtool("undo", store, "--yes").code == 0
    assert_same_tree(before, tree_digest(store))


def test_pruning_frees_the_room_of_runs_that_have_ended_and_says_what_it_costs(store: Path) -> None:
    apply_plan(store, harmless(store))
    with assert_unchanged(store):
        shown = mqtool("journal", store, "--prune", "--dry-run", "--json").document
        assert mqtool("journal", store, "--prune").code == exits.OPERATIONAL, "not without being asked"
    assert shown["bytes"] > 0 and "1 run could not be undone" in shown["summary"]
    with held(record_lock(store)):
        done = mqtool("journal", store, "--prune", "--yes", "--json")
    assert done.code == 0 and done.document["applied"] and done.document["runs"][0]["pruned_ms"]
    assert not [path for name in ("staged", "preimages", "retired") for path in (store / ".mqtool").rglob(f"{name}/*")]
    listed = mqtool("journal", store)
    assert "undo data removed" in " ".join(listed.stdout.split()) and "undo: " not in listed.stdout
    refused = mqtool("undo", store, "--yes")
    assert refused.code == exits.OPERATIONAL and "--prune" in refused.stderr
    assert mqtool("journal", store, "--prune", "--yes", "--json").document["prunes"] == []


def test_a_run_that_does_not_fit_is_refused_with_both_figures(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage("log-middle-short", store)
    place = tmp_path / "small"
    place.mkdir()
    real = os.statvfs
    full = real(place)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(
        (*full[:3], 3, 3, *full[5:]) if Path(path) == place else real(path)))
    with assert_unchanged(store):
        dry = mqtool("recover", store, "--dry-run", "--journal", place)
        refused = mqtool("recover", store, "--yes", "--journal", place)
    needed = mqtool("recover", store, "--dry-run", "--journal", place, "--json").document["room"][0]["needed"]
    for done in (dry, refused):
        said = " ".join(done.stderr.split())
        assert f"{needed:,} bytes are needed" in said and f"{3 * full.f_frsize:,} are free" in said
    assert refused.code & exits.OPERATIONAL and not dry.code & exits.OPERATIONAL
