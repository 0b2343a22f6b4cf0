"""rebuild: recompute derived files from the log. In place, only wrong ones are changed."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from msgspec import Struct, field, structs

from recover.change import disk
from recover.change.content import Content, DeferredContent, Spool, make, stop_if
from recover.change.copy_store import check_target, remote_folder, staged_folder
from recover.change.model import Install, Plan, Step, replacing
from recover.change.preconditions import StaleRefusal
from recover.check.report import VerifyReport, verify
from recover.derived.checkpoint import CheckpointReport, check_checkpoint, checkpoint_steps, right_checkpoint
from recover.derived.expected import QueueKey
from recover.derived.index_check import IndexReport, check_index
from recover.derived.index_files import index_geometry
from recover.derived.index_rebuild import IndexRebuild, rebuild_index
from recover.derived.queue_check import check_consumequeue
from recover.derived.queues import Evidence, QueueBuilder, consumequeue_steps, fresh_steps
from recover.findings.code import N_, Refusal, UsageRefusal
from recover.findings.model import FindingList, Phrase
from recover.log.scan import Damage
from recover.reading.facts import ScanOptions
from recover.reading.reading import Reading
from recover.repair.losses import RecoverPlan, check_plannable, loss_of_unproven, refuse_missing_files
from recover.store.mapped_files import MappedFileQueue
from recover.store.source import StorePath, list_again, read_small, send
from recover.store.store import CHECKPOINT, CONSUMEQUEUE, INDEX, Store

PARTS = (CONSUMEQUEUE, INDEX, CHECKPOINT)


class RebuildOptions(Struct, frozen=True):
    """What to rebuild. `topic` and `queue` narrow the consume queues; new index files are named in the time of `zone`.

    `max_loss`: messages of missing log files that may be lost, None for any number.
    """

    scan: ScanOptions = field(default_factory=ScanOptions)
    parts: Collection[str] = PARTS
    topic: str | None = None
    queue: int | None = None
    zone: datetime.tzinfo | None = None
    command: str = "rebuild"
    max_loss: int | None = 0


def plan_rebuild(store: Store, options: RebuildOptions, before: VerifyReport | None = None) -> RecoverPlan:
    """Plan the repair of the derived files of a store; no steps if nothing is wrong.

    `before` is the verify report of the store, made here if not given.
    `Refusal` (8) if the log is gone, `UsageRefusal` (16) for an unknown topic or queue.
    """
    before = _verified(store, options, before)
    assert before.index is not None and before.checkpoint is not None
    wanted = chosen_queues(before.analysis, options)
    analysis, parts = before.analysis, options.parts
    # a rebuild does not repair the log, so it must keep the evidence that recover needs for that
    steps = list(derived_steps(analysis, before.index, before.checkpoint, options.zone, parts=parts, wanted=wanted,
                               unmended=analysis.log.damaged))
    if steps:
        analysis.options.engine.confirm()
    summary = {
        "parts": sorted(parts), "topic": options.topic, "queue": options.queue, "valid_to": analysis.log.valid_to,
        "damaged": [damage.json() for damage in analysis.log.damaged], "lost_positions": analysis.losses.total,
        "contradictions": len(analysis.contradictions),
    }
    unproven, only_named = loss_of_unproven(analysis, wanted, parts)
    plan = Plan(options.command, tuple(replacing(steps)), only_named, summary, store.folders_elsewhere)
    return RecoverPlan(
        plan, before, None, [], 0, before.damaged_messages, unproven, analysis.log.valid_to,
        left_messages=before.damaged_messages,
    )


def derived_steps(
    analysis: Reading, index: IndexReport, checkpoint: CheckpointReport, zone: datetime.tzinfo | None, *,
    parts: Collection[str] = PARTS, wanted: set[QueueKey] | None = None, unmended: Sequence[Damage] = (),
    visible: bool = False, bridged: Collection[QueueKey] = (),
) -> Iterator[Step]:
    """Steps that repair the parts derived from the log of `analysis`; none where these are right.

    `wanted`: only these queues. Units that name messages in `unmended` damage stay. With `visible` the units of lost
    positions lead to their markers. `bridged`: queues with positions in bridges that the log has not had before.
    """
    store, log = analysis.store, analysis.log
    producer = analysis.options.engine.producer(store, log)
    if CONSUMEQUEUE in parts and analysis.queues is not None:
        starts, stops = np.array([(damage.start, damage.stop) for damage in unmended], np.int64).reshape(-1, 2).T
        yield from consumequeue_steps(
            store, log, analysis.expectation, analysis.queues, Spool(), visible=visible, wanted=wanted,
            bridged=bridged, evidence=Evidence(starts, stops), producer=producer,
        )
    # if only the index is requested, it is built even where it is switched off
    asked = index.switched_off and tuple(parts) == (INDEX,)
    if INDEX in parts and (asked or any(item.severity != "info" for item in index.findings)):
        yield from rebuild_index(store, log, report=index, zone=zone, producer=producer).steps(store)
    if CHECKPOINT in parts and not checkpoint.sound:
        yield from checkpoint_steps(store, log)


def _verified(store: Store, options: RebuildOptions, report: VerifyReport | None = None) -> VerifyReport:
    """Verify the store unless a report is given; `Refusal` (8) if its log is gone or in a part that is not read."""
    report = report or verify(store, options.scan)
    check_plannable(report, options.parts)
    refuse_missing_files(report, options.max_loss)
    return report


def chosen_queues(analysis: Reading, options: RebuildOptions) -> set[QueueKey] | None:
    """The queues that the options name; None for all. `UsageRefusal` (16) or `Refusal` (8) if there is no such queue to
    rebuild."""
    if options.topic is None:
        return None
    on_disk = analysis.queues.verdicts if analysis.queues is not None else {}
    own = {key for key in (*analysis.expectation.queues(), *on_disk) if key.topic == options.topic}
    if not own:
        _refuse_topic(analysis, options.topic)
    if options.queue is None:
        return own
    key = QueueKey(options.topic, options.queue)
    if key not in own:
        known = ", ".join(str(number) for number in sorted(key.queue_id for key in own))
        raise UsageRefusal(Phrase("neither the log nor consumequeue/ has queue {queue} of topic {topic}",
                                  queue=options.queue, topic=options.topic),
                           Phrase("Its queues are: {known}", known=known))
    return {key}


def _refuse_topic(analysis: Reading, topic: str) -> None:
    if topic in analysis.expectation.deleted:
        raise UsageRefusal(Phrase("topic {topic} is deleted", topic=topic),
                           "`{typed} --include-deleted` rebuilds its queues.")
    if topic in analysis.expectation.unsafe:
        raise UsageRefusal(Phrase("{topic} cannot be the name of a folder", topic=repr(topic)),
                           "Such queues are not rebuilt.")
    if topic in analysis.topics.batch:
        raise Refusal(Phrase("topic {topic} has batch consume queues, which this version does not rebuild",
                             topic=topic), "Let a broker do it: it does so after an unclean stop.", topic=topic)
    raise UsageRefusal(Phrase("neither the log nor consumequeue/ has topic {topic}", topic=topic),
                       "`mqtool inspect {store}` lists the topics.")


# --- rebuild --output: derived files of a whole log, written from scratch into a folder of their own.


_STAGING = ".mqtool-making"


class Rebuilt(Struct, frozen=True):
    """The result: file names below the output folder, ascending, and their total length in bytes.

    `findings`: of the store's log, and of the written files, which were read back and compared with it.
    `corrected`: the store's own derived files have problems that the written ones do not have.
    """

    before: VerifyReport
    files: tuple[str, ...]
    size: int
    findings: FindingList
    corrected: bool


def write_rebuild(
    store: Store, options: RebuildOptions, output: Path, *, interrupted: Callable[[], bool] = lambda: False
) -> Rebuilt:
    """Write the parts that `options` name to `output`, new or empty, perhaps on a server; the store is only read.

    `Refusal` (8) if the log is gone, the output folder is not usable or the disk fails; `Interrupted` between two
    files. In these cases everything written is removed.
    """
    output = output.absolute()
    check_target([(folder, folder.name) for folder in (store.root, *map(Path, store.folders_elsewhere))], output)
    files_before = _log_files(store)
    before = _verified(store, options)
    wanted = chosen_queues(before.analysis, options)
    before.analysis.options.engine.confirm()
    with remote_folder(output) if isinstance(output, StorePath) else staged_folder(output) as made:
        files, size = _write(made, _fresh_steps(before, options, wanted), interrupted)
        checked = _check(store, before.analysis, options, wanted, made)
        list_again(store.root)
        if _log_files(store) != files_before:
            raise StaleRefusal("the log changed while it was read; what was written was removed")
    # a code begins with the name of its part
    derived = [item for item in before.findings if item.code.startswith(tuple(f"{part}-" for part in options.parts))]
    findings = FindingList(item for item in before.findings if item not in derived)
    findings.extend(checked)
    return Rebuilt(before, tuple(files), size, findings, any(item.bits for item in derived))


def write_derived(store: Store, options: RebuildOptions, output: Path, like: Store | None = None) -> None:
    """Write the parts to `output` beside existing files; index files get the sizes of those of the store `like`."""
    before = _verified(store, options)
    if before.index is not None and like is not None:
        before.index.geometry = index_geometry(like)
    _write(output, _fresh_steps(before, options, None, bridge=before.analysis.log.first_bridge_record()))


def _log_files(store: Store) -> dict[str, tuple[int, int]]:
    """Name -> (size, mtime in ns) of the commitlog files."""
    queue = MappedFileQueue.load(store.commitlog_dirs, store.mapped_file_size)
    return {str(file.path): (file.length, file.path.stat().st_mtime_ns) for file in queue.files}


def _write(
    output: Path, steps: Iterable[Step], interrupted: Callable[[], bool] = lambda: False
) -> tuple[list[str], int]:
    """Write the new files of some steps below the output folder; return their names there, and their total bytes.

    Content that another process produces comes last, all at once.
    """
    elsewhere: dict[Path, Content] = {}
    with ExitStack() as opened:
        here = Path(opened.enter_context(TemporaryDirectory(prefix="mqtool-output-"))) \
            if isinstance(output, StorePath) else output
        sizes, folders = dict[str, int](), {here}
        for step in steps:
            stop_if(interrupted, N_("stopped; what was written so far was removed"))
            assert step.content is not None
            path = here / step.file
            if here is output or not isinstance(step.content, DeferredContent):
                for folder in reversed([*takewhile(lambda each: each not in folders, path.parents)]):
                    disk.mkdir(folder)
                    folders.add(folder)
            if isinstance(step.content, DeferredContent):
                elsewhere[output / step.file] = step.content
            else:
                sizes[step.file] = disk.create_from_pieces(path, step.content.pieces(), disk.MODE)[0]
        if isinstance(output, StorePath) and sizes:
            send(here, output)
    made = make(output / _STAGING, elsewhere, interrupted=interrupted)
    sizes |= {path.relative_to(output).as_posix(): size for path, (size, _) in made.items()}
    if isinstance(output, StorePath):
        list_again(output)
        return sorted(sizes), sum(sizes.values())
    for path in made:
        disk.dress(path, disk.Like(os.geteuid(), os.getegid(), disk.MODE))
    disk.sync_all(made)
    for folder in folders:
        disk.fsync_dir(folder)
    return sorted(sizes), sum(sizes.values())


def _fresh_steps(
    before: VerifyReport, options: RebuildOptions, wanted: set[QueueKey] | None, bridge: tuple[int, int] | None = None
) -> Iterator[Step]:
    """The files of the parts, recreated from the log alone, with names below an output folder. `bridge`: see
    `QueueBuilder`; without it, a queue begins as a broker begins it."""
    analysis, report = before.analysis, before.index
    producer = analysis.options.engine.producer(analysis.store, analysis.log)
    index = None
    if CONSUMEQUEUE in options.parts:
        builder = QueueBuilder(
            analysis.store, analysis.delays, analysis.log.min_offset, analysis.log.log_end, bridge=bridge)
        if producer is not None:
            for _, steps in producer.queues(builder, analysis.expectation, wanted, fresh=True):
                yield from steps
        else:
            for key, rows in analysis.expectation.grouped(wanted):
                yield from fresh_steps(analysis.store, builder.fresh(key, rows))
    if INDEX in options.parts:
        assert report is not None
        index = rebuild_index(
            analysis.store, analysis.log, fresh=True, report=report, zone=options.zone, producer=producer)
        yield from (Install(f"{INDEX}/{file.name}", file.content) for file in index.files)
    if CHECKPOINT in options.parts:
        yield Install(CHECKPOINT, _checkpoint(analysis, index))


def _checkpoint(analysis: Reading, index: IndexRebuild | None) -> bytes:
    """The right checkpoint; its index time is that of the last full file, as IndexService.flush sets it."""
    try:
        base = read_small(analysis.store.checkpoint_path, 4096)
    except OSError:
        base = b""
    full = None
    if index is not None:
        capacity = index.geometry.capacity
        full = max((file.end_timestamp for file in index.files if file.units >= capacity), default=0)
    return right_checkpoint(analysis.store, analysis.log, base=base, index_timestamp=full)


def _check(
    store: Store, analysis: Reading, options: RebuildOptions, wanted: set[QueueKey] | None, output: Path
) -> FindingList:
    """Read back the written files and compare them with the log."""
    found = FindingList()
    written = Store(output, structs.replace(
        store.options, commitlog=tuple(folder.absolute() for folder in store.commitlog_dirs), consumequeue=None,
        index=None,
    ))
    log = analysis.log
    if CONSUMEQUEUE in options.parts:
        report = check_consumequeue(written, log, analysis.expectation, analysis.delays)
        for key, verdict in report.verdicts.items():
            if wanted is None or key in wanted:
                found.extend(verdict.findings)
    if INDEX in options.parts and (output / INDEX).is_dir():
        found.extend(check_index(written, log).findings)
    if CHECKPOINT in options.parts:
        found.extend(check_checkpoint(written, log).findings)
    return found
