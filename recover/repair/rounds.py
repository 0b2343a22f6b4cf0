"""Plans until nothing is left to do: each round plans the repair of the store as the plan so far would leave it.

1. A repair is evidence itself: rebuilt queues and bridges tell more of a damaged log than what was there before.
2. The store after the plan is read like any other, with the steps laid over its files; nothing is written.
3. What a round adds joins the plan: a later step on the same bytes, or the same file, takes the place of the earlier.

A log without damage needs one round. Not protected: evidence that needs more than `MOST` rounds; verify shows it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import structs

from formats.basics import Buffer
from recover.change.content import BytesContent, Content, LazyContent
from recover.change.model import InPlace, Install, RetireFolder, Step, WriteRange, ZeroRange
from recover.findings.code import Refusal
from recover.repair.losses import RecoverPlan
from recover.repair.planned import planned_store
from recover.store.store import Store

MOST = 4


def settled(store: Store, made: RecoverPlan, again: Callable[[Store], RecoverPlan]) -> RecoverPlan:
    """Return the plan joined with what `again` plans for the store after it, until that is nothing."""
    log = made.before.analysis.log
    for _ in range(MOST if made.plan.steps and not log.is_plain else 0):
        with planned_store(store, made.plan.steps, with_index=True) as (planned, _):
            try:
                more = again(planned)
            except Refusal:
                return made  # what a first look at the result would refuse is left to it
            steps = [*map(_held, more.plan.steps)]
        if not steps or any(step.file.startswith("/") or isinstance(step, RetireFolder) for step in steps):
            return made
        made = _joined(store, made, more, steps)
    return made


def _held(step: Step) -> Step:
    """Return the step with its bytes in memory: the files that they are read from are those of one round."""
    content = step.content
    if content is None or isinstance(content, BytesContent):
        return step
    return structs.replace(step, given=BytesContent(b"".join(map(bytes, content.chunks()))))


def _joined(store: Store, made: RecoverPlan, more: RecoverPlan, steps: Sequence[Step]) -> RecoverPlan:
    """Return a plan of both rounds. Messages that the first left as they were are counted by the second."""
    known = [(each["topic"], each["queue"], each["cause"]) for each in made.plan.loss]
    loss = [each for each in more.plan.loss if (each["topic"], each["queue"], each["cause"]) not in known]
    damaged = max(made.damaged_messages, made.damaged_messages - made.left_messages + more.damaged_messages)
    summary = {**made.plan.summary, "damaged_messages": damaged, "valid_to": more.valid_to,
               "config": [*made.plan.summary["config"], *more.plan.summary["config"]]}
    plan = structs.replace(made.plan, steps=tuple(merged(store, made.plan.steps, steps)),
                           loss=(*made.plan.loss, *loss), summary=summary)
    return structs.replace(
        made, plan=plan, bridged=[*made.bridged, *more.bridged], lost_messages=made.lost_messages + more.lost_messages,
        damaged_messages=damaged, unproven_messages=made.unproven_messages + more.unproven_messages,
        left_messages=more.left_messages, mendable_messages=more.mendable_messages, valid_to=more.valid_to,
        abort_stays_for=more.abort_stays_for)


def merged(store: Store, first: Sequence[Step], then: Iterable[Step]) -> list[Step]:
    """Return the steps that leave what `first` and `then` leave one after the other, each byte written once."""
    laid: dict[str, list[Step]] = defaultdict(list)
    for step in first:
        laid[step.file].append(step)
    for step in then:
        laid[step.file] = [*_laid_over(store, laid.get(step.file, []), step)]
    # the order of the files stays, so that `abort` is last
    last = store.relative(store.abort_path)
    return [step for file in sorted(laid, key=lambda file: file == last) for step in laid[file]]


def _laid_over(store: Store, below: list[Step], step: Step) -> Iterator[Step]:
    """Yield the steps on one file after a later one."""
    whole = next((each for each in below if isinstance(each, Install)), None)
    if not isinstance(step, InPlace):
        if isinstance(step, Install) or store.path(step.file).exists():
            yield step
    elif whole is not None:
        yield Install(whole.file, _changed(whole.content, step))
    else:
        for each in below:
            yield from _around(each, step) if isinstance(each, InPlace) else [each]
        yield step


def _around(below: InPlace, step: InPlace) -> Iterator[Step]:
    """Yield what is left of a change on both sides of a later one."""
    for start, stop in ((below.start, min(below.stop, step.start)), (max(below.start, step.stop), below.stop)):
        if start < stop and below.content is None:
            yield ZeroRange(below.file, start, stop)
        elif start < stop and below.content is not None:
            yield WriteRange(below.file, start, below.content.part(start - below.start, stop - below.start))


def _changed(content: Content, step: InPlace) -> Content:
    """Return the content with one change laid over it."""
    def chunks() -> Iterator[Buffer]:
        at = 0
        for chunk in content.chunks():
            first, last = max(at, step.start), min(at + len(chunk), step.stop)
            if first < last:
                changed = bytearray(chunk)
                new = bytes(last - first) if step.content is None else step.content.part(
                    first - step.start, last - step.start)
                changed[first - at : last - at] = new
                chunk = bytes(changed)
            yield chunk
            at += len(chunk)

    return LazyContent(content.size, chunks, allocated=content.allocated + step.stop - step.start)
