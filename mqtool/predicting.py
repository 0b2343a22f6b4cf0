"""The broker whose rules hold: named, or assumed with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mqtool.options import BrokerChoice
from mqtool.screens import rest, table
from mqtool.shown import Table
from mqtool.text import count

if TYPE_CHECKING:
    from recover.broker.settings import BrokerSettings
    from recover.check.survey import Survey
    from recover.predict.groups import GroupRow
    from recover.store.store import Store

_GROUP_COLUMNS = (
    "group", "topic", ">queue", ">committed", ">min", ">max", ">min after", ">max after", ">skips", ">again", ">lag",
)


def settings_of(store: Store, broker: BrokerChoice) -> tuple[BrokerSettings, list[str]]:
    """Settings of the named broker, or of the one that fits the store; what had to be assumed."""
    from recover.broker.settings import load_settings
    from recover.broker.versions import BrokerVersion
    from recover.look.store import default_broker

    if broker.broker is not None:
        version, assumed = BrokerVersion.parse(broker.broker), []
    else:
        version, why = default_broker(store)
        assumed = [why]
    return load_settings(version, broker.broker_conf, broker.settings or ()), assumed


def group_rows(look: Survey, settings: BrokerSettings) -> list[dict[str, Any]]:
    """What `mqtool groups` lists of a store, for the documents of other commands."""
    from recover.predict.groups import groups_of, has_offsets

    return [row.json() for row in groups_of(look, settings).rows] if has_offsets(look.store) else []


def groups_table(title: str, rows: Sequence[GroupRow], shown: int) -> Table:
    """Groups against their queues, `shown` rows at most."""
    cells = [
        [row.group, row.topic, row.queue, row.committed, *("?" if one is None else one for one in (
            row.min, row.max, row.min_after, row.max_after, row.skips, row.again, row.lag))]
        for row in rows[:shown]
    ]
    return table(title, _GROUP_COLUMNS, [*cells, *rest(len(rows) - shown, len(_GROUP_COLUMNS))])


def start_line(document: dict[str, Any]) -> str:
    """What the start costs, in one line, out of a prediction's document."""
    who = f"Broker {document['broker']}"
    unread = ", ".join(document["unsupported"])
    if document["starts"] is None:
        return f"Cannot say what broker {document['broker']} would do: {unread} is not emulated"
    if not document["starts"]:
        return f"{who} would not start: {document['reason']}"
    if document["reason"]:
        who = f"Do not start it: {document['reason']}. {who}"
    costs = []
    if document["lost_messages"]:
        costs.append(f"cut off {count(document['lost_messages'], 'intact message')}")
    if document["unreachable_messages"]:
        costs.append(f"leave {count(document['unreachable_messages'], 'message')} without a unit")
    if document["duplicated_offsets"]:
        costs.append(f"give out {count(document['duplicated_offsets'], 'queue offset')} twice")
    if document["lowered_queues"]:
        costs.append(f"end {count(len(document['lowered_queues']), 'queue')} lower than before")
    if document["config_lost"]:
        costs.append(f"forget {', '.join(document['config_lost'])}")
    if document["deleted_files"]:
        costs.append(f"delete {count(len(document['deleted_files']), 'file')}")
    if unread:
        does = f" and {', '.join(costs)}" if costs else ""
        return f"{who} would start{does}; mqtool cannot say what becomes of {unread}"
    return f"{who} would start and " + (", ".join(costs) if costs else "lose nothing")
