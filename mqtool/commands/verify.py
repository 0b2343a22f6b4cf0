"""`mqtool verify` and `mqtool fleet`: cross-checks of one store, or of many."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Struct, structs

from mqtool import exits, version
from mqtool.next_steps import STOPS, next_steps
from mqtool.options import EngineChoice, StoreChoice, argument, command, flag, option, parse_size
from mqtool.printer import Printer, outside_store, table
from mqtool.screens.verdict import verify_line, verify_tables
from mqtool.text import count, human_seconds, human_size
from mqtool.words import N_, _, retold, told
from recover.check.report import VerifyReport, verify as verify_store
from recover.findings.code import UsageRefusal
from recover.findings.model import Finding, finding
from recover.predict.may_start import refused_by_all, start_that_restores

if TYPE_CHECKING:
    from recover.cluster.fleet import StoreRow


_WHAT = "What to check"


# typer does not accept a list of a Literal
Part = Enum("Part", {"commitlog": "commitlog", "consumequeue": "consumequeue", "index": "index",
                     "checkpoint": "checkpoint", "config": "config"})


@command(
    examples=[
        ("/data/store", "everything"),
        ("/data/store --only commitlog", "only the messages themselves"),
        ("/data/store --json --findings-out /tmp/findings.ndjson", "for a script, with every single finding"),
        ("/data/store --commitlog /disk2/commitlog --broker-conf broker.conf", "a store with parts kept elsewhere"),
    ],
    bits=(exits.DERIVED, exits.MESSAGES, exits.UNSUPPORTED),
)
def verify(
    out: Printer,
    store: StoreChoice,
    engine: EngineChoice,
    only: Annotated[list[Part] | None, option("--only", "Check this part only; repeat for several.", _WHAT)] = None,
    include_deleted: Annotated[bool, flag(
        "--include-deleted", "Also expect queues and index entries of deleted topics.", _WHAT)] = False,
) -> int:
    """Cross-check the whole store and report every problem; never stops at the first one, never writes.

    Records against their checksums and places, queues against the log both ways, index against the log both ways,
    checkpoint, abort, config files, consumer offsets.
    """
    opened = store.settled(engine)
    with engine.scan(out, opened, title=N_("verifying"), include_deleted=include_deleted) as scan:
        report = verify_store(opened, scan, [part.value for part in only or Part])
        start = None if only else start_that_restores(report)
    document, code = report.json(), report.exit_code
    out.answer(**document)
    out.found(report.findings)
    out.show(*verify_tables(document))
    stop = next((item for item in report.findings if item.code in STOPS), None)
    left_out = [part.value for part in Part if only and part not in only]
    has_log = report.analysis.log.tally.messages > 0
    line = verify_line(report, code, left_out) if stop is None or has_log else told(stop)[0]
    if code & (exits.DERIVED | exits.MESSAGES) and not only and (refused := refused_by_all(report)):
        line = _("No broker from {oldest} on starts on it: {reason}. {rest}").format(
            oldest=refused[0], reason=retold(refused[1]).rstrip(".?"), rest=line)
    line += _assumed(report)
    # that the end of the log is missing, or a record overwritten, shows only beside the other parts
    phase = "part" if left_out and not code else "checked"
    out.summary(line, next_steps(out.scene(
        phase, code, unread=report.unread, start=start, assumed=() if start is None else start.assumed)))
    return code


def _assumed(report: VerifyReport) -> str:
    """What the verdict assumes of a configuration that was not given, in words; "" for nothing."""
    unstated = [f"{item.facts['setting']}=false" for item in report.findings if item.code == "part-unstated"]
    return "; " + _("provided that it has {settings}").format(settings=" ".join(unstated)) if unstated else ""


# --- `mqtool fleet verify`: many stores in one Spark job. ------------------------------------------------------------


_WHICH, _HOW = "Which stores", "How"
_SHOWN = 100


class Fleet(Struct, frozen=True, kw_only=True):
    """The stores, the tables, and the Spark session."""

    action: Annotated[Literal["verify"], argument("ACTION", "verify: cross-check every store.")]
    stores: Annotated[list[str] | None, argument(
        "STORE", "Store roots or quoted patterns, such as '/backups/*/store' or 's3://backups/*/store'.")] = None
    stores_file: Annotated[Path | None, option(
        "--stores", "A file with one store or pattern per line; # begins a comment.", _WHICH, metavar="FILE")] = None
    into: Annotated[Path | None, option(
        "--into", "Folder for the tables stores and findings, visible to all workers. Later runs read it.", _HOW,
        metavar="DIR")] = None
    tables: Annotated[str | None, option(
        "--tables", "Also append the run to NAMESPACE.stores and NAMESPACE.findings of Spark's catalog.", _HOW,
        metavar="NAMESPACE")] = None
    everything: Annotated[bool, flag(
        "--all", "Also read stores whose listing has not changed since the last run in DIR.", _HOW)] = False
    split_above: Annotated[int | None, option(
        "--split-above", "Cut larger stores into splits, several stores at a time (default: 16G).", _HOW,
        metavar="SIZE", parser=parse_size)] = None
    master: Annotated[str | None, option(
        "--master",
        "Spark master: local[N] (default: all cores), spark://HOST:PORT, yarn, k8s://HOST:PORT, sc://HOST:PORT.", _HOW,
        metavar="URL")] = None
    conf: Annotated[list[str] | None, option(
        "--conf", "One Spark setting; repeat for several.", _HOW, metavar="K=V")] = None


@command(
    examples=[
        ("verify '/backups/*/store' --into /var/lib/mqtool/fleet", "last night's backups, on this machine"),
        ("verify --stores /etc/mqtool/stores --into /shared/fleet --master spark://head:7077", "on a cluster"),
        ("verify /backups/a/store /backups/b/store --into /var/lib/mqtool/fleet --all --json",
         "for a script, with every store read"),
    ],
    bits=(exits.DERIVED, exits.MESSAGES, exits.UNSUPPORTED),
)
def fleet(out: Printer, which: Fleet) -> int:
    """Verify many stores in one Spark job, into two tables of Parquet files; stores that did not change are not read.

    Each store is checked as by `mqtool verify STORE`. The exit code has the bits of all stores: 4 means that
    messages are damaged or missing in at least one of them. A store that cannot be verified is a row with its error.
    """
    if which.into is None:
        raise UsageRefusal("--into DIR is needed", "Name the folder of the tables; later runs read the last one there.")
    from recover.cluster.session import running_session, spark_settings

    settings = spark_settings(which.master, which.conf or ())
    from recover.cluster.fleet import SPLIT_ABOVE, append_to_tables, named_stores, verify_fleet

    places = named_stores(which.stores or (), which.stores_file)
    outside_store(which.into, [Path(place) for place in places if "://" not in place])
    with out.line() as line:
        run, rows = verify_fleet(
            settings, places, which.into, rules=version(), everything=which.everything,
            split_above=SPLIT_ABOVE if which.split_above is None else which.split_above, note=out.say,
            progress=line.show,
        )
    bad = sorted((row for row in rows if row.exit_code), key=lambda row: (-_weight(row.exit_code), row.store))
    found = [_finding(row) for row in bad]
    code = reduce(or_, (row.exit_code for row in rows), 0)
    total = _total(rows)
    tables = {name: str((which.into / name / f"run={run}").absolute()) for name in ("stores", "findings")}
    appended = append_to_tables(settings, which.into, run, which.tables) if which.tables else None
    session = running_session()
    master = settings.master if session is None else session.master
    out.answer(run=run, engine={"name": "spark", "master": master}, total=total, tables=tables, appended=appended,
               stores=[structs.asdict(row) for row in bad[:_SHOWN]], stores_truncated=len(bad) > _SHOWN)
    if out.options.json or out.options.findings_out:
        out.found(found)
    _show(out, which, bad)
    out.summary(_("{bad:,} of {stores} with problems: {read}, {unchanged:,} not read because their listing is "
                  "unchanged; tables in {place}").format(
        bad=len(bad), stores=count(len(rows), "store"), read=_read([row for row in rows if row.read]),
        unchanged=total["unchanged"], place=which.into), next_steps(out.scene("fleet", code, findings=found)))
    return code


def _read(rows: Sequence[StoreRow]) -> str:
    """Return how many stores were read, and what that took, in words."""
    size, seconds = sum(row.bytes for row in rows), sum(row.seconds for row in rows)
    return _("{n:,} read ({size} of log, {time} of one core)").format(
        n=len(rows), size=human_size(size), time=human_seconds(seconds))


def _show(out: Printer, which: Fleet, bad: Sequence[StoreRow]) -> None:
    """Show the table of stores with problems, if there are any."""
    if bad:
        columns = ["*store", ">exit", "worst finding, or error", ">findings", ">messages"]
        lines = [[row.store, row.exit_code, row.error or row.worst, row.findings, row.messages] for row in bad[:_SHOWN]]
        rest = _("the tables in {place} hold all").format(place=which.into)
        out.show(table("stores with problems", columns, lines, _SHOWN, len(bad), rest))


def _total(rows: Sequence[StoreRow]) -> dict[str, int]:
    """Return the sums over all stores, sizes in bytes."""
    read = sum(row.read for row in rows)
    sums = {name: sum(getattr(row, name) for row in rows) for name in ("messages", "bytes", "findings")}
    return {"stores": len(rows), "read": read, "unchanged": len(rows) - read,
            "bad": sum(row.exit_code != 0 for row in rows),
            "failed": sum(row.error is not None for row in rows), **sums}


def _weight(code: int) -> int:
    """The rank of an exit code: damaged messages first, then what could not be judged, then the rest."""
    order = (exits.DERIVED, exits.UNSUPPORTED, exits.USAGE, exits.OPERATIONAL, exits.BUG, exits.MESSAGES)
    return max((number for number, bit in enumerate(order, 1) if code & bit), default=0)


def _finding(row: StoreRow) -> Finding:
    """The finding for a store with problems, with the exit bits of that store."""
    name = "fleet-store-failed" if row.error else "fleet-store-problems"
    is_error = row.error or row.exit_code & exits.MESSAGES
    made = finding(name, row.store, severity="error" if is_error else "warning", findings=row.findings,
                   worst=row.worst, error=row.error, host=row.host)
    return structs.replace(made, bits=row.exit_code)
