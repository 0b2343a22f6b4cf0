"""A random hunt: several damages at once on a real store, then the whole way of recover, judged by the plain reader.

A case ends well if recover refuses and changes nothing, or if after it every message that the damage left intact
stands at its place and is delivered, a second recover changes nothing, verify repeats what recover reported, a broker
that can read the store (another one for each seed) is predicted to start and lose nothing, and undo restores every
byte. Where nothing is
left of a log file, recover has to refuse; then it is run once more with --max-loss all, and judged likewise, but for
the messages that the refusal said would be lost.
Two of five seeds are correlated damage, as real media do it: one cause that reaches many records or several parts.
With `brokers`, real ones start on what every Nth seed left behind, and have to deliver what the plain reader finds.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from fixtures.damage import RECIPES, NotApplicable, damage
from fixtures.lab.packed import settings
from mqtool import exits
from tests.cli.runner import Result, mqtool
from tests.scenarios.drill import log_options, readers_of
from tests.support import plain_reader as plain
from tests.support.brokers import oracle
from tests.support.stores import copy_store, unpacked, write_at
from tests.support.trees import assert_same_tree, tree_digest

STORES = (
    "clean-plain-4.9.7", "clean-manyfiles-5.3.3", "killed-lmq-4.9.7", "clean-5.3.3", "killed-5.5.0", "clean-4.5.1",
    "clean-propcrc-5.3.3", "killed-manyfiles-5.5.0", "killed-v2-ipv6-5.3.3", "clean-restarts-5.5.0",
)
AREAS = ("log", "files", "queue", "index", "checkpoint", "crash", "witness")
CORRELATED = ("displaced", "snapshot")
"""Areas of recipes with one cause for much damage; `bit_rot` is another one."""
PAGE = 4096
Place = tuple[str, int, int]
Strike = Callable[[Path, random.Random], str]


REFUSED = "refused"
BY_CONTRACT = "refused by contract"


@dataclass
class Outcome:
    """One case: what was done to which store, how it ended, and what is wrong with that.

    `correlated`: whether the first damage is of that class. `refusal`: why recover refused; `asked`: how many real
    brokers were started on what it left.
    """

    store: str
    seed: int
    correlated: bool = False
    damages: list[str] = field(default_factory=list)
    end: str = ""
    wrong: list[str] = field(default_factory=list)
    refusal: str = ""
    asked: int = 0

    def __str__(self) -> str:
        done, wrong = ", ".join(self.damages), "; ".join(self.wrong) or "well"
        refusal = f" ({self.refusal})" if self.refusal else ""
        return f"{self.store} seed {self.seed} [{done}] {self.end}{refusal}: {wrong}"


@dataclass
class Tally:
    """Counts of all cases, by class and end; those that ended badly, and those that recover refused though no log file
    was missing."""

    ends: Counter[str] = field(default_factory=Counter)
    asked: int = 0
    refused: list[str] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count one case."""
        self.ends[f"{'correlated' if outcome.correlated else 'single'}: {outcome.end}"] += 1
        self.asked += outcome.asked
        if outcome.end == REFUSED:
            self.refused.append(str(outcome))
        if outcome.wrong:
            self.bad.append(str(outcome))


def hunt(stores: tuple[str, ...], seeds: range, folder: Path, brokers: int = 0) -> Iterator[Outcome]:
    """Every store with every seed; the folder is used for one copy at a time. Brokers are asked of each Nth seed."""
    for seed in seeds:
        for name in stores:
            yield case(name, seed, folder, brokers=brokers > 0 and seed % brokers == 0)


def case(name: str, seed: int, folder: Path, *, brokers: bool = False) -> Outcome:
    """One store, one to three damages, the whole way."""
    rng = random.Random(f"{name}/{seed}")
    outcome = Outcome(name, seed, correlated=seed % 5 in (1, 3))
    root = copy_store(unpacked(name), folder / f"{name}-{seed}")
    try:
        wanted = rng.choice((1, 1, 2, 3))
        for _ in range(20):
            if len(outcome.damages) == wanted:
                break
            if outcome.correlated and not outcome.damages:
                kind = rng.choice((*_recipes(CORRELATED), bit_rot.__name__))
            else:
                kind = rng.choice(sorted(STRIKES.keys() - {bit_rot.__name__})
                                  if rng.random() < 0.3 else _recipes(AREAS))
            try:
                outcome.damages.append(STRIKES[kind](root, rng) if kind in STRIKES else _by_recipe(kind, root, rng))
            except (NotApplicable, LookupError, OSError, ValueError):
                continue  # the store, as damaged so far, lacks what this damages
        judged(outcome, root, brokers=brokers)
    finally:
        shutil.rmtree(root)
    return outcome


@cache
def _recipes(areas: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(name for name, entry in RECIPES.items() if entry.area in areas))


def _by_recipe(kind: str, root: Path, rng: random.Random) -> str:
    seed = rng.randrange(1 << 16)
    damage(kind, root, seed)
    return f"{kind}/{seed}"


# --- the judgement ------------------------------------------------------------------------------------------------


@cache
def _sound(name: str) -> tuple[dict[int, bytes], dict[Place, bytes]]:
    """Of the store as it was packed: its records by offset, and what its queues lead to."""
    root = unpacked(name)
    records = {
        record.phy_offset: record.content for base, file in plain.log_files(root).items()
        for record in plain.chain(file, base)
    }
    return records, plain.delivered(root)


def _left(name: str, root: Path) -> dict[int, bytes]:
    """The packed store's records whose bytes are still in a file of the log's folders, wherever they stand there."""
    records, _ = _sound(name)
    files = [file for folder in plain.log_folders(root) for file in _files(folder)]
    found = {}
    for base, size in ((base, len(file)) for base, file in plain.log_files(unpacked(name)).items()):
        inside = {offset: content for offset, content in records.items() if base <= offset < base + size}
        for file in files:
            found.update({at: content for at, content in inside.items() if file.startswith(content, at - base)})
    found.update({at: content for at, content in records.items()
                  if at not in found and any(content in file for file in files)})
    return found


def _files(folder: Path) -> Iterator[bytes]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_file() and path.name.isdecimal():
            yield path.read_bytes()


def _has_lost_a_file(name: str, left: dict[int, bytes]) -> bool:
    """Whether of some log file with records no record is left: it is missing, or another log's."""
    records, _ = _sound(name)
    files = plain.log_files(unpacked(name))
    had, has = ({max(base for base in files if base <= offset) for offset in some} for some in (records, left))
    return had > has


def _has_lost_its_first(root: Path) -> bool:
    """Whether the log begins above 0: what was before is a question (2), for retention deletes first files."""
    return min(plain.log_files(root), default=0) > 0


def _names_what_is_lost(root: Path) -> bool:
    """Whether any part of the store but the log says that messages followed its last one: an entry of queues or index,
    or progress and checkpoint. If all parts are from before that, nothing can tell."""
    records = plain.records(root)
    end = max((record.phy_offset + record.size for record in records), default=0)
    read = Counter({(record.topic, record.queue_id): record.queue_offset + 1 for record in records})
    heads = [plain.INDEX_HEAD.unpack_from(path.read_bytes().ljust(plain.INDEX_HEAD.size, b"\0"))
             for path in root.glob("index/*")]
    named = [*(unit.phy_offset for unit in plain.units(root).values()), *(head[3] for head in heads)]
    said = plain.checkpoint((root / "checkpoint").read_bytes() if (root / "checkpoint").exists() else b"")
    later = max([*said.values()][:3]) > max((record.store_time for record in records), default=0)
    path = root / "config" / "consumerOffset.json"
    table: Any = (plain.config(path.read_bytes()) if path.exists() else None) or {}
    ahead = any(offset > read[name.partition("@")[0], int(queue)] for name, queues in table.get(
        "offsetTable", {}).items() for queue, offset in queues.items())
    return any(offset >= end for offset in named) or (later and ahead)


def judged(outcome: Outcome, root: Path, *, brokers: bool = False) -> None:
    """Verify, recover, verify, recover, predict and undo a damaged copy of the outcome's store; note how it ended."""
    name, wrong = outcome.store, outcome.wrong
    readers = readers_of(name)
    options = log_options(root)
    left = _left(name, root)
    _, delivered = _sound(name)
    due = {place: content for place, content in delivered.items() if _offset(content) in left}
    before = tree_digest(root)

    def run(command: str, *arguments: object) -> Result:
        result = mqtool(command, root, *options, *arguments, "--json")
        if result.code & exits.BUG:
            wrong.append(f"{command} ended with 128: {result.stderr.strip().splitlines()[-1:]}")
        return result

    def same(what: str) -> None:
        try:
            assert_same_tree(before, tree_digest(root))
        except AssertionError as error:
            wrong.append(f"{what} changed the store: {str(error)[:200]}")

    first = run("verify")
    same("verify")
    given_up = 0
    has_lost_a_file = _has_lost_a_file(name, left)
    is_told = first.code & (exits.DERIVED if _has_lost_its_first(root) else exits.MESSAGES)
    if has_lost_a_file and len(outcome.damages) == 1 and not is_told and _names_what_is_lost(root):
        wrong.append(f"a log file is lost, and verify ends with {first.code}")
    done = run("recover", "--yes")
    if done.code & exits.OPERATIONAL and not done.code & exits.BUG:
        outcome.end, outcome.refusal = REFUSED, done.document["error"]["message"]
        same("a refused recover")
        if not has_lost_a_file:
            return
        outcome.end = BY_CONTRACT
        # what the refusal says the plan would cost is given up by accepting it
        told = done.document["findings"]
        given_up = sum(item["facts"]["count"] for item in told if item["code"] == "plan-loses-delivered")
        done = run("recover", "--yes", "--max-loss", "all")
        if done.code & exits.OPERATIONAL:
            same("a refused recover")
            return
    if done.code & exits.BUG:
        outcome.end = "bug"
        return
    if not done.document["applied"]:
        outcome.end = outcome.end or "nothing to do"
        same("a recover with nothing to do")
    else:
        outcome.end = outcome.end or "recovered"
    after = plain.delivered(root)
    now = _left(name, root)
    gone = sorted(left.keys() - now.keys())
    if gone:
        wrong.append(f"{len(gone)} of {len(left)} intact records changed, first at {gone[0]}")
    deleted = _lmq_deleted(done)
    missed = sorted(place for place, content in due.items()
                    if _message(after.get(place, b"")) != _message(content) and place[0] not in deleted)
    if len(missed) > given_up:
        wrong.append(f"{len(missed)} of {len(due)} intact messages not delivered, first {missed[0]}")
    second = run("verify")
    if done.document["applied"]:
        kept = exits.CORRECTED | exits.MESSAGES
        if second.code & ~done.code or (done.code & ~kept) != (second.code & ~exits.MESSAGES):
            wrong.append(f"recover ends with {done.code}, verify then with {second.code} (before: {first.code})")
    elif second.code != first.code:
        wrong.append(f"verify ends with {first.code}, then with {second.code}")
    again = run("recover", "--yes")
    if again.document.get("applied"):
        wrong.append(f"a second recover changes the store again ({len(again.document['plan']['steps'])} steps)")
    if not second.code & exits.MESSAGES:
        version = readers[outcome.seed % len(readers)]
        said = run("predict", "--broker", version).document
        costs = (said.get("starts"), said.get("lost_messages"), said.get("unreachable_messages"))
        if costs != (True, 0, 0):
            wrong.append(f"predict {version}: starts, lost, unreachable = {costs}")
    if brokers and outcome.end != BY_CONTRACT:
        for version in sorted({name.rsplit("-", 1)[-1], readers[-1]}):
            outcome.asked += 1
            wrong += _served(name, root, version, {place: after[place] for place in due if place in after})
    if done.document["applied"]:
        while (root / ".mqtool").exists():
            undone = mqtool("undo", root, *options, "--yes", "--json")
            if undone.code & (exits.OPERATIONAL | exits.USAGE | exits.BUG) or not undone.document.get("restored"):
                break
        same("undo after recover")


def _lmq_deleted(done: Result) -> set[str]:
    """The LMQ queues without a folder that recover has stated as deleted: no table ever names them, but it was written
    after their last message."""
    told = [item["facts"]["names"] for item in done.document["findings"] if item["code"] == "topic-deleted"]
    return {topic for names in told for topic in names.split(", ") if topic.startswith("%LMQ%")}


def _served(name: str, root: Path, version: str, due: dict[Place, bytes]) -> list[str]:
    """What is wrong with a real broker's start on a copy of this store: it has to start, and to deliver what is due."""
    copy = copy_store(root, root.with_name(f"{root.name}-{version}"))
    try:
        sizes = {path.stat().st_size for path in (root / "consumequeue").glob("*/*/*") if path.is_file()}
        conf = {**settings(name), **({"mappedFileSizeConsumeQueue": max(sizes)} if sizes else {})}
        seen = oracle(version).start(copy, conf, read=True, timeout=40, dispatch_timeout=5)
    finally:
        shutil.rmtree(copy)
    if not seen.starts:
        return [f"{version} does not start: {seen.stage} {seen.error} {seen.log[-2:]}"]
    served = {(queue, message.phy_offset) for queue, message in seen.messages()}
    missed = sorted(place for place, content in due.items()
                    if (f"{place[0]}/{place[1]}", _offset(content)) not in served)
    return [f"{version} does not deliver {len(missed)} of {len(due)} messages, first {missed[0]}"] if missed else []


def _message(content: bytes) -> bytes:
    """A record without its own offset and the checksum over it: what a consumer is given, wherever it stands."""
    end = len(content) - 20 if content[-20:-11] == plain.PROPERTY_CRC else len(content)
    return content[:28] + content[36:end]


def _offset(content: bytes) -> int:
    return int.from_bytes(content[28:36], "big")


# --- damages that no recipe does ----------------------------------------------------------------------------------


def _pick_file(root: Path, rng: random.Random) -> Path:
    files = [path for folder in plain.log_folders(root) for path in sorted(folder.iterdir())
             if path.is_file() and any(path.read_bytes())]
    return rng.choice(files)


def stale_page(root: Path, rng: random.Random) -> str:
    """A page of a log file holds what another page of the log holds: a write that went to the wrong place."""
    source, target = _pick_file(root, rng), _pick_file(root, rng)
    size = min(source.stat().st_size, target.stat().st_size) // PAGE
    one, other = rng.randrange(size), rng.randrange(size)
    write_at(target, other * PAGE, source.read_bytes()[one * PAGE:(one + 1) * PAGE])
    return f"stale page {other} of {target.name}"


def first_record_bit(root: Path, rng: random.Random) -> str:
    """One bit of the head of a log file's first record."""
    path, bit = _pick_file(root, rng), rng.randrange(88 * 8)
    byte = path.read_bytes()[bit // 8]
    write_at(path, bit // 8, bytes([byte ^ 1 << bit % 8]))
    return f"bit {bit} of the first record of {path.name}"


def renamed_file(root: Path, rng: random.Random) -> str:
    """A log file under another name: some multiple of the file size, or none."""
    path = _pick_file(root, rng)
    size, base = path.stat().st_size, int(path.name)
    other = rng.choice([base + rng.randrange(1, 4096), base + size * rng.randrange(1, 5), rng.randrange(1 << 34),
                        max(0, base - size * rng.randrange(1, 3)), base ^ 1 << rng.randrange(34)])
    target = path.with_name(f"{other:020d}")
    if target.exists():
        raise NotApplicable("that name is taken")
    path.rename(target)
    return f"{path.name} renamed {target.name}"


def foreign_file(root: Path, rng: random.Random) -> str:
    """A log file of another store under a right name."""
    path = _pick_file(root, rng)
    others = [name for name in STORES if (unpacked(name) / "commitlog" / path.name).is_file()]
    source = unpacked(rng.choice(others)) / "commitlog" / path.name
    content = source.read_bytes()
    if len(content) != path.stat().st_size or _places(content, path) == _places(path.read_bytes(), path):
        raise NotApplicable("no other file of this name and size")
    path.write_bytes(content)
    return f"{path.name} of another store"


def _places(content: bytes, path: Path) -> list[tuple[int, int, str, int, int]]:
    """What units can say of a log file's records: two runs of one writer differ in nothing but times."""
    return [(record.phy_offset, record.size, record.topic, record.queue_id, record.queue_offset)
            for record in plain.chain(content, int(path.name))]


def older_records_at_the_end(root: Path, rng: random.Random, back: int | None = None) -> str:
    """After the last record, records of an earlier generation in their own place: a log cut there once before."""
    path = max((path for folder in plain.log_folders(root) for path in folder.iterdir() if any(path.read_bytes())),
               key=lambda path: int(path.name))
    content, base = path.read_bytes(), int(path.name)
    records = list(plain.chain(content, base))
    at = records[-1].phy_offset + records[-1].size - base
    wanted = rng.randrange(1, 30)
    old = [record for record in records if record.has_unit][-rng.randrange(wanted, wanted + 40):][:wanted]
    back = rng.choice((0, 1000, 3_600_000)) if back is None else back
    written = 0
    for record in old:
        if at + record.size + 8 > len(content):
            break
        store = 68 if record.sys_flag & 0x10 else 56
        copy = bytearray(record.content)
        copy[28:36] = (base + at).to_bytes(8, "big")
        copy[store:store + 8] = (record.store_time - back).to_bytes(8, "big")
        if plain.PROPERTY_CRC in record.content[-20:]:
            copy[-11:-1] = f"{plain.crc31(bytes(copy[:-20])):010d}"[::-1].encode()
        write_at(path, at, bytes(copy))
        at, written = at + record.size, written + 1
    if not written:
        raise NotApplicable("no room")
    return f"{written} older records after the end, {back} ms older"


def bit_rot(root: Path, rng: random.Random, rate: float = 1e-4) -> str:
    """Single bits flipped all over a store, about one in 1 / `rate` bytes."""
    flips = 0
    for path in sorted(root.rglob("*")):
        content = bytearray(path.read_bytes() if path.is_file() and path.name not in ("lock", "abort") else b"")
        used = len(content.rstrip(b"\0"))
        each = used * rate
        count = sum(rng.random() < rate for _ in range(used)) if used < 3000 else round(rng.gauss(each, each ** .5))
        for _ in range(count):
            content[rng.randrange(used)] ^= 1 << rng.randrange(8)
        if count > 0:
            path.write_bytes(content)
            flips += count
    return f"{flips} bits flipped all over the store"


STRIKES: dict[str, Strike] = {
    each.__name__: each for each in (
        stale_page, first_record_bit, renamed_file, foreign_file, older_records_at_the_end, bit_rot,
    )
}
