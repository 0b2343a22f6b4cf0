"""rebuild --output: derived files of a whole log, written from scratch into a folder of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from msgspec import Struct, structs

from formats.index import DEFAULT_GEOMETRY
from recover import disk
from recover.apply.copy_store import check_target, remove_copy
from recover.errors import Interrupted, Refusal
from recover.evidence.expected import QueueKey
from recover.files.mapped_files import MappedFileQueue
from recover.files.reader import read_small
from recover.files.reading import Piece, in_order
from recover.files.store import CHECKPOINT as CHECKPOINT_FILE
from recover.files.store import Store
from recover.findings import Finding, FindingList
from recover.index.files import index_geometry
from recover.plan.content import Content, padded, pieces_of
from recover.plan.making import make
from recover.plan.preconditions import STALE
from recover.rebuild.checkpoint import right_checkpoint
from recover.rebuild.consumequeue import QueueBuilder, fresh_files
from recover.rebuild.index import IndexRebuild, rebuild_index
from recover.rebuild.maker import Maker, maker_for
from recover.rebuild.plain_queues import fresh_queues
from recover.rebuild.plan import CHECKPOINT, CONSUMEQUEUE, INDEX, RebuildOptions, chosen_queues, look
from recover.verify.checkpoint import check_checkpoint
from recover.verify.consumequeue import check_consumequeue
from recover.verify.index import check_index
from recover.verify.report import VerifyReport
from recover.verify.survey import Survey

_MODE = 0o644
_STAGING = ".mqtool-making"


class Rebuilt(Struct, frozen=True):
    """What was written: file names below the output folder, ascending, and the bytes that they take when read.

    `findings` are about the log of the store and about the written files, which were read again and compared with it.
    `corrected`: the store's own derived files have problems that the written ones do not have.
    """

    before: VerifyReport
    files: tuple[str, ...]
    size: int
    findings: FindingList
    corrected: bool


def write_rebuild(
    store: Store, options: RebuildOptions, output: Path, *, interrupted: Callable[[], bool] = lambda: False,
    progress: Callable[[str, int], None] | None = None,
) -> Rebuilt:
    """Write the parts that `options` name to `output`, new or empty; the store is only read.

    `progress` is called with the name and size of each file. `Refusal` (8) when the log is gone, the output folder
    is not usable or the disk fails; `Interrupted` between two files. What was written is removed again then.
    """
    output = output.absolute()
    check_target([(folder, folder.name) for folder in (store.root, *map(Path, store.folders_elsewhere))], output)
    seen = _log_files(store)
    before = look(store, options)
    wanted = chosen_queues(before.survey, options)
    made = not output.exists()
    writer = _Writer(output, interrupted, progress)
    try:
        disk.mkdir(output)
        _write_parts(writer, before, options, wanted)
        writer.sync()
        checked = _check(store, before.survey, options, wanted, output)
        if _log_files(store) != seen:
            raise Refusal("the log changed while it was read; what was written was removed", STALE)
    except (OSError, Refusal) as error:
        remove_copy(output, made)
        if isinstance(error, Refusal):
            raise
        raise Refusal(
            f"the rebuilt files cannot be written: {error.strerror} ({error.filename}); they were removed",
            "make room, or choose another place", errno=error.errno,
        ) from error
    derived = [item for item in before.findings if _is_derived(item, options)]
    findings = FindingList(item for item in before.findings if item not in derived)
    findings.extend(checked)
    return Rebuilt(before, tuple(sorted(writer.files)), writer.size, findings, any(item.bits for item in derived))


def write_derived(store: Store, options: RebuildOptions, output: Path, like: Store | None = None) -> None:
    """Write the parts to `output` beside what is there; index files have the sizes of those of the store `like`."""
    before = look(store, options)
    if before.index is not None and like is not None:
        before.index.geometry = index_geometry(like)
    writer = _Writer(output, lambda: False, None)
    _write_parts(writer, before, options, None)
    writer.sync()


def _log_files(store: Store) -> dict[str, tuple[int, int]]:
    """Name -> (size, mtime in ns) of the commitlog files as they are now."""
    queue = MappedFileQueue.load(store.commitlog_dirs, store.mapped_file_size)
    return {str(file.path): (file.length, file.path.stat().st_mtime_ns) for file in queue.files}


class _Writer:
    def __init__(
        self, output: Path, interrupted: Callable[[], bool], progress: Callable[[str, int], None] | None
    ) -> None:
        self.output = output
        self.interrupted = interrupted
        self.progress = progress
        self.files: list[str] = []
        self.size = 0
        self._folders: set[Path] = {output}

    def write(self, name: str, pieces: Iterable[Piece]) -> None:
        """A new file below the output folder, synced."""
        if self.interrupted():
            raise Interrupted("stopped; what was written so far was removed", "run the command again")
        path = self.output / name
        self._make(path.parent)
        size, _ = disk.create_from_pieces(path, pieces, _MODE)
        self._note(name, size)

    def take(self, files: Mapping[str, Content]) -> None:
        """New files below the output folder, by name, made elsewhere and synced."""
        paths = {self.output / name: content for name, content in files.items()}
        for path in paths:
            self._make(path.parent)
        made = make(self.output / _STAGING, paths, interrupted=self.interrupted)
        for path in made:
            os.chmod(path, _MODE)
        disk.sync_all(made)
        for name, path in zip(files, paths, strict=True):
            self._note(name, made[path][0])

    def _note(self, name: str, size: int) -> None:
        self.files.append(name)
        self.size += size
        if self.progress is not None:
            self.progress(name, size)

    def _make(self, folder: Path) -> None:
        if folder not in self._folders:
            self._make(folder.parent)
            disk.mkdir(folder)
            self._folders.add(folder)

    def sync(self) -> None:
        """Make all names last."""
        for folder in self._folders:
            disk.fsync_dir(folder)


def _write_parts(
    writer: _Writer, before: VerifyReport, options: RebuildOptions, wanted: set[QueueKey] | None
) -> None:
    index = None
    seen = before.survey
    maker = maker_for(seen.options.scanner, seen.store, seen.log)
    if CONSUMEQUEUE in options.parts:
        _write_queues(writer, seen, wanted, maker)
    if INDEX in options.parts:
        index = _write_index(writer, before, options, maker)
    if CHECKPOINT in options.parts:
        writer.write(CHECKPOINT_FILE, in_order([_checkpoint(before.survey, index)]))


def _write_queues(writer: _Writer, seen: Survey, wanted: set[QueueKey] | None, maker: Maker | None) -> None:
    builder = QueueBuilder(seen.store, seen.delays, seen.log.min_offset, seen.log.log_end)
    if maker is not None:
        queues = maker.queues(builder, seen.expectation, wanted, fresh=True)
        writer.take({step.file: step.content for _, steps in queues for step in steps if step.content is not None})
        return
    for queue in fresh_queues(builder, seen.expectation, wanted):
        for name, content, size in fresh_files(seen.store, queue):
            writer.write(name, in_order(padded(content, size)))


def _write_index(
    writer: _Writer, before: VerifyReport, options: RebuildOptions, maker: Maker | None
) -> IndexRebuild:
    report = before.index
    assert report is not None
    report.geometry = report.geometry or DEFAULT_GEOMETRY
    rebuilt = rebuild_index(
        before.survey.store, before.survey.log, fresh=True, report=report, zone=options.zone, maker=maker
    )
    files = {f"{INDEX}/{file.name}": file.content for file in rebuilt.files}
    if maker is not None:
        writer.take(files)
        return rebuilt
    for name, content in files.items():
        writer.write(name, pieces_of(content))
    return rebuilt


def _checkpoint(seen: Survey, index: IndexRebuild | None) -> bytes:
    """The right checkpoint; its index time is that of the last full file, as IndexService.flush has it."""
    try:
        base = read_small(seen.store.checkpoint_path, 4096)
    except OSError:
        base = b""
    full = None
    if index is not None:
        capacity = index.geometry.capacity
        full = max((file.end_timestamp for file in index.files if file.units >= capacity), default=0)
    return right_checkpoint(seen.store, seen.log, base=base, index_timestamp=full)


def _check(
    store: Store, seen: Survey, options: RebuildOptions, wanted: set[QueueKey] | None, output: Path
) -> FindingList:
    """Read what was written and compare it with the log."""
    found = FindingList()
    written = Store(output, structs.replace(
        store.options, commitlog=tuple(folder.absolute() for folder in store.commitlog_dirs), consumequeue=None,
        index=None,
    ))
    log = seen.log
    if CONSUMEQUEUE in options.parts:
        report = check_consumequeue(written, log, seen.expectation, seen.delays)
        for key, verdict in report.verdicts.items():
            if wanted is None or key in wanted:
                found.extend(verdict.findings)
    if INDEX in options.parts and (output / INDEX).is_dir():
        found.extend(check_index(written, log).findings)
    if CHECKPOINT in options.parts:
        found.extend(check_checkpoint(written, log).findings)
    return found


def _is_derived(item: Finding, options: RebuildOptions) -> bool:
    """Whether a finding is about a part that was rebuilt: codes begin with the name of their part."""
    return item.code.startswith(tuple(f"{part}-" for part in options.parts))
