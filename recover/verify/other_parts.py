"""Parts whose data mqtool does not read, as findings: what nothing here speaks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from recover.files.store import CONSUMEQUEUE, Store
from recover.files.unread import Elsewhere, unread_parts
from recover.findings import Finding, finding

NOT_SUPPORTED = "part-not-supported"


def check_other_parts(
    store: Store, elsewhere: Mapping[str, Elsewhere], settings: dict[str, str], wanted: frozenset[str] | None
) -> Iterator[Finding]:
    """Each part that is there: `part-not-supported` when it holds data that a wanted question needs, else an info.

    `wanted` None: every question, and then the skeletons are listed, too.
    """
    for part in unread_parts(store, settings, queues=wanted is None or CONSUMEQUEUE in wanted):
        name = store.relative(part.path)
        answers = sorted(question for question, held in elsewhere.items() if held.part == name)
        if not answers and part.needed_for is not None:
            answers = [part.needed_for]
        if wanted is not None and not wanted.intersection(answers):
            continue
        try:
            held = part.holds(part.path)
        except OSError as error:
            yield finding("part-unreadable", name, None, part=name, error=error.strerror)
            continue
        if held and answers:
            yield finding(NOT_SUPPORTED, name, None, part=name, what=part.what, detail=held, answers=answers,
                          needed_for=part.needed_for, not_checked=_words(answers))
        elif wanted is None:
            yield finding("part-recognised", name, None, part=name, what=part.what, detail=held or "no data in it")


_WORDS = {
    "commitlog": "its messages", "consumequeue": "its queues", "index": "its keys", "checkpoint": "the checkpoint",
    "config": "its settings and offsets",
}


def _words(answers: list[str]) -> str:
    words = [_WORDS[name] for name in answers]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
