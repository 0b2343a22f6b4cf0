"""Messages as Parquet by topic and day: the driver scans and chooses, executors read their stretches and write.

Rows are those of the local engine's table; topic and day (UTC, of the store time) are folders, as Hive names them.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, structs

from recover.cluster.jobs import enter, run_job
from recover.cluster.session import SparkSettings, session_for
from recover.cluster.views import Seen, Views
from recover.export.messages import Counts
from recover.export.select import Choice, Wanted
from recover.export.sources import Scanned
from recover.export.write import PART, LineMaker, Table, Written, near
from recover.findings.refusal import Refusal
from recover.store.columns import Rows
from recover.store.mapped_files import MappedFile
from recover.store.reader import FileReader
from recover.store.reading import recorded

_STRETCH = 64 << 20
_TABLE = 64 << 20
_WAVE = 32
_MOST_FOLDERS = 1 << 20


class ExportTask(Struct, frozen=True):
    """The rows of one stretch of a file, and the folder that their table goes to."""

    number: int
    mapped_file: MappedFile
    queues: list[tuple[bytes, int]]
    rows: Rows
    wanted: Wanted
    folder: str


def export_on_spark(
    settings: SparkSettings, scanned: Scanned, wanted: Wanted, output: Path, *, note: Callable[[str], None],
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Counts, int]:
    """Write every wanted message to `output`, a new folder; (messages by topic, bytes of their records).

    `Refusal` (8) where the folder cannot be made, or where executors write to another one of that name, or read other
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
    tasks = list(_tasks(scanned, wanted, part))
    session, views = session_for(settings), Views(time.time())
    for first in range(0, len(tasks), _WAVE):
        wave = tasks[first : first + _WAVE]
        for number, written, files, seen in run_job(session, export_parts, wave, "export"):
            if not session.is_local:
                views.take(seen)
            topics.update(written.topics)
            size += written.size
            for line in written.notes:
                note(line)
            if missing := [file for file in files if not (part / file).exists()]:
                raise Refusal(f"an executor wrote {missing[0]}, which is not in {part}",
                              "Write to a folder that all workers share.", path=str(part))
            if progress is not None:
                progress(int(tasks[number].rows["size"].sum()), tasks[number].rows.size)
    part.rename(output)
    return topics, size


def _tasks(scanned: Scanned, wanted: Wanted, folder: Path) -> Iterator[ExportTask]:
    log = scanned.log
    number = 0
    for scan, _, rows in Choice(log.queues, log.files, wanted).rows():
        path = scan.mapped_file.path.absolute()
        for stretch in near(rows, _STRETCH):
            yield ExportTask(number, structs.replace(scan.mapped_file, path=path), log.queues, stretch, wanted,
                             str(folder))
            number += 1


def export_parts(tasks: Iterable[ExportTask]) -> Iterator[tuple[int, Written, list[str], Seen]]:
    """Write the tables of some stretches: each task's number, what they hold, the files made, and what was read."""
    enter()
    for task in tasks:
        whole = Written()
        files: list[str] = []
        tables: list[Any] = []
        table = Table(None)
        maker = LineMaker(Choice(task.queues, [], task.wanted), table)
        with recorded() as reads, FileReader(task.mapped_file.path) as reader:
            for rows in near(task.rows):
                written = maker.make(reader, task.mapped_file, rows)
                whole.topics.update(written.topics)
                whole.size += written.size
                whole.notes += written.notes
                tables += [] if written.table is None else [written.table]
                if sum(item.nbytes for item in tables) >= _TABLE:
                    files += _write(tables, task, len(files))
                    tables.clear()
        if tables:
            files += _write(tables, task, len(files))
        yield task.number, whole, files, Seen(reads)


def _write(tables: list[Any], task: ExportTask, so_far: int) -> list[str]:
    import pyarrow as pa
    from pyarrow import dataset

    table = pa.concat_tables(tables)
    times = table.column("store_time").to_numpy().astype("datetime64[ms]")
    table = table.append_column("day", pa.array(np.datetime_as_string(times, unit="D").astype(object), pa.string()))
    written: list[str] = []
    dataset.write_dataset(
        table, task.folder, format="parquet", basename_template=f"part-{task.number:06d}-{so_far:06d}-{{i}}.parquet",
        partitioning=dataset.partitioning(pa.schema([("topic", pa.string()), ("day", pa.string())]), flavor="hive"),
        file_options=dataset.ParquetFileFormat().make_write_options(compression="zstd"),
        existing_data_behavior="overwrite_or_ignore", max_partitions=_MOST_FOLDERS,
        file_visitor=lambda file: written.append(os.path.relpath(file.path, task.folder)),
    )
    return written
