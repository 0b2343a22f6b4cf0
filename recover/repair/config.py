"""Steps that make config files whole again: cut, restored from the backup, put together from what can be read, guessed.

Offsets are never made up. A file of which nothing can be read stays where it is, and verify goes on saying so; only a
broken backup that would keep the broker from starting is taken away (ConfigManager.load).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from formats.config.json import Json, detect_style, dumps
from formats.config.tables import BACKUP_SUFFIX
from recover.change.model import Retire, Step, WriteFile
from recover.check.config import TOPICS_FILE, AboveMax, ConfigReport, guess_topics
from recover.findings.model import count
from recover.store.config_files import ConfigPair, ConfigText, tables_of
from recover.store.store import Store

if TYPE_CHECKING:
    from recover.check.survey import Survey


STATISTICS = ("timermetrics", "transactionMetrics")
"""Files that the broker counts anew; without a readable copy they are taken away."""

_PULLED = "pullOffsetTable"
Members = dict[str | int, Json]


class ConfigRepair(Struct):
    """Steps, and for each file what was decided and why.

    A choice has `file`, `action` (cut, restored, guessed, put-together, backup-renewed, taken-away, clamped),
    `text` for people, `members` kept, and the differences of the copies.
    """

    steps: list[Step] = field(default_factory=list)
    choices: list[dict[str, Any]] = field(default_factory=list)


def repair_config(store: Store, look: Survey, report: ConfigReport, *, clamp_offsets: bool = False) -> ConfigRepair:
    """What recover does to config/. Files that no warning names are not touched."""
    repair = ConfigRepair()
    for pair in report.pairs:
        _Repairer(store, look, pair, repair, _clamps(store, report, pair) if clamp_offsets else []).run()
    return repair


def _clamps(store: Store, report: ConfigReport, pair: ConfigPair) -> list[AboveMax]:
    return [above for above in report.above if above.file == store.relative(pair.main.path)]


class _Repairer:
    """Decides about one file and its backup."""

    def __init__(
        self, store: Store, look: Survey, pair: ConfigPair, repair: ConfigRepair, clamps: list[AboveMax]
    ) -> None:
        self.store = store
        self.look = look
        self.pair = pair
        self.repair = repair
        self.clamps = clamps
        self.file = store.relative(pair.main.path)

    def run(self) -> None:
        main, backup, chosen = self.pair.main, self.pair.backup, self.pair.chosen
        if "unreadable" in (main.state, backup.state):
            return
        if chosen is not None:
            self._keep(chosen)
        elif self.pair.name == TOPICS_FILE and (self.pair.present or self.pair.shown):
            self._guess()
        elif self.pair.present and not (main.emptied and backup.state in ("missing", "emptied")):
            self._put_together()

    def _keep(self, chosen: ConfigText) -> None:
        """A whole text is there: give it to the main file, and to a backup that is no fallback."""
        main, backup = self.pair.main, self.pair.backup
        content = chosen.document if chosen.state != "sound" else chosen.content
        if chosen is backup:
            self._chose("restored", f"restored from its backup, with {len(chosen.table)} members", chosen)
        elif main.flipped is not None:
            at, bit = main.flipped
            self._chose("name-restored", f"bit {bit} of byte {at} turned back, so that its table has its name", chosen)
        elif main.state != "sound":
            self._chose("cut", f"cut at byte {main.parsed.end}, where its text ends", chosen)
        if self.clamps:
            content = clamped(chosen, self.clamps)
            self._chose("clamped", _clamp_text(self.clamps), chosen)
        if content != main.content or main.missing:
            self.repair.steps.append(WriteFile(self.file, content))
        if backup.state not in ("sound", "missing"):
            renewed = chosen.document if chosen.state != "sound" else chosen.content
            self._write_backup(renewed)
            if main.state == "sound":
                self._chose("backup-renewed", "its broken backup is made a copy of it", chosen)

    def _guess(self) -> None:
        guess = guess_topics(self.store, self.look.topics, self.look.log, self.pair)
        content = guess.content()
        self.repair.steps.append(WriteFile(self.file, content))
        if not self.pair.backup.missing:
            self._write_backup(content)
        text = (
            f"A GUESS: {count(len(guess.topics), 'topic')} from queues and log, {len(guess.read)} of them as the "
            "broken text has them; look through it before the start"
        )
        self._note("guessed", text, members=len(guess.topics), guess=True, topics=sorted(guess.topics))

    def _put_together(self) -> None:
        """No whole text: keep each member that can be read, and say what is lost."""
        pair = self.pair
        value = merged(pair)
        tables = [value.get(name) for name in tables_of(pair.known)]
        members = sum(len(table) for table in tables if isinstance(table, dict))
        if members:
            content = dumps(value, detect_style(pair.main.content or pair.backup.content))
            self.repair.steps.append(WriteFile(self.file, content))
            if not pair.backup.missing:
                self._write_backup(content)
            text = f"{members} members could be read and are kept; the rest is lost: {pair.known.lost}"
            self._note("put-together", text, members=members)
        else:
            # an empty or unreadable file is to every broker what no file is, or worse: some do not start
            self.repair.steps += [Retire(f) for f, text in self._copies() if not text.missing]
            outcome = "the broker counts anew" if pair.name in STATISTICS else f"lost is {pair.known.lost}"
            self._note("taken-away", f"nothing in it can be read, so it is put aside: {outcome}", members=0)

    def _copies(self) -> Iterable[tuple[str, ConfigText]]:
        return (self.file, self.pair.main), (self.file + BACKUP_SUFFIX, self.pair.backup)

    def _write_backup(self, content: bytes) -> None:
        self.repair.steps.append(WriteFile(self.file + BACKUP_SUFFIX, content))

    def _chose(self, action: str, text: str, chosen: ConfigText) -> None:
        self._note(action, text, members=len(chosen.table), chosen=chosen.path.name)

    def _note(self, action: str, text: str, **facts: Any) -> None:
        self.repair.choices.append({
            "file": self.file, "action": action, "text": f"{self.pair.name}: {text}", **facts, **self.pair.difference(),
        })


def merged(pair: ConfigPair) -> Members:
    """What can be read of two broken copies; where both have a member, the main file's, queue by queue."""
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
    """The file with these offsets lowered to the ends of their queues, and with them what was pulled ahead."""
    value = copy.deepcopy(text.value)
    for clamp in clamps:
        tables = (clamp.table, _PULLED) if clamp.table == "offsetTable" and clamp.member else (clamp.table,)
        for name in tables:
            table = value.get(name)
            if not isinstance(table, dict):
                continue
            if clamp.table == "lmqOffsetTable":
                _lower(table, clamp.member, clamp.end)
            elif not clamp.member:
                _lower(table, clamp.queue_id, clamp.end)
            else:
                queues = table.get(clamp.member)
                if isinstance(queues, dict):
                    _lower(queues, clamp.queue_id, clamp.end)
    return dumps(value, detect_style(text.content))


def _lower(table: Members, key: str | int, end: int) -> None:
    """Keys are numbers, or digits in quotes; so are the offsets."""
    for name in (key, str(key)):
        offset = table.get(name)
        if isinstance(offset, (int, str)) and str(offset).isdecimal() and int(offset) > end:
            table[name] = end


def _clamp_text(clamps: list[AboveMax]) -> str:
    shown = ", ".join(
        f"{clamp.member or 'level'} {clamp.queue_id}: {clamp.offset} to {clamp.end}" for clamp in clamps[:8]
    )
    more = f" and {len(clamps) - 8} more" if len(clamps) > 8 else ""
    return f"{count(len(clamps), 'offset')} lowered to the ends of their queues ({shown}{more})"
