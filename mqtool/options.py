"""The options that commands share, each written once, and the decorator that hands them out.

A command is a function of a `Printer`, of groups of options (the structs below) and of its
own `Annotated` parameters. The decorator lays the groups out as flat options for whoever reads the
command line, gathers them again, and sees to it that every command ends through the printer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from msgspec import Struct, structs

from mqtool import exits
from mqtool.declared import FLAG, Parameter, argument, layout_of, option
from mqtool.next_steps import NOTHING_GIVEN, Given
from mqtool.output import OutputOptions, Printer
from recover.findings.refusal import UsageRefusal
from recover.store.reader import set_rate

if TYPE_CHECKING:
    from recover.cluster.session import SparkSettings
    from recover.log.engine import Engine as Scanner
    from recover.store.store import StoreOptions

_PARTS = "Parts and sizes (inferred where not given)"
_BROKER = "Broker settings"
_ENGINE = "Engine"
_OUTPUT = "Output"
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(i?b)?", re.IGNORECASE)
_GENTLE = 15
_READ_ANYWHERE = ("inspect", "verify", "predict", "query", "trace")


def parse_size(text: str) -> int:
    """`65536`, `64K`, `1M`, `1G` (powers of 1,024) as bytes; a usage error for anything else."""
    match = _SIZE.fullmatch(str(text).strip())
    if match is None:
        import typer

        raise typer.BadParameter(f"invalid size {text!r}: write bytes, or 64K, 1M, 1G")
    power: int = " kmgt".index(match[2].lower() or " ")
    return int(match[1]) << 10 * power


class Color(StrEnum):
    """When to colour."""

    auto = "auto"
    always = "always"
    never = "never"


class Engine(StrEnum):
    """The scan engine."""

    auto = "auto"
    local = "local"
    spark = "spark"


class PartsChoice(Struct, frozen=True, kw_only=True):
    """Parts of a store that are kept elsewhere."""

    commitlog: Annotated[list[Path] | None, option(
        "--commitlog", "Commitlog kept elsewhere; repeat for several paths.", _PARTS, metavar="DIR")] = None
    consumequeue: Annotated[Path | None, option(
        "--consumequeue", "Consume queues kept elsewhere.", _PARTS, metavar="DIR")] = None
    index: Annotated[Path | None, option("--index", "Index files kept elsewhere.", _PARTS, metavar="DIR")] = None

    @property
    def parts(self) -> list[Path]:
        """The folders that belong to the store but lie elsewhere."""
        return [*(self.commitlog or ()), *(path for path in (self.consumequeue, self.index) if path is not None)]

    def options(self) -> StoreOptions:
        """The same for `recover`."""
        from recover.store.store import StoreOptions

        return StoreOptions(commitlog=tuple(self.commitlog or ()), consumequeue=self.consumequeue, index=self.index)


class StoreChoice(PartsChoice, frozen=True, kw_only=True):
    """Which store, and what the files alone may not tell."""

    store: Annotated[str, argument(
        "STORE", "Store root: the folder that holds commitlog/ (or as --broker-conf has it).")] = ""
    mapped_file_size: Annotated[int | None, option(
        "--mapped-file-size", "Length of a commitlog file.", _PARTS, metavar="SIZE", parser=parse_size)] = None
    index_slots: Annotated[int | None, option(
        "--index-slots", "Hash slots of an index file.", _PARTS, metavar="N", min=1)] = None
    index_entries: Annotated[int | None, option(
        "--index-entries", "Entries of an index file.", _PARTS, metavar="N", min=1)] = None

    @property
    def root(self) -> Path:
        """The store root; for a store on s3:// or hdfs:// the folder of this process that stands for it."""
        if "://" in self.store:
            from recover.store.remote import is_remote, local_root

            if is_remote(self.store):
                return local_root(self.store)
        return Path(self.store)

    def options(self) -> StoreOptions:
        """The same for `recover`."""
        return structs.replace(
            super().options(), mapped_file_size=self.mapped_file_size, index_slots=self.index_slots,
            index_entries=self.index_entries,
        )


class BrokerChoice(Struct, frozen=True, kw_only=True):
    """Whose rules hold: a version and its settings."""

    broker: Annotated[str | None, option(
        "--broker", "Broker version, such as 5.3.3 (default: inferred from the store).", _BROKER, metavar="V")] = None
    broker_conf: Annotated[Path | None, option(
        "--broker-conf", "The broker's own configuration file.", _BROKER, metavar="FILE")] = None
    settings: Annotated[list[str] | None, option(
        "--set", "One setting; repeat for several.", _BROKER, metavar="KEY=VALUE")] = None

    def pairs(self) -> dict[str, str]:
        """The --set options as a mapping."""
        result = {}
        for item in self.settings or ():
            key, equals, value = item.partition("=")
            if not equals or not key.strip():
                raise UsageRefusal(f"--set {item}: write KEY=VALUE", "For instance --set maxMessageSize=4194304.")
            result[key.strip()] = value.strip()
        return result


class EngineChoice(Struct, frozen=True, kw_only=True):
    """Who does the work, and with how much."""

    engine: Annotated[Engine, option(
        "--engine", "Scan engine; auto is local, unless a master is given.", _ENGINE)] = Engine.auto
    threads: Annotated[int | None, option(
        "--threads", "Threads (default: one a core).", _ENGINE, metavar="N", min=1)] = None
    memory: Annotated[int | None, option(
        "--memory", "Upper bound for buffers.", _ENGINE, metavar="SIZE", parser=parse_size)] = None
    rate_limit: Annotated[int | None, option(
        "--rate-limit", "Read log and index no faster than this a second (local engine): for a live neighbour.",
        _ENGINE, metavar="SIZE", parser=parse_size)] = None
    nice: Annotated[bool, option(
        "--nice", "Give way to everything else on this host.", _ENGINE, metavar=FLAG)] = False
    master: Annotated[str | None, option(
        "--master", "Spark master: local[N], spark://HOST:PORT, yarn, k8s://HOST:PORT.", _ENGINE,
        metavar="URL")] = None
    conf: Annotated[list[str] | None, option(
        "--conf", "One Spark setting; repeat for several.", _ENGINE, metavar="K=V")] = None

    @property
    def thread_count(self) -> int:
        """How many threads to use."""
        return self.threads or len(os.sched_getaffinity(0))

    def check(self) -> None:
        """A usage error (16) for options that contradict each other, or that Spark does not know."""
        if self.on_spark:
            self.spark_settings()
        elif self.master is not None or self.conf:
            raise UsageRefusal("--master and --conf are for the Spark engine", "Add --engine spark, or leave them out.")

    @property
    def is_auto(self) -> bool:
        """True when nobody chose, so that the local engine works."""
        return self.engine is Engine.auto and not self.on_spark

    @property
    def on_spark(self) -> bool:
        """True when executors scan: asked for, or a master is given."""
        return self.engine is Engine.spark or (self.engine is Engine.auto and self.master is not None)

    def scanner(self, *, rebuilds: bool = False) -> Scanner:
        """The engine for `recover`; from now on the process is as gentle as it was told to be.

        One that `rebuilds` may keep what it scans, to make files of it.
        """
        if self.rate_limit is not None:
            set_rate(max(1, self.rate_limit))
        if self.nice:
            os.setpriority(os.PRIO_PROCESS, 0, max(_GENTLE, os.getpriority(os.PRIO_PROCESS, 0)))
        if not self.on_spark:
            from recover.log.engine import LocalEngine

            return LocalEngine(self.thread_count)
        from recover.cluster.engine import SparkEngine

        return SparkEngine(self.spark_settings(), keeps=rebuilds)

    def spark_settings(self) -> SparkSettings:
        """How to reach Spark."""
        from recover.cluster.session import spark_settings

        return spark_settings(self.master, self.conf or (), self.threads)


class OutputChoice(Struct, frozen=True, kw_only=True):
    """How to answer."""

    json: Annotated[bool, option("--json", "One JSON document on stdout.", _OUTPUT, metavar=FLAG)] = False
    quiet: Annotated[bool, option("--quiet", "The summary line only.", _OUTPUT, metavar=FLAG)] = False
    progress: Annotated[bool | None, option(
        "--progress/--no-progress", "Progress on stderr (default: if that is a terminal).", _OUTPUT,
        metavar=FLAG)] = None
    color: Annotated[Color, option("--color", "Colour; NO_COLOR is followed too.", _OUTPUT)] = Color.auto
    max_findings: Annotated[int | None, option(
        "--max-findings", "Print at most N findings (default: 10,000 in JSON, 5 of a code on a screen).", _OUTPUT,
        metavar="N", min=0)] = None
    findings_out: Annotated[Path | None, option(
        "--findings-out", "Every finding as a line of JSON, in a file outside the store.", _OUTPUT,
        metavar="FILE")] = None

    def options(self) -> OutputOptions:
        """The same for the printer."""
        return OutputOptions(self.json, self.color.value, self.quiet, self.progress, self.max_findings,
                             self.findings_out)


class CommandInfo(NamedTuple):
    """What the help of a command needs beyond its options: examples, and which exit bits occur."""

    examples: tuple[tuple[str, str], ...]
    bits: tuple[int, ...] = (exits.CLEAN, exits.OPERATIONAL, exits.USAGE, exits.BUG)


class Command:
    """A function of (Printer, groups of options, own parameters) that ends through the printer."""

    def __init__(self, function: Callable[..., int], info: CommandInfo) -> None:
        self.__doc__ = function.__doc__
        self.info = info
        self._function = function
        self._layout = layout_of(function, OutputChoice)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What a command line may say."""
        return self._layout.parameters

    def __call__(self, printer: Printer, name: str, values: dict[str, Any]) -> int:
        """Run with one value for each parameter; the exit code."""
        if any(group is StoreChoice for group in self._layout.groups.values()) and not values["store"]:
            printer.command = name
            printer.options = _gather(OutputChoice, values).options()
            values = {**values, "store": _store_of_conf(values)}
        groups = {key: _gather(group, values) for key, group in self._layout.groups.items()}
        own = {key: values[key] for key in self._layout.own}
        _begin(printer, name, _gather(OutputChoice, values), groups, own, values)
        return printer.finish(self._function(printer, **groups, **own))


def command(examples: list[tuple[str, str]], bits: tuple[int, ...] = ()) -> Callable[[Callable[..., int]], Command]:
    """Make a function of (Printer, option groups, own options) a command; it returns the exit bits."""
    ends = (exits.CLEAN, *bits, exits.OPERATIONAL, exits.USAGE, exits.INTERRUPTED, exits.BUG)
    return lambda function: Command(function, CommandInfo(tuple(examples), ends))


def _store_of_conf(values: dict[str, Any]) -> str:
    """Where the broker's configuration has the store; a usage error (16) where neither names one."""
    if values.get("broker_conf") or values.get("settings"):
        from recover.broker.settings import load_settings
        from recover.broker.versions import NEWEST_COMPARED

        given = load_settings(NEWEST_COMPARED, values.get("broker_conf"), values.get("settings") or ()).given
        if given.get("storePathRootDir", "").strip():
            return given["storePathRootDir"].strip()
    raise UsageRefusal("no store is named", "Give STORE, or a --broker-conf with storePathRootDir.")


def _gather(group: type[Struct], values: dict[str, Any]) -> Any:
    return group(**{name: values[name] for name in group.__struct_fields__})


def _begin(printer: Printer, name: str, output: OutputChoice, groups: dict[str, Any], own: dict[str, Any],
           values: dict[str, Any]) -> None:
    store = next((item for item in groups.values() if isinstance(item, StoreChoice)), None)
    place = store.store if store is not None else own.get("store")
    parts = [part for item in groups.values() if isinstance(item, PartsChoice) for part in item.parts]
    given = NOTHING_GIVEN if place is None else Given.of_values(str(place), values)
    printer.begin(name, output.options(), None if place is None else str(place), parts, given)
    broker = next((item for item in groups.values() if isinstance(item, BrokerChoice)), None)
    if store is not None and broker is not None and (broker.broker_conf or broker.settings):
        from mqtool.scanning import store_options

        printer.given = given.with_log_of_conf(store_options(store, broker))
    if "://" in str(place) and name not in _READ_ANYWHERE:
        from recover.store.remote import is_remote, refuse_change

        if is_remote(str(place)):
            refuse_change(str(place))
    for item in groups.values():
        if isinstance(item, EngineChoice):
            item.check()
