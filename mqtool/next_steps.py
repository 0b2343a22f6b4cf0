"""The next steps of every command, in one table of states and steps; no other place gives hints.

A step is a complete command, with every store option that was given, or an instruction ("start the broker"), which
ends the sequence. Steps only lead forward: look → verify → predict → dry run → run → start the broker.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct, field, structs

from mqtool import exits
from mqtool.text import count
from mqtool.words import N_, _, listed, retold, told
from recover.findings.model import CODES, COPY, READS, copy_command, filled, shell_line, without_secrets
from recover.findings.store_codes import DLEDGER_LOG, GUESS, PARTLY_KEPT, QUEUE_DATABASE

if TYPE_CHECKING:
    from pathlib import Path

    from recover.findings.code import RepairedBy
    from recover.findings.model import Finding
    from recover.predict.may_start import Answer
    from recover.store.store import StoreOptions

START_BROKER = N_("start the broker")
NO_START = N_("do not start the broker")
STOP_BROKER = N_("stop the broker")
_PARTS = ("commitlog", "consumequeue", "index", "mapped_file_size", "index_slots", "index_entries")
ELSEWHERE = _PARTS[:3]
_NOT_OF_A_COPY = (*ELSEWHERE, "broker_conf")
"""Options that apply to a store but not to its copy."""
_BROKER = ("broker", "broker_conf", "settings")
_CLOCK = ("at",)
TAKES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("apply", "undo", "resume"), ELSEWHERE),
    **dict.fromkeys(("inspect", "verify", "query", "trace", "recover", "truncate", "rebuild", "rebuild-consumequeue",
                     "rebuild-index"), _PARTS + _BROKER),
    **dict.fromkeys(("doctor", "predict", "groups", "pending", "report"), _PARTS + _BROKER + _CLOCK),
}
"""The store options that each command takes, by parameter name."""
_SPELLING = {"settings": "--set"}


class Step(NamedTuple):
    """A command or instruction, and the reason."""

    command: str
    why: str


class Given(Struct, frozen=True):
    """The store on a command line: its place, and its options by parameter name. `copy`: the command created this store
    as a copy."""

    store: str = "STORE"
    options: tuple[tuple[str, str], ...] = ()
    log_of_conf: tuple[tuple[str, str], ...] = ()
    copy: bool = False

    @classmethod
    def of_values(cls, store: str, values: Mapping[str, Any]) -> Given:
        """Build from the parameter values of a command."""
        found = []
        for name in (*_PARTS, *_BROKER, *_CLOCK):
            value = values.get(name)
            words = [str(item) for item in (value if isinstance(value, list) else [value]) if item is not None]
            words = [without_secrets([_SPELLING[name], item])[1] if name == "settings" else item for item in words]
            found += [(name, item) for item in words]
        return cls(store, tuple(found))

    @classmethod
    def of_plan(cls, store: str, options: StoreOptions, conf: str = "", typed: Sequence[str] = ()) -> Given:
        """Build from the options saved in a plan. If its settings come from a configuration file that is still there,
        `conf` and the ones that were `typed` beside it stand for all."""
        values = {name: getattr(options, name) for name in (*_PARTS, "broker")}
        every = [f"{key}={value}" for key, value in options.settings.items()]
        said = {"broker_conf": conf, "settings": [*typed]} if conf and os.path.isfile(conf) else {"settings": every}
        return cls.of_values(store, {**values, "commitlog": list(options.commitlog), **said})

    def of_copy(self, place: Path, *, copy: bool = False) -> Given:
        """The same for a copy of the store at `place`, without the options that apply to the original only."""
        return Given(str(place), tuple(item for item in self.options if item[0] not in _NOT_OF_A_COPY), copy=copy)

    @property
    def conf(self) -> str:
        """The broker's configuration file, "" if none was named."""
        return dict(self.options).get("broker_conf", "")

    def line(self, command: str, *more: object) -> str:
        """A complete command line for the store; a change of a remote store is made on a copy, created first."""
        remote = "://" in self.store and command not in READS
        words = [] if remote else self.words(command)
        typed = shell_line("mqtool", command, COPY if remote else self.store, *words, *more)
        return f"{copy_command(self.store)} && {typed}" if remote else typed

    def words(self, command: str) -> list[str]:
        """The store options that a command takes, as words."""
        takes = TAKES.get(command, ())
        log = self.log_of_conf if "commitlog" in takes and "broker_conf" not in takes else ()
        return [word for name, text in (*self.options, *log) if name in takes
                for word in (_SPELLING.get(name, "--" + name.replace("_", "-")), text)]

    def _own_log(self) -> str:
        """The log's folders as options, unless a command line for the store has them anyway."""
        if "commitlog" in dict(self.options) or "://" in self.store:
            return ""
        folders = [text for _, text in self.log_of_conf] or [f"{self.store.rstrip('/')}/commitlog"]
        return "".join(f"--commitlog {shell_line(folder)} " for folder in folders)

    def settings(self) -> list[str]:
        """Settings with which a broker finds the store in its present place."""
        root = os.path.abspath(self.store)
        log = [os.path.abspath(text) for name, text in self.options if name == "commitlog"]
        if self.copy:
            return [f"storePathRootDir={root}", f"storePathCommitLog={root}/commitlog"]
        own = [f"{root}/commitlog"]
        return [f"storePathCommitLog={','.join(log)}"] if log and log != own else []

    def with_log_of_conf(self, options: StoreOptions) -> Given:
        """The same, with the log's folders for commands that take no --broker-conf."""
        folders = options.commitlog if options.log_of_conf else ()
        return structs.replace(self, log_of_conf=tuple(("commitlog", str(folder)) for folder in folders))

    def fill(self, text: str, typed: str = "") -> str:
        """Replace `{store}` in the text of a finding or refusal, and complete the commands in it.

        `{typed}` in a refusal is the refused command line: `typed`, else recover; an option that follows it takes the
        place of the one that was typed. `--commitlog LOG` stands for the log's folders where another one is named
        beside them.
        """
        for option in re.findall(r"\{typed\} (--[a-z-]+) ", text):
            typed = re.sub(rf" {option}[ =]\S+", "", typed)
        return filled(text.replace("{typed}", typed or self.line("recover")), self.store, self.line, self._own_log())


NOTHING_GIVEN = Given()


class Scene(Struct):
    """The situation of the user: after which `phase`, with which exit code and findings.

    `typed`: the words of the command line. `plan`: the file that --plan-out or apply named.
    `damaged`: the log has damaged messages, or damage before intact ones.
    `assumed`: settings that written files depend on. `unread`: parts that hold log or queues and are not read.
    `mendable`: messages that --mend-bits would save, or would have saved. `changes`: which command made the plan.
    `start`: whether the broker may start now; None where no step can be its start, as after a verify, unless the start
    restores all that is wrong.
    """

    phase: str
    given: Given
    code: int = 0
    findings: list[Finding] = field(default_factory=list)
    typed: Sequence[str] = ()
    plan: Path | None = None
    mendable: int = 0
    damaged: bool = False
    changes: str = "recover"
    assumed: Sequence[str] = ()
    unread: Collection[str] = ()
    start: Answer | None = None

    def named(self, *codes: str) -> list[Finding]:
        return [item for item in self.findings if item.code in codes]

    @property
    def wrong(self) -> list[Finding]:
        return [item for item in self.findings if item.severity != "info"]

    def repairs(self) -> list[Finding]:
        """Findings that a command of ours repairs."""
        return [item for item in self.wrong if item.by_us]

    def needs(self, option: RepairedBy) -> list[Finding]:
        """Findings that recover repairs only with this option."""
        return [item for item in self.findings if item.repaired_by == option]

    def by_hand(self, *codes: str) -> list[Step]:
        """Remedies that are work for a person, one per code; for the given codes, or for all."""
        first = {item.code: item for item in reversed(self.wrong)
                 if item.by_a_person and (not codes or item.code in codes)}
        worst_first = sorted(reversed(first.values()), key=lambda item: (
            not CODES[item.code].exit_bits & exits.OPERATIONAL, item.severity != "error"))
        return [self.remedy(item) for item in worst_first]

    def remedy(self, item: Finding) -> Step:
        message, remedy = told(item)
        return Step(self.given.fill(remedy or _(CODES[item.code].action)), self.given.fill(message))

    def dry_run(self, why: str, *options: str) -> Step:
        return Step(self.given.line("recover", *options, "--dry-run"), why)


STOPS, FIND, SETTINGS = (
    frozenset(code.name for code in CODES.values() if code.leads == leads) for leads in ("stop", "find", "setting"))
_MEND, _CLAMP = "--mend-bits", "--clamp-offsets"
_LEFT_BY_A_KILL = {"abort-present"}
_STORES = 10
OWNERS = "file-owner-or-mode"
_ASKS = "commitlog-begins-late"
"""A question for a person: whether the log is meant to begin there."""


def _stopped(scene: Scene) -> bool:
    return any(item.code in STOPS or CODES[item.code].exit_bits & exits.OPERATIONAL for item in scene.wrong
               if not item.by_us)


def _settings(scene: Scene) -> list[Finding]:
    """Settings to correct before anything else; those that are only left out are named beside the start."""
    return [item for item in scene.named(*SETTINGS) if item.bits or CODES[item.code].exit_bits]


def _resume(scene: Scene) -> list[Step]:
    return [Step(scene.given.line("resume"), "completes the unfinished run")]


def _start(scene: Scene) -> list[Step]:
    parts = [_("with {conf}").format(conf=scene.given.conf) if scene.given.conf else
             _("with its previous configuration")]
    lines = [f"{item.facts['setting']}={item.facts['right']}" for item in scene.named("settings-leave-out-size")]
    for text, said in ((N_("but {settings}"), scene.given.settings()),
                       (N_("and {settings}, which it does not set"), lines),
                       (N_("provided that it has {settings}"), scene.assumed)):
        if said:
            parts.append(_(text).format(settings=" ".join(map(retold, said))))
    last = N_("nothing else needs to be done")
    left = [*dict.fromkeys(item.code for item in scene.wrong)]
    if scene.named(_ASKS) and not scene.code & exits.MESSAGES:
        last = N_("if its log is meant to begin where it does")
    elif scene.named("start-outlasts-probe") and scene.phase == "predicted":
        last = N_("give it a startupProbe that allows more first")
    elif scene.phase == "predicted" and scene.code:
        last = N_("consumers get second copies of some messages") if scene.named("start-delivers-again") else \
            N_("the log restores whatever the start removes")
    elif scene.phase == "predicted":
        delivers = scene.named("start-delivers-overdue", "start-discards-half")
        last = N_("it loses nothing, and delivers at once what was due; mqtool verify checks everything else") \
            if delivers else N_("the start costs nothing; mqtool verify checks everything else")
    elif left:
        last = N_("it starts at no cost; still to handle: {codes}")
    elif scene.mendable:
        last = N_("gives up {messages} that --mend-bits would restore")
    more = ", ".join(left[:3]) + " …" * bool(left[3:])
    why = _(last).format(codes=more, messages=count(scene.mendable, "damaged message"))
    for guess in scene.named(GUESS, PARTLY_KEPT):
        how = N_("after you completed {file}, which mqtool guessed") if guess.code == GUESS else \
            N_("after you completed {file}, of which mqtool kept what could be read")
        why = _("; ").join([_(how).format(file=guess.file), why])
    return [*map(scene.remedy, scene.named(_ASKS)), Step(START_BROKER, _("; ").join([listed(parts), why]))]


def _dry_runs(scene: Scene) -> list[Step]:
    steps = []
    if scene.needs("mend-bits"):
        steps.append(scene.dry_run(
            "one flipped bit explains damaged messages: --mend-bits restores them", _MEND))
    # findings that only an option repairs do not justify a run without it
    asked = scene.phase == "predicted" and (bool(scene.code & exits.MESSAGES) or not steps)
    if asked or any(item not in scene.needs("mend-bits") + scene.needs("clamp") for item in scene.repairs()):
        steps.append(scene.dry_run("shows what a repair would change and what is lost; writes nothing"))
    if scene.needs("clamp"):
        steps.append(scene.dry_run(
            "the same, and lowers consumer offsets to the end of their queues", _CLAMP))
    return steps


def _refuses(scene: Scene) -> bool:
    """Whether recover would refuse: the log is not read, or messages are damaged and the queues are not read."""
    # the code of a prediction is that of the start
    damaged = scene.damaged if scene.phase == "predicted" else bool(scene.code & exits.MESSAGES)
    return DLEDGER_LOG in scene.unread or (QUEUE_DATABASE in scene.unread and damaged)


def _beside_unread(scene: Scene) -> list[Step]:
    asked = scene.phase == "checked" or (
        scene.phase == "predicted" and scene.code & exits.MESSAGES and not scene.by_hand(*FIND))
    repairs = asked and {item.code for item in scene.repairs()} - _LEFT_BY_A_KILL
    return (_dry_runs(scene) if repairs and not _refuses(scene) else []) + scene.by_hand()


def _start_restores(scene: Scene) -> list[Step]:
    """What a kill leaves is completed by the next start, as after every crash; a repair is the alternative."""
    assert scene.start is not None
    (step,) = [step for step in _start(scene) if step.command == START_BROKER]
    with_conf = step.why.rpartition(_("; "))[0]
    restores = _("the start itself restores what the kill left, at no cost (broker {broker})").format(
        broker=scene.start.prediction.broker)
    return [Step(START_BROKER, _("; ").join([with_conf, restores])),
            scene.dry_run("the same before the start: shows what a repair would change; writes nothing")]


def _predict(scene: Scene) -> list[Step]:
    killed = N_("the broker was killed") if scene.wrong else N_("nothing is wrong with the store")
    if _refuses(scene):
        killed = N_("nothing is repaired beside queues that mqtool does not read")
    why = _("{cause}: shows what its start would do and cost").format(cause=_(killed))
    return [Step(scene.given.line("predict"), why)]


def _go(scene: Scene) -> list[Step]:
    words = iter(scene.typed)
    typed = [word for word in words if word != "--dry-run" and not (
        word.startswith("--loss-out=") or (word == "--loss-out" and next(words)))]
    steps = [Step(shell_line("mqtool", *typed), "runs this plan")]
    if scene.mendable:
        more = Step(shell_line("mqtool", *typed, _MEND),
                    _("the same, and restores messages that one flipped bit explains ({n:,})").format(
                        n=scene.mendable))
        steps.insert(0, more)
    return steps


def _apply(scene: Scene) -> list[Step]:
    steps = [Step(shell_line("mqtool", "apply", scene.plan, *scene.given.words("apply")), "runs this plan")]
    if scene.mendable:
        more = _("another plan, which also restores messages that one flipped bit explains ({n:,})").format(
            n=scene.mendable)
        steps.insert(0, scene.dry_run(more, _MEND))
    return steps


def _as_predicted(scene: Scene, answer: Answer) -> list[Step]:
    """What predict would say."""
    return next_steps(structs.replace(
        scene, phase="predicted", code=answer.exit_code, findings=answer.leads(), damaged=answer.damaged,
        assumed=answer.assumed, start=None))


def _to_start(scene: Scene) -> list[Step]:
    """doctor of a store that verify leads to its start. Whatever else the start would cost, a repair stays named: what
    a start restores is left to it only where it may start."""
    assert scene.start is not None
    steps = _as_predicted(scene, scene.start)
    if scene.repairs() and not scene.start.may_start and not any("mqtool recover" in step.command for step in steps):
        steps += _dry_runs(scene)
    return steps


def _to_repair(scene: Scene) -> list[Step]:
    """doctor of any other store: what verify would say."""
    assert scene.start is not None
    return next_steps(structs.replace(scene, phase="checked", code=scene.code | scene.start.exit_code, start=None))


def _not_yet(scene: Scene, answer: Answer) -> list[Step]:
    """What predict would say after a change that leaves a start out of the question. Of its steps only the work for a
    person: a second recover would have nothing to do."""
    steps = _as_predicted(scene, answer)
    leads = answer.leads()
    cause = retold(answer.reason) if answer.reason else _("; ").join(
        told(item)[0] for item in leads if item.bits & exits.MESSAGES)
    return [step for step in steps if not step.command.startswith("mqtool")] or [
        Step(NO_START, scene.given.fill(_("broker {broker}: {cause}").format(
            broker=answer.prediction.broker, cause=cause)))]


def _after_repair(scene: Scene) -> list[Step]:
    may = scene.start is None or scene.start.may_start
    start = _start(scene) if scene.start is None or may else _not_yet(scene, scene.start)
    hands = [step for step in scene.by_hand() if not step.command.startswith("mqtool")]
    find = bool(scene.by_hand(*FIND))
    steps = hands if find else [*start, *(step for step in hands if step not in start)]
    left = [] if _MEND in scene.typed else scene.needs("mend-bits")
    # a message that is still there is mended where it is, one that was bridged only after an undo
    bridged = scene.mendable - sum(item.facts.get("count", 1) for item in left)
    if bridged > 0:
        steps.append(Step(f"{scene.given.line('undo')} && {scene.given.line('recover', _MEND)}",
                          _("restores messages that one flipped bit explains ({n:,}), not bridges").format(n=bridged)))
    if left:
        mend = scene.dry_run("flips back the one bit of messages that no client or service can read", _MEND)
        # after a change the start comes first, where it may; a run that changed nothing leads where verify does
        steps.insert(len(steps) if find or (may and scene.phase == "changed") else 0, mend)
    if scene.needs("clamp") and _CLAMP not in scene.typed:
        steps.append(scene.dry_run("lowers consumer offsets to the end of their queues", _CLAMP))
    return steps


def _verify(scene: Scene) -> list[Step]:
    return [Step(scene.given.line("verify"), "checks the whole store and reports every problem")]


class State(NamedTuple):
    """A row: a condition, and the steps that follow."""

    holds: Callable[[Scene], bool]
    steps: Callable[[Scene], list[Step]]


_PLACES, _WAITING = ("commitlog-misnamed-file", "commitlog-displaced-records"), "start-skips-waiting"


def _otherwise(scene: Scene) -> bool:
    return True


def _costs(scene: Scene) -> bool:
    return bool(scene.code & exits.MESSAGES)


def _only_skips_waiting(scene: Scene) -> bool:
    """Whether messages that it would never deliver are all that the start costs: with the log repaired, others wait."""
    return {item.code for item in scene.wrong if item.bits & exits.MESSAGES} == {_WAITING}


def _changes(scene: Scene) -> bool:
    """Whether a change of the store comes next."""
    return scene.phase == "planned" or bool(scene.code & (exits.MESSAGES if scene.phase == "predicted" else ~0))


_LOOK = State(_otherwise, _verify)
_UNFINISHED = State(lambda it: bool(it.named("run-unfinished")), _resume)
_STOPPED = State(_stopped, Scene.by_hand)
_SETTING = State(lambda it: bool(_settings(it)), lambda it: [it.remedy(item) for item in _settings(it)])
# a running broker is stopped before a change, and left alone where none is needed
_RUNNING = State(
    lambda it: bool(it.named("broker-running")) and _changes(it) is (it.phase in ("planned", "checked")),
    lambda it: [Step(STOP_BROKER, "the store cannot be changed while it runs")] if _changes(it) else [])
_UNREAD = State(lambda it: bool(it.code & exits.UNSUPPORTED), _beside_unread)
_SEARCH = State(lambda it: bool(it.by_hand(*FIND)) and (it.phase == "checked" or _costs(it)),
                lambda it: it.by_hand(*FIND) + (_dry_runs(it) if it.repairs() else []))
_LEFT_BY_A_REBUILD = State(lambda it: it.changes != "recover" and bool(
    [item for item in it.repairs() if item.code not in _LEFT_BY_A_KILL]), _dry_runs)
_AFTER = (_UNREAD, _LEFT_BY_A_REBUILD, State(_otherwise, _after_repair))
# recover restores the name of a log file, whatever else is unknown about the start
_RENAME = State(lambda it: bool(it.named(*_PLACES)), _dry_runs)
_COSTS_NOTHING = (
    State(lambda it: bool(it.named(OWNERS)), Scene.by_hand),
    _RENAME, _UNREAD,
    State(lambda it: bool(it.needs("mend-bits")), _dry_runs),
    State(lambda it: it.damaged, _verify),
    State(_otherwise, _start),
)
"""A start that costs no message, before any repair."""
PHASES: dict[str, tuple[State, ...]] = {
    **dict.fromkeys(("inspected", "undone", "part"), (_LOOK,)),
    "journal": (_UNFINISHED, _LOOK),
    "fleet": (State(_otherwise, lambda it: [Step(Given(str(item.file)).line("verify"), item.message)
                                            for item in it.wrong[:_STORES]]),),
    "asked": (State(lambda it: not it.code & ~exits.DERIVED, _to_start), State(_otherwise, _to_repair)),
    "checked": (
        _UNFINISHED, _STOPPED, _SETTING, _RUNNING, _UNREAD, _SEARCH,
        State(lambda it: it.start is not None, _start_restores),
        State(lambda it: {item.code for item in it.wrong} <= _LEFT_BY_A_KILL or _refuses(it), _predict),
        State(lambda it: bool(it.repairs()), _dry_runs),
        State(_otherwise, Scene.by_hand),
    ),
    "predicted": (
        _UNFINISHED, _STOPPED, _SETTING, _RUNNING,
        State(lambda it: any(item.severity == "error" for item in it.named(OWNERS)), lambda it: it.by_hand(OWNERS)),
        State(lambda it: not _costs(it), lambda it: _first(_COSTS_NOTHING, it)),
        State(lambda it: bool(it.by_hand("start-refused")), lambda it: it.by_hand("start-refused")),
        _RENAME, _UNREAD, _SEARCH,
        State(_only_skips_waiting, lambda it: it.by_hand(_WAITING)),
        State(_otherwise, _dry_runs),
    ),
    "planned": (_UNFINISHED, State(lambda it: it.plan is not None, _apply), _RUNNING, State(_otherwise, _go)),
    "nothing": (_UNFINISHED, _STOPPED, _SETTING, _RUNNING, *_AFTER),
    "changed": (_UNFINISHED, _STOPPED, _SETTING, *_AFTER),
}
"""The rows of each phase, in their order; the first whose condition holds counts."""


def next_steps(scene: Scene) -> list[Step]:
    return _first(PHASES[scene.phase], scene)


def _first(rows: Iterable[State], scene: Scene) -> list[Step]:
    return next((state.steps(scene) for state in rows if state.holds(scene)), [])


def client_step(folder: Path) -> Step:
    """The command that shows the offsets of a broadcast client, in the folder of its group."""
    return Step(shell_line("mqtool", "inspect", folder / "offsets.json"), "shows its offsets")


def undo_step(given: Given) -> Step:
    """The command that undoes a change; shown apart from the next steps."""
    return Step(given.line("undo"), "only if you do not want this result")
