"""Scans and verifies with a line of progress; what verify, recover and the rebuilds share."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from mqtool.output import Printer
from mqtool.progress import Progress
from mqtool.text import human_size

if TYPE_CHECKING:
    from mqtool.options import BrokerChoice, EngineChoice, StoreChoice
    from recover.check.report import VerifyReport
    from recover.check.survey import ScanOptions
    from recover.log.engine import KnownLog
    from recover.store.store import Store, StoreOptions


HAND_OVER = 256 << 30
"""Bytes of log from which on the local engine names the cluster engine. Below, one machine is done within minutes."""


@contextmanager
def scan_options(
    out: Printer, store: Store, engine: EngineChoice, broker: BrokerChoice | None = None, *, title: str = "scanning",
    include_deleted: bool = False, rebuilds: bool = False,
) -> Iterator[ScanOptions]:
    """How to scan, with a line of progress while the block runs; `rebuilds`: files are made of what is found."""
    total = sum(mapped_file.length for mapped_file in store.commitlog.files)
    from recover.check.survey import ScanOptions

    if total >= HAND_OVER and engine.is_auto:
        out.say(f"{human_size(total)} of log: a cluster that sees the same path is handed it with "
                f"{shlex.join(['mqtool', *out.arguments, '--master', 'spark://HOST:7077'])}")
    more: dict[str, Any] = {} if engine.memory is None else {"memory": engine.memory}
    with Progress(title, out.options.progress, out.stderr_console, total) as progress:
        yield ScanOptions(
            threads=engine.thread_count, engine=engine.scanner(rebuilds=rebuilds), include_deleted=include_deleted,
            settings=store.options.settings or given_settings(broker),
            progress=progress, tick=progress.queue, **more,
        )


def given_settings(broker: BrokerChoice | None) -> dict[str, str]:
    """What --broker-conf and --set say, by the broker's own names."""
    if broker is None or not (broker.broker_conf or broker.settings):
        return {}
    from recover.broker.settings import load_settings
    from recover.broker.versions import NEWEST_COMPARED

    return dict(load_settings(NEWEST_COMPARED, broker.broker_conf, broker.settings or ()).given)


def store_options(choice: StoreChoice, broker: BrokerChoice | None) -> StoreOptions:
    """What the user said about the store, with broker version and settings: they decide where no file tells."""
    named = None if broker is None else broker.broker
    settings = given_settings(broker)
    options = structs.replace(choice.options(), settings=settings, broker=named)
    folders = () if options.commitlog else log_folders(choice.root, settings)
    return structs.replace(options, commitlog=folders, log_of_conf=True) if folders else options


def log_folders(root: Path, settings: Mapping[str, str]) -> tuple[Path, ...]:
    """The commitlog's folders as the settings name them (MessageStoreConfig); none where it is the store's own alone.

    A store that is not where the settings have it is a copy: what lay in its root there lies in its root here.
    """
    home = settings.get("storePathRootDir", "").strip()
    folders: list[Path] = []
    for name in ("storePathCommitLog", "readOnlyCommitLogStorePaths"):
        for text in settings.get(name, "").split(","):
            folder = Path(text.strip())
            if not text.strip():
                continue
            if home and folder.is_relative_to(home):
                folder = root / folder.relative_to(home)
            folders.append(folder)
    if home and Path(home).absolute() != root.absolute() and (root / "commitlog").is_dir():
        folders = [folder for folder in folders if folder.is_relative_to(root)]
    return () if folders == [root / "commitlog"] else tuple(dict.fromkeys(folders))


def run_verify(
    out: Printer, store: Store, engine: EngineChoice, broker: BrokerChoice | None = None, *,
    only: Collection[str] = (), title: str = "verifying", include_deleted: bool = False,
    known: KnownLog | None = None,
) -> VerifyReport:
    """Verify a store with a line of progress. A `known` log that did not change since is not scanned again."""
    from recover.check.report import verify

    with scan_options(out, store, engine, broker, title=title, include_deleted=include_deleted) as options:
        if known is not None:
            options = structs.replace(options, engine=structs.replace(known, engine=options.scanner))
        return verify(store, options, only)
