"""The commands of each runbook are run, in their order and in both languages, on the damage that it is for."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from fixtures import demo
from fixtures.damage import damage
from fixtures.damage.config import consumer_offsets
from tests.cli.runner import mqtool
from tests.support.command_docs import DOCS
from tests.support.stores import broker_conf, real_store

BACKUPS = "verify-last-nights-backups"  # of many stores; its commands run in tests/cluster/test_fleet.py
ENGLISH = sorted(path for path in (DOCS / "runbooks").glob("*.md") if path.stem != BACKUPS)
CHINESE = sorted((DOCS / "zh").glob("*.md"))
_LATER = ("undo", "resume", "journal", "apply")
_CHANGES = ("recover", "apply", "undo", "resume", "rebuild", "rebuild-index", "rebuild-consumequeue", "truncate")
_HAN = re.compile(r"[\u4e00-\u9fff]")
MANY, DELAYED = "clean-manyfiles-5.3.3", "clean-plain-4.9.7"
MESSAGE, KEY = "7F000001000000000000000000000170", "k170_0"
"""Of the message 42 of Orders/2 in the first of these stores."""


def _delay_progress_too_far(root: Path) -> None:
    (root / "config" / "delayOffset.json").write_text('{"offsetTable":{3:4711}}')


def _offsets_went_back(root: Path) -> None:
    """Both brokers wrote the file; this one's is older, the other one's is further but for one queue."""
    consumer_offsets(root, {"Orders@CG": {0: 200, 1: 90}})
    shutil.copy(root / "config" / "consumerOffset.json", root.parent / "other-consumerOffset.json")
    consumer_offsets(root, {"Orders@CG": {0: 80, 1: 95}})


def _topics_lost(root: Path) -> None:
    consumer_offsets(root, {"Orders@CG": {0: 200, 1: 90}})
    damage("topics-missing", root)


class Page(NamedTuple):
    """What a page is for: a store, its damage, and the exit code of each command in the order of the page."""

    store: str
    harm: str | Callable[[Path], None]
    codes: str


PAGES = {
    "README": Page(MANY, "crash-bit-without-checkpoint", "6"),
    "runbook": Page(MANY, "crash-bit-without-checkpoint", "6 4 6 5 0"),
    "broker-will-not-start": Page(MANY, "log-last-short", "2 4 2 1 0"),
    "crash-before-you-restart": Page(MANY, "crash-bit-without-checkpoint", "6 4 6 5 0"),
    "delayed-messages-stuck": Page(DELAYED, _delay_progress_too_far, "6 4 0 2 1"),
    "disk-full": Page(MANY, "crash-disk-full", "2 2 2 1 0"),
    "failover-offsets-went-back": Page(MANY, _offsets_went_back, "0 0 0 1 0"),
    "get-the-messages-out": Page(MANY, "page-random", "0 0 6 0 0 0 0 0 0 0 0 0"),
    "kubernetes-crash-loop": Page(MANY, "crash-power-loss", "6 2 4 6 5"),
    "moving-a-store": Page(MANY, "copy-interrupted", "2 1 0"),
    "offline-install": Page(MANY, "abort-added", "2"),
    "queue-is-missing-messages": Page(MANY, "queue-hole", "0 0 0 2 0 2 1 0"),
    "topics-gone": Page(MANY, _topics_lost, "6 2 2 1 0"),
    "vanished-log-file": Page(MANY, "log-middle-missing", "4 4 4 5"),
}


def _commands(path: Path) -> list[str]:
    blocks = re.findall(r"^```console\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ mqtool ")]


def _typed(command: str, root: Path, language: str) -> list[str]:
    """The command line on a copy of the store: its own paths, and names of messages that it has."""
    line = command
    for named, here in (("/tmp/", f"{root.parent}/"), ("/etc/rocketmq/broker.conf", f"{root.parent}/broker.conf"),
                        ("/data/store", str(root)), ("--offset 1042", "--offset 42"), ("--key 4711", f"--key {KEY}"),
                        ("7F0000010000158B00000000000CBF83", MESSAGE)):
        line = line.replace(named, here)
    words = shlex.split(line)[1:]
    if words[0] in _CHANGES and "--dry-run" not in words:
        words.append("--yes")
    if words[0] == "send" and "--dry-run" not in words:
        words.append("--dry-run")  # there is no cluster here; tests/broker has one
    return words if "--lang" in words else [*words, "--lang", language]


# the Chinese pages have the same commands, but for the page of decisions
@pytest.mark.parametrize("path", [
    *ENGLISH, DOCS / "zh" / "runbook.md",
    *(pytest.param(path, marks=pytest.mark.long if number % 4 else pytest.mark.deep)
      for number, path in enumerate(path for path in CHINESE if path.stem != "runbook")),
], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_command_of_a_runbook_ends_with_its_exit_code_on_the_damage_it_is_for(path: Path, tmp_path: Path) -> None:
    page = PAGES[path.stem]
    root = real_store(page.store, tmp_path)
    if isinstance(page.harm, str):
        damage(page.harm, root, 5)
    else:
        page.harm(root)
    broker_conf(page.store, root, root.parent / "broker.conf")
    language = "zh_CN" if path in CHINESE else "en"
    ended = []
    for command in _commands(path):
        if command.split()[1] not in _LATER and "/data/store" in command:
            assert "--broker-conf /etc/rocketmq/broker.conf" in command or "store-moved" in command, command
        result = mqtool(*_typed(command, root, language))
        ended.append((command, result.code))
        assert bool(_HAN.search(result.stdout)) is (language == "zh_CN"), (command, result.stdout)
    assert ended == list(zip(_commands(path), map(int, page.codes.split()), strict=True))
    written = [file for file in root.parent.iterdir() if file.suffix in (".ndjson", ".csv")]
    assert all(file.stat().st_size for file in written), "a step of a runbook found nothing to do"


def test_each_page_is_there_in_both_languages_with_the_same_commands() -> None:
    pages = {path.stem: _commands(path) for path in ENGLISH if path.stem != "README"}
    assert pages == {path.stem: _commands(path) for path in CHINESE if path.stem != "runbook"}
    decisions = DOCS / "zh" / "runbook.md"
    assert {f"({name}.md)" in decisions.read_text() for name in pages} == {True}


@pytest.mark.parametrize("path", [*ENGLISH, *CHINESE], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_each_page_says_as_which_user_how_to_stop_the_broker_and_how_long_it_takes(path: Path) -> None:
    text = path.read_text()
    if path.stem not in ("README", "runbook"):
        assert "As which user" in text or "以哪个用户" in text
    changes = {command.split()[1] for command in _commands(path) if "--output" not in command} & {*_CHANGES}
    stops = [word for word in ("systemctl stop", "kubectl scale", "docker stop") if word in text]
    assert not changes or len(stops) == 3 or (path.stem.startswith("kubernetes") and "kubectl scale" in stops)
    assert re.search(r"[Ii]t takes|minutes|2 s for each GiB|分钟|所需时间|需要的时间", text), "how long"


def test_before_a_restart_the_store_is_verified_and_then_the_start_predicted() -> None:
    names = [command.split()[1] for command in _commands(DOCS / "runbooks" / "crash-before-you-restart.md")]
    assert names.index("verify") < names.index("predict") < names.index("recover")


def test_all_that_a_dead_broker_had_is_sent_or_listed(tmp_path: Path) -> None:
    """The steps of the runbook on a store with damage: exported, sent and damaged messages add up."""
    root = real_store("clean-5.3.3", tmp_path)
    damage("page-random", root, 5)
    report = mqtool("report", root, "--json").document
    out, rest = tmp_path / "all.ndjson", tmp_path / "damaged.ndjson"
    exported = mqtool("export", root, "-o", out, "--include", "system", "--json").document
    assert exported["messages"] == report["verify"]["commitlog"]["messages"]
    damaged = mqtool("export", root, "-o", rest, "--damaged", "--json").document
    assert damaged["messages"] == len(report["lost_messages"]) >= report["verify"]["commitlog"]["damaged_messages"] > 0
    sent = mqtool("send", out, "--endpoints", "127.0.0.1:8081", "--dry-run", "--json").document
    assert sent["planned"] + sum(sent["left_out"].values()) == exported["messages"]


def test_the_words_under_the_picture_of_a_report_are_those_of_a_report(tmp_path: Path) -> None:
    readme = " ".join((DOCS.parent / "README.md").read_text().split())
    assert f"![{demo.words_of_report(tmp_path)}](docs/report.png)" in readme


def test_every_step_of_the_demo_ends_as_it_says() -> None:
    assert demo.main([]) == 0
