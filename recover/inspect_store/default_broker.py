"""Which broker to assume for a store when nobody names one."""

from __future__ import annotations

from formats.checkpoint import EMPTY
from recover.broker_settings import BrokerSettings
from recover.brokers import NEWEST_COMPARED, BrokerVersion, boundaries, generation_of
from recover.inspect_store.evidence import find_generation
from recover.inspect_store.pointers import find_pointers, read_checkpoint
from recover.inspect_store.starts import LogFiles
from recover.recovery import Mode, start_file
from recover.store import Store


def default_broker(store: Store) -> tuple[BrokerVersion, str]:
    """(release, why): the oldest that fits the store's traces, unless the recovery of a younger one starts earlier."""
    generation = find_generation(store, read_checkpoint(store))
    least = generation.at_least
    fitting = [least, *(version for version in boundaries() if least < version <= NEWEST_COMPARED)]
    trace = generation.evidence[0].why if generation.evidence else "no trace of a younger one"
    log = LogFiles(store)
    if not log.files:
        return least, f"broker {least} is assumed ({trace}); --broker names another"
    pointers = find_pointers(store)
    mode: Mode = "abnormal" if store.has_abort else "normal"
    dispatched = -1 if pointers.dispatched_to is None else pointers.dispatched_to
    starts = {
        version: start_file(log, mode, BrokerSettings(version), pointers.checkpoint or EMPTY, dispatched).index
        for version in fitting
    }
    chosen = min(fitting, key=lambda version: (starts[version], version))
    why = f"the store fits every release from {generation_of(least)} on ({trace})" if len(set(starts.values())) == 1 \
        else f"of the releases from {generation_of(least)} on ({trace}) its recovery starts earliest"
    return chosen, f"broker {chosen} is assumed: {why}; --broker names another"
