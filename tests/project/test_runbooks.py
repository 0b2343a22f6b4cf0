"""The commands of the runbooks are run, in their order, on a damaged store: none is refused, none is a usage error."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from fixtures import demo
from fixtures.damage import damage
from mqtool import exits
from tests.cli.runner import mqtool
from tests.support.command_docs import DOCS
from tests.support.stores import real_store

BACKUPS = "verify-last-nights-backups"  # of many stores; its commands run in tests/cluster/test_fleet.py
ENGLISH = sorted(path for path in (DOCS / "runbooks").glob("*.md") if path.stem != BACKUPS)
CHINESE = sorted((DOCS / "zh").glob("*.md"))
#: The damage that a runbook is for, and with which its commands are run; a bit in a body for all others.
DAMAGE = {
    "disk-full": ("crash-disk-full", 0), "vanished-log-file": ("log-middle-missing", 0),
    "topics-gone": ("topics-missing", 0), "delayed-messages-stuck": ("config-cut-bak-sound", 3),
    "failover-offsets-went-back": ("abort-added", 0), "kubernetes-crash-loop": ("abort-added", 0),
}
STORE = {"vanished-log-file": "clean-manyfiles-5.3.3"}
_LATER = ("undo", "resume", "journal", "apply")
_CHANGES = ("recover", "apply", "undo", "resume", "rebuild", "rebuild-index", "rebuild-consumequeue", "truncate")


def _commands(path: Path) -> list[str]:
    blocks = re.findall(r"^```console\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ mqtool ")]


# the Chinese pages have the same commands, but for the page of decisions
@pytest.mark.parametrize("path", [
    *ENGLISH, DOCS / "zh" / "runbook.md",
    *(pytest.param(path, marks=pytest.mark.deep) for path in CHINESE if path.stem != "runbook"),
], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_command_of_a_runbook_does_what_it_is_there_for(path: Path, tmp_path: Path) -> None:
    root = real_store(STORE.get(path.stem, "clean-5.3.3"), tmp_path)
    damage(DAMAGE.get(path.stem, ("bit-in-body", 5))[0], root, DAMAGE.get(path.stem, ("", 5))[1])
    for offsets in (root / "config").glob("*onsumerOffset.json"):
        shutil.copy(offsets, tmp_path / "other-consumerOffset.json")
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathRootDir={root}\n")
    commands = _commands(path)
    assert commands
    sizes: dict[str, list[int]] = {"export": [], "send": []}
    for command in commands:
        if command.split()[1] not in _LATER and "/data/store" in command:
            assert "--broker-conf /etc/rocketmq/broker.conf" in command, command
        line = command.replace("/tmp/", f"{tmp_path}/").replace("Orders", "TopicA")
        words = shlex.split(line.replace("/etc/rocketmq/broker.conf", str(conf)).replace("/data/store", str(root)))[1:]
        if words[0] in _CHANGES and "--dry-run" not in words:
            words.append("--yes")
        if words[0] == "send" and "--dry-run" not in words:
            words.append("--dry-run")  # there is no cluster here; tests/broker has one
        result = mqtool(*words, "--json")
        failed = exits.OPERATIONAL | exits.USAGE | exits.INTERRUPTED | exits.BUG
        assert result.code & failed == 0, (command, result.stdout[-2000:])
        if words[0] in ("export", "send") and "--damaged" not in words:
            sizes[words[0]].append(result.document.get("planned", result.document.get("messages")))
    assert all(all(numbers) for numbers in sizes.values()), "a step of a runbook found nothing to do"


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
