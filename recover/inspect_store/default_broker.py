"""Which broker to assume for a store when nobody names one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from formats.checkpoint import EMPTY
from recover.broker.recovery import Mode, start_file
from recover.broker.settings import BrokerSettings, load_settings
from recover.broker.versions import NEWEST_COMPARED, BrokerVersion, boundaries, generation_of
from recover.files.store import Store
from recover.inspect_store.evidence import find_generation
from recover.inspect_store.pointers import find_pointers, read_checkpoint
from recover.inspect_store.starts import LogFiles


def default_broker(store: Store) -> tuple[BrokerVersion, str]:
    """(release, why): of the generations that fit the store's traces the one whose recovery starts earliest, the newest
    of equal ones; named by its first release."""
    generation = find_generation(store, read_checkpoint(store))
    least = generation.at_least
    newest = generation.before or BrokerVersion(NEWEST_COMPARED.major + 1, 0)
    fitting = [least, *(version for version in boundaries() if least < version < newest)]
    trace = generation.evidence[0].why if generation.evidence else "no trace of a younger one"
    if generation.limits:
        trace += f"; {generation.limits[0].why}"
    span = f"the releases from {generation_of(least)} " + (f"to before {newest}" if generation.before else "on")
    log = LogFiles(store)
    if not log.files:
        return fitting[-1], f"broker {fitting[-1]} is assumed ({trace}); --broker names another"
    pointers = find_pointers(store)
    mode: Mode = "abnormal" if store.has_abort else "normal"
    dispatched = -1 if pointers.dispatched_to is None else pointers.dispatched_to
    starts = {
        version: start_file(log, mode, BrokerSettings(version), pointers.checkpoint or EMPTY, dispatched).index
        for version in fitting
    }
    chosen = max(version for version in fitting if starts[version] == min(starts.values()))
    why = f"the store fits all of {span} ({trace})" if len(set(starts.values())) == 1 \
        else f"of {span} ({trace}) its recovery starts earliest"
    return chosen, f"broker {chosen} is assumed: {why}; --broker names another"


def settings_of(
    store: Store, version: str | None, conf: Path | None, sets: Iterable[str]
) -> tuple[BrokerSettings, list[str]]:
    """Settings of the named release, or of the default one, and what had to be assumed; a `UsageRefusal` as theirs."""
    if version is not None:
        return load_settings(BrokerVersion.parse(version), conf, sets), []
    chosen, why = default_broker(store)
    return load_settings(chosen, conf, sets), [why]
