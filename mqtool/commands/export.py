"""`mqtool export`: messages out of a store, in bulk."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct, structs

from mqtool import exits
from mqtool.declared import FLAG, argument, option
from mqtool.options import BrokerChoice, EngineChoice, command, parse_size
from mqtool.output import Printer, outside_store
from mqtool.predicting import settings_of
from mqtool.progress import Progress
from mqtool.scanning import given_settings
from mqtool.screens import table
from mqtool.shown import Text
from mqtool.text import count, human_size
from recover.findings.refusal import UsageRefusal

if TYPE_CHECKING:
    from recover.export.select import Scanned, Selected, Source, Wanted
    from recover.export.write import Writer
    from recover.store.store import StoreOptions

_WHAT, _HOW, _PARTS = "Which messages (all that are intact, without a filter)", "How", "Parts"
_SHOWN = 20
_STDOUT = Path("-")


class Format(StrEnum):
    """What the messages are written as."""

    ndjson = "ndjson"
    csv = "csv"
    parquet = "parquet"
    raw = "raw"
    store = "store"


class From(Struct, frozen=True, kw_only=True):
    """Where messages come from, and where they go."""

    source: Annotated[list[Path] | None, argument(
        "SOURCE", "Store roots, commitlog folders, or single log files.")] = None
    output: Annotated[Path | None, option(
        "--output", "A new file, or - for stdout; a new folder for a store, and for Parquet from Spark.", _HOW,
        metavar="OUT", short="-o")] = None
    format: Annotated[Format, option("--format", "What to write.", _HOW)] = Format.ndjson
    commitlog: Annotated[list[Path] | None, option(
        "--commitlog", "Commitlog kept elsewhere; repeat for several paths.", _PARTS, metavar="DIR")] = None
    consumequeue: Annotated[Path | None, option(
        "--consumequeue", "Consume queues kept elsewhere.", _PARTS, metavar="DIR")] = None
    mapped_file_size: Annotated[int | None, option(
        "--mapped-file-size", "Length of a commitlog file.", _PARTS, metavar="SIZE", parser=parse_size)] = None

    def options(self) -> StoreOptions:
        """The same for `recover`."""
        from recover.store.store import StoreOptions

        return StoreOptions(commitlog=tuple(self.commitlog or ()), consumequeue=self.consumequeue,
                            mapped_file_size=self.mapped_file_size)


class Filter(Struct, frozen=True, kw_only=True):
    """Which messages of a store."""

    topic: Annotated[str | None, option("--topic", "Topics that fit this pattern.", _WHAT, metavar="GLOB")] = None
    queue: Annotated[int | None, option("--queue", "This queue.", _WHAT, metavar="N", min=0)] = None
    queue_offsets: Annotated[str | None, option(
        "--queue-offsets", "Queue offsets from A up to, not including, B.", _WHAT, metavar="A:B")] = None
    phy_offsets: Annotated[str | None, option(
        "--phy-offsets", "Records that start from A up to, not including, B in the log.", _WHAT,
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
        "--lost-by", "What the start of this broker release would cut from the log.", _WHAT, metavar="V")] = None
    include: Annotated[list[str] | None, option(
        "--include", "stale, superseded, system: these, too; several with commas.", _WHAT, metavar="WHAT")] = None
    limit: Annotated[int, option("--limit", "At most N messages, 0 for all.", _WHAT, metavar="N", min=0)] = 0

    def wanted(self) -> Wanted:
        """The filters as the export takes them; a usage error (16) for one that cannot be read."""
        from recover.export.select import FOREVER, KINDS, Wanted, parse_span, parse_time

        include = frozenset(word.strip() for item in self.include or () for word in item.split(",") if word.strip())
        if unknown := sorted(include - set(KINDS)):
            raise UsageRefusal(f"--include {unknown[0]}: there is no such kind", f"Choose from {', '.join(KINDS)}.")
        pairs = []
        for item in self.properties or ():
            name, equals, value = item.partition("=")
            if not equals or not name:
                raise UsageRefusal(f"--property {item}: write K=V", "For instance --property ORDER=4711.")
            pairs.append((name, value))
        return Wanted(
            topics=() if self.topic is None else (self.topic,), queue=self.queue,
            queue_offsets=parse_span(self.queue_offsets or ":", "--queue-offsets"),
            phy_offsets=parse_span(self.phy_offsets or ":", "--phy-offsets"),
            since=parse_time(self.since, "--since") if self.since else 0,
            until=parse_time(self.until, "--until") if self.until else FOREVER,
            key=self.key, tag=self.tag, msg_id=self.msg_id, properties=tuple(pairs), include=include,
            limit=self.limit,
        )


class Shape(Struct, frozen=True, kw_only=True):
    """What is written of a message, and whether a new file is begun."""

    damaged: Annotated[bool, option(
        "--damaged", "Instead of intact messages what is legible of damaged ones.", _WHAT, metavar=FLAG)] = False
    raw_body: Annotated[bool, option(
        "--raw-body", "Bodies as stored, not decompressed.", _HOW, metavar=FLAG)] = False
    unfold: Annotated[bool, option(
        "--unfold", "The messages inside of a batch, one by one.", _HOW, metavar=FLAG)] = False
    resume: Annotated[bool, option(
        "--resume", "Go on with an NDJSON export that was cut off.", _HOW, metavar=FLAG)] = False


@command(
    examples=[
        ("/data/store -o messages.ndjson", "every intact message, a line each"),
        ("/data/store -o orders.parquet --format parquet --topic 'Order*' --since -2h", "some, as a table"),
        ("/data/store -o lost.ndjson --lost-by 5.3.3", "what the start of a 5.3.3 would cut off"),
        ("/backup/00000000001073741824 -o found.ndjson --key 4711", "out of one log file, without anything else"),
        ("/data/store -o damaged.ndjson --damaged", "what is legible of damaged messages"),
        ("/data/store -o /data/orders --format store --topic 'Order*'", "a store that brokers start on"),
    ],
    bits=(),
)
def run(out: Printer, where: From, broker: BrokerChoice, engine: EngineChoice, which: Filter, shape: Shape) -> int:
    """Write messages out of a store, a commitlog folder or single log files, whatever is broken around them.

    Bodies are decompressed. Delayed and half messages come under their real topic and say so; messages of the brokers'
    own topics come only with --include system. Exit 0: all that could hold a message was read; 8: it was not.
    """
    from recover.export.select import open_sources
    from recover.export.write import Resumed, output_file, writer_for

    target = _target(out, where, which, shape)
    options = structs.replace(where.options(), settings=given_settings(broker), broker=broker.broker)
    run = _Export(out, broker, engine, which, shape, where.format)
    sources = open_sources(where.source or [], options)
    if where.format is Format.store and target is not None:
        return run.write_store(sources, target)
    if where.format is Format.parquet and engine.on_spark and target is not None:
        return run.write_on_spark(sources, target)
    if target is None:
        writer = writer_for(where.format.value, sys.stdout.buffer, Resumed())
        run.write(sources, writer)
        writer.close()
        sys.stdout.buffer.flush()
    else:
        keeps = where.format is Format.ndjson
        try:
            with output_file(target, resume=shape.resume, keeps=keeps) as (stream, left):
                writer = writer_for(where.format.value, stream, left)
                run.write(sources, writer)
                writer.close()
        except exits.Stopped:
            if keeps:
                out.say(f"{target}.part holds what was written so far: the same command with --resume goes on")
            raise
    return run.conclude(target)


def _target(out: Printer, where: From, which: Filter, shape: Shape) -> Path | None:
    """The file to write, None for stdout; a usage error (16) for what cannot go together."""
    if not where.source:
        raise UsageRefusal("no SOURCE", "Name a store, a commitlog folder or log files.")
    if where.output is None:
        raise UsageRefusal("no --output", "Write -o FILE, or -o - for stdout.")
    if shape.resume and where.format is not Format.ndjson:
        raise UsageRefusal(f"--resume with --format {where.format.value}", "Only NDJSON can go on where it ends.")
    if shape.damaged and where.format is Format.raw:
        raise UsageRefusal("--damaged with --format raw", "Choose ndjson, csv or parquet.")
    if where.format is Format.store:
        for wrong, name in (
            (shape.damaged, "--damaged"), (shape.unfold, "--unfold"), (shape.raw_body, "--raw-body"),
            (where.output == _STDOUT, "-o -"), (which.include, "--include"),
        ):
            if wrong:
                raise UsageRefusal(f"{name} with --format store",
                                   "A store takes live records as they are, those of system topics too.")
    if where.output == _STDOUT:
        if out.options.json:
            raise UsageRefusal("-o - with --json", "Both are for stdout: write the messages to a file.")
        if shape.resume:
            raise UsageRefusal("--resume with -o -", "A stream cannot be continued: write to a file.")
        out.answer_on_stderr()
        return None
    outside_store(where.output, where.source)
    return where.output


class Reading:
    """The wanted messages of sources, and what could not be looked at."""

    def __init__(
        self, out: Printer, broker: BrokerChoice, engine: EngineChoice, which: Filter, shape: Shape,
    ) -> None:
        self.out, self.broker, self.engine, self.which = out, broker, engine, which
        self.damaged = shape.damaged
        self.wanted = structs.replace(which.wanted(), raw_body=shape.raw_body, unfold=shape.unfold)
        self.notes: list[str] = []
        self.incomplete = False
        self.damaged_ranges = 0
        self.assumed: list[str] = []
        self._scanned: dict[str, Scanned] = {}

    def all(self, sources: list[Source]) -> Iterator[Selected]:
        """Every wanted message, source by source; a second call does not scan again."""
        left = self.wanted.limit
        for source in sources:
            for item in self._of(source, structs.replace(self.wanted, limit=left)):
                yield item
                if self.wanted.limit:
                    left -= 1
                    if left <= 0:
                        return

    def _of(self, source: Source, wanted: Wanted) -> Iterator[Selected]:
        if self.damaged:
            yield from self._damaged(source)
            return
        from recover.export.select import selected

        scanned, wanted = self.looked_at(source, wanted)
        options = self.out.options
        with Progress("exporting", options.progress, self.out.stderr_console, source.size) as progress:
            yield from selected(scanned, wanted, self.missed, progress)

    def looked_at(self, source: Source, wanted: Wanted) -> tuple[Scanned, Wanted]:
        """The log of a source, and the filters with what they take from it."""
        scanned = self._scanned.get(source.name) or self._scan(source)
        if self.which.lost_by is not None:
            wanted = structs.replace(wanted, cut_at=self._cut_of(source, scanned))
        return scanned, wanted

    def _scan(self, source: Source) -> Scanned:
        from recover.export.select import scan_source
        from recover.store.columns import DEFAULT_MEMORY

        with Progress("scanning", self.out.options.progress, self.out.stderr_console, source.size) as progress:
            scanned = scan_source(
                source, self.engine.scanner(), memory=self.engine.memory or DEFAULT_MEMORY, progress=progress)
        for line in scanned.unread:
            self.missed(line)
        self.damaged_ranges += len(scanned.log.damaged)
        self._scanned[source.name] = scanned
        return scanned

    def _damaged(self, source: Source) -> Iterator[Selected]:
        from recover.check.survey import ScanOptions, survey
        from recover.export.damaged import damaged_messages

        if source.store is None:
            raise UsageRefusal("--damaged of a log alone", "Name the store root: its queues tell what was there.")
        look = survey(source.store, ScanOptions(threads=self.engine.thread_count, engine=self.engine.scanner()))
        self.damaged_ranges += len(look.log.damaged)
        yield from damaged_messages(look)

    def _cut_of(self, source: Source, scanned: Scanned) -> int:
        """Where the start of the release would end the log."""
        from recover.export.select import FOREVER
        from recover.predict.start import predict

        if source.store is None:
            raise UsageRefusal("--lost-by of a log alone", "Name the store root: a start depends on all of it.")
        settings, self.assumed = settings_of(
            source.store, structs.replace(self.broker, broker=self.which.lost_by))
        prediction = predict(source.store, scanned.log, settings, counted=False)
        if not prediction.starts:
            self.out.say(f"Broker {prediction.broker} would not start, and so cut nothing: {prediction.reason}")
            return FOREVER
        return prediction.max_phy

    def missed(self, note: str) -> None:
        """Note what could not be read."""
        self.incomplete = True
        self.notes.append(note)


class _Export(Reading):
    """One export on its way: what went out."""

    def __init__(
        self, out: Printer, broker: BrokerChoice, engine: EngineChoice, which: Filter, shape: Shape, format: Format,
    ) -> None:
        super().__init__(out, broker, engine, which, shape)
        self.format = format
        self.topics: Counter[str] = Counter()
        self.size = 0

    def write(self, sources: list[Source], writer: Writer) -> None:
        """Write what is wanted of every source."""
        if self.format is not Format.raw and not self.damaged and self.wanted.by_rows:
            for source in sources:
                self._write_lines(source, writer)
            return
        for item in self.all(sources):
            self.topics[item.message.topic] += 1
            self.size += item.message.size or 0
            writer.write(item)

    def _write_lines(self, source: Source, writer: Any) -> None:
        from recover.export.write import export_lines

        scanned, wanted = self.looked_at(source, self.wanted)
        with Progress("exporting", self.out.options.progress, self.out.stderr_console, source.size) as progress:
            topics, size = export_lines(scanned, wanted, writer, threads=self.engine.thread_count, note=self.missed,
                                        progress=progress)
        self.topics.update(topics)
        self.size += size

    def write_on_spark(self, sources: list[Source], target: Path) -> int:
        """Have executors write a folder of Parquet files of what is wanted of one source; the exit code."""
        from recover.cluster.export import export_on_spark

        for wrong, what in ((len(sources) != 1, "several sources"), (self.wanted.limit, "--limit"),
                            (self.damaged, "--damaged")):
            if wrong:
                raise UsageRefusal(f"{what} with Parquet written by executors", "Use --engine local.")
        scanned, wanted = self.looked_at(sources[0], self.wanted)
        with Progress("exporting", self.out.options.progress, self.out.stderr_console, sources[0].size) as progress:
            self.topics, self.size = export_on_spark(
                self.engine.spark_settings(), scanned, wanted, target, note=self.missed, progress=progress)
        return self.conclude(target)

    def write_store(self, sources: list[Source], target: Path) -> int:
        """Write a store of what is wanted of one source; the exit code."""
        from formats.record import TOPIC_OP_HALF
        from recover.check.survey import ScanOptions
        from recover.repair.new_store import write_store

        if len(sources) != 1:
            raise UsageRefusal("several sources with --format store", "Two logs have the same offsets: take one.")
        scanned, wanted = self.looked_at(sources[0], self.wanted)
        # without what brokers noted of transactions, those that are settled would be asked about once more
        topics = (*wanted.topics, TOPIC_OP_HALF) if wanted.topics else ()
        wanted = structs.replace(wanted, include=wanted.include | {"system"}, topics=topics)
        with (
            Progress("exporting", self.out.options.progress, self.out.stderr_console, sources[0].size) as progress,
            exits.between_steps() as interrupted,
        ):
            made = write_store(
                scanned, wanted, target,
                ScanOptions(threads=self.engine.thread_count, settings=given_settings(self.broker)),
                note=self.missed, progress=progress, interrupted=interrupted,
            )
        self.topics, self.size = made.topics, made.size
        if made.bridged:
            self.notes.append(f"{count(made.bridged, 'place')} of messages that are left out or lost: markers keep "
                              "them, and consumers get the message before once more")
        self.out.answer(bridged=made.bridged, verify={**made.report.json(), "exit_code": made.report.exit_code})
        return self.conclude(target)

    def conclude(self, target: Path | None) -> int:
        """The document, the counts and the exit code."""
        total = self.topics.total()
        if self.damaged_ranges and not self.damaged:
            self.notes.append(f"{count(self.damaged_ranges, 'damaged range')} of the log: --damaged exports what is "
                              "legible there")
        self.out.answer(
            output=None if target is None else str(target), format=self.format.value, messages=total, bytes=self.size,
            topics=dict(sorted(self.topics.items())), complete=not self.incomplete, notes=self.notes,
            damaged_ranges=self.damaged_ranges, assumptions=self.assumed,
        )
        rows = self.topics.most_common(_SHOWN)
        if rows:
            self.out.show(table("messages by topic", ["topic", ">messages"], rows))
        if len(self.topics) > _SHOWN:
            self.out.show(Text(f"… and {count(len(self.topics) - _SHOWN, 'more topic')}: --json lists all"))
        for note in self.notes:
            self.out.say(note)
        place = "stdout" if target is None else str(target)
        self.out.summary(f"{count(total, 'message')} ({human_size(self.size)} of log) written to {place}"
                         + (", but NOT everything could be read" if self.incomplete else ""))
        return exits.OPERATIONAL if self.incomplete else exits.CLEAN
