"""Messages as Parquet by topic and day: executors select rows of their splits, read the log and write.

Rows are those of the local engine's table; topic and day (UTC, of the store time) are folders in Hive's naming.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, structs

from recover.cluster.jobs import TaskReads, Views, enter, run_job, watch
from recover.cluster.session import Session, SparkSettings, session_for
from recover.cluster.splits import PackedLater, has_retry_left, unpack_split
from recover.export.messages import Counts
from recover.export.select import Choice, Wanted
from recover.export.sources import Scanned
from recover.export.write import PART, LineMaker, Table, Written, near
from recover.findings.code import Refusal
from recover.store.columns import Split, ask
from recover.store.mapped_files import MappedFile
from recover.store.reading import recorded
from recover.store.source import StorePath, open_file

_TABLE = 64 << 20
_WAVE, _TASKS_A_CORE = 64, 4
_MOST_FOLDERS = 1 << 20

_Answer = tuple[Written, list[str], TaskReads]
"""What a task wrote, the files created, and what was read for it."""


def export_on_spark(
    settings: SparkSettings, scanned: Scanned, wanted: Wanted, output: Path, *, note: Callable[[str], None],
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Counts, int]:
    """Write every wanted message to `output`, a new folder; return (messages by topic, bytes of their records).

    `Refusal` (8) if the folder cannot be created, or if executors write to another one of that name, or read other
    files of the log than the scan did.
    """
    part = output.absolute().with_name(output.name + PART)
    for folder in (output, part):
        if folder.exists():
            raise Refusal(f"{folder} exists", "Name a new folder, or remove that one.", path=str(folder))
    try:
        part.mkdir()
    except OSError as error:
        raise Refusal(f"{part} cannot be made: {error.strerror}", "Choose another place.", path=str(part)) from error
    topics: Counts = Counter()
    size = 0
    try:
        session, views, named = session_for(settings), Views(time.time()), set[str]()
        for written, files, reads in _answers(session, _questions(scanned, wanted, part, session.attempts)):
            if not session.is_local:
                views.take(reads)
            topics.update(written.topics)
            size += written.size
            for line in written.notes:
                note(line if session.is_local else f"host {reads.host}: {line}")
            if missing := next((file for file in files if not (part / file).exists()), None):
                raise Refusal(f"an executor wrote {missing}, which is not in {part}",
                              "Write to a folder that all workers share.", path=str(part))
            named.update(files)
            if progress is not None:
                progress(written.size, written.topics.total())
        for path in part.rglob("*.parquet"):
            if str(path.relative_to(part)) not in named:
                path.unlink()  # a task that ran twice wrote it, or one that failed
        part.rename(output)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return topics, size


def _answers(session: Session, asked: Iterator[tuple[Split, SplitExport]]) -> Iterator[_Answer]:
    """Yield the answers to all questions, in waves, so that progress shows: each is put where the rows of its split
    are, or gets them sent."""
    size_of_wave = max(_WAVE, _TASKS_A_CORE * watch(session, lambda: session.cores, "how many cores"))
    while wave := [*islice(asked, size_of_wave)]:
        there = ask([(split, export) for split, export in wave if not split.is_here])
        own = [(split, export) for split, export in wave if split.is_here]
        here = [(PackedLater(split), export) for split, export in own if not _is_laid_over(export.mapped_file)]
        # only this process has files with displaced records laid over them
        laid = [export(split) for split, export in own if _is_laid_over(export.mapped_file)]
        yield from [*there, *run_job(session, export_sent, here, "export"), *laid]


def _is_laid_over(mapped_file: MappedFile) -> bool:
    return isinstance(mapped_file.path, StorePath) and mapped_file.path.below is not None


def _questions(
    scanned: Scanned, wanted: Wanted, folder: Path, attempts: int
) -> Iterator[tuple[Split, SplitExport]]:
    """Yield each split that may hold a wanted message, with the task that exports it."""
    log = scanned.log
    choice = Choice(log.queues, log.files, wanted)
    for scan in log.files:
        mapped_file = structs.replace(scan.mapped_file, path=scan.mapped_file.path.absolute())
        for split in filter(choice.may_be_in, scan.splits):
            queues = log.queues if split.is_here else [log.queues[number] for number in split.numbers]
            yield split, SplitExport(
                split.first, mapped_file, queues, wanted, str(folder), attempts, dict(scanned.doubted))


class SplitExport(Struct, frozen=True):
    """Writes the wanted messages of a split, from `first` on, into tables below a folder; `queues`: those that its rows
    number."""

    first: int
    mapped_file: MappedFile
    queues: list[tuple[bytes, int]]
    wanted: Wanted
    folder: str
    attempts: int
    doubted: dict[int, list[str]] = {}

    def __call__(self, split: Split) -> _Answer:
        """Export the split.

        A read error is returned only on the last attempt. Each attempt writes files of its own: one that Spark kills
        must not have one of another half overwritten.
        """
        whole = Written()
        files: list[str] = []
        tables: list[Any] = []
        attempt = uuid.uuid4().hex
        choice = Choice(self.queues, [], self.wanted, self.doubted)
        maker = LineMaker(choice, Table(None))
        with recorded() as reads, open_file(self.mapped_file.path) as reader:
            for rows in near(split.records[choice.fitting(split)]):
                written = maker.make(reader, self.mapped_file, rows)
                whole.topics.update(written.topics)
                whole.size += written.size
                whole.notes += written.notes
                if whole.notes and has_retry_left(self.attempts):
                    raise OSError(whole.notes[0])
                tables += [] if written.table is None else [written.table]
                if sum(item.nbytes for item in tables) >= _TABLE:
                    files += _write(tables, self, f"{len(files):06d}-{attempt}")
                    tables.clear()
        if tables:
            files += _write(tables, self, f"{len(files):06d}-{attempt}")
        return whole, files, TaskReads(reads)


def export_sent(
    tasks: Iterable[tuple[PackedLater | bytes, SplitExport]]
) -> Iterator[_Answer]:
    """Run exports of splits whose rows are sent by the driver."""
    enter()
    for rows, export in tasks:
        yield export(Split(*unpack_split(bytes(rows))))


def _write(tables: list[Any], task: SplitExport, name: str) -> list[str]:
    import pyarrow as pa
    from pyarrow import dataset

    table = pa.concat_tables(tables)
    times = table.column("store_time").to_numpy().astype("datetime64[ms]")
    table = table.append_column("day", pa.array(np.datetime_as_string(times, unit="D").astype(object), pa.string()))
    written: list[str] = []
    dataset.write_dataset(
        table, task.folder, format="parquet", basename_template=f"part-{task.first:020d}-{name}-{{i}}.parquet",
        partitioning=dataset.partitioning(pa.schema([("topic", pa.string()), ("day", pa.string())]), flavor="hive"),
        file_options=dataset.ParquetFileFormat().make_write_options(compression="zstd"),
        existing_data_behavior="overwrite_or_ignore", max_partitions=_MOST_FOLDERS,
        file_visitor=lambda file: written.append(os.path.relpath(file.path, task.folder)),
    )
    return written
