"""`mqtool predict`: what a broker's start would do."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from mqtool import exits
from mqtool.loss_list import LossChoice
from mqtool.next_steps import Scene, next_steps
from mqtool.options import BrokerChoice, EngineChoice, StoreChoice, command
from mqtool.output import Printer
from mqtool.predicting import groups_table, settings_of, start_line
from mqtool.scanning import scan_options, store_options
from mqtool.screens import facts, rest, table
from mqtool.shown import Text

_SHOWN = 15


@command(
    examples=[
        ("/data/store --broker 5.3.3", "the start of a 5.3.3 with default settings"),
        ("/data/store --broker 4.9.8 --broker-conf broker.conf", "with the broker's own settings"),
        ("/data/store --broker 5.3.3 --loss-out lost.csv", "each message that is lost, with all that is legible of it"),
        ("/data/store --broker 5.3.3 --set forceVerifyPropCRC=true", "before switching something on"),
    ],
    bits=(exits.DERIVED, exits.MESSAGES, exits.UNSUPPORTED),
)
def run(out: Printer, store: StoreChoice, broker: BrokerChoice, engine: EngineChoice, loss: LossChoice) -> int:
    """Say what the start of a broker would do to this store and what it would cost, without touching it.

    0: it costs nothing. 2: only what the log gives back. 4: do not start. Messages or offsets would be lost, used queue
    offsets given out again, part of the log is missing, or the broker would not start.
    """
    from recover.check.parts import contradicted_settings, earlier_runs, settings_findings, too_old_for
    from recover.check.survey import survey
    from recover.evidence.last_numbers import as_units_say
    from recover.findings.model import FindingList
    from recover.log.engine import KnownLog, stamps_of
    from recover.look.store import log_is_gone
    from recover.predict.groups import GroupRow, groups_of, has_offsets
    from recover.predict.start import predict
    from recover.store.store import Store

    loss.check(store.root, tuple(store.commitlog or ()))
    opened = Store.open(store.root, store_options(store, broker))
    settings, assumed = settings_of(opened, broker)
    stamps = stamps_of(opened.commitlog)
    with scan_options(out, opened, engine) as options:
        view = options.scanner.scan_log(opened.commitlog, memory=options.memory, progress=options.progress)
    prediction = predict(opened, as_units_say(view, opened), settings)
    groups: list[GroupRow] = []
    if loss.loss_out is not None or has_offsets(opened):
        with scan_options(out, opened, engine, broker, title="looking at queues") as options:
            look = survey(opened, structs.replace(options, engine=KnownLog(view, stamps, options.scanner)))
        groups = groups_of(look, settings).rows
        cuts = prediction.starts and not prediction.says_nothing
        loss.write(out, look, prediction.max_phy if cuts else None)
    document = prediction.json()
    document["groups"] = [row.json() for row in groups]
    document["assumptions"] = [*assumed, *document["assumptions"]]
    out.answer(**document)
    found = prediction.findings()
    if not prediction.unsupported:
        found += log_is_gone(opened)
    contradicted = list(contradicted_settings(opened, settings.given))
    found += contradicted
    found += settings_findings(view, settings.given)
    if prediction.lost_messages:
        found += too_old_for(opened, view, settings.version)
    # a broker knows nothing of a run, and would start on a store that is half changed
    runs = [
        structs.replace(item, severity="error", bits=exits.MESSAGES) if item.code == "run-unfinished" else item
        for item in earlier_runs(opened)
    ]
    found += runs
    for item in runs:
        if item.code == "run-unfinished":
            document["reason"] = document["reason"] or item.message
            out.answer(reason=document["reason"])
    out.found(found)
    _show(out, document)
    moved = [row for row in groups if row.skips or row.again]
    if moved:
        out.show(groups_table("groups that skip messages or get them again", moved, _SHOWN), Text(""))
    code = prediction.exit_code | FindingList([*contradicted, *runs]).bits
    out.summary(start_line(document), next_steps(Scene("predicted", out.given, code, found)))
    return code


def _show(out: Printer, document: dict[str, Any]) -> None:
    if document["starts"] is None:
        out.show(facts("", [
            ("broker", document["broker"]), ("starts", Text("cannot say", style="bold yellow")),
            *(("not emulated", part) for part in document["unsupported"]),
            *(("assumed", text) for text in document["assumptions"]),
        ]), Text(""))
        return
    starts = Text("yes", style="green") if document["starts"] else Text("NO", style="bold red")
    rows: list[tuple[str, object]] = [("broker", document["broker"]), ("starts", starts)]
    if document["reason"]:
        rows.append(("because", document["reason"]))
    rows += [
        ("recovery", f"{document['mode']}, from {document['start_file'] or 'no file'}"),
        ("log after load", f"{document['min_phy']:,} to {document['max_phy']:,}"),
        ("intact messages cut off", _count(document["lost_messages"], "bold red")),
        ("messages without a unit", _count(document["unreachable_messages"], "bold yellow")),
        ("queue offsets given twice", _count(document["duplicated_offsets"], "bold yellow")),
    ]
    rows += [("deletes", name) for name in document["deleted_files"][:_SHOWN]]
    if len(document["deleted_files"]) > _SHOWN:
        rows.append(("deletes", f"… {len(document['deleted_files']) - _SHOWN} more: --json shows all"))
    rows += [("assumed", text) for text in document["assumptions"]]
    out.show(facts("", rows), Text(""))
    if document["lowered_queues"]:
        largest: list[Any] = sorted(document["lowered_queues"], key=lambda row: row[2] - row[1])
        shown = [*largest[:_SHOWN], *rest(len(largest) - _SHOWN, 3)]
        out.show(table("queues that would end lower", ["queue", ">now", ">then"], shown), Text(""))
    for key, title in (("lost", "cut off"), ("unreachable", "without a unit")):
        if document.get(key):
            queues: list[Any] = sorted(document[key].items(), key=lambda item: -item[1])
            shown = [*queues[:_SHOWN], *rest(len(queues) - _SHOWN, 2)]
            out.show(table(f"messages {title}, by queue", ["queue", ">messages"], shown), Text(""))


def _count(number: int, style: str) -> Text:
    return Text(f"{number:,}", style=style if number else "")
