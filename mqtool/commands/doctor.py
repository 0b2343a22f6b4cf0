"""`mqtool doctor`: may it start, what matters, and the next command, on one screen.

1. Verify the whole store, as `mqtool verify` does, and ask whether its broker may start, as `mqtool predict` does.
2. Of all findings show the three that matter most: what costs messages first, then what the start costs, one per code.
3. Name the next step of verify; a start only where nothing speaks against it.

It adds no judgement of its own: `verify`, `predict` and `groups` have every detail.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.cells import cell_len, chop_cells

from mqtool import exits
from mqtool.next_steps import Step, next_steps
from mqtool.options import ClockChoice, EngineChoice, StoreChoice, command
from mqtool.printer import Printer, Text, table
from mqtool.screens.verdict import start_line, verify_line
from mqtool.text import clean, count
from mqtool.words import N_, _, told
from recover.check.report import verify
from recover.findings.model import Finding
from recover.look.store import settings_of
from recover.predict.may_start import may_start

_LINES = (3, 2, 2)
"""Of the problems that matter, so many, and of each so many lines: the answer fits a screen of 24 lines. verify has all
of them whole."""


@command(
    examples=[
        ("/data/store", "may it start, what matters, what to type"),
        ("/data/store --broker 5.3.3 --broker-conf broker.conf", "for the broker that will start, with its settings"),
    ],
    bits=(exits.DERIVED, exits.MESSAGES, exits.UNSUPPORTED),
)
def doctor(out: Printer, store: StoreChoice, engine: EngineChoice, clock: ClockChoice) -> int:
    """Say on one screen whether a broker may start on the store, the three problems that matter, and the next command.

    The exit code has the bits of verify and of predict: 0 means that nothing is wrong and that a start costs nothing.
    """
    now = clock.ms
    opened = store.settled(engine)
    settings, assumed = settings_of(opened, *store.broker.said)
    with engine.scan(out, opened) as scan:
        checked = verify(opened, scan)
    answer = may_start(checked, settings, now)
    start = {**answer.prediction.json(), "reason": answer.reason, "assumptions": [*assumed, *answer.assumptions]}
    code = checked.exit_code | answer.exit_code
    unknown = bool(code & exits.UNSUPPORTED) and answer.may_start
    known = {(item.code, item.file, item.offset) for item in checked.findings}
    beside = [item for item in answer.findings if (item.code, item.file, item.offset) not in known]
    matters, more = _worst(checked.findings, beside)
    out.found([*checked.findings, *beside])
    out.shown = matters
    out.answer(
        may_start=None if unknown else answer.may_start, broker=answer.prediction.broker, start=start,
        matters=[{**item.json(), "message": out.given.fill(item.message), "remedy": out.given.fill(item.remedy)}
                 for item in matters],
        more=more,
    )
    word, style = (N_("CANNOT SAY"), "bold yellow") if unknown else \
        (N_("YES"), "bold green") if answer.may_start else (N_("NO"), "bold red")
    question = _("May {broker} start on it?").format(broker=answer.prediction.broker)
    out.show(Text.assemble((f"{question} ", "bold"), (_(word), style)),
             Text(clean(start_line({**start, "reason": answer.reason}, answer.exit_code))))
    room = out.width - max((len(item.code) for item in matters), default=0) - 3
    rows = [(Text(item.code), _fitting(clean(out.given.fill(told(item)[0])), room, lines))
            for item, lines in zip(matters, _LINES, strict=False)]
    if rows:
        hidden = _(" ({n}: mqtool verify lists all)").format(n=count(more, "more code")) if more else ""
        out.show(table(_("what matters") + hidden, ["code", "*problem"], rows))
    scene = out.scene("asked", checked.exit_code, findings=[*checked.findings], damaged=answer.damaged,
                      unread=checked.unread, start=answer)
    steps = next_steps(scene) or [Step(out.given.line("verify"), "reports every problem")]
    out.summary(verify_line(checked, code & ~exits.MESSAGES | checked.exit_code, start=code), steps)
    return code


def _fitting(text: str, width: int, lines: int) -> str:
    """The text, cut so that it takes so many lines; of each, blanks between words take a part."""
    cells = lines * width - 10 * (lines - 1)
    return text if cell_len(text) <= cells else f"{chop_cells(text, cells - 1)[0]}…"


def _worst(found: Iterable[Finding], of_start: Iterable[Finding]) -> tuple[list[Finding], int]:
    """The first finding of each of the worst codes, causes before what a start makes of them, and how many codes are
    left out."""
    first: dict[str, Finding] = {}
    for item in [*found, *of_start]:
        if item.severity != "info":
            first.setdefault(item.code, item)
    ranked = sorted(first.values(), key=lambda item: not item.bits & exits.MESSAGES)
    return ranked[:len(_LINES)], max(0, len(ranked) - len(_LINES))
