"""How long a start takes, and whether a probe kills the broker before its port answers.

1. Recovery reads the log from its start file (in it, from the place where an accelerated one begins) to where it ends
   the log: bytes and records of that range. It gives those from `dispatched_from` on to queues and index.
2. The rates of the release, or of the nearest older one that was measured, turn this into seconds: real brokers on a
   page cache that holds all files (benchmarks/starts.py; fixtures/start-rates.json has each measurement).
3. A disk adds the time that the bytes need at its rate: a broker reads the log through memory maps, and waits.

It does not know the machine: the rates are of one core of an AMD EPYC, with a heap of 1.5 GB and 160 queues. It leaves
out thousands of queues, queue and index files that the page cache lacks, plug-ins, TLS, a controller that elects, heaps
that are touched page by page at the start (AlwaysPreTouch), and what services do afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct, structs

from formats.checkpoint import EMPTY
from recover.broker.recovery import first_position
from recover.broker.settings import BrokerSettings
from recover.broker.versions import BrokerVersion
from recover.findings.model import Finding, Phrase, finding
from recover.log.scan import LogView
from recover.predict.dispatch import BrokerLog, mapped_file_size
from recover.predict.prediction import Prediction
from recover.store.store import Store

MEBI = 1 << 20
MEGA = 1_000_000


class Rates(Struct, frozen=True):
    """What one release takes: seconds beside its log, and microseconds for each MiB of log read, record read, and
    record dispatched."""

    start_s: float
    mib_us: float
    record_us: float
    dispatch_us: float


RATES = {
    "4.5.1": Rates(2.32, 0.0, 1.282, 5.441),
    "4.9.7": Rates(4.31, 0.0, 0.702, 0.779),
    "5.3.3": Rates(5.41, 0.0, 0.698, 2.225),
    "5.5.0": Rates(7.75, 0.0, 0.749, 5.621),
}
"""Of fixtures/start-rates.json."""


class StartCost(Struct, frozen=True):
    """What recovery and dispatch of a start read (bytes, records), and the estimate in seconds from the start of the
    process until its port answers. `measured`: the release whose rates these are.
    `disk_seconds`: what is added for the disk."""

    recovery_bytes: int
    recovery_records: int
    dispatched_records: int
    seconds: float
    disk_seconds: float
    measured: str

    @property
    def basis(self) -> str:
        """Where the seconds come from, in one line."""
        return Phrase(
            "rates measured with {release} on one core and {seconds} s for the disk" if self.disk_seconds else
            "rates measured with {release} on one core, all files in the page cache", release=self.measured,
            seconds=f"{self.disk_seconds:g}")

    def json(self) -> dict[str, Any]:
        """What the seconds are made of."""
        said = {name: value for name, value in structs.asdict(self).items() if name != "seconds"}
        return said | {"basis": self.basis}

    def findings(self, prediction: Prediction, probe_limit: float | None) -> Iterator[Finding]:
        """A probe that kills the broker before it is up."""
        if probe_limit is not None and self.seconds > probe_limit:
            yield finding("start-outlasts-probe", broker=prediction.broker, seconds=self.seconds, limit=probe_limit,
                          mode=prediction.mode, measured=self.measured, basis=self.basis)


def start_cost(
    store: Store, view: LogView, settings: BrokerSettings, prediction: Prediction, disk_rate: float | None = None,
) -> StartCost | None:
    """Return what this start reads and how long it takes; `disk_rate`: MB a second, None for files in the page cache.

    None where the broker does not start, or the prediction does not know how. `view` is the scan of the whole log.
    """
    if not prediction.starts or prediction.is_unknown:
        return None
    begin, end = _recovered(store, view, settings, prediction)
    given = end if prediction.dispatched_from is None else max(begin, prediction.dispatched_from)
    version, rates = _rates(settings.version)
    size, records, dispatched = end - begin, _records(view, begin, end), _records(view, given, end)
    seconds = rates.start_s + (
        size / MEBI * rates.mib_us + records * rates.record_us + dispatched * rates.dispatch_us) / MEGA
    disk = size / MEGA / disk_rate if disk_rate else 0.0
    return StartCost(size, records, dispatched, _rounded(seconds + disk), _rounded(disk), version)


def _recovered(
    store: Store, view: LogView, settings: BrokerSettings, prediction: Prediction,
) -> tuple[int, int]:
    """The range of the log that recovery reads, physical offsets; (0, 0) without a log."""
    log = BrokerLog(view.queue.files, mapped_file_size(store, settings), view)
    for index, file in enumerate(log.files):
        if prediction.start_file == store.relative(file.path):
            checkpoint = store.checkpoint(extend=True) or EMPTY
            begin = file.file_from_offset + first_position(log, index, prediction.mode, settings, checkpoint)
            return begin, max(begin, prediction.cut_at)
    return 0, 0


def _records(view: LogView, begin: int, end: int) -> int:
    """The number of live records that start in [begin, end)."""
    found = 0
    for split in view.live():
        if not split.size or split.last < begin or split.first >= end:
            continue
        if begin <= split.first and split.last < end:
            found += split.size
        else:
            offsets = split.records["phy_offset"]
            found += int(((offsets >= begin) & (offsets < end)).sum())
    return found


def _rates(version: BrokerVersion) -> tuple[str, Rates]:
    """The rates of the newest release that was measured up to this one, else of the oldest."""
    known = sorted(RATES, key=BrokerVersion.parse)
    chosen = max((name for name in known if BrokerVersion.parse(name) <= version), key=BrokerVersion.parse,
                 default=known[0])
    return chosen, RATES[chosen]


def _rounded(seconds: float) -> float:
    """Two digits that count: an estimate has no more."""
    return float(f"{seconds:.2g}") if seconds < 10 else float(round(seconds))
