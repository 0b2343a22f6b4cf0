"""May it start? The answer of predict, which every command asks that could end in "start the broker".

1. Play the start of one release with its settings (`recover.predict.start`): what it costs.
2. Add what surrounds it and no release sees: settings that contradict the files, a run of ours that is half done, log
   files that are old enough to be deleted at once.
3. Judge each finding as an answer to this question (`judged`): its row says what it means for a start.

It does not protect from a start with other settings than those given, or from a change of the store afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, structs

from recover.broker.settings import BrokerSettings
from recover.broker.versions import NEWEST_OF_LINES, generation_of
from recover.check import log as check_log
from recover.check.parts import OTHER_QUEUES, REMAINS
from recover.check.report import VerifyReport
from recover.check.surroundings import Surroundings
from recover.derived.index_files import index_ends
from recover.findings.code import DERIVED, MESSAGES
from recover.findings.model import Finding, FindingList, Phrase, judged
from recover.look.store import settings_of_options
from recover.predict.dispatch import Stop
from recover.predict.prediction import Prediction
from recover.predict.start import Starts
from recover.store.store import COMMITLOG, CONSUMEQUEUE

_ABORT = "abort-present"
_LEFT_BY_A_KILL = frozenset({_ABORT, "consumequeue-missing-units", "index-missing-units"})
_LEFT_OUT = "settings-leave-out-size"
_COSTS = frozenset({"start-loses-messages", "start-leaves-unreachable", "start-leaves-light-queues",
                    "start-reuses-offsets", "start-lowers-queues", "start-cannot-say"})
_POP_IN_ROCKSDB = "5.3.0"
_IN_QUEUES = frozenset({"start-leaves-unreachable", "start-reuses-offsets"})


class Answer(Struct):
    """Whether a broker may start on a store, and why not.

    `findings`: all of the start. `exit_code`: 0 it costs nothing, 2 only what comes back from the log, 4 do not start,
    64 cannot say. `reason`: the first cause of 4 in words. `expiring`: log files that it deletes by a default of
    `fileReservedTime`, which the broker need not have. `damaged`: the log has damaged messages, or damage before intact
    ones. `mends`: records with a wrong field, which `recover --mend-bits` corrects.
    `unstated`: parts that are not here, of which the answer assumes that this broker does not have them.
    """

    prediction: Prediction
    findings: list[Finding]
    exit_code: int
    reason: str | None
    expiring: list[Finding]
    damaged: bool
    mends: list[Finding] = []
    unstated: list[Finding] = []

    @property
    def may_start(self) -> bool:
        """Whether nothing speaks against the start; also where a part that is not read leaves it open."""
        return self.prediction.starts and not self.exit_code & MESSAGES

    @property
    def assumptions(self) -> list[str]:
        return [*self.prediction.assumptions, *(
            Phrase("{setting}: log files unchanged for so many hours go",
                   setting=f"fileReservedTime={item.facts['hours']}")
            for item in self.expiring), *(
            Phrase("{setting}: {why}", setting=f"{item.facts['setting']}=false", why=item.message)
            for item in self.unstated)]

    @property
    def assumed(self) -> list[str]:
        """Settings that the broker must have for this answer."""
        return [Phrase("{setting} or more", setting=f"fileReservedTime={item.facts['keeps']}")
                for item in self.expiring] + [
            f"{item.facts['setting']}=false" for item in self.unstated]

    def leads(self) -> list[Finding]:
        """The findings that lead on: with part of the log missing, no start is recommended, not even on a copy, because
        the missing part comes first."""
        missing = bool(self.prediction.incomplete)
        return [item for item in self.findings if not (missing and item.code in _COSTS) and item not in self.expiring
                ] + self.mends


def may_start(checked: VerifyReport, settings: BrokerSettings, at: int | None = None) -> Answer:
    """Return whether the broker of these settings may start on a store that was verified (log and queues at least), at
    a time (ms; None: now)."""
    store, view, placed = checked.analysis.store, checked.analysis.by_names, checked.analysis.placed
    starts = Starts.on(checked.analysis)
    around, now, prediction = starts.around, starts.now if at is None else at, starts.predict(settings, at)
    # whole records that stand elsewhere are messages, and no unit leads to them
    prediction.unreachable_messages += sum(run.records for run in placed)
    stated = [*_stated_settings(around, settings)]
    _refuse_left_out(prediction, stated)
    expiring = around.expiring(settings, now) if prediction.starts else []
    displaced = [*check_log.displaced_findings(store, placed)]
    beside = [*stated, *expiring, *around.runs, *displaced]
    found = [
        # whether a log is meant to begin late is a question for a person, and no cost of the start
        *prediction.findings(), *(judged(item, "start") for item in around.first_file if item.severity == "warning"),
        *around.lock, *_remains(checked, prediction), *stated, *expiring, *around.guesses, *around.refused_records,
        *(around.too_old(settings.version) if prediction.lost_messages else ()), *around.runs, *displaced,
    ]
    causes = [item for item in [*stated, *around.runs, *expiring] if item.bits & MESSAGES]
    code = prediction.exit_code | FindingList(beside).bits
    mends = _mends(checked)
    return Answer(
        prediction, [*_led_to(mends, found, prediction)], code & ~DERIVED if code & MESSAGES else code,
        prediction.reason or next((item.message for item in causes), None),
        [item for item in expiring if not item.bits],
        # a prediction does not count messages that are damaged already
        bool(checked.findings.bits & MESSAGES) or any(item.intact_after for item in view.damaged),
        [structs.replace(item, severity="info", bits=0) for item in mends],
        around.unstated if settings.version.has_reached(_POP_IN_ROCKSDB) else [],
    )


def _refuse_left_out(prediction: Prediction, stated: list[Finding]) -> None:
    """A broker whose configuration leaves out the size of log or queue files loads none of them, and does not start."""
    for item in stated:
        if item.code == _LEFT_OUT and item.bits & MESSAGES and prediction.starts:
            prediction.refuse(Stop(item.message, item.remedy))


def _mends(checked: VerifyReport) -> list[Finding]:
    """Findings of records with a wrong field, which recover corrects with --mend-bits."""
    return [item for item in checked.findings if item.repaired_by == "mend-bits" and item.severity != "info"]


def _led_to(mends: list[Finding], found: list[Finding], prediction: Prediction) -> Iterator[Finding]:
    """The findings of a start; a record in a wrong queue has no entry there, and no rebuild of the queues makes it
    right."""
    explained = 0 < prediction.unreachable_messages <= sum(item.facts.get("count", 1) for item in mends)
    for item in found:
        yield structs.replace(item, remedy=mends[0].remedy) if explained and item.code in _IN_QUEUES else item


def refused_by_all(checked: VerifyReport) -> tuple[str, str] | None:
    """The release of a store that was verified, and why neither it nor a later line starts there; None if one does."""
    store, view = checked.analysis.store, checked.analysis.by_names
    own, starts = settings_of_options(store, view), Starts.on(checked.analysis)
    reasons = []
    later = [line for line in reversed(NEWEST_OF_LINES) if generation_of(line) > own.version]
    for version in [own.version, *later]:
        # whether it starts is asked, not what that costs
        found = starts.play(BrokerSettings(version, own.given), counted=False).prediction
        if found.starts:
            return None
        reasons.append(found.reason or "")
    return str(own.version), reasons[0]


def start_that_restores(checked: VerifyReport, settings: BrokerSettings | None = None) -> Answer | None:
    """The answer for a start that costs nothing and restores all that is wrong, None where it does not: after a kill
    the abort file is there, and the last messages of the log were not dispatched yet. Without `settings`, those of the
    store's options count."""
    wrong = [item for item in checked.findings if item.severity != "info"]
    if not {_ABORT} < {item.code for item in wrong} <= _LEFT_BY_A_KILL:
        return None
    store = checked.analysis.store
    answer = may_start(checked, settings or settings_of_options(store, checked.analysis.by_names))
    # the prediction counts itself whether the queues are complete then; of the index, a start skips what lies before
    # the last entry that there is (IndexService.buildIndex)
    first = max([answer.prediction.dispatched_from or 0, *(end + 1 for end, _ in index_ends(store))])
    lacks = [item for item in wrong if item.code == "index-missing-units" and item.facts["first"] < first]
    return None if answer.exit_code or not answer.may_start or lacks else answer


def _stated_settings(around: Surroundings, settings: BrokerSettings) -> Iterator[Finding]:
    """Settings that contradict the files, of those that this release knows. Without the sizes of the log and its queues
    the broker loads none of the files: 4.5.1 and 5.3.3 do not start."""
    for item in around.contradicted:
        if item.code == OTHER_QUEUES and not settings.knows("storeType"):
            continue
        loads = item.code == _LEFT_OUT and item.file not in (COMMITLOG, CONSUMEQUEUE)
        yield item if loads else judged(item, "start")


def _remains(checked: VerifyReport, prediction: Prediction) -> list[Finding]:
    """Findings of verify that most of the log is not here, if the start costs messages: the right files must be found
    before a repair."""
    if prediction.unsupported or not prediction.exit_code & MESSAGES:
        return []
    told = {item.code for item in prediction.incomplete}
    return [item for item in checked.findings if item.code in REMAINS and item.code not in told]
