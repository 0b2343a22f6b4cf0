"""The options that commands share, each declared once for typer, and the decorator that makes a function a command.

A command is a function of a `Printer`, of groups of options (the structs below) and of `Annotated` options of its own.
The decorator flattens the groups into the parameters that typer reads, rebuilds them for the call, and ends every
command through the printer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_type_hints

import typer
from msgspec import Struct, structs

from mqtool import exits
from mqtool.declared import OutputOptions, argument, flag, option, parse_size
from mqtool.next_steps import NOTHING_GIVEN, Given
from mqtool.printer import Printer, outside_store
from mqtool.text import count, human_seconds, human_size
from mqtool.words import N_, _
from recover.findings.code import Refusal, UsageRefusal
from recover.findings.model import READS, Phrase, shell_line, without_secrets

if TYPE_CHECKING:
    from recover.cluster.session import SparkSettings
    from recover.log.scan import Engine, KnownLog
    from recover.reading.facts import ScanOptions
    from recover.store.store import Store, StoreOptions

PARTS, BROKER, _ENGINE = "Parts and sizes (inferred where not given)", "Broker settings", "Engine"
CHANGE = "Before anything is changed"
_GENTLE = 15
_LEAST_RATE = 64 << 10
"""Bytes a second: one read takes 16 s at this rate."""
LEAST_MEMORY = 1 << 20
"""Bytes: with fewer, a process takes as much as with so many."""
HAND_OVER = 256 << 30
"""Bytes of log from which the local engine recommends a cluster. One machine scans less within minutes."""


# --- the store, and the broker settings -----------------------------------------------------------


def log_folders(root: Path, settings: Mapping[str, str]) -> tuple[Path, ...]:
    """The commitlog's folders according to the settings (MessageStoreConfig); empty if it is only the store's own. In a
    copy, folders below the configured root are taken below its own root."""
    from recover.broker.settings import log_folder_names

    home = settings.get("storePathRootDir", "").strip()
    folders: list[Path] = []
    for folder in map(Path, log_folder_names(settings)):
        folders.append(root / folder.relative_to(home) if home and folder.is_relative_to(home) else folder)
    if home and Path(home).absolute() != root.absolute() and (root / "commitlog").is_dir():
        folders = [folder for folder in folders if folder.is_relative_to(root)]
    return () if folders == [root / "commitlog"] else tuple(dict.fromkeys(folders))


class BrokerChoice(Struct, frozen=True, kw_only=True):
    """The broker whose rules apply: a version and its settings."""

    broker: Annotated[str | None, option(
        "--broker", "Broker version, such as 5.3.3 (default: inferred from the store).", BROKER, metavar="V")] = None
    broker_conf: Annotated[Path | None, option(
        "--broker-conf", "The broker's own configuration file.", BROKER, metavar="FILE")] = None
    settings: Annotated[list[str] | None, option(
        "--set", "One broker setting; repeat for several.", BROKER, metavar="KEY=VALUE")] = None

    @property
    def said(self) -> tuple[str | None, Path | None, list[str]]:
        return self.broker, self.broker_conf, self.settings or []

    def given(self) -> dict[str, str]:
        """The settings of --broker-conf and --set, by the broker's own names."""
        if not (self.broker_conf or self.settings):
            return {}
        from recover.broker.settings import load_settings
        from recover.broker.versions import NEWEST_COMPARED

        return dict(load_settings(NEWEST_COMPARED, self.broker_conf, self.settings or ()).given)

    @property
    def store(self) -> str:
        """The store root according to the settings; "" if they name none."""
        return self.given().get("storePathRootDir", "").strip()

    def applied(self, root: Path, options: StoreOptions) -> StoreOptions:
        """The options of the store at `root` with version, settings, and the log folders of these if none is given."""
        settings = self.given()
        options = structs.replace(options, settings=settings, broker=self.broker, conf=str(self.broker_conf or ""))
        folders = () if options.commitlog else log_folders(root, settings)
        return structs.replace(options, commitlog=folders, log_of_conf=True) if folders else options


class PartsChoice(Struct, frozen=True, kw_only=True):
    """Parts of a store that are kept elsewhere."""

    commitlog: Annotated[list[Path] | None, option(
        "--commitlog", "Commitlog kept elsewhere; repeat for several paths.", PARTS, metavar="DIR")] = None
    consumequeue: Annotated[Path | None, option(
        "--consumequeue", "Consume queues kept elsewhere.", PARTS, metavar="DIR")] = None
    index: Annotated[Path | None, option("--index", "Index files kept elsewhere.", PARTS, metavar="DIR")] = None

    @property
    def parts(self) -> list[Path]:
        return [*(self.commitlog or ()), *(path for path in (self.consumequeue, self.index) if path is not None)]

    def options(self) -> StoreOptions:
        """The options in the form that `recover` takes."""
        from recover.store.store import StoreOptions

        return StoreOptions(commitlog=tuple(self.commitlog or ()), consumequeue=self.consumequeue, index=self.index)


class StoreChoice(PartsChoice, frozen=True, kw_only=True):
    """The store, sizes that its files may not determine, and the broker whose rules apply to it."""

    store: Annotated[str, argument(
        "STORE", "Store root: the folder that holds commitlog/ (default: from --broker-conf).")] = ""
    mapped_file_size: Annotated[int | None, option(
        "--mapped-file-size", "Length of a commitlog file.", PARTS, metavar="SIZE", parser=parse_size)] = None
    index_slots: Annotated[int | None, option(
        "--index-slots", "Hash slots of an index file.", PARTS, metavar="N", min=1)] = None
    index_entries: Annotated[int | None, option(
        "--index-entries", "Entries of an index file.", PARTS, metavar="N", min=1)] = None
    broker: BrokerChoice = BrokerChoice()

    @property
    def root(self) -> Path:
        """The store root; one on s3:// or hdfs:// is read where it is."""
        if "://" not in self.store:
            return Path(self.store)
        from recover.store.source import is_remote, remote_root

        return remote_root(self.store) if is_remote(self.store) else Path(self.store)

    def options(self) -> StoreOptions:
        """The options in the form that `recover` takes; version and settings apply where no file decides."""
        return self.broker.applied(self.root, structs.replace(
            super().options(), mapped_file_size=self.mapped_file_size, index_slots=self.index_slots,
            index_entries=self.index_entries,
        ))

    def open(self) -> Store:
        """Open the store; `NotAStore` (16) if there is none."""
        from recover.store.store import Store

        return Store.open(self.root, self.options())

    def settled(self, engine: EngineChoice) -> Store:
        """Open the store for a scan: frozen as it is now if a broker writes to it and this process scans."""
        from recover.look.live import settled

        return self.open() if engine.on_spark else settled(self.open())


# --- the engine ----------------------------------------------------------------------------------


class EngineChoice(Struct, frozen=True, kw_only=True):
    """The scan engine and its resources."""

    engine: Annotated[Literal["auto", "local", "spark"], option(
        "--engine", "Scan engine; auto is local, unless a master is given or a Spark is there.", _ENGINE)] = "auto"
    threads: Annotated[int | None, option(
        "--threads", "Threads (default: one per core).", _ENGINE, metavar="N", min=1)] = None
    memory: Annotated[int | None, option(
        "--memory", "Upper bound for a scan's rows in memory, at least 1M (default: 256M). A verify takes 80 MB beside "
        "them, and 10 MB for each further thread.", _ENGINE, metavar="SIZE", parser=parse_size)] = None
    rate_limit: Annotated[int | None, option(
        "--rate-limit", "Read log and index no faster than this per second (local engine).",
        _ENGINE, metavar="SIZE", parser=parse_size)] = None
    nice: Annotated[bool, flag("--nice", "Run at low CPU priority.", _ENGINE)] = False
    master: Annotated[str | None, option(
        "--master", "Spark master: local[N], spark://HOST:PORT, yarn, k8s://HOST:PORT, for reading also sc://HOST:PORT.",
        _ENGINE, metavar="URL")] = None
    conf: Annotated[list[str] | None, option(
        "--conf", "One Spark setting; repeat for several.", _ENGINE, metavar="K=V")] = None
    estimate: Annotated[bool, flag(
        "--estimate", "Only say what this would take on Spark: bytes, tasks, seconds of a core.", _ENGINE)] = False
    price: Annotated[float | None, option(
        "--price", "What an hour of a core costs, for --estimate and for what a run on Spark took.", _ENGINE,
        metavar="P", min=0)] = None

    @property
    def thread_count(self) -> int:
        return self.threads or len(os.sched_getaffinity(0))

    @property
    def on_spark(self) -> bool:
        """Whether executors scan: requested, or implied by a master or a Spark that is already there."""
        return self.engine == "spark" or (self.engine == "auto" and (self.master is not None or _is_spark_there()))

    def check(self, command: str) -> None:
        """Usage error (16) for options that contradict each other, that Spark does not know, or with which a command
        would not end; `Refusal` (8) for a changing command on a Spark Connect server."""
        if self.rate_limit is not None and self.rate_limit < _LEAST_RATE:
            raise UsageRefusal(Phrase("--rate-limit {rate_limit}: at least {least} a second is needed",
                                      rate_limit=self.rate_limit, least=human_size(_LEAST_RATE)),
                               "Write bytes a second, or 64K, 50M, 1G.")
        if self.memory is not None and self.memory < LEAST_MEMORY:
            raise UsageRefusal(Phrase("--memory {memory}: at least {least} is needed; with less, no command "
                                      "would take less memory", memory=self.memory,
                                      least=human_size(LEAST_MEMORY)), "Write bytes, or 16M, 1G.")
        if self.on_spark:
            if self.spark_settings().over_connect and command not in (*READS, "export"):
                raise Refusal(Phrase("Spark Connect serves commands that only read, and {command} is not one",
                                     command=command),
                              "Leave the Spark engine out, or name the cluster itself: --master spark://HOST:7077.")
        elif self.master is not None or self.conf:
            raise UsageRefusal("--master and --conf are for the Spark engine", "Add --engine spark, or leave them out.")

    def scanner(self, out: Printer, size: int, *, rebuilds: bool = False) -> Engine:
        """Return the engine for `recover`, after applying --rate-limit and --nice to this process; starts Spark for a
        log of `size` > 0 bytes. One that `rebuilds` may keep what it scans, to build files from it."""
        from recover.log.scan import LocalEngine
        from recover.store.reader import set_rate

        if self.rate_limit is not None:
            set_rate(self.rate_limit)
        if self.nice:
            os.setpriority(os.PRIO_PROCESS, 0, max(_GENTLE, os.getpriority(os.PRIO_PROCESS, 0)))
        if not self.on_spark:
            return LocalEngine(self.thread_count)
        settings = self.spark_settings()
        from recover.cluster.engine import SparkEngine
        from recover.cluster.session import session_for

        if size:
            out.say(_("starting Spark"))
            known = session_for(settings).json()
            page = f", {known['ui']}" if known["ui"] else ""
            out.say(_("Spark application {application} on {master}").format(
                application=known["application"], master=known["master"]) + page)
        return SparkEngine(settings, makes=rebuilds)

    def say_estimate(self, out: Printer, command: str, groups: Sequence[Struct]) -> int:
        """Say what a command would take for its store on Spark; nothing is read, and no Spark starts. A usage error
        (16) for a command that names no store by itself."""
        from recover.cluster.estimate import estimate

        choice = next((group for group in groups if isinstance(group, StoreChoice)), None)
        if choice is None:
            raise UsageRefusal(Phrase("{command} --estimate", command=command),
                               "`mqtool verify STORE --estimate` says it of a store.")
        found = estimate(choice.open(), command, split_size=self.spark_settings().split_size, price=self.price)
        out.answer(estimate=structs.asdict(found))
        out.summary(_("{size} to read, {took}, if no storage keeps it waiting and nothing is damaged").format(
            size=human_size(found.bytes), took=_took(found.tasks, found.core_seconds, found.cost)), clean=False)
        return exits.CLEAN

    def spark_settings(self) -> SparkSettings:
        from recover.cluster.session import spark_settings

        return spark_settings(self.master, self.conf or (), self.threads)

    @contextmanager
    def scan(
        self, out: Printer, store: Store, *, title: str = N_("scanning"), include_deleted: bool = False,
        rebuilds: bool = False, known: KnownLog | None = None,
    ) -> Iterator[ScanOptions]:
        """Yield the scan options, with a progress line while the block runs. `known`: an earlier scan of the log."""
        from recover.reading.facts import ScanOptions
        from recover.store.columns import DEFAULT_MEMORY

        total = log_size(store)
        if total >= HAND_OVER and self.engine == "auto" and not self.on_spark:
            out.say(_("{size} of log: a cluster that sees the same path can scan it with {line}").format(
                size=human_size(total),
                line=shell_line("mqtool", *without_secrets(out.arguments), "--master", "spark://HOST:7077")))
        engine = self.scanner(out, total, rebuilds=rebuilds)
        with out.progress(title, total) as progress:
            yield ScanOptions(memory=self.memory or DEFAULT_MEMORY, include_deleted=include_deleted, progress=progress,
                              tick=progress.queue, engine=engine, known=known)
        said = engine.json()
        if said.get("core_seconds") is not None:
            from recover.cluster.estimate import cost_of

            cost = cost_of(said["core_seconds"], self.price)
            out.say(_("Spark took {took}").format(took=_took(said["all_tasks"], said["core_seconds"], cost)))
        if compared := said.get("compared_bytes"):
            out.say(_("executors see other inodes or times of the store's files than this machine, which therefore "
                      "read {size} again to compare them").format(size=human_size(compared)))


def _took(tasks: int, core_seconds: float, cost: float | None) -> str:
    price = "" if cost is None else _(", at the given price {cost}").format(cost=f"{cost:,.{2 if cost >= 1 else 4}f}")
    took = _("{tasks} and {time} of a core").format(tasks=count(tasks, "task"), time=human_seconds(core_seconds))
    return took + price


def _is_spark_there() -> bool:
    """Whether a notebook or spark-submit has a Spark in this process; asks only where there can be one."""
    if "pyspark" not in sys.modules and "PYSPARK_GATEWAY_PORT" not in os.environ:
        return False
    from recover.cluster.session import is_session_there

    return is_session_there()


def log_size(store: Store) -> int:
    return sum(mapped_file.length for mapped_file in store.commitlog.files)


class ClockChoice(Struct, frozen=True, kw_only=True):
    """The time of the start that is foretold."""

    at: Annotated[str | None, option(
        "--at", "The time of the start (default: now), for retention, delayed messages, timers and half messages: "
        "ISO 8601 with its zone, ms, or -2h.", BROKER, metavar="TIME")] = None

    @property
    def ms(self) -> int:
        """The time in ms since the epoch; a usage error (16) for a text that is none."""
        from recover.check.log import now_ms
        from recover.export.select import parse_time

        return now_ms() if self.at is None else parse_time(self.at, "--at")


# --- before a change ----------------------------------------------------------------------------------


class ConsentChoice(Struct, frozen=True, kw_only=True):
    """Whether to ask, and whether to stop before the first write."""

    yes: Annotated[bool, flag("--yes", "Do it without asking.", CHANGE)] = False
    dry_run: Annotated[bool, flag("--dry-run", "Stop after the plan; nothing is written.", CHANGE)] = False


class WriteChoice(ConsentChoice, frozen=True, kw_only=True):
    """The same for a change of a store, and as which user root makes it."""

    as_root: Annotated[bool, flag(
        "--as-root", "Stay root on another user's store, where nobody else can write in folders above or inside it "
        "(default: write as that user).", CHANGE)] = False


class UndoChoice(WriteChoice, frozen=True, kw_only=True):
    """The same for a change with a plan of its own, and where the data go that undo needs."""

    journal: Annotated[Path | None, option(
        "--journal", "Keep the undo data in a new folder of DIR, such as one on another disk (default: in "
        "STORE/.mqtool/); undo and resume find them there.", CHANGE, metavar="DIR")] = None

    def check_journal(self, roots: Iterable[Path | str]) -> None:
        """`UsageRefusal` (16) unless the folder for undo data exists outside of the store and its parts."""
        if self.journal is None:
            return
        outside_store(self.journal, map(Path, roots))
        if not self.journal.is_dir():
            raise UsageRefusal(Phrase("there is no folder {folder}", folder=self.journal),
                               "Create it first (is its disk mounted?), or name another place.")


# --- commands ------------------------------------------------------------------------------------


class Command:
    """A function of (Printer, groups of options, own options), its examples, and its possible exit bits."""

    def __init__(
        self, function: Callable[..., int], examples: list[tuple[str, str]], bits: tuple[int, ...], beside_store: str,
    ) -> None:
        self.__doc__ = function.__doc__
        self.examples, self.bits, self._beside_store = examples, bits, beside_store
        self._function = function
        hints = get_type_hints(function, include_extras=True)
        self._takes = [item.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[item.name])
                       for item in [*signature(function).parameters.values()][1:]]
        every = [*_nested([*self._takes, *_fields(OutputOptions)])]
        self._has_store = any(item.annotation is StoreChoice for item in every)
        # what typer reads: every option, those of groups too, is a parameter beside the context
        context = Parameter("ctx", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
        self.__signature__ = Signature([context, *(item for item in every if not _is_group(item.annotation))])
        self.__annotations__ = {item.name: item.annotation for item in self.__signature__.parameters.values()}

    def __call__(self, ctx: typer.Context, **values: Any) -> int:
        """Run with one value for each option; return the exit code. The context's object is the printer."""
        out, name = cast("Printer", ctx.obj), str(ctx.info_name)
        output = OutputOptions(**_gathered(_fields(OutputOptions), values, []))
        out.command, out.options = name, output  # for a refusal before the answer begins
        values = self._with_store(values)
        groups: list[Struct] = []
        arguments = _gathered(self._takes, values, groups)
        store = None if values.get("store") is None else str(values["store"])
        parts = [part for group in groups if isinstance(group, PartsChoice) for part in group.parts]
        given = NOTHING_GIVEN if store is None else Given.of_values(store, values)
        out.begin(name, output, store, parts, given)
        if store is not None and "://" in store and name not in READS and not values.get("output"):
            from recover.store.source import is_remote, refuse_change

            if is_remote(store):
                refuse_change(store)
        for group in groups:
            if isinstance(group, StoreChoice):
                out.given = given.with_log_of_conf(group.options())
            if isinstance(group, EngineChoice):
                group.check(name)
                if group.estimate:
                    return out.end(group.say_estimate(out, name, groups))
        return out.end(self._function(out, **arguments))

    def _with_store(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values with the store that they mean: in the place of the argument beside it, or in the broker's
        configuration; a usage error (16) if none is named."""
        if self._beside_store and not _is_place(values["store"]):
            beside = values[self._beside_store]
            if not beside or _is_place(beside):
                values = {**values, "store": beside, self._beside_store: values["store"]}
        # a recover may make a store of other sources alone
        if self._has_store and not values["store"] and not (values.get("sources") and values.get("output")):
            values = {**values, "store": _store_of_conf(values)}
        return values


def refuse_first(checks: Iterable[tuple[object, str, str]]) -> None:
    """Raise the usage error (16) of the first row that is true; a row: whether it is wrong, what is, and the remedy."""
    for wrong, what, remedy in checks:
        if wrong:
            raise UsageRefusal(what, remedy)


def new_outside_store(target: Path, root: Path, parts: list[Path]) -> None:
    """Check, before any long work, that a file can be written at the end: `UsageRefusal` (16) inside a store that is
    only read, or in a missing folder; `Refusal` (8) if it exists."""
    from recover.change.model import refuse_existing

    outside_store(target, [root], parts)
    refuse_existing(target)


def _is_place(word: str) -> bool:
    from recover.store.source import is_remote

    return is_remote(word) or (bool(word) and Path(word).exists())


@cache
def _fields(group: type[Struct]) -> list[Parameter]:
    return [Parameter(item.name, Parameter.KEYWORD_ONLY, annotation=item.type,
                      default=Parameter.empty if item.required else item.default) for item in structs.fields(group)]


def _is_group(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Struct)


def _nested(parameters: Iterable[Parameter]) -> Iterator[Parameter]:
    """The parameters, each group followed by what is in it."""
    for item in parameters:
        yield item
        if _is_group(item.annotation):
            yield from _nested(_fields(item.annotation))


def _gathered(parameters: Iterable[Parameter], values: dict[str, Any], groups: list[Struct]) -> dict[str, Any]:
    """The value of each parameter; a group, which is also appended to `groups`, is built from those of its fields."""
    result = {}
    for item in parameters:
        if _is_group(item.annotation):
            groups.append(item.annotation(**_gathered(_fields(item.annotation), values, groups)))
        result[item.name] = groups[-1] if _is_group(item.annotation) else values[item.name]
    return result


def _store_of_conf(values: dict[str, Any]) -> str:
    """The store in the broker's configuration; a usage error (16) if neither names one."""
    if root := BrokerChoice(broker_conf=values.get("broker_conf"), settings=values.get("settings")).store:
        return root
    raise UsageRefusal("no store is named", "Give STORE, or a --broker-conf with storePathRootDir.")


def command(
    examples: list[tuple[str, str]], bits: tuple[int, ...] = (), *, beside_store: str = "",
) -> Callable[[Callable[..., int]], Command]:
    """Make a function of (Printer, option groups, own options) a command; it returns the exit bits.

    `beside_store`: an argument after STORE, which may also precede it, or be alone if STORE is left out.
    """
    ends = (exits.CLEAN, *bits, exits.OPERATIONAL, exits.USAGE, exits.INTERRUPTED, exits.BUG)
    return lambda function: Command(function, examples, ends, beside_store)
