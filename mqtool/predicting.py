"""The broker whose rules hold: named, or assumed with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqtool.options import BrokerChoice

if TYPE_CHECKING:
    from recover.broker.settings import BrokerSettings
    from recover.files.store import Store


def settings_of(store: Store, broker: BrokerChoice) -> tuple[BrokerSettings, list[str]]:
    """Settings of the named broker, or of the one that fits the store; what had to be assumed."""
    from recover.broker.settings import load_settings
    from recover.broker.versions import BrokerVersion
    from recover.inspect_store.default_broker import default_broker

    if broker.broker is not None:
        version, assumed = BrokerVersion.parse(broker.broker), []
    else:
        version, why = default_broker(store)
        assumed = [why]
    return load_settings(version, broker.broker_conf, broker.settings or ()), assumed
