"""One store under many single damages: how many verify finds, how many harm nobody, and which it misses."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mqtool import exits
from recover.check.report import VerifyReport, verify
from recover.findings.code import Refusal
from tests.support import plain_reader as plain
from tests.support.analysed import opened
from tests.support.stores import copy_store, unpacked
from tests.torture.anatomy import Anatomy, look_at
from tests.torture.excuses import excuse
from tests.torture.strikes import Strike, strikes


@dataclass
class Tally:
    """What came of some damages. `harmless` counts by excuse; `missed` and `understated` should stay empty."""

    found: Counter[str] = field(default_factory=Counter)
    harmless: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)
    understated: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Take in another tally."""
        self.found.update(other.found)
        self.harmless.update(other.harmless)
        self.missed += other.missed
        self.understated += other.understated

    def lines(self) -> Iterable[str]:
        """The tally for people."""
        yield (f"{self.found.total() + self.harmless.total() + len(self.missed)} damages: {self.found.total()} found, "
               f"{self.harmless.total()} harmless or without a witness, {len(self.missed)} missed")
        yield from (f"  found, {kind}: {count}" for kind, count in sorted(self.found.items()))
        yield from (f"  {count:6} {reason}" for reason, count in self.harmless.most_common())
        yield from (f"  MISSED {each}" for each in self.missed)
        yield from (f"  UNDERSTATED {each}" for each in self.understated)


def mutated(name: str, folder: Path, seed: int, count: int) -> Tally:
    """Damage a copy of a packed store `count` times, each time taking it back, and see what verify says."""
    anatomy = look_at(unpacked(name))
    root = copy_store(unpacked(name), folder / f"{name}-{seed}")
    sound = verify(opened(root))
    tally = Tally()
    for strike in strikes(anatomy, random.Random(f"{name} {seed}"), count):
        with strike.struck(root):
            _judge(tally, anatomy, strike, root, sound)
    assert _said(verify(opened(root))) == _said(sound), "a damage was not taken back"
    return tally


def _judge(tally: Tally, anatomy: Anatomy, strike: Strike, root: Path, sound: VerifyReport) -> None:
    try:
        report = verify(opened(root))
    except Refusal:
        tally.found[strike.kind] += 1
        return
    if any(severity != "info" for severity, *_ in _said(report) - _said(sound)):
        tally.found[strike.kind] += 1
        if _changes_a_message(anatomy, strike, root) and not report.exit_code & exits.MESSAGES:
            tally.understated.append(f"{strike} gives {report.exit_code}: {_codes(report)}")
        return
    reason = excuse(anatomy, strike, root, max(record.store_time for record in anatomy.records.values()))
    if reason is None:
        tally.missed.append(str(strike))
    else:
        tally.harmless[reason] += 1


def _codes(report: VerifyReport) -> list[str]:
    return [item.code for item in report.findings.sorted() if item.severity != "info"]


def _said(report: VerifyReport) -> set[tuple[Any, ...]]:
    return {(item.severity, item.code, item.file, item.offset, repr(sorted(item.facts.items())))
            for item in report.findings.sorted()}


def _changes_a_message(anatomy: Anatomy, strike: Strike, root: Path) -> bool:
    """Whether a message is no longer delivered as it was stored: its body, topic, place in a queue, or all of it."""
    folder, _, base = strike.file.rpartition("/")
    if not folder.startswith("commitlog"):
        return False
    before = (anatomy.root / strike.file).read_bytes()
    path = root / strike.file
    now = path.read_bytes() if path.exists() else b""
    if not path.exists() and int(base) == anatomy.min_offset:
        return False
    return any(
        _differs(record, before, now, int(base)) for record in anatomy.records.values()
        if int(base) <= record.phy_offset < int(base) + len(before)
    )


def _differs(old: plain.Record, before: bytes, now: bytes, base: int) -> bool:
    start = old.phy_offset - base
    if before[start:start + old.size] == now[start:start + old.size]:
        return False
    new = plain.record_at(now, start, base)
    return new is None or any(
        getattr(new, name) != getattr(old, name) for name in ("topic", "queue_id", "queue_offset", "body"))
