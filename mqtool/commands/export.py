"""`mqtool export`: bulk export of messages from a store."""

from __future__ import annotations

import fnmatch
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from msgspec import Struct, structs

from formats.record import TOPIC_OP_HALF
from formats.record.message import TOPIC_ROCKSDB_OP_HALF
from mqtool import exits
from mqtool.next_steps import Given, Step
from mqtool.options import (
    PARTS,
    BrokerChoice,
    EngineChoice,
    PartsChoice,
    argument,
    command,
    flag,
    option,
    parse_size,
    refuse_first,
)
from mqtool.printer import Printer, outside_store, table
from mqtool.text import count, human_size
from mqtool.words import N_, _
from recover.export.damaged import damaged_messages
from recover.export.joined import joined
from recover.export.messages import Counts, count_key
from recover.export.select import (
    FOREVER,
    KINDS,
    Choice,
    Selected,
    Wanted,
    identities,
    marks_of,
    parse_span,
    parse_times,
    selected,
)
from recover.export.sources import Scanned, Source, open_sources, scan_source
from recover.export.write import Csv, Ndjson, Resumed, Table, Writer, export_lines, output_file, writer_for
from recover.findings.code import UsageRefusal
from recover.findings.model import Phrase, shell_line
from recover.log.scan import LocalEngine
from recover.look.query import nearest, unread_notes
from recover.look.store import settings_of
from recover.predict.start import predict
from recover.reading.doubts import read
from recover.reading.facts import Facts, ScanOptions
from recover.repair.losses import assumptions_of
from recover.repair.new_store import write_store
from recover.store.columns import DEFAULT_MEMORY
from recover.store.config_files import topic_text
from recover.store.source import is_remote, remote_root, url_of
from recover.store.store import StoreOptions

if TYPE_CHECKING:
    from recover.cluster.tables import FileRow

_WHAT, _HOW = "Which messages (default: all intact ones)", "How"
_SHOWN = 20
_NOTED = 1000
_STDOUT = Path("-")


class ExportSources(PartsChoice, frozen=True, kw_only=True):
    """Sources of messages, and the output."""

    source: Annotated[list[str] | None, argument(
        "SOURCE", "Store roots, commitlog folders, single log files, disk images.")] = None
    output: Annotated[Path | None, option(
        "--output", "A new file, or - for stdout; a new folder for a store, and for Parquet from Spark.", _HOW,
        metavar="OUT", short="-o")] = None
    into: Annotated[str | None, option(
        "--into", "Bring a table up to date from Spark: NAME in its catalog, or a folder, named with a slash.", _HOW,
        metavar="TABLE")] = None
    given_format: Annotated[Literal["ndjson", "csv", "parquet", "raw", "store"] | None, option(
        "--format", "Output format (default: csv or parquet by the file's name, else ndjson).", _HOW)] = None
    mapped_file_size: Annotated[int | None, option(
        "--mapped-file-size", "Length of a commitlog file.", PARTS, metavar="SIZE", parser=parse_size)] = None

    @property
    def places(self) -> list[Path]:
        """The sources; those on s3:// and hdfs:// are read where they are."""
        return [remote_root(place) if is_remote(place) else Path(place) for place in self.source or ()]

    @property
    def format(self) -> str:
        """The format that was named, else that of the output's name."""
        ending = "" if self.output is None else self.output.suffix.lower().removeprefix(".")
        return self.given_format or (ending if ending in ("csv", "parquet") else "ndjson")


class Filter(Struct, frozen=True, kw_only=True):
    """Filters of messages."""

    topic: Annotated[str | None, option("--topic", "Topics that match this pattern.", _WHAT, metavar="GLOB")] = None
    queue: Annotated[int | None, option("--queue", "This queue.", _WHAT, metavar="N", min=0)] = None
    queue_offsets: Annotated[str | None, option(
        "--queue-offsets", "Queue offsets from A up to, not including, B.", _WHAT, metavar="A:B")] = None
    phy_offsets: Annotated[str | None, option(
        "--phy-offsets", "Records that start at log offsets from A up to, not including, B.", _WHAT,
        metavar="A:B")] = None
    since: Annotated[str | None, option(
        "--since", "Stored at or after: ISO 8601 with its zone, ms, or -2h for two hours ago.", _WHAT,
        metavar="T")] = None
    until: Annotated[str | None, option("--until", "Stored before.", _WHAT, metavar="T")] = None
    key: Annotated[str | None, option("--key", "With this key or unique key.", _WHAT, metavar="K")] = None
    tag: Annotated[str | None, option("--tag", "With this tag.", _WHAT, metavar="T")] = None
    msg_id: Annotated[str | None, option("--msg-id", "With this id or unique key.", _WHAT, metavar="ID")] = None
    properties: Annotated[list[str] | None, option(
        "--property", "With this property; repeat for several.", _WHAT, metavar="K=V")] = None
    lost_by: Annotated[str | None, option(
        "--lost-by", "Messages that a start of this broker release would cut off.", _WHAT, metavar="V")] = None
    include: Annotated[list[str] | None, option(
        "--include", "Also stale, superseded or system messages, or copies; separate several with commas.", _WHAT,
        metavar="WHAT")] = None
    limit: Annotated[int, option("--limit", "At most N messages, 0 for all.", _WHAT, metavar="N", min=0)] = 0

    def wanted(self) -> Wanted:
        """The filters as `recover` takes them; a usage error (16) for an invalid one."""
        since, until = parse_times(self.since, self.until)
        return Wanted(
            topics=() if self.topic is None else (self.topic,), queue=self.queue,
            queue_offsets=parse_span(self.queue_offsets or ":", "--queue-offsets"),
            phy_offsets=parse_span(self.phy_offsets or ":", "--phy-offsets"),
            since=since, until=until, key=self.key, tag=self.tag, msg_id=self.msg_id,
            properties=tuple(parse_pairs(self.properties, "--property", "K=V", "ORDER=4711")),
            include=parse_kinds(self.include, "--include", KINDS), limit=min(self.limit, FOREVER),
        )


def parse_kinds(given: list[str] | None, name: str, known: tuple[str, ...]) -> frozenset[str]:
    """The words of an option that takes several, with commas or repeated; a usage error (16) for an unknown one."""
    kinds = frozenset(word.strip() for item in given or () for word in item.split(",") if word.strip())
    if unknown := sorted(kinds - set(known)):
        raise UsageRefusal(Phrase("{name} {kind}: there is no such kind", name=name, kind=unknown[0]),
                           Phrase("Choose from {known}.", known=tuple(known)))
    return kinds


def parse_pairs(given: list[str] | None, name: str, form: str, example: str) -> Iterator[tuple[str, str]]:
    """The pairs of an option of the form K=V; a usage error (16) for one without a name or `=`."""
    for item in given or ():
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise UsageRefusal(Phrase("{name} {item}: write {form}", name=name, item=item, form=form),
                               Phrase("For instance {name} {example}.", name=name, example=example))
        yield key, value


class ExportForm(Struct, frozen=True, kw_only=True):
    """The form of exported messages, and whether an export is resumed."""

    damaged: Annotated[bool, flag(
        "--damaged", "The legible parts of damaged messages instead of intact ones.", _WHAT)] = False
    raw_body: Annotated[bool, flag("--raw-body", "Bodies as stored, not decompressed.", _HOW)] = False
    unfold: Annotated[bool, flag("--unfold", "Export the messages of a batch one by one.", _HOW)] = False
    resume: Annotated[bool, flag("--resume", "Continue an interrupted NDJSON export.", _HOW)] = False
    force: Annotated[bool, flag(
        "--force", "Write other forms than NDJSON to a terminal, which obeys control characters.", _HOW)] = False


@command(
    examples=[
        ("/data/store -o messages.ndjson", "every intact message, a line each"),
        ("/data/store -o orders.parquet --format parquet --topic 'Order*' --since -2h", "some, as a table"),
        ("/data/store -o lost.ndjson --lost-by 5.3.3", "what a start of 5.3.3 would cut off"),
        ("/backup/00000000001073741824 -o found.ndjson --key 4711", "from a single log file"),
        ("/backup/disk.img -o found.ndjson", "from an image of a disk whose file system is lost"),
        ("/data/store -o damaged.ndjson --damaged", "the legible parts of damaged messages"),
        ("/data/store -o /data/orders --format store --topic 'Order*'", "a store that brokers start on"),
        ("'/backups/*/store' --into lake.rocketmq.messages", "a table of all stores: what is new since the last run"),
    ],
)
def export(
    out: Printer, where: ExportSources, broker: BrokerChoice, engine: EngineChoice, which: Filter, shape: ExportForm
) -> int:
    """Export messages from a store, a commitlog folder, single log files or a disk image, whatever else is damaged.

    Bodies are decompressed. Delayed and half messages are exported under their real topic and marked; messages of
    system topics only with --include system. Exit 0: everything that could hold a message was read; 8: it was not.
    """
    if not where.source and broker.store:
        where = structs.replace(where, source=[broker.store])
    if where.into is not None:
        return _into(out, where, broker, engine, which, shape)
    target = _target(out, where, which, shape)
    run = _Export(out, broker, engine, which, shape)
    options = structs.replace(where.options(), mapped_file_size=where.mapped_file_size)
    # a configuration does not tell whose log is in its folders if there are several sources
    options = broker.applied(where.places[0], options) if len(where.places) == 1 else structs.replace(
        options, settings=broker.given(), broker=broker.broker)
    sources = open_sources(where.places, options, live=not engine.on_spark)
    if len(sources) == 1 and sources[0].store is not None:
        store = url_of(where.places[0]) or str(where.places[0])
        out.given = Given.of_values(store, {**structs.asdict(where), **structs.asdict(broker)})
    if engine.on_spark and any(source.in_pieces for source in sources):
        if engine.engine == "spark" or engine.master is not None:
            raise UsageRefusal("images and pieces of log files on Spark", "Use --engine local.")
        engine = run.engine = structs.replace(engine, engine="local")
    run.several = len(sources) > 1
    _write(run, sources, target, where, shape)
    return run.conclude(target, where.format)


def _write(run: _Export, sources: list[Source], target: Path | None, where: ExportSources, shape: ExportForm) -> None:
    """Write the messages in the form that was asked for: a store, a folder of files by executors, a stream, a file."""
    if where.format == "store" and target is not None:
        run.write_store(sources, target, where.mapped_file_size)
    elif where.format == "parquet" and run.engine.on_spark and target is not None:
        run.write_on_spark(sources, target)
    elif target is None:
        writer = writer_for(where.format, sys.stdout.buffer, Resumed())
        run.write(sources, writer)
        writer.close()
        sys.stdout.buffer.flush()
    else:
        keeps = where.format == "ndjson"
        try:
            with output_file(target, resume=shape.resume, keeps=keeps) as (stream, left):
                writer = writer_for(where.format, stream, left)
                run.write(sources, writer)
                writer.close()
        except exits.Stopped:
            if keeps:
                run.out.say(_("{file}.part holds the export so far: the same command with --resume continues it")
                            .format(file=target))
            raise


def _target(out: Printer, where: ExportSources, which: Filter, shape: ExportForm) -> Path | None:
    """The file to write, None for stdout; a usage error (16) for options that do not go together."""
    if not where.source:
        raise UsageRefusal("no SOURCE", "Name a store, a commitlog folder or log files.")
    if where.output is None:
        raise UsageRefusal("no --output", "Write -o FILE, or -o - for stdout.")
    to_stdout, store = where.output == _STDOUT, "A store holds live records unchanged, those of system topics included."
    refuse_first((
        (shape.resume and where.format != "ndjson", Phrase("--resume with --format {format}", format=where.format),
         N_("Only NDJSON can be resumed.")),
        (shape.damaged and where.format == "raw", N_("--damaged with --format raw"),
         N_("Choose ndjson, csv or parquet.")),
        *((where.format == "store" and wrong, Phrase("{name} with --format store", name=name), store)
          for wrong, name in (
            (shape.damaged, "--damaged"), (shape.unfold, "--unfold"), (shape.raw_body, "--raw-body"),
            (to_stdout, "-o -"), (which.include, "--include"))),
        (shape.damaged and which.lost_by, N_("--damaged with --lost-by"),
         N_("A start cuts intact messages: leave out one.")),
        (to_stdout and out.options.json, N_("-o - with --json"),
         N_("Both are for stdout: write the messages to a file.")),
        (to_stdout and where.format != "ndjson" and not shape.force and sys.stdout.isatty(),
         Phrase("--format {format} to a terminal, which obeys the control characters of messages", format=where.format),
         N_("Redirect stdout, choose ndjson, or add --force.")),
        (to_stdout and shape.resume, N_("--resume with -o -"), N_("A stream cannot be continued: write to a file.")),
    ))
    if to_stdout:
        out.answer_on_stderr()
        return None
    outside_store(where.output, [place for place in where.places if url_of(place) is None])
    return where.output


def _into(
    out: Printer, where: ExportSources, broker: BrokerChoice, engine: EngineChoice, which: Filter, shape: ExportForm
) -> int:
    """Bring a table up to date with the logs of some stores; the rows are those of the source rocketmq-commitlog."""
    table_of = N_("A table is as its logs are: only --topic and --raw-body choose what it holds.")
    left = structs.replace(which, topic=None), structs.replace(shape, raw_body=False), broker
    refuse_first((
        (not where.source, N_("no SOURCE"), N_("Name stores, or quoted patterns of stores.")),
        (where.output is not None or where.given_format, N_("--into with --output or --format"), N_("Leave one out.")),
        (engine.engine == "local", N_("--into with --engine local"),
         N_("Executors write the table: leave it out.")),
        (any(item != type(item)() for item in left), N_("--into with a filter or a setting of the broker"), table_of),
        (where.options() != StoreOptions() or where.mapped_file_size, N_("--into with parts kept elsewhere"),
         N_("Links may lead to them.")),
    ))
    assert where.into is not None
    from recover.cluster.fleet import named_stores
    from recover.cluster.tables import export_into

    places = named_stores(where.source or ())
    if "/" in where.into:
        outside_store(Path(where.into), [Path(place) for place in places if not is_remote(place)])
    made = export_into(places, where.into, settings=engine.spark_settings(), topic=which.topic,
                       with_body=shape.raw_body, note=out.say)
    stores = [_store_row(place, [row for row in made.files if row.store == place]) for place in places]
    messages, size = made.topics.total(), sum(row.bytes for row in made.read)
    out.answer(into=where.into, run=made.run, output=None, format="table", messages=messages, bytes=size,
               topics=dict(sorted(made.topics.items())), kinds={}, stores=stores, complete=True, notes=[],
               damaged_ranges=None, assumptions=[])
    columns = ["*store", ">files read", ">unchanged", ">messages read", ">messages", ">checksum fails"]
    out.show(table("stores", columns, [tuple(row.values()) for row in stores], _SHOWN, len(stores)))
    out.summary(_("{messages} ({size} of log) of {files} written to {place}; {n:,} unchanged and not read").format(
        messages=count(messages, "message"), size=human_size(size), files=count(len(made.read), "log file"),
        place=where.into, n=len(made.files) - len(made.read)), clean=False)
    return exits.CLEAN


def _store_row(place: str, rows: list[FileRow]) -> dict[str, Any]:
    """What a run read of the log files of a store, and what the table holds of them."""
    read = [row for row in rows if row.read]
    return {
        "store": place, "files_read": len(read), "files_unchanged": len(rows) - len(read),
        "messages_read": sum(row.messages for row in read), "messages": sum(row.messages for row in rows),
        "bad_crc": sum(row.bad_crc for row in rows),
    }


class Reading:
    """The wanted messages of the sources, and notes about what could not be read."""

    def __init__(
        self, out: Printer, broker: BrokerChoice, engine: EngineChoice, which: Filter, shape: ExportForm,
    ) -> None:
        self.out, self.broker, self.engine, self.lost_by = out, broker, engine, which.lost_by
        self.damaged = shape.damaged
        self.wanted = structs.replace(which.wanted(), raw_body=shape.raw_body, unfold=shape.unfold)
        self.notes: list[str] = []
        self.incomplete = False
        self.damaged_ranges = 0
        self.assumed: list[str] = []
        self._scanned: dict[str, Scanned] = {}
        self._known: list[Any] = []
        self.several = False  # sources may have copies of each other's messages
        self.counts: Counts = Counter()  # what an export has written
        self.size = 0

    def all(self, sources: list[Source]) -> Iterator[Selected]:
        """Yield every wanted message, source by source; a second call does not scan again."""
        return islice(chain.from_iterable(map(self._of, sources)), self.wanted.limit or None)

    def _of(self, source: Source) -> Iterator[Selected]:
        if self.damaged:
            if source.store is None:
                raise UsageRefusal("--damaged needs a store", "Name the store root: its queues show what was there.")
            analysis = read(Facts.of(source.store, ScanOptions(engine=self.engine.scanner(self.out, source.size))))
            for line in unread_notes(source.store):
                self.missed(line)
            self.damaged_ranges += len(analysis.log.damaged)
            choice = Choice((), (), self.wanted)
            yield from (item for item in damaged_messages(analysis) if choice.fits(item.message, item.message))
            return
        scanned, wanted = self.scanned_source(source)
        with self.out.progress("exporting", source.size) as progress:
            yield from selected(scanned, wanted, self.missed, progress)

    def scanned_source(self, source: Source) -> tuple[Scanned, Wanted]:
        """The log of a source, scanned once, and the filters for it."""
        if source.name not in self._scanned:
            scanner = self.engine.scanner(self.out, source.size)
            with self.out.progress("scanning", source.size) as progress:
                self._scanned[source.name] = scan_source(
                    source, scanner, memory=self.engine.memory or DEFAULT_MEMORY, progress=progress)
            for line in self._scanned[source.name].unread:
                self.missed(line)
            self._known_of(source.name)
            self.damaged_ranges += len(self._scanned[source.name].log.damaged)
        scanned = self._scanned[source.name]
        if self.lost_by is None:
            return scanned, self.wanted
        return scanned, structs.replace(self.wanted, cut_at=self._cut_of(source, scanned))

    def _known_of(self, name: str) -> None:
        """Tell a source what the earlier ones have, so that a message of several counts once."""
        scanned = self._scanned[name]
        self._scanned[name] = scanned._replace(earlier=tuple(self._known))
        if self.several:
            marks = marks_of(scanned.log.queues)
            parts = [identities(split.records, marks) for split in scanned.log.splits() if split.size]
            self._known.append(np.sort(np.concatenate([np.empty(0, dtype=np.uint64), *parts])))

    def _cut_of(self, source: Source, scanned: Scanned) -> int:
        """Where the start of the release would end the log."""
        if source.store is None:
            raise UsageRefusal("--lost-by needs a store", "Name the store root: a start depends on all of it.")
        broker = structs.replace(self.broker, broker=self.lost_by)
        settings, self.assumed = settings_of(source.store, *broker.said)
        prediction = predict(source.store, scanned.by_names, settings, counted=False, rights=False)
        if not prediction.starts:
            self.out.say(_("Broker {broker} would not start and therefore cut nothing: {reason}").format(
                broker=prediction.broker, reason=prediction.reason))
            return FOREVER
        return prediction.cut_at

    def stores(self) -> list[str]:
        return [name for name, scanned in self._scanned.items() if scanned.source.store is not None]

    def missed(self, note: str) -> None:
        self.incomplete = True
        if len(self.notes) < _NOTED and note not in self.notes:
            self.notes.append(note if len(self.notes) < _NOTED - 1 else N_("further ranges and records are not listed"))


class _Export(Reading):
    """One export in progress."""

    def write(self, sources: list[Source], writer: Writer) -> None:
        if isinstance(writer, (Ndjson, Csv, Table)) and not self.damaged and self.wanted.by_rows:
            for source in sources:
                scanned, wanted = self.scanned_source(source)
                with self.out.progress("exporting", source.size) as progress:
                    topics, size = export_lines(scanned, wanted, writer, threads=self.engine.thread_count,
                                                note=self.missed, progress=progress)
                self.counts.update(topics)
                self.size += size
            return
        for item in self.all(sources):
            self.counts[count_key(item.message)] += 1
            self.size += item.message.size or 0
            writer.write(item)

    def write_on_spark(self, sources: list[Source], target: Path) -> None:
        """Have executors write a folder of Parquet files with the wanted messages of one source."""
        from recover.cluster.export import export_on_spark

        for wrong, what in ((len(sources) != 1, "several sources"), (self.wanted.limit, "--limit"),
                            (self.damaged, "--damaged")):
            if wrong:
                raise UsageRefusal(Phrase("{what} with Parquet written by executors", what=what), "Use --engine local.")
        scanned, wanted = self.scanned_source(sources[0])
        with self.out.progress("exporting", sources[0].size) as progress:
            self.counts, self.size = export_on_spark(
                self.engine.spark_settings(), scanned, wanted, target, note=self.missed, progress=progress)

    def joined(self, pieces: list[Scanned], mapped_file_size: int | None) -> Scanned:
        """The log that these pieces make; says what is assumed and what is left out."""
        scanned, is_guess, left = joined(
            pieces, mapped_file_size or 0, memory=self.engine.memory or DEFAULT_MEMORY)
        if is_guess:
            size = Phrase("--mapped-file-size {size}: a log file has that length", size=scanned.log.queue.file_size)
            self.assumed.append(size)
            self.notes.append(Phrase("assumed: {what}", what=size))
        if left:
            self.missed(Phrase("{left:record} claim places that others claim, too, and are left out", left=left))
        return scanned

    def write_store(self, sources: list[Source], target: Path, mapped_file_size: int | None) -> None:
        """Write a store of the wanted messages of one source, or of the log that pieces make."""
        if len(sources) == 1 and not sources[0].in_pieces:
            scanned, wanted = self.scanned_source(sources[0])
        elif any(source.store is not None for source in sources):
            raise UsageRefusal("several sources with --format store, and one of them is a store",
                               "Name the store alone: `mqtool recover` with --from takes from other copies of its log.")
        else:
            pieces = [self.scanned_source(source)[0] for source in sources]
            wanted = self.scanned_source(sources[0])[1]
            scanned = self.joined(pieces, mapped_file_size)
        # without the op messages a broker would check settled transactions once more
        topics = (*wanted.topics, TOPIC_OP_HALF, TOPIC_ROCKSDB_OP_HALF) if wanted.topics else ()
        wanted = structs.replace(wanted, include=wanted.include | {"system"}, topics=topics)
        scan = ScanOptions(engine=LocalEngine(self.engine.thread_count))
        with self.out.progress("exporting", sources[0].size) as progress, exits.between_steps() as interrupted:
            made = write_store(scanned, wanted, target, scan, self.broker.given(), note=self.missed,
                               progress=progress, interrupted=interrupted)
        self.damaged_ranges = len(scanned.log.damaged)
        self.counts, self.size = made.topics, made.size
        if made.bridged:
            self.notes.append(_("{places} of left-out or lost messages: markers keep them, and consumers get the "
                                "previous message again").format(places=count(made.bridged, "place")))
        if made.batch:
            self.notes.append(Phrase(
                "the first start of a broker writes the batch queues of {topics}: abort, and no checkpoint, have it "
                "read the whole log (from 5.4.0 on at most commitLogRecoverMaxNum files of it, 10 by default)",
                topics=tuple(made.batch)))
        self.assumed += (assumed := assumptions_of(made.assumed_settings))
        self.notes += assumed
        self.out.answer(bridged=made.bridged, assumed_settings=made.assumed_settings,
                        verify={**made.report.json(), "exit_code": made.report.exit_code})

    def _unknown_topics(self, written: Collection[str]) -> list[Step]:
        """Note each --topic that matches nothing; return the step that lists the topics."""
        known = {topic_text(topic) for scanned in self._scanned.values() for topic, _ in scanned.log.queues}
        known.update(written)
        steps: list[Step] = []
        for pattern in self.wanted.topics:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in known):
                self.notes.append(Phrase("the log holds no message of a topic that matches {pattern}{near}",
                                         pattern=pattern, near=nearest(pattern, known)))
                steps = [Step(f"mqtool inspect {shell_line(name)}", "lists the topics")
                         for name in self.stores()]
        return steps

    def conclude(self, target: Path | None, form: str) -> int:
        total = self.counts.total()
        topics: dict[str, dict[str, int]] = {}
        for (topic, kind), number in sorted(self.counts.items()):
            topics.setdefault(topic, {})[kind] = number
        steps = self._unknown_topics(topics)
        if self.damaged_ranges and not self.damaged:
            more = N_("--damaged exports the legible parts") if self.stores() else N_("no intact record is there")
            self.notes.append(_("{ranges} of the log: {more}").format(
                ranges=count(self.damaged_ranges, "damaged range"), more=_(more)))
        self.out.answer(
            output=None if target is None else str(target), format=form, messages=total, bytes=self.size,
            topics={topic: sum(kinds.values()) for topic, kinds in topics.items()}, kinds=topics,
            complete=not self.incomplete, notes=self.notes,
            damaged_ranges=self.damaged_ranges, assumptions=self.assumed,
        )
        if topics:
            kinds = sorted({kind for _, kind in self.counts}, key=lambda kind: (kind != "ordinary", kind))
            most_first = sorted(topics, key=lambda topic: -sum(topics[topic].values()))
            rows = [(topic, *(topics[topic].get(kind, 0) for kind in kinds)) for topic in most_first]
            self.out.show(table("messages by topic", ["topic", *(f">{kind}" for kind in kinds)], rows, most=_SHOWN))
        self.out.say(*self.notes)
        line = _("{messages} ({size} of log) written to {place}").format(
            messages=count(total, "message"), size=human_size(self.size), place=target or "stdout")
        self.out.summary(line + (_(", but NOT everything could be read") if self.incomplete else ""), steps,
                         clean=False)
        return exits.OPERATIONAL if self.incomplete else exits.CLEAN
