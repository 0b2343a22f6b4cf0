"""One broken store from first look to undo: what every scenario asks of verify, recover and undo, in one place."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fixtures.damage import Damage, walk
from fixtures.unpack import STORES as PACKED
from formats import record as commitlog, sysflag
from formats.record.rows import BIT_FILLER, BIT_MARKER
from mqtool import exits
from recover.log.files import live_copies, place_misnamed_files
from recover.log.scan import LocalEngine
from recover.look.store import settings_of
from recover.predict.start import predict
from recover.reading.doubts import ORDER, resolved
from recover.reading.facts import Facts
from recover.reading.reading import Reading
from recover.store.store import Store, StoreOptions
from tests.cli.runner import Result, mqtool
from tests.support.analysed import analysed
from tests.support.stores import EXPECTED, real_store, strike, unpacked
from tests.support.trees import Node, assert_same_tree, assert_unchanged, tree_digest

PLAIN, MANY_FILES, KILLED = "clean-plain-4.9.7", "clean-manyfiles-5.3.3", "killed-plain-4.5.1"
BROKERS = ("4.5.1", "4.9.7", "5.3.3", "5.5.0")
LOG_FOLDERS = ("commitlog-a", "commitlog-b")
WIDTH = 20

Found = dict[str, Any]


class Message(NamedTuple):
    """What makes a message the same one before and after."""

    topic: str
    queue_id: int
    queue_offset: int
    phy_offset: int
    body_crc: int


@dataclass(frozen=True)
class Broken:
    """What was done to the store: physical offsets of records whose bytes changed, and of those that are lost."""

    changed: frozenset[int]
    lost: frozenset[int]


def all_stores() -> tuple[str, ...]:
    """The names of all packed stores."""
    return tuple(sorted(path.name.removesuffix(".tar.xz") for path in PACKED.glob("*.tar.xz")))


def manifest(name: str) -> Mapping[str, Any]:
    """What is known of a packed store from its broker; empty for the four of whole brokers."""
    path = PACKED / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def begins_late(name: str) -> bool:
    """Whether a packed store's log begins above 0: written within minutes, it is younger than any retention."""
    return manifest(name).get("min_phy", 0) > 0


def counts(name: str) -> dict[str, int]:
    """Records, units, index entries and end of the log of a packed store, from whatever describes it."""
    if name in EXPECTED:
        return {key: EXPECTED[name][key] for key in ("records", "units", "index_entries", "log_end")}
    known = manifest(name)
    return {key: known[key] for key in ("records", "units", "index_entries")} | {"log_end": known["max_phy"]}


def log_options(root: Path) -> tuple[object, ...]:
    """The options that name the folders of a multi-path commitlog, where the store has them."""
    return tuple(item for name in LOG_FOLDERS if (root / name).is_dir() for item in ("--commitlog", root / name))


def readers_of(name: str) -> tuple[str, ...]:
    """The versions that can read every record of a packed store, as was observed with real ones."""
    known = manifest(name)
    if not known:
        return (EXPECTED[name]["broker"],)
    return tuple(v for v in BROKERS if known["started_by"][v].get("max_phy") == known["max_phy"])


def file_name(offset: int) -> str:
    """The name of the mapped file that starts at an offset."""
    return str(offset).zfill(WIDTH)


def messages(root: Path) -> set[Message]:
    """The intact messages of a store: found by the scan, decoded one by one."""
    return set(_messages(root, tuple(tree_digest(root).items())))


@functools.lru_cache(2)
def _messages(root: Path, _tree: tuple[tuple[str, Node], ...]) -> frozenset[Message]:
    """They, once for each state of the tree: most tests ask for them again and again."""
    folders = tuple(root / name for name in LOG_FOLDERS if (root / name).is_dir())
    store = Store.open(root, StoreOptions(commitlog=folders))
    queue, _ = place_misnamed_files(live_copies(store.commitlog))
    log = resolved(Reading.first(Facts.of(store), LocalEngine().scan_log(queue)), ORDER).log
    contents = {scan.mapped_file.file_from_offset: scan.mapped_file.path.read_bytes() for scan in log.files}
    found = set()
    for split in log.live():
        rows = split.records[(split.records["bits"] & (BIT_FILLER | BIT_MARKER)) == 0]
        for phy_offset in rows["phy_offset"].tolist():
            start = max(offset for offset in contents if offset <= phy_offset)
            size = int.from_bytes(contents[start][phy_offset - start : phy_offset - start + 4], "big")
            found.add(_decoded(contents[start][phy_offset - start : phy_offset - start + size], phy_offset))
    return frozenset(found)


@functools.lru_cache(1 << 16)
def _decoded(content: bytes, phy_offset: int) -> Message:
    record = commitlog.decode(content)
    return Message(record.topic_name, record.queue_id, record.queue_offset, phy_offset, record.body_crc)


@functools.cache
def pristine(name: str) -> tuple[set[Message], dict[int, bytes]]:
    """The messages of a packed store, and the bytes of its records by their phy offset."""
    return messages(unpacked(name)), walk.contents(unpacked(name))


def queue_bytes(root: Path) -> dict[str, str]:
    """Digest of each queue file that holds a unit, by its path in the store."""
    return {
        file.path.relative_to(root).as_posix(): hashlib.sha256(file.read()).hexdigest()
        for queue in walk.queues(root) for file in queue.files if walk.units_of(file)
    }


def index_bytes(root: Path) -> dict[str, bytes]:
    """Name and content of each index file, in order."""
    return {path.name: path.read_bytes() for path in sorted((root / "index").iterdir())}


Position = tuple[str, int, int]


def position(message: Message) -> Position:
    """Topic, queue and offset in it."""
    return message.topic, message.queue_id, message.queue_offset


def bridged(document: dict[str, Any]) -> list[Position]:
    """The lost queue positions that recover names, in order."""
    return sorted(
        (lost["topic"], lost["queue"], lost["queue_offset"])
        for bridge in document["bridged"] for lost in bridge.get("lost", ())
    )


def body_at(hit: walk.Located) -> int:
    """Position of a record's body in its file."""
    return hit.position + commitlog.HEADS[hit.record.sys_flag & sysflag.HOSTS_V6].size


class Drill:
    """A private copy of a store and what it held before it was broken."""

    def __init__(self, root: Path, brokers: Sequence[str], stored: set[Message], contents: dict[int, bytes]) -> None:
        self.root = root
        self.options = log_options(root)
        # The oldest and the newest: what both read, those between them do.
        self.brokers = tuple(dict.fromkeys((brokers[0], brokers[-1])))
        self.messages = stored
        self.contents = contents
        self.broken = Broken(frozenset(), frozenset())
        self.late = False
        self._looked: tuple[object, Result] | None = None

    @classmethod
    def of(cls, root: Path, brokers: Sequence[str] = BROKERS) -> Drill:
        """A store that is not one of the packed ones, as it is now."""
        return cls(root, brokers, messages(root), walk.contents(root))

    @classmethod
    def start(cls, name: str, target: Path) -> Drill:
        """A fresh copy of a packed store below `target`."""
        drill = cls(real_store(name, target), readers_of(name), *pristine(name))
        drill.late = begins_late(name)
        return drill

    # --- breaking -----------------------------------------------------------------------------

    def strike(self, recipe: str, seed: int = 0) -> Damage:
        """Damage the store by recipe; a store that lacks what the recipe damages skips the test."""
        done = strike(recipe, self.root, seed)
        self.late |= recipe == "log-first-missing"
        self.struck()
        return done

    def struck(self) -> None:
        """Note what a damage by hand has changed."""
        changed, lost = walk.compare(self.root, self.contents)
        self.broken = Broken(frozenset(changed), frozenset(lost))

    def records(self, file: int | None = None) -> list[walk.Located]:
        """All records, or those of the n-th file in use."""
        found = walk.records(self.root)
        if file is None:
            return found
        starts = sorted({hit.file.file_from_offset for hit in found})
        return [hit for hit in found if hit.file.file_from_offset == starts[file]]

    def place(self, phy_offset: int) -> tuple[str, int]:
        """File and position in it of a place in the log, as findings name it."""
        start = max(file.file_from_offset for file in walk.log_files(self.root) if file.file_from_offset <= phy_offset)
        return f"commitlog/{file_name(start)}", phy_offset - start

    @property
    def intact(self) -> set[Message]:
        """The messages that the damage did not touch."""
        return {message for message in self.messages if message.phy_offset not in self.broken.changed}

    @property
    def lost(self) -> set[Message]:
        """The messages that no reader can accept any more."""
        return {message for message in self.messages if message.phy_offset in self.broken.lost}

    # --- looking ------------------------------------------------------------------------------

    def run(self, command: str, *arguments: object) -> Result:
        """One command on this store, as JSON; a bug in it fails the test."""
        result = mqtool(command, self.root, *self.options, *arguments, "--json")
        assert result.code & exits.BUG == 0, result.stderr
        assert result.document["exit_code"] == result.code
        return result

    def verify(self, *arguments: object) -> Result:
        """verify, which must leave no trace."""
        with assert_unchanged(self.root):
            return self.run("verify", *arguments)

    def look(self) -> Result:
        """The same, once for all that is asked about one state of the tree."""
        state = self.options, tree_digest(self.root)
        if self._looked is None or self._looked[0] != state:
            self._looked = state, self.verify()
        return self._looked[1]

    def finds(self, code: str, file: str | None = None, offset: int | None = None, *, exit_code: int) -> Found:
        """The one finding of that code (at that place, if one is given) of a verify that ends with `exit_code`."""
        result = self.look()
        found = result.found(code)
        if file is not None:
            found = [item for item in found if (item["file"], item["offset"]) == (file, offset)]
        assert len(found) == 1, self._said(result)
        assert result.code == exit_code | self._killed | self.asks, self._said(result)
        return found[0]

    def found(self, code: str) -> list[Found]:
        """All findings of that code."""
        return self.look().found(code)

    @property
    def asks(self) -> int:
        """The bit of a log that begins late, a question that no repair answers."""
        return exits.DERIVED if self.late else 0

    @property
    def _killed(self) -> int:
        return exits.DERIVED if (self.root / "abort").exists() else 0

    @staticmethod
    def _said(result: Result) -> str:
        lines = [f"exit {result.code}"] + [
            f"{item['severity']} {item['code']} {item['file']} @{item['offset']}: {item['message']}"
            for item in result.document["findings"]
        ]
        return "\n  ".join(lines)

    # --- recovering ---------------------------------------------------------------------------

    @contextmanager
    def recovered(self, left: int = 0, *options: object, starts: bool = True) -> Iterator[dict[str, Any]]:
        """The whole way: recover, prove, recover again, and after the block undo. Gives recover's document.

        `left` are the bits that a verify still has afterwards, beside that of a log that begins late. With
        `starts`, every broker version that reads all records of the store starts on the result and loses nothing.
        """
        only_asks, left = not left, left | self.asks
        damaged, times = tree_digest(self.root), self.root.stat().st_mtime_ns
        assert self.intact <= messages(self.root), "the scan does not see every intact message"
        done = self.run("recover", "--yes", *options)
        assert "plan" in done.document, done.stderr  # refused, or stopped: a time limit ends with a signal
        gave_up = exits.MESSAGES if done.document["plan"]["loss"] else 0
        assert done.code == exits.CORRECTED | left | gave_up, self._said(done)
        assert done.document["applied"] is True
        assert {"mode", "policy", "start_file", "valid_to", "journal", "plan"} <= done.document.keys()
        assert done.document["lost_messages"] == 0
        missing = self.intact - messages(self.root)
        assert not missing, f"intact messages were dropped: {sorted(missing)[:5]}"
        with assert_unchanged(self.root):
            again = self.run("recover", "--yes", *options)
        assert again.code == left == done.document["verify"]["exit_code"], self._said(again)
        assert again.document["applied"] is False
        if only_asks:
            said = [item["code"] for item in again.document["findings"] if item["severity"] != "info"]
            assert said == ["commitlog-begins-late"] * self.late
        if starts:
            self.starts(*self.brokers)
        yield done.document
        undone = self.run("undo", "--yes")
        assert undone.code & (exits.OPERATIONAL | exits.USAGE | exits.BUG) == 0, undone.stderr
        assert_same_tree(damaged, tree_digest(self.root))
        assert self.root.stat().st_mtime_ns == times

    def starts(self, *versions: str) -> None:
        """Fail unless a broker of each version would start, and would lose nothing that is in the log."""
        store, seen = analysed(self.root)
        for version in versions:
            said = predict(store, seen.by_names, settings_of(store, version, None, ())[0])
            assert (said.starts, said.lost_messages, said.unreachable_messages) == (True, 0, 0), (version, said)
