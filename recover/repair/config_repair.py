"""Repair of config files: what becomes of each file in config/, and why.

1. A complete text is kept: the file's own, else its backup's; garbage after its end is cut, broken names are restored.
2. Without a complete text, each member that can be read is kept, and the statement says what is lost; topics.json is
   guessed from queues and log, and marked as a guess.
3. A file of which nothing can be read is moved to quarantine, because some brokers do not start on it.
4. Offsets are never invented. They are lowered to the end of their queue only with --clamp-offsets, and raised only to
   those of a file that the user names (`raised`): never back, never past the end of the queue.

offsets.json of a broadcast client, which is not part of a store, is repaired by 1 and 3 (`plan_client_offsets`).

Files without a warning are not touched. Whether the messages between two offsets were consumed, no file tells.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, structs

from formats.config.json import Json, detect_style, dumps, salvage
from formats.config.tables import BACKUP_SUFFIX, BY_NAME, CLIENT_OFFSETS, read_consumer_offsets
from recover.change.model import Plan, Retire, Step, WriteFile
from recover.check.config import AboveMax, ConfigReport, Members, guess_topics
from recover.derived.expected import QueueKey
from recover.findings.code import N_, Refusal, UsageRefusal
from recover.findings.model import Phrase, few, listing
from recover.reading.reading import Reading
from recover.store.config_files import (
    MARK,
    OFFSET_FILES,
    OFFSETS_FILE,
    STATE_TEXT,
    TOPICS_FILE,
    ClientOffsets,
    ConfigPair,
    ConfigText,
    read_config,
    tables_of,
)
from recover.store.store import Store

STATISTICS = ("timermetrics", "transactionMetrics")
"""Files that the broker recomputes; without a readable copy they are removed."""

Action = Literal["cut", "rewritten", "restored", "name-restored", "guessed", "put-together", "backup-renewed",
                 "taken-away", "clamped", "raised"]
_PULLED = "pullOffsetTable"


class ConfigRepair:
    """What recover does to config/: the steps, and for each file the decision and its reason. Files without a warning
    are not touched.

    A choice has `file`, `action`, `text` for the screen, `members` kept, and the differences of the copies.
    """

    def __init__(
        self, store: Store, analysis: Reading, report: ConfigReport, *, clamp_offsets: bool = False,
        offsets_from: ConfigText | None = None,
    ) -> None:
        self.store, self.analysis = store, analysis
        self.steps: list[Step] = []
        self.choices: list[dict[str, Any]] = []
        for pair in report.pairs:
            self.pair, self.file = pair, store.relative(pair.main.path)
            self.clamps = [above for above in report.above if clamp_offsets and above.file == self.file]
            self._decide()
            if offsets_from is not None and pair is _raised_in(report.pairs, offsets_from):
                self._raise(offsets_from, {key: held.stop for key, held in report.ranges.items()
                                           if key.topic not in report.counted_otherwise})

    def _decide(self) -> None:
        """Decide about one file and its backup."""
        main, backup, chosen = self.pair.main, self.pair.backup, self.pair.chosen
        if "unreadable" in (main.state, backup.state):
            return
        if chosen is not None:
            self._keep(chosen)
        elif self.pair.name == TOPICS_FILE and (self.pair.present or self.pair.shown):
            self._guess()
        elif not self.pair.is_empty:
            self._put_together()

    def _keep(self, chosen: ConfigText) -> None:
        """A complete text exists: write it to the main file, and to a backup that cannot serve as a fallback."""
        main, backup = self.pair.main, self.pair.backup
        content = whole = chosen.document if chosen.state != "sound" else chosen.content
        if self.pair.ahead:
            content = dumps(merged(self.pair), detect_style(chosen.content))
            text: str = N_("restored from its backup, with the offsets that can be read in the file itself")
            self._chose("restored", text, chosen)
        elif chosen is backup:
            self._chose("restored", Phrase("restored from its backup, with {n} members", n=len(chosen.table)), chosen)
        elif main.flipped is not None:
            at, bit = main.flipped
            self._chose("name-restored", Phrase("bit {bit} of byte {at} flipped back: its table has its name again",
                                                bit=bit, at=at), chosen)
        elif main.state == "odd-text":
            self._chose("rewritten", N_("written anew, as every release reads it"), chosen)
        elif main.state != "sound":
            self._chose("cut", Phrase("cut at byte {at}, where its text ends", at=main.parsed.end), chosen)
        if self.clamps:
            content = clamped(chosen, self.clamps)
            shown = few([Phrase("{queue}: {first} to {last}", first=clamp.offset, last=clamp.end,
                                queue=f"{clamp.member or 'level'} {clamp.queue_id}") for clamp in self.clamps], 8)
            text = Phrase("{n:offset} lowered to the ends of their queues ({shown})", n=len(self.clamps), shown=shown)
            self._chose("clamped", text, chosen)
        if content != main.content or main.missing:
            self.steps.append(WriteFile(self.file, content))
        if backup.state not in ("sound", "missing"):
            self.steps.append(WriteFile(self.file + BACKUP_SUFFIX, whole))
            if main.state == "sound":
                self._chose("backup-renewed", N_("its broken backup is replaced with a copy of it"), chosen)

    def _guess(self) -> None:
        guess = guess_topics(self.store, self.analysis.topics, self.analysis.log, self.pair)
        self._write(guess.content())
        text = Phrase("A GUESS: {n:topic} from queues and log{read}; review it before the start", n=len(guess.topics),
                      read=Phrase(", {n} of them as in the broken text", n=len(guess.read)) if guess.read else "")
        self._note("guessed", text, members=len(guess.topics), guess=True, topics=sorted(guess.topics))

    def _put_together(self) -> None:
        """No complete text exists: keep each member that can be read, and state what is lost."""
        pair = self.pair
        value = merged(pair)
        tables = [value.get(name) for name in tables_of(pair.known)]
        members = sum(len(table) for table in tables if isinstance(table, dict))
        if members:
            mark = {} if pair.known.comes_back else MARK
            self._write(dumps({**mark, **value}, detect_style(pair.main.content or pair.backup.content)))
            text = Phrase("{n} members are readable and kept; the rest is lost: {lost}", n=members,
                          lost=pair.known.lost)
            self._note("put-together", text, members=members)
        else:
            # brokers treat an empty or unreadable file as no file at all, and some do not start on one
            copies = (self.file, pair.main), (self.file + BACKUP_SUFFIX, pair.backup)
            self.steps += [Retire(name) for name, copy in copies if not copy.missing]
            outcome = N_("the broker recomputes it") if pair.name in STATISTICS else \
                Phrase("lost: {lost}", lost=pair.known.lost)
            self._note("taken-away", Phrase(
                "nothing in it is readable, so it is moved to quarantine: {outcome}", outcome=outcome), members=0)

    def _raise(self, other: ConfigText, ends: Mapping[QueueKey, int]) -> None:
        """Raise offsets of what the file becomes; without a readable offset in it, all those of the other file count.

        Its backup stays as it is: the broker renews it.
        """
        content: bytes = next((step.content for step in self.steps if step.file == self.file
                               and isinstance(step, WriteFile) and isinstance(step.content, bytes)),
                              self.pair.main.content)
        text, tally = raised(salvage(content).value, other, ends)
        if tally.raised:
            self.steps = [step for step in self.steps if step.file != self.file]
            self.steps.append(WriteFile(self.file, dumps(text, detect_style(content or other.content))))
        self._note("raised", Phrase("from {file}: {tally}", file=other.path, tally=tally.text),
                   members=len(other.table), **structs.asdict(tally))

    def _write(self, content: bytes) -> None:
        """Write the file, and its backup if there is one."""
        self.steps.append(WriteFile(self.file, content))
        if not self.pair.backup.missing:
            self.steps.append(WriteFile(self.file + BACKUP_SUFFIX, content))

    def _chose(self, action: Action, text: str, chosen: ConfigText) -> None:
        self._note(action, text, members=len(chosen.table), chosen=chosen.path.name)

    def _note(self, action: Action, text: str, **facts: Any) -> None:
        self.choices.append({
            "file": self.file, "action": action, "text": Phrase("{part}: {what}", part=self.pair.name, what=text),
            **facts, **self.pair.difference(),
        })


def merged(pair: ConfigPair) -> Members:
    """Return what can be read of two broken copies; where both have a member, the main file's wins, queue by queue."""
    main, backup = pair.main.value, pair.backup.value
    value: Members = {**backup, **main}
    for name in (*tables_of(pair.known), _PULLED):
        old, new = backup.get(name), main.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            table: Members = dict(old)
            for key, member in new.items():
                before = old.get(key)
                both = isinstance(before, dict) and isinstance(member, dict) and name.endswith("ffsetTable")
                table[key] = {**before, **member} if both else member  # type: ignore[dict-item]
            value[name] = table
    return value


def clamped(text: ConfigText, clamps: Iterable[AboveMax]) -> bytes:
    """Return the file with these offsets, and the pull offsets ahead of them, lowered to the ends of their queues."""
    value = copy.deepcopy(text.value)
    for clamp in clamps:
        tables = (clamp.table, _PULLED) if clamp.table == "offsetTable" and clamp.member else (clamp.table,)
        of_lmq = clamp.table == "lmqOffsetTable"
        for table in (value.get(name) for name in tables):
            if isinstance(table, dict) and clamp.member and not of_lmq:
                table = table.get(clamp.member)
            if isinstance(table, dict):
                _lower(table, clamp.member if of_lmq else clamp.queue_id, clamp.end)
    return dumps(value, detect_style(text.content))


def _lower(table: Members, key: str | int, end: int) -> None:
    """Lower one offset to `end`. Keys are numbers or quoted digits; so are the offsets."""
    for name in (key, str(key)):
        offset = table.get(name)
        if isinstance(offset, (int, str)) and str(offset).isdecimal() and int(offset) > end:
            table[name] = end




# --- Offsets of another file, as after a failover: never back, never past the end of the queue.


class Raised(Struct, frozen=True):
    """How many offsets of another file were taken (`raised`), of which so many only up to the end of their queue
    (`to_end`); this store is as far (`kept`); its queue is not in this store, or counts otherwise (`unknown`)."""

    raised: int
    to_end: int
    kept: int
    unknown: int

    @property
    def text(self) -> Phrase:
        """In words, for the screen."""
        rest = (
            (self.to_end, N_("{n} of them only to the end of their queue")),
            (self.kept, N_("{n} not ahead of this store's")),
            (self.unknown, N_("{n} for queues that this store does not have")),
        )
        return listing([Phrase("{n:offset} raised", n=self.raised),
                        *(Phrase(template, n=f"{number:,}") for number, template in rest if number)])


def offsets_of(path: Path) -> ConfigText:
    """Read the file of committed offsets at `path`, a consumerOffset.json or lmqConsumerOffset.json, or a backup of
    one; `UsageRefusal` (16) if it is not whole or has no offsets."""
    name = path.name.removesuffix(BACKUP_SUFFIX)
    known = BY_NAME[name if name in OFFSET_FILES else OFFSETS_FILE]
    text = read_config(path, known)
    if not text.whole or not text.table:
        problem = text.error or STATE_TEXT["emptied" if text.whole else text.state]
        raise UsageRefusal(Phrase("--offsets-from {path}: the file {problem}", path=path, problem=problem),
                           "Name a whole consumerOffset.json, such as config/consumerOffset.json of the other broker.")
    return text


def _raised_in(pairs: Iterable[ConfigPair], other: ConfigText) -> ConfigPair | None:
    """The file of offsets that changes: the one of the other's name, unless this store's broker writes only another."""
    own = [pair for pair in pairs if pair.name in OFFSET_FILES]
    same = [pair for pair in own if pair.name == other.known.name]
    return next((pair for pair in (*same, *own) if pair.present), same[0])


def raised(value: Json, other: ConfigText, ends: Mapping[QueueKey, int]) -> tuple[Members, Raised]:
    """Return a value of committed offsets with those of `other` where they are ahead, up to the `ends` (queue offsets)
    of the queues; keys keep their form."""
    result: Members = copy.deepcopy(value) if isinstance(value, dict) else {}
    ahead = to_end = kept = unknown = 0
    offsets = read_consumer_offsets(other.value)
    rows = [("offsetTable", topic, group, queue, offset)
            for (topic, group), queues in offsets.offsets.items() for queue, offset in queues.items()]
    rows += [("lmqOffsetTable", topic, group, 0, offset) for (topic, group), offset in offsets.lmq_offsets.items()]
    for name, topic, group, queue, offset in rows:
        end = ends.get(QueueKey(topic, queue))
        table, member = result.setdefault(name, {}), f"{topic}@{group}"
        if end is None or not isinstance(table, dict):
            unknown += 1
            continue
        place = table if name == "lmqOffsetTable" else table.setdefault(member, {})
        assert isinstance(place, dict)
        key: str | int = member if name == "lmqOffsetTable" else str(queue) if str(queue) in place else queue
        now = place.get(key, -1)
        goal = min(offset, end)
        if int(now) >= goal:  # type: ignore[arg-type]  # readable_members keeps numbers and quoted ones
            kept += 1
            continue
        place[key] = goal
        ahead, to_end = ahead + 1, to_end + (goal < offset)
    return result, Raised(ahead, to_end, kept, unknown)


def plan_client_offsets(folder: Path) -> Plan:
    """Plan the repair of offsets.json of a broadcast client. `Refusal` (8) if a copy cannot be read."""
    found, name = ClientOffsets.of(folder), CLIENT_OFFSETS.name
    steps: list[Step] = []
    main, backup = found
    for copy_of in found:
        if copy_of.error:
            raise Refusal(Phrase("{name} cannot be read: {error}", name=copy_of.path.name, error=copy_of.error),
                          "Run as the user of the client or as root; check the disk.")
    whole = found.whole
    if whole is None:
        action, text = "taken-away", Phrase("nothing in it is readable, so it is moved to quarantine: {outcome}",
                                            outcome=CLIENT_OFFSETS.lost)
        steps = [Retire(each.path.name) for each in found if not each.missing]
    elif whole is backup:
        action, text = "restored", Phrase("restored from its backup, with {n} members", n=len(whole.table))
    elif main.state != "sound":
        action, text = "cut", Phrase("cut at byte {at}, where its text ends", at=main.parsed.end)
    else:
        action, text = "backup-renewed", Phrase("its broken backup is replaced with a copy of it")
    if whole is not None:
        copies = [main] if backup.missing or backup.state == "sound" else [main, backup]
        steps = [WriteFile(each.path.name, whole.document) for each in copies if each.content != whole.document]
    choices = [{"file": name, "action": action, "text": text}] if steps else []
    return Plan("recover", tuple(steps), summary={"config": choices, "client": True})
