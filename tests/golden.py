"""The golden run: every packed store with every damage, and what mqtool reports and does, held to fixtures/golden.

A case is one damage on a copy of one store. On it run verify, predict by release, recover as a dry run, recover, and
undo, each through the command line in this process. Of each document, and of the tree after recover, `fixtures/golden`
keeps a digest and the facts that a reader of a difference wants; one line a case, one file a store.

    python -m tests.golden                    all cases that are kept
    python -m tests.golden --quick            the sample that covers every store and every recipe
    python -m tests.golden --only clean-plain-4.9.7/bit-in-body --save DIR
                                              the normalised documents of a case as files, to compare by hand
    python -m tests.golden --update           keep what is seen (with --only: of new cases, too)

What differs between two runs of one version is left out: ids, times, host, engine, paths of this machine. So is prose,
which has tests of its own: a document may say the same in better words.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fixtures.damage import RECIPES, NotApplicable
from fixtures.unpack import is_made_up
from tests.cli.runner import mqtool
from tests.scenarios.drill import BROKERS, all_stores, log_options
from tests.support.stores import KINDS, broker_conf, struck_store, unpacked
from tests.support.trees import Node, tree_digest

GOLDEN = Path(__file__).resolve().parents[1] / "fixtures" / "golden"
STORES = (*all_stores(), *KINDS)
PREDICTS = tuple(f"predict-{release}" for release in BROKERS)
COMMANDS = ("verify", *PREDICTS, "dry-run", "recover", "tree", "undo")
Line = dict[str, str]


class Case(NamedTuple):
    """A packed store and the recipe that damages a copy of it."""

    store: str
    recipe: str

    def __str__(self) -> str:
        return f"{self.store}/{self.recipe}"

    @property
    def rank(self) -> str:
        """A place in an order that has nothing to do with names."""
        return hashlib.sha256(str(self).encode()).hexdigest()


# --- normalised documents -----------------------------------------------------------------------------------------

#: What services deliver is held to real brokers, in tests/broker; its bits of the exit code stay.
_BY_TIME = {"start-delivers-again", "start-delivers-overdue", "start-skips-waiting", "start-discards-half"}
#: What two runs of one version differ in, what depends on how the answer is reached, and words for people.
_DROPPED = {"tool", "host", "time", "seconds", "bytes", "engine", "journal", "store", "summary", "message", "remedy",
            "why", "id", "run", "undo", "broker", "at", "delivers", "delivers_after", "room",
            "pointers", "crash_window", "start_seconds", "start_reads", *_BY_TIME}
_PLAN_ID = re.compile(r"\b(\d{6}-)?[0-9a-f]{8}\b")
_RELEASE = re.compile(r"(?<=--broker )\S+")


def normalised(value: Any, folder: str, key: str = "") -> Any:
    """A document without what may differ between two runs, paths below `folder` written `@/...`."""
    if isinstance(value, dict):
        # what follows a refusal is its remedy once more, in words
        value = {**value, "next": []} if "error" in value else value
        return {name: normalised(each, folder, name) for name, each in value.items() if name not in _DROPPED}
    if isinstance(value, list):
        return [normalised(each, folder, key) for each in value
                if not (isinstance(each, dict) and each.get("code") in _BY_TIME)]
    if not isinstance(value, str):
        return value
    if key in ("command", "plan"):
        return _RELEASE.sub("RELEASE", _PLAN_ID.sub("ID", value.replace(folder, "@")))
    return "..." if " " in value else value.replace(folder, "@")


def digest(value: Any) -> str:
    """Twelve hexadecimal digits for a value of JSON."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def facts(document: dict[str, Any], verified: dict[str, int]) -> str:
    """The figures of a document that a reader of a difference wants first; findings as they differ from verify's."""
    def of(*names: str) -> list[str]:
        return [f"{name}:{document[name]}" for name in names if document.get(name)]

    shown = [f"exit:{document['exit_code']}"]
    if log := document.get("commitlog"):
        shown += [f"messages:{log['messages']}", f"damaged:{log['damaged_messages']}"]
    if queues := document.get("consumequeue"):
        shown.append(f"units:{queues['right']}/{queues['expected']}")
    if index := document.get("index"):
        shown.append(f"index:{index['entries'] - index['wrong']}/{index['expected']}")
    if "starts" in document:
        shown += [f"starts:{document['starts']}", f"max_phy:{document['max_phy']}"]
        shown += of("unreachable_messages", "duplicated_offsets")
    shown += of("lost_messages", "damaged_messages", "given_up_messages", "applied")
    plan = document.get("plan")
    if isinstance(plan, dict):
        kinds = [step["kind"] for step in plan["steps"]]
        shown += [f"{kind}:{kinds.count(kind)}" for kind in sorted(set(kinds))]
        shown += [f"loss:{len(plan['loss'])}"] * bool(plan["loss"])
    if "restored" in document:
        shown.append(f"restored:{len(document['restored'])}")
    counts = {code: number for code, number in document["finding_counts"].items() if code not in _BY_TIME}
    shown += [f"{code}*{count}" for code, count in sorted(counts.items()) if verified.get(code) != count]
    return " ".join([*shown, *(f"-{code}" for code in sorted(verified.keys() - counts.keys()))])


def tree(nodes: dict[str, Node]) -> dict[str, Any]:
    """What is compared of a tree after recover: names, kinds, sizes, content and modes; times and owners are not."""
    return {path: [node.kind, node.size, node.sha256, node.mode] for path, node in sorted(nodes.items())}


# --- one case -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def surroundings() -> Iterator[Path]:
    """An empty folder (in memory where there is one), and a time zone and umask that are the same everywhere."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    umask, zone = os.umask(0o022), os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        with tempfile.TemporaryDirectory(dir=memory) as name:
            yield Path(name).resolve()
    finally:
        os.umask(umask)
        if zone is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = zone
        time.tzset()


@cache
def _times(name: str) -> dict[str, int]:
    """mtimes of a packed store by path; of what was not packed, the newest of the others."""
    root = unpacked(name)
    nodes = tree_digest(root)
    made_up = {"config", "config/topics.json", "."} if is_made_up(root / "config") else {"."}
    newest = max((node.mtime_ns for path, node in nodes.items() if path not in made_up), default=0)
    return {path: newest if path in made_up else node.mtime_ns for path, node in nodes.items()}


def _dated(name: str, root: Path) -> None:
    """Give what the damage wrote the newest time of the packed store: the time as of which starts are foretold."""
    known = _times(name)
    newest = max(known.values())
    for path, node in tree_digest(root).items():
        then = known[path] if node.mtime_ns == known.get(path) else newest
        os.utime(root / path, ns=(then, then), follow_symlinks=False)


def struck(case: Case, folder: Path) -> tuple[Path, list[object]]:
    """A damaged copy of the case's store below `folder`, and the options it takes; NotApplicable if it cannot be."""
    root, _ = struck_store(case.store, folder, case.recipe)
    _dated(case.store, root)
    options: list[object] = list(log_options(root))
    if case.store in KINDS:
        options += ["--broker-conf", broker_conf(case.store, root, folder / "broker.conf")]
    return root, options


def run(case: Case, folder: Path, commands: Iterable[str] = COMMANDS, save: Path | None = None) -> Line:
    """What a case gives: for each command its facts and, after `#`, the digest. Uses and removes `folder`."""
    line: Line = {}
    verified: dict[str, int] = {}

    def keep(command: str, shown: str, value: Any) -> None:
        line[command] = f"{shown} #{digest(value)}"
        if save is not None:
            target = save / case.store / case.recipe / f"{command}.json"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")

    def ask(command: str, name: str, *arguments: object) -> None:
        result = mqtool(name, root, *options, *arguments, "--json")
        document = result.document
        assert result.code == document["exit_code"], f"{case} {command}: {result.code} is not {document['exit_code']}"
        keep(command, facts(document, verified if name == "recover" else {}), normalised(document, str(folder)))
        if name == "verify":
            verified.update(document["finding_counts"])

    try:
        root, options = struck(case, folder)
        before = tree_digest(root)
        for command in commands:
            if command.startswith("predict-"):
                newest = max(_times(case.store).values()) // 1_000_000
                ask(command, "predict", "--broker", command.removeprefix("predict-"), "--at", newest)
            elif command == "verify":
                ask(command, "verify")
            elif command == "dry-run":
                ask(command, "recover", "--dry-run")
            elif command == "recover":
                _unchanged(case, "a reading command", before, root)
                ask(command, "recover", "--yes")
            elif command == "tree":
                after = tree_digest(root)
                changed = [path for path in before.keys() | after.keys() if before.get(path) != after.get(path)]
                keep(command, f"changed:{len([path for path in changed if path != '.'])}", tree(after))
            else:
                options = []
                ask(command, "undo", "--yes")
                _unchanged(case, "undo", before, root)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return line


def _unchanged(case: Case, what: str, before: dict[str, Node], root: Path) -> None:
    after = tree_digest(root)
    differ = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
                    and (path != "." or not (root / ".mqtool").exists()))
    assert not differ, f"{case}: {what} left another tree than before: {differ[:5]}"


# --- what is kept -------------------------------------------------------------------------------------------------


def kept() -> dict[Case, Line]:
    """Every case of fixtures/golden."""
    found = {}
    for store in STORES:
        path = GOLDEN / f"{store}.txt"
        for text in path.read_text("utf-8").splitlines() if path.exists() else ():
            recipe, *fields = text.split("\t")
            line: Line = {}
            for field in fields:
                command, _, value = field.partition(" ")
                line[command] = line[next(reversed(line))] if value == "=" else value
            found[Case(store, recipe)] = line
    return found


def keep(cases: dict[Case, Line], stores: Iterable[str] = STORES) -> None:
    """Write the files of some stores: a line a case, where a command's value that is that of the one before is `=`."""
    for store in stores:
        lines = []
        for case, line in sorted(cases.items()):
            fields, last = [], ""
            for command in COMMANDS:
                fields.append(f"{command} {'=' if line[command] == last else line[command]}")
                last = line[command]
            if case.store == store:
                lines.append("\t".join([case.recipe, *fields]) + "\n")
        path = GOLDEN / f"{store}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if lines:
            path.write_text("".join(lines), "utf-8")


def quick(cases: Iterable[Case]) -> dict[Case, tuple[str, ...]]:
    """The sample: a case for every recipe, one more for every store that has none yet; each with some commands."""
    by_rank = sorted(cases, key=lambda case: case.rank)
    light = [case for case in by_rank if case.store not in KINDS and _is_small(case.store)]
    chosen: dict[str, Case] = {}
    for case in (*light, *by_rank):
        chosen.setdefault(case.recipe, case)
    stores = {case.store: case for case in chosen.values()}
    for case in by_rank:
        stores.setdefault(case.store, case)
    sample = sorted({*chosen.values(), *stores.values()})
    return {case: _some_commands(case) for case in sample}


def _is_small(store: str) -> bool:
    """Whether a case of the store takes a fraction of a second."""
    return (GOLDEN.parent / "stores" / f"{store}.tar.xz").stat().st_size < 200_000


def _some_commands(case: Case) -> tuple[str, ...]:
    """All commands but those of three releases, and the dry run for every fourth case only."""
    number = int(case.rank, 16)
    left_out = {each for each in PREDICTS if each != PREDICTS[number % 4]} | ({"dry-run"} if number // 4 % 4 else set())
    return tuple(command for command in COMMANDS if command not in left_out)


# --- the run ------------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What running a case gave: its line, None if the store lacks what the recipe damages; or how it failed."""

    case: Case
    line: Line | None
    failure: str = ""


def outcome(case: Case, folder: Path, commands: Iterable[str], save: Path | None = None) -> Outcome:
    """Run a case; a failure becomes a value."""
    try:
        return Outcome(case, run(case, folder, commands, save))
    except NotApplicable:
        return Outcome(case, None)
    except Exception as error:  # any failure of a case is a difference, and the other cases go on
        return Outcome(case, {}, f"{type(error).__name__}: {error}")


def differences(found: Outcome, known: Line | None) -> list[str]:
    """Lines that tell how a case differs from what is kept of it."""
    if found.failure:
        return [f"{found.case}: {found.failure}"]
    if found.line is None or known is None:
        one = "cannot be damaged by this recipe any more" if known else "is not in fixtures/golden"
        return [] if found.line is known is None else [f"{found.case}: {one}"]
    told = []
    for command, now in found.line.items():
        was = known[command]
        if now == was:
            continue
        told.append(f"{found.case}: {command}")
        old, new = was.split(), now.split()
        less = [word for word in old[:-1] if word not in new]
        more = [word for word in new[:-1] if word not in old]
        told += [f"    was {' '.join(less) or '-'}", f"    now {' '.join(more) or '-'}"] if less or more else [
            f"    same facts ({' '.join(new[:-1])}), another document: see --save"]
    return told


def _batch(cases: list[tuple[Case, tuple[str, ...]]], save: Path | None) -> list[Outcome]:
    with surroundings() as folder:
        return [outcome(case, folder / "case", commands, save) for case, commands in cases]


def _all_outcomes(cases: dict[Case, tuple[str, ...]], jobs: int, save: Path | None) -> Iterator[Outcome]:
    batches: dict[str, list[tuple[Case, tuple[str, ...]]]] = {}
    for case, commands in cases.items():
        batches.setdefault(case.store, []).append((case, commands))
    if jobs == 1:
        for batch in batches.values():
            yield from _batch(batch, save)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for found in pool.map(_batch, batches.values(), [save] * len(batches)):
            yield from found


def chosen(known: Iterable[Case], arguments: argparse.Namespace) -> dict[Case, tuple[str, ...]]:
    """The cases that a command line asks for, with the commands to run."""
    store, _, recipe = arguments.only.rpartition("/") if arguments.only not in STORES else (arguments.only, "", "")
    if arguments.quick:
        sample = quick(known)
        return sample if not arguments.update else dict.fromkeys(sample, COMMANDS)
    wanted = arguments.only and (arguments.update or arguments.save)
    every = [Case(each, name) for each in STORES for name in RECIPES] if wanted else known
    return {case: COMMANDS for case in every if store in ("", case.store) and recipe in ("", case.recipe)}


def main(argv: list[str] | None = None) -> int:
    """Run, compare or update; 1 if a case differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the sample only")
    parser.add_argument("--update", action="store_true", help="write what was seen to fixtures/golden")
    parser.add_argument("--only", default="", metavar="STORE[/RECIPE]", help="one store, or one case")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default: 1)")
    parser.add_argument("--save", type=Path, metavar="DIR", help="write the normalised documents below DIR")
    arguments = parser.parse_args(argv)
    begin, known = time.monotonic(), kept()
    updated, ran, different, told = dict(known), 0, 0, []
    for found in _all_outcomes(chosen(known, arguments), arguments.jobs, arguments.save):
        if found.failure or not arguments.update:
            lines = differences(found, known.get(found.case))
            different += bool(lines)
            told += lines
        if not found.failure:
            ran += found.line is not None
            updated.pop(found.case, None)
            if found.line is not None:
                updated[found.case] = found.line
    if arguments.update:
        keep(updated, {case.store for case in updated.keys() ^ known.keys()} | {
            case.store for case in updated.keys() & known.keys() if updated[case] != known[case]})
    if told:
        print("\n".join(told))
    print(f"golden: {ran} cases, {different} differ, {time.monotonic() - begin:.0f} s")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
