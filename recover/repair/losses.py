"""The loss statement: which messages are lost, by topic, queue and time span."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct, field

from formats.record import Record
from formats.record.rows import NO_MESSAGE
from recover.change.model import Install, Plan
from recover.check.log import NOT_A_FILE, SIZE_UNTOLD
from recover.check.parts import FOREIGN, MOSTLY_GONE, NOT_SUPPORTED, OTHER_LOG, PARTS
from recover.check.report import VerifyReport
from recover.derived.expected import QueueKey
from recover.findings.code import N_, Refusal
from recover.findings.model import Finding, Phrase, listing
from recover.findings.store_codes import QUEUE_DATABASE
from recover.log.scan import MISSING_FILE, LogView
from recover.look.store import NO_LOG
from recover.predict.timers import TIMER_SIZE, TIMERLOG, timer_file_size, timer_size_is_told
from recover.reading.books import Claimed
from recover.reading.lost import Surroundings, record_count
from recover.reading.reading import Reading
from recover.store.columns import Rows
from recover.store.config_files import topic_text
from recover.store.store import COMMITLOG, CONSUMEQUEUE, INDEX, Store

if TYPE_CHECKING:
    from pathlib import Path

    from recover.predict.prediction import Prediction


def assumed_sizes(store: Store, plan: Plan) -> dict[str, int]:
    """By setting, the length of queue and extension files that a plan creates where neither a file nor a setting tells
    it."""
    def makes(folder: Path) -> bool:
        inside = f"{store.relative(folder)}/"
        return any(isinstance(step, Install) and step.file.startswith(inside) for step in plan.steps)

    sizes = unknown_sizes(store) if makes(store.consumequeue_dir) else {}
    if makes(store.consumequeue_ext_dir) and not store.ext_file_size_is_told:
        sizes["mappedFileSizeConsumeQueueExt"] = store.ext_file_size
    if makes(store.root / TIMERLOG) and not timer_size_is_told(store):
        sizes[TIMER_SIZE] = timer_file_size(store)
    return sizes


def unknown_sizes(store: Store) -> dict[str, int]:
    """By setting, the length of queue files where neither a file nor a setting of the store tells it."""
    return {} if store.queue_file_size_is_told else {"mappedFileSizeConsumeQueue": store.queue_file_size}


def assumptions_of(sizes: Mapping[str, int]) -> list[str]:
    """Sentences about assumed file lengths, by their setting."""
    return [Phrase("{setting}: no file and no setting determines it, and a broker with another value does not start on "
                   "files of {n} bytes; set it with --broker-conf or --set", setting=f"{name}={size}", n=size)
            for name, size in sizes.items()]


class RecoverPlan(Struct):
    """A plan, its basis, and its cost.

    `lost_messages`: intact messages that it drops. `damaged_messages`: messages lost to damage. `unproven_messages`:
    messages after the end of the log that only units of a queue, or the index, name.
    Of the damaged ones, `left_messages` stay as they are, `mendable_messages` are one flipped bit away from what was
    stored, and `given_up_messages` were in log files that are missing.
    `cut_from`: where a plan that repairs nothing before it cuts the log; intact messages from there on are stated.
    `assumptions`: what neither files nor settings tell and the plan depends on; `assumed_settings`: the file lengths
    among them.
    `abort_stays_for`: unread parts that need a broker's own recovery at the next start.
    """

    plan: Plan
    before: VerifyReport
    prediction: Prediction | None
    bridged: list[dict[str, Any]]
    lost_messages: int
    damaged_messages: int
    unproven_messages: int
    valid_to: int
    left_messages: int = 0
    mendable_messages: int = 0
    given_up_messages: int = 0
    cut_from: int | None = None
    assumptions: list[str] = field(default_factory=list)
    assumed_settings: dict[str, int] = field(default_factory=dict)
    abort_stays_for: list[str] = field(default_factory=list)


def stated_losses(
    before: VerifyReport, bridged: Sequence[dict[str, Any]] = (), cut: int | None = None, drops: int | None = None,
) -> list[dict[str, Any]]:
    """Return all that is lost, an entry per queue and cause: to damage, by what is written over both witnesses of a
    message, after the end of the log, and by a plan that `drops` the messages from an offset on.

    A plan that only cuts at `cut` leaves the damage before it as it is.
    """
    analysis = before.analysis
    altered = (record for record in before.altered if cut is None or record.phy_offset < cut)
    return [
        *_loss_of_damage(analysis, bridged, cut or 0), *_loss_of_altered(altered), *loss_of_unproven(analysis)[1],
        *_loss_of_claimed(before.claimed, analysis.log),
        *(() if drops is None else _loss_of_rows(analysis.log, drops)),
    ]


def _loss_of_damage(analysis: Reading, bridged: Sequence[dict[str, Any]], begin: int) -> list[dict[str, Any]]:
    """Return an entry per queue for messages lost to damage from `begin` on; times (ms) are those of adjacent records.

    Messages of unknown queue have an entry without topic and queue.
    """
    # records in a damage are restored all or none, in every queue that they name
    whole_again = {b["start"] for b in bridged if b["kind"] == "restored"}
    copied = {b["start"]: (b["topic"], b["queue"], b["queue_offset"]) for b in bridged if b["kind"] == "copied"}
    places = set(copied.values())
    statement = Statement()
    surroundings = Surroundings(analysis.log)
    for number, (damage, positions) in enumerate(zip(analysis.log.damaged, analysis.losses.all_by_damage, strict=True)):
        if damage.start in whole_again or damage.start < begin:
            continue
        times = surroundings.times(damage)
        left = [position for position in positions if position.start not in copied
                and (*position.key, position.queue_offset) not in places]
        for position in left:
            statement.add(*position.key, (position.queue_offset, position.queue_offset), times, damage.reason)
        untold = analysis.account.untold(number)
        if untold and number not in analysis.end_marks:
            statement.add(None, None, None, times, damage.reason, untold)
    return statement.entries()


def loss_of_unproven(
    analysis: Reading, wanted: Collection[QueueKey] | None = None, parts: Collection[str] = PARTS,
) -> tuple[int, list[dict[str, Any]]]:
    """Return the number of messages that only the units of a queue (of `wanted`, if given) or only the index name, with
    an entry per queue and one for the index. `parts`: the parts whose units are to be dropped."""
    statement, last = Statement(), analysis.log.tally.last_timestamp
    positions = [position for position in analysis.losses.unproven
                 if CONSUMEQUEUE in parts and (wanted is None or position.key in wanted)]
    for position in positions:
        statement.add(*position.key, (position.queue_offset, position.queue_offset), (last, last), "beyond-log")
    indexed = analysis.losses.indexed if INDEX in parts else 0
    if indexed:
        statement.add(None, None, None, (last, last), "beyond-log", indexed)
    return record_count(positions) + indexed, statement.entries()


def _loss_of_claimed(claimed: Iterable[Claimed], log: LogView) -> list[dict[str, Any]]:
    """Return an entry per queue for the messages after the end of the log of which only consumers' progress is left."""
    statement, last = Statement(), log.tally.last_timestamp
    for each in claimed:
        statement.add(*each.key, (each.first, each.stop - 1), (last, last), "beyond-log", each.messages)
    return statement.entries()


def _loss_of_altered(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return an entry per queue for the messages of which only units still hold the tag and the keys: a repair makes
    these match the record."""
    statement = Statement()
    for record in records:
        offset, time = record.queue_offset, record.store_timestamp
        statement.add(record.topic_name, record.queue_id, (offset, offset), (time, time), "bad-properties")
    return statement.entries()


class Statement:
    """Entries of the loss statement by topic and queue."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str | None, int | None], dict[str, Any]] = {}

    def add(
        self, topic: str | None, queue: int | None, offsets: tuple[int, int] | None, times: tuple[int, int], cause: str,
        count: int = 1,
    ) -> None:
        """Add `count` messages; `offsets` and `times` (store timestamps, ms) are the first and last of them."""
        first, last = offsets or (None, None)
        entry = self._entries.setdefault((topic, queue), {
            "topic": topic, "queue": queue, "messages": 0, "first_offset": first, "last_offset": last,
            "begin": times[0], "end": times[1], "cause": cause,
        })
        entry["messages"] += count
        if offsets is not None:
            entry["first_offset"] = min(entry["first_offset"], first)
            entry["last_offset"] = max(entry["last_offset"], last)
        entry["begin"], entry["end"] = min(entry["begin"], times[0]), max(entry["end"], times[1])

    def entries(self) -> list[dict[str, Any]]:
        """One per queue, by topic and queue; messages of unknown queue come first."""
        return [self._entries[key] for key in sorted(self._entries, key=lambda key: (key[0] or "", key[1] or 0))]


def _loss_of_rows(log: LogView, cut_from: int) -> list[dict[str, Any]]:
    """Return an entry per queue for the intact messages that a cut at `cut_from` drops."""
    statement = Statement()
    for split in (split for split in log.splits() if split.is_here or split.end > cut_from):
        rows = split.records[(split.records["phy_offset"] + split.records["size"] > cut_from)]
        rows = rows[(rows["bits"] & NO_MESSAGE) == 0]
        rows = rows[np.argsort(rows["queue"], kind="stable")]
        numbers, starts = np.unique(rows["queue"], return_index=True)
        for number, own in zip(numbers.tolist(), np.split(rows, starts[1:]), strict=False):
            topic, queue_id = log.queues[number]
            statement.add(
                topic_text(topic), queue_id, _span(own["queue_offset"]), _span(own["store_timestamp"]), "cut", own.size
            )
    return statement.entries()


def _span(values: Rows) -> tuple[int, int]:
    return int(values.min()), int(values.max())


# --- No change is planned without a log, on a part that mqtool does not read, or on bytes that could not be read: a
# second try might show intact messages there.


_NAMED = 5
_CODES = frozenset(f"{part}-unreadable" for part in PARTS)


def check_plannable(
    report: VerifyReport, written: Iterable[str] = (), max_loss: int | None = 0, *, cuts: bool = False
) -> None:
    """`Refusal` (8) where a change would rest on unknown data: a file that could not be read whole (unread bytes count
    as zeros), a part to be `written` that mqtool does not read, or one that would have to be cut with the log.

    Also if the log is gone while queues or index exist, which a rebuild would empty; if something else stands in place
    of a log file; if nothing tells the length of log files; and, unless `max_loss` allows it, if almost nothing of the
    log can be read, or a file of it is invalid or of another log.
    """
    found = next((item for item in report.findings.sorted() if item.code in _CODES), None)
    if found is not None:
        raise Refusal(
            Phrase("{file} could not be read completely: {error}", file=found.file,
                   error=found.facts.get("error", "I/O error")), found.remedy,
            file=found.file, offset=found.offset,
        )
    refuse_unread(report, written)
    for item in report.findings if cuts else ():
        if item.code == NOT_SUPPORTED and not {"commitlog", "consumequeue"}.isdisjoint(item.facts["answers"]):
            raise Refusal(Phrase("{file} ({what}) would have to be cut with the log, but mqtool does not read it",
                                 file=item.file, what=item.facts["what"]),
                          "`mqtool recover {store} --dry-run` keeps every intact message, and cuts nothing but a "
                          "dirty tail.", part=item.file)
    for code in (NO_LOG, NOT_A_FILE, SIZE_UNTOLD, MOSTLY_GONE, FOREIGN, OTHER_LOG):
        for item in report.findings:
            if item.code == code and not _allowed(item, max_loss):
                raise Refusal(item.message, item.remedy, code=code)


def refuse_unread(report: VerifyReport, written: Iterable[str] = ()) -> None:
    """`Refusal` (8) if the log, or a part to be `written`, is in a part that mqtool does not read."""
    for question in (COMMITLOG, *written):
        held = report.analysis.elsewhere.get(question)
        if held is not None:
            to_files = "" if held.what != QUEUE_DATABASE else N_(
                " For other brokers, mqtool export {store} --format store -o DIR writes a store with queue files.")
            raise Refusal(Phrase("the {question} of this store is in {part} ({what}), which mqtool does not read: "
                                 "nothing is checked against it, and nothing is written in its place",
                                 question=question, part=held.part, what=held.what),
                          Phrase("Leave the store as it is: a broker with the settings under which {part} was written "
                                 "reads it.{to_files}", part=held.part, to_files=to_files), part=held.part)


def refuse_missing_files(report: VerifyReport, max_loss: int | None = 0, cut: int = 0) -> int:
    """Return how many messages missing log files (from `cut` on) held, as far as anything names them.

    `Refusal` (8) if `max_loss` is less than the total of all of them: derived files are judged without these messages.
    """
    account = report.analysis.account
    missing = [(damage, max(1, account.in_range(number))) for number, damage in enumerate(account.log.damaged)
               if damage.reason == MISSING_FILE]
    total = sum(messages for _, messages in missing)
    if max_loss is not None and total > max_loss:
        ranges = listing(Phrase("{first} to {last}", first=damage.start, last=damage.stop)
                         for damage, _ in missing[:_NAMED])
        raise Refusal(
            Phrase("log files are missing ({ranges}): they held at least {n:message}, and --max-loss allows {most}",
                   ranges=ranges, n=total, most=max_loss),
            Phrase("Find them: another path (--commitlog LOG --commitlog DIR), the source of this copy, a replica, a "
                   "backup. If they are lost for good: `{typed} --max-loss {n}` continues without them.", n=total),
            lost_messages=total, max_loss=max_loss,
        )
    return sum(messages for damage, messages in missing if damage.start >= cut)


def _allowed(item: Finding, max_loss: int | None) -> bool:
    if item.code in (NO_LOG, NOT_A_FILE, SIZE_UNTOLD):
        return False
    if max_loss is None:
        return True
    lost = item.facts["lost"]
    proven = item.code != MOSTLY_GONE or not item.facts["index_units"]
    return proven and isinstance(lost, int) and max(1, lost) <= max_loss
