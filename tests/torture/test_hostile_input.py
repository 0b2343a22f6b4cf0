"""Hostile bytes and names: no codec, command, journal or plan crashes, hangs or lies."""

from __future__ import annotations

import importlib.util
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings, strategies as st

import recover.log.file_scan
from formats.basics import FormatError
from formats.record import encode, make_record
from mqtool import exits
from recover.change.journal import decode_records, encode_record
from recover.change.model import canonical
from recover.log.scan import LocalEngine
from recover.store.store import Store
from tests.cli.runner import mqtool
from tests.scenarios.interrupted import recovering
from tests.support.counts import Count, Note
from tests.support.plans import count_operations, killed_at
from tests.support.stores import copy_store, real_store, unpacked
from tests.support.system import in_a_child
from tests.support.trees import assert_unchanged
from tests.torture.anatomy import look_at
from tests.torture.guarded import GuardedNumpy, guarded_bytes
from tests.torture.hostile import BOMBS, CODECS, mutated, pieces
from tests.torture.strikes import strikes

# --- Hostile input: no crash, no hang, no read out of bounds, no path that leads out, no control character printed.


ROOT = Path(__file__).parents[2]
SECONDS_A_CALL = 10.0
"""Of processor time: other work on the machine takes none of it."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")


def survives(name: str, data: bytes) -> None:
    """The codec answers, or says `FormatError`, and does not take long over it."""
    began = time.process_time()
    try:
        CODECS[name](data)
    except FormatError:
        pass
    except UnicodeError as error:
        raise AssertionError(f"{name}: {error}") from error
    assert time.process_time() - began < SECONDS_A_CALL, f"{name} takes long over {data[:40]!r}"


@pytest.mark.parametrize("name", sorted(CODECS))
def test_codec_takes_any_bytes(name: str) -> None:
    @settings(max_examples=30, database=None)
    @given(st.binary(max_size=400))
    def check(data: bytes) -> None:
        survives(name, data)

    check()


@pytest.mark.parametrize(("rounds", "seed"), [
    (30, 1), pytest.param(200, 2, marks=pytest.mark.deep), pytest.param(6000, 3, marks=pytest.mark.long),
])
@pytest.mark.parametrize("name", sorted(CODECS))
def test_codec_takes_very_many_mutated_files(name: str, rounds: int, seed: int, count: Count) -> None:
    chance = random.Random(f"{name} {seed}")
    real = pieces(unpacked("killed-ext-5.5.0")) + pieces(unpacked("clean-4.5.1"))
    for _ in range(rounds):
        survives(name, mutated(chance.choice(real), chance))
    count("inputs fuzzed, codecs", rounds)


@pytest.mark.parametrize("seconds", [
    pytest.param(5, marks=pytest.mark.deep), pytest.param(60, marks=pytest.mark.long),
])
def test_codec_takes_what_a_fuzzer_makes_up(seconds: int, folder: Path, count: Count, note: Note) -> None:
    """atheris looks for inputs that reach new code in the codecs."""
    if importlib.util.find_spec("atheris") is None:
        note("NOT RUN: fuzzing guided by coverage, for there is no atheris for this Python or platform")
        pytest.skip("NOT RUN: needs atheris")
    # a process counts the memory of the one that started it as its own peak, so a small one stands in between
    done = subprocess.run(
        ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-m", "tests.torture.guided", str(folder), str(seconds)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )
    ran = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    assert done.returncode == 0 and ran, done.stderr[-3000:]
    assert int(ran[1]) > len(CODECS), "more than the seeds of one codec"
    count("inputs fuzzed, codecs guided by coverage", int(ran[1]))


@pytest.mark.parametrize("bomb", range(len(BOMBS)))
def test_json_bomb_is_broken_text_and_no_more(bomb: int) -> None:
    for name in ("json", "json, salvaged", "config tables", "compaction", "epoch", "java properties", "abort"):
        survives(name, BOMBS[bomb])


@pytest.mark.deep
@pytest.mark.parametrize("bomb", range(0, len(BOMBS), 4))
def test_json_bomb_in_a_store_is_a_finding(bomb: int, folder: Path) -> None:
    root = real_store("clean-4.5.1", folder)
    for name in ("topics.json", "consumerOffset.json", "subscriptionGroup.json"):
        (root / "config" / name).write_bytes(BOMBS[bomb])
    for command in (["verify"], ["inspect"], ["recover", "--dry-run"]):
        assert not mqtool(command[0], root, *command[1:]).code & exits.BUG


# --- kernels ---------------------------------------------------------------------------------------------


def _scanned(content: bytes, folder: Path, window: int) -> None:
    path = folder / "commitlog" / f"{0:020d}"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    LocalEngine().scan_log(Store.open(folder).commitlog, window=window)


def _scan_many(logs: list[bytes], folder: Path, rounds: int, seed: int) -> None:
    recover.log.file_scan.np = GuardedNumpy()  # type: ignore[attr-defined]
    chance = random.Random(seed)
    for _ in range(rounds):
        content = mutated(chance.choice(logs), chance)
        if content:
            _scanned(content, folder, chance.choice((4096, 10_001, 1 << 20)))


def _logs(names: Iterable[str]) -> list[bytes]:
    return [file.read_bytes() for name in names for file in sorted((unpacked(name) / "commitlog").iterdir())]


KERNEL_STORES = ("clean-plain-4.9.7", "clean-propcrc-5.3.3", "clean-v2-5.5.0", "killed-lmq-4.9.7")


def test_guard_pages_are_where_they_should_be() -> None:
    assert in_a_child(lambda: guarded_bytes(100)[99]) == 0

    def too_far() -> None:
        import ctypes

        ctypes.string_at(guarded_bytes(100).ctypes.data, 101)

    assert in_a_child(too_far) == -11


@pytest.mark.parametrize(("rounds", "seed"), [
    (60, 1), pytest.param(500, 2, marks=pytest.mark.deep),
    *(pytest.param(500, seed, marks=pytest.mark.long) for seed in range(3, 6)),
])
def test_kernels_never_leave_their_buffer_whatever_is_in_it(rounds: int, seed: int, folder: Path, count: Count) -> None:
    logs = _logs(KERNEL_STORES if seed > 1 else KERNEL_STORES[:2])
    assert in_a_child(lambda: _scan_many(logs, folder, rounds, seed)) == 0
    count("inputs fuzzed, kernels between guard pages", rounds)


# --- the command line ------------------------------------------------------------------------------------


FUZZED = ("clean-4.5.1", "killed-lmq-4.9.7", "killed-ext-5.5.0")


def speaks_cleanly(root: Path, *line: object) -> int:
    """Run one command; its exit code, if it ends in time, without a traceback, and without a control character."""
    began = time.process_time()
    result = mqtool(*line)
    assert not result.code & exits.BUG, (line, result.stderr)
    assert time.process_time() - began < 6 * SECONDS_A_CALL, line
    for text in (result.stdout, result.stderr):
        assert not _CONTROL.search(text), (line, _CONTROL.search(text))
    return result.code


def _cli_fuzzed(name: str, folder: Path, rounds: int, seed: int) -> int:
    anatomy = look_at(unpacked(name))
    root = copy_store(unpacked(name), folder / name)
    chance = random.Random(f"{name} {seed}")
    ran = 0
    for strike in strikes(anatomy, chance, rounds):
        with strike.struck(root):
            path = root / strike.file
            version = chance.choice(("4.5.1", "5.5.0"))
            lines: list[list[object]] = [
                ["verify", root], ["inspect", root], ["predict", root, "--broker", version],
                ["recover", root, "--dry-run"], ["query", root, "--phy-offset", chance.choice((0, strike.start))],
                ["report", root, "--json"],
            ]
            if path.exists():
                lines.append(["inspect", path, "--offset", strike.start])
            with assert_unchanged(root):
                for line in chance.sample(lines, 3):
                    speaks_cleanly(root, *line)
                    ran += 1
    return ran


@pytest.mark.parametrize(("name", "rounds", "seed"), [
    ("clean-plain-4.9.7", 6, 1),
    pytest.param(FUZZED[0], 12, 2, marks=pytest.mark.deep),
    *(pytest.param(name, 400, 3, marks=pytest.mark.long) for name in (*FUZZED, "clean-v2-5.5.0")),
])
def test_commands_on_very_many_damaged_stores(name: str, rounds: int, seed: int, folder: Path, count: Count) -> None:
    count("inputs fuzzed, commands", _cli_fuzzed(name, folder, rounds, seed))


# --- names -----------------------------------------------------------------------------------------------

TOPICS = (
    b"%RETRY%../../x", b"%RETRY%/etc/x", b"%DLQ%..", b"%RETRY%../../../../../../../../tmp/x", b"../../x", b"..",
    b"/abs", b"a\nb", b"\x1b[31mred", b"nul\0nul", b"a" * 127, b"%RETRY%\x1b]0;title\x07", b"rmq_sys_/../x",
    b"a\x9b2Jb",
)
_ESCAPES = "\x1b[31mRED\x1b]0;owned\x07\r\n\x9b2J\u202e"


def hostile_store(folder: Path) -> Path:
    """A log of records with hostile topics, tags, keys and properties, each with sound checksums."""
    root, log = folder / "around" / "store", b""
    for number, topic in enumerate((*TOPICS, b"Plain")):
        text = {"TAGS": _ESCAPES, "KEYS": f"{_ESCAPES} key", "UNIQ_KEY": "\x1b[2J", "../../p": "../../v"}
        log += encode(make_record(
            topic, _ESCAPES.encode() * 3, text, store_timestamp=1_700_000_000_000 + number, phy_offset=len(log),
        ))
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / f"{0:020d}").write_bytes(log.ljust(1 << 16, b"\0"))
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_bytes(
        b'{"dataVersion":{},"topicConfigTable":{"../../y\\u001b[31m":{"topicName":"../../y\\u001b[31m"}}}'
    )
    (root / "config" / "consumerOffset.json").write_bytes(b'{"offsetTable":{"\\u001b[31m@../../g":{0:99}}}')
    for part in ("", "index", "commitlog", "config", "consumequeue", "consumequeue/Plain", "consumequeue_ext", "\x1b"):
        (root / part).mkdir(exist_ok=True, parents=True)
        (root / part / f"{_ESCAPES}name").write_bytes(b"")
        (root / part / ("n" * 255)).write_bytes(b"")
    for topic in (_ESCAPES, "t" * 255, "a\nb"):
        cells = root / "consumequeue" / topic / "0"
        cells.mkdir(parents=True)
        (cells / f"{0:020d}").write_bytes(b"\x01" * 200)
    return root


def test_hostile_names_reach_neither_terminal_nor_file_system(folder: Path) -> None:
    root = hostile_store(folder)
    before = set(root.rglob("*"))
    outside = {path for path in folder.rglob("*") if root not in path.parents and path != root}
    lines: list[list[object]] = [
        ["verify", root], ["inspect", root], ["inspect", root / "commitlog" / f"{0:020d}"], ["predict", root],
        ["query", root, "--phy-offset", 0, "--body"], ["query", root, "--topic", "Plain", "--key", "key", "--body"],
        ["query", root, "--topic", "../../x", "--queue", 0, "--offset", 0],
        ["query", root, "--topic", "\x1b[31m", "--key", "\x1b[31m"], ["recover", root, "--dry-run"],
        ["rebuild", root, "--yes", "--include-deleted"], ["recover", root, "--yes"], ["verify", root],
        ["rebuild", root, "--output", folder / "out", "--include-deleted"], ["journal", root],
        ["report", root, "-o", folder / "out" / "report.md"], ["undo", root, "--yes"],
    ]
    for line in lines:
        speaks_cleanly(root, *line)
    after = {path for path in folder.rglob("*") if root not in path.parents and path != root}
    assert not {path for path in after - outside if (folder / "out") not in (path, *path.parents)}
    for path in (*root.rglob("*"), *(folder / "out").rglob("*")):
        assert path.resolve().is_relative_to(folder)
        assert path in before or not _CONTROL.search(path.name)


# --- Plans and journals that somebody made up, with checksums that fit: refused with a reason, and nothing is touched.


QUEUE = "consumequeue/Orders/0/00000000000000000000"
ESCAPES = "\x1b[31mRED\x1b]0;owned\x07\r\n\x9b2J\u202e"
PATHS = ("../../x", "..", "/etc/x", "nul\0", "", ".mqtool/runs/1", "lock", f"{ESCAPES}/../../x")
ODD = (ESCAPES, "a\nb", "x" * 300, f"{ESCAPES}/{ESCAPES}")
Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def store(folder: Path) -> Path:
    """A store with a queue that lost its units."""
    root = real_store("clean-plain-4.9.7", folder / "around")
    (root / QUEUE).write_bytes(bytes((root / QUEUE).stat().st_size))
    return root


@pytest.fixture
def plan(store: Path, folder: Path) -> Path:
    """The saved plan of its recover."""
    assert mqtool("recover", store, "--dry-run", "--plan-out", folder / "plan.json").code
    return folder / "plan.json"


def rewrite(path: Path, change: Change) -> None:
    """Change the body of a plan file, and let its checksum fit."""
    whole = json.loads(path.read_text())
    change(whole["body"])
    whole["crc32c"] = crc32c(canonical(whole["body"]))
    path.write_text(json.dumps(whole))


def rewrite_journal(run: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """Change the records of a journal, and let their checksums fit."""
    path = run / "journal.ndjson"
    records = decode_records(path.read_bytes())
    change(records)
    path.write_bytes(b"".join(map(encode_record, records)))


def applied(store: Path) -> Path:
    """The folder of a run that recovered the store."""
    assert mqtool("recover", store, "--yes").code == exits.CORRECTED
    return next((store / ".mqtool/runs").iterdir())


def test_a_plan_with_a_hostile_path_touches_nothing(store: Path, plan: Path, folder: Path) -> None:
    for name in (*PATHS, *ODD):
        rewrite(plan, lambda body, name=name: body["steps"][0].update(file=name))
        with assert_unchanged(folder):
            assert speaks_cleanly(store, "apply", plan, "--yes") & exits.OPERATIONAL, name


HOSTILE_FIELDS: list[Change] = [
    lambda body: body.update(id="../../x"), lambda body: body.update(sidecar="../.."),
    lambda body: body["steps"][0].update(content={"size": 9, "crc32c": 1, "file": "../../x"}),
    lambda body: body["steps"][0].update(content={"size": 1 << 60, "crc32c": 1, "zlib": "eJwDAAAAAAE="}),
    lambda body: body["steps"][0].update(kind=ESCAPES), lambda body: body["steps"][0].update(start=-1, stop=1 << 70),
    lambda body: body.update(steps=[[[]]]), lambda body: body.update(store={"root": ESCAPES}),
    lambda body: body.update(created_ms=ESCAPES),
]


def test_a_plan_with_a_hostile_field_touches_nothing(store: Path, plan: Path, folder: Path) -> None:
    sound = plan.read_bytes()
    for number, change in enumerate(HOSTILE_FIELDS):
        plan.write_bytes(sound)
        rewrite(plan, change)
        with assert_unchanged(folder):
            assert speaks_cleanly(store, "apply", plan, "--yes") & exits.OPERATIONAL, number


def test_hostile_text_of_a_plan_does_not_drive_the_terminal(store: Path, plan: Path) -> None:
    loss = {"topic": ESCAPES, "queue": 0, "messages": 1, "first_offset": 0, "last_offset": 0, "begin": 0, "end": 0,
            "cause": ESCAPES}
    rewrite(plan, lambda body: body.update(command=ESCAPES, loss=[loss]))
    assert speaks_cleanly(store, "apply", plan, "--dry-run") & exits.BUG == 0
    assert speaks_cleanly(store, "apply", plan, "--yes") & exits.BUG == 0
    for line in (["journal", store], ["verify", store], ["undo", store, "--dry-run"], ["undo", store, "--yes"]):
        assert speaks_cleanly(store, *line) & exits.BUG == 0


def test_a_bomb_in_a_journal_or_plan_is_a_refusal(store: Path, folder: Path) -> None:
    run = applied(store)
    for name in ("journal.ndjson", "plan.json"):
        kept = (run / name).read_bytes()
        for bomb in BOMBS:
            (run / name).write_bytes(b"\n" + bomb)
            with assert_unchanged(folder):
                assert speaks_cleanly(store, "undo", store, "--yes") & exits.OPERATIONAL
                assert speaks_cleanly(store, "journal", store) & exits.BUG == 0
        (run / name).write_bytes(kept)
    assert speaks_cleanly(store, "undo", store, "--yes") & exits.OPERATIONAL == 0


HOSTILE_RECORDS: list[Callable[[list[dict[str, Any]]], object]] = [
    lambda records: records[0]["directories"].update({"../..": 1}),
    lambda records: records[0]["directories"].update({"/etc": 1}),
    lambda records: records[0].update(directories={".": ESCAPES}), lambda records: records[0].update(directories=[]),
    lambda records: next(r for r in records if r["event"] == "begin").update(mkdirs=["../../x"]),
    lambda records: records[0].update(steps=ESCAPES), lambda records: records[0].update(steps=1 << 62),
    lambda records: records[1].update(event=[]), lambda records: records[1].update(step=1 << 70),
]


def test_a_journal_that_names_other_places_changes_nothing(store: Path, folder: Path) -> None:
    run = applied(store)
    sound = (run / "journal.ndjson").read_bytes()
    for number, change in enumerate(HOSTILE_RECORDS):
        (run / "journal.ndjson").write_bytes(sound)
        rewrite_journal(run, change)
        with assert_unchanged(folder):
            assert speaks_cleanly(store, "undo", store, "--yes") & exits.OPERATIONAL, number
            assert speaks_cleanly(store, "verify", store) & exits.BUG == 0


def test_hostile_text_of_a_journal_does_not_drive_the_terminal(store: Path) -> None:
    rewrite_journal(applied(store), lambda records: records[0].update(command=ESCAPES, plan=ESCAPES, store=ESCAPES))
    for line in (["journal", store], ["verify", store], ["undo", store, "--yes"]):
        assert speaks_cleanly(store, *line) & (exits.BUG | exits.OPERATIONAL) == 0


@pytest.mark.parametrize("command", ["resume", "undo"])
def test_hostile_text_of_an_unfinished_run_does_not_drive_the_terminal(command: str, store: Path) -> None:
    copy = copy_store(store, store.with_name("copy"))
    assert killed_at(len(count_operations(recovering(copy))) * 3 // 4, recovering(store))
    (run,) = (store / ".mqtool/runs").iterdir()
    rewrite_journal(run, lambda records: records[0].update(command=ESCAPES))
    for line in (["verify", store], ["journal", store], [command, store, "--dry-run"], [command, store, "--yes"]):
        assert speaks_cleanly(store, *line) & (exits.BUG | exits.OPERATIONAL) == 0


def test_a_run_of_another_format_version_is_refused_with_the_reason(store: Path, folder: Path) -> None:
    run = applied(store)
    whole = json.loads((run / "plan.json").read_text())
    (run / "plan.json").write_text(json.dumps({**whole, "version": 2}))
    with assert_unchanged(folder):
        refused = mqtool("undo", store, "--yes")
    assert refused.code & exits.OPERATIONAL and "plan format 2" in refused.stderr
