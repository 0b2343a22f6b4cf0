"""mqtool on one side, a real broker on the other, and what has to be the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fixtures.damage import Damage, NotApplicable, of_area
from fixtures.lab.observe import SOUND, reference
from fixtures.lab.packed import settings
from fixtures.lab.report import Delivered, OracleReport
from tests.broker.cases import Case
from tests.cli.runner import mqtool as run_mqtool
from tests.support.brokers import oracle
from tests.support.stores import real_store, struck_store

FILLER = "MQTOOL_FILLER"
LEFT, REFUSED = 2, 8
_SIZES = (
    "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue",
    "maxHashSlotNum",
    "maxIndexNum",
    "storePathCommitLog",
)


#: What a prediction counts where a broker's start leaves queues wrong.
LEFT_WRONG = ("unreachable_messages", "misaligned_units", "duplicated_offsets", "missing_lmq_units")
#: A queue, and what must be the same of a message that is due there.
Due = tuple[str, tuple[Any, ...]]


class Answer(NamedTuple):
    """Exit code and document of one command."""

    code: int
    document: dict[str, Any]


def mqtool(command: str, *arguments: str | Path) -> Answer:
    """Run a command line with --json, in this process. A bug or bad usage fails the test."""
    done = run_mqtool(command, *arguments, "--json")
    assert done.code & ~0x4F == 0, f"{command} {arguments}: exit {done.code}\n{done.stdout}\n{done.stderr}"
    return Answer(done.code, done.document)


def parts(store: str, root: Path) -> list[str]:
    """The options that name a store's parts where they are not below the usual names."""
    paths = str(settings(store).get("storePathCommitLog", "")).replace("{root}", str(root))
    return [word for path in paths.split(",") if path for word in ("--commitlog", path)]


def unseen_sizes(store: str, root: Path) -> list[str]:
    """The options for sizes that no file of the store shows any more."""
    conf, options = settings(store), []
    if not any(path.is_file() for path in root.glob("consumequeue/*/*/*")):
        options += ["--set", f"mappedFileSizeConsumeQueue={conf['mappedFileSizeConsumeQueue']}"]
    if not any(root.glob("index/*")):
        options += ["--index-slots", str(conf["maxHashSlotNum"]), "--index-entries", str(conf["maxIndexNum"])]
    return options


def broker_options(store: str, version: str, ignored: tuple[str, ...] = ()) -> list[str]:
    """--broker V and the writer's settings other than sizes and paths, as far as the version knows them."""
    options = ["--broker", version]
    for name, value in settings(store).items():
        if name not in _SIZES and name not in ignored:
            options += ["--set", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    return options


def damaged(store: str, recipe: str, folder: Path, seed: int = 0) -> tuple[Path, Damage]:
    """A fresh copy of the store with the damage done; a skip if the store has nothing to damage that way."""
    if recipe == SOUND:
        return real_store(store, folder), Damage(SOUND, seed, ())
    try:
        return struck_store(store, folder, recipe, seed)
    except NotApplicable as reason:
        pytest.skip(str(reason))


def start(case: Case, root: Path, conf: Mapping[str, object] | None = None, **more: Any) -> OracleReport:
    """The version's start on `root`, everything read; with the settings of the store's writer unless told others."""
    used = settings(case.store) if conf is None else conf
    return oracle(case.version).start(root, used, read=True, dispatch_timeout=5, timeout=40, **more)


def prediction_mismatches(case: Case, told: Mapping[str, Any], observed: Mapping[str, Any], done: Damage) -> list[str]:
    """Where a prediction differs from what the start showed, in words."""
    sound = reference(case.store).after_start
    assert sound is not None
    return kept_mismatches(told, observed, {name: list(limits) for name, limits in sound.queues.items()}, done)


def kept_mismatches(
    told: Mapping[str, Any], seen: Mapping[str, Any], sound: Mapping[str, Any], done: Damage
) -> list[str]:
    """The same for an observation in the form that is kept; `sound` are the queues of the undamaged store.

    A record that reads as sound and yet is not what was stored (another legal topic, say) is judged by us by what it
    says now, by the observation by what it was: each of them may be counted once by one side alone.
    """
    altered = len({*done.changed} - {*done.lost})
    # whole records that stand elsewhere are in the log for us, and lost for an observation of their places
    moved = done.recipe in ("pages-swapped", *of_area("displaced"))
    elsewhere = len({*done.lost}) if moved else 0
    if not (told["starts"] and seen["starts"]):
        return _differ("starts", told["starts"], seen["starts"])
    wrong = _differ("mode", told["mode"], seen.get("mode"))
    if seen.get("start_file"):
        wrong += _differ("start_file", _name(told["start_file"]), seen["start_file"])
    wrong += _differ("log", [told["min_phy"], told["max_phy"]], seen["loaded_log"])
    changed = seen.get("queues", {})
    after = {name: limits for name, limits in {**sound, **changed}.items() if limits is not None}
    wrong += _differ_maps("queues", _filled(told["queues"]), _filled(after))
    gone, said = (
        # the store alone reads no config file
        [path for path in files if not path.startswith(("index", "config"))]
        for files in (seen.get("deleted_files", []), sorted(told["deleted_files"]))
    )
    wrong += _differ("deleted_files", said, gone)
    wrong += _differ("lost_messages", told["lost_messages"], seen.get("lost", 0))
    for ours, theirs in (("unreachable_messages", "unreachable"), ("duplicated_offsets", "duplicated_offsets")):
        more = elsewhere if theirs == "unreachable" else 0
        if not -altered <= told[ours] - seen.get(theirs, 0) <= altered + more:
            wrong += _differ(ours, told[ours], seen.get(theirs, 0))
    return wrong


def broken_promises(
    case: Case, seen: OracleReport, done: Damage, valid_to: int, before: Path, lmq: bool = True
) -> list[str]:
    """Where a broker's start on a copy of the recovered store `before` falls short of what was promised.

    A file of zeros may go: brokers drop what they allocated ahead. `lmq` False leaves LMQ queues out.
    """
    if not seen.starts or seen.after_start is None or seen.after_load is None:
        return [f"does not start: {seen.stage} {seen.error} {seen.log[-3:]}"]
    gone = [path for path in seen.deleted_files if not path.startswith("index") and any((before / path).read_bytes())]
    wrong = _differ("deleted files", [], gone) + _differ("log end", valid_to, seen.after_load.max_phy)
    wanted = due(case, done, lmq)
    spoilt = sum(message.phy_offset in {*done.changed, *done.lost} for _, message in reference(case.store).messages())
    missing = sorted(wanted - delivered_of_due(case, seen, done, lmq))
    if missing:
        wrong.append(f"{len(missing)} of {len(wanted)} intact messages not delivered, first {missing[:3]}")
    wrong += _oddities(seen)
    repeats = Counter((queue, message.phy_offset) for queue, message in seen.messages())
    extra = sum(count - 1 for count in repeats.values())
    if extra > spoilt:
        wrong.append(f"{extra} deliveries repeated for {spoilt} spoilt ones")
    return wrong + _new_messages(seen)


def identity(message: Delivered) -> tuple[Any, ...]:
    """What must be the same of a message before and after."""
    return (
        message.topic,
        message.queue_id,
        message.queue_offset,
        message.message_id,
        message.uniq_key or "",
        message.body_crc32,
        message.phy_offset,
    )


def due(case: Case, done: Damage, lmq: bool = True) -> set[Due]:
    """Every delivery of the sound store whose record the damage left alone; `lmq` False: none from an LMQ queue."""
    touched = {*done.changed, *done.lost}
    every = ((queue, message) for queue, message in reference(case.store).messages() if lmq or queue[:5] != "%LMQ%")
    return {(queue, identity(message)) for queue, message in every if message.phy_offset not in touched}


def delivered_as_stored(case: Case, seen: OracleReport) -> set[Due]:
    """What this start delivers as the sound store does: the same message at the same place."""
    every = {(queue, identity(message)) for queue, message in reference(case.store).messages()}
    return every & {(queue, identity(message)) for queue, message in seen.messages()}


def delivered_of_due(case: Case, seen: OracleReport, done: Damage, lmq: bool = True) -> set[Due]:
    """Those of them that this start delivers."""
    return due(case, done, lmq) & {(queue, identity(message)) for queue, message in seen.messages()}


def _oddities(seen: OracleReport) -> list[str]:
    """What no reader should meet; but 4.x, asked for an expired record that stood at 0, always serves other bytes."""
    wrong = []
    expired = seen.version.startswith("4.") and seen.after_start is not None and seen.after_start.min_phy > 0
    for name, read in seen.read.items():
        if read.undecodable > expired or read.exception or read.stuck is not None:
            wrong.append(f"{name}: undecodable {read.undecodable}, stuck at {read.stuck}, {read.exception}")
    strange = [queue for queue, message in seen.messages() if message.topic == FILLER or not message.body_crc_ok]
    return wrong + ([f"filler or broken bodies delivered from {sorted(set(strange))}"] if strange else [])


def _new_messages(seen: OracleReport) -> list[str]:
    wrong = []
    for queue, written in seen.written.items():
        offsets = [offset for status, offset, _ in written["puts"] if status == "PUT_OK"]
        if offsets != [row[1] for row in written["read"]["messages"]] or offsets[:1] != [written["max_before"]]:
            wrong.append(f"{queue}: new messages at {offsets}, delivered {written['read']['messages']}")
    return wrong


def state_mismatches(ours: OracleReport, theirs: OracleReport, told: Mapping[str, Any], done: Damage) -> list[str]:
    """Where the same version, started on our result and on the damaged store itself, ends in different states.

    The log is the same, and so is everything else if the prediction says that the broker leaves all queues right. Where
    it does not, ours are, and deliver what the broker delivers, and more. Deliveries of records that say something else
    than what was stored are left out: a broker may make a queue for a topic that there never was.
    """
    if not (ours.starts and theirs.starts):
        return _differ("starts", ours.starts, theirs.starts)
    assert ours.after_start is not None and theirs.after_start is not None
    wrong = _differ("min_phy", ours.after_start.min_phy, theirs.after_start.min_phy)
    wrong += _differ("max_phy", ours.after_start.max_phy, theirs.after_start.max_phy)
    altered = {*done.changed} - {*done.lost}
    mine, other = (
        {(queue, identity(m)) for queue, m in seen.messages() if m.phy_offset not in altered} for seen in (ours, theirs)
    )
    wrong += _differ("deliveries only the broker's", [], sorted(other - mine)[:3])
    if any(told[kind] for kind in LEFT_WRONG):
        return wrong
    strange = {queue for queue, _ in theirs.messages()} - {queue for queue, _ in other}
    ends = {queue: limits for queue, limits in theirs.after_start.queues.items() if queue not in strange}
    wrong += _differ_maps("queues", _filled(ours.after_start.queues), _filled(ends))
    return wrong + _differ("deliveries only ours", sorted(mine - other)[:3], [])


def _differ(what: str, told: Any, seen: Any) -> list[str]:
    return [] if told == seen else [f"{what}: told {told!r}, seen {seen!r}"]


def _differ_maps(what: str, told: Mapping[str, Any], seen: Mapping[str, Any]) -> list[str]:
    odd = {key: (told.get(key), seen.get(key)) for key in sorted({*told, *seen}) if told.get(key) != seen.get(key)}
    return [f"{what}: {len(odd)} differ (told, seen): {dict(list(odd.items())[:4])}"] if odd else []


def _filled(queues: Mapping[str, Any]) -> dict[str, list[int]]:
    """Queues that hold or held something; whether an empty one is listed is a matter of taste."""
    return {name: list(limits) for name, limits in queues.items() if limits[1] > 0}


def _name(path: str | None) -> str | None:
    return None if path is None else path.rsplit("/", 1)[-1]
