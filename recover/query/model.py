"""What a search found, and whether it looked everywhere it had to."""

from __future__ import annotations

from msgspec import Struct, field

from formats.commitlog import Record


class Found(Struct, frozen=True):
    """One message. `ghost`: old bytes behind a break of the log; `superseded`: its queue offset was given out again."""

    record: Record
    ghost: bool = False
    superseded: bool = False


class Answer(Struct):
    """`complete` is false when a part that could hold a hit was not looked at; `notes` say which, and other facts.

    `damaged`: places of the log that were led to, or said themselves to be a message, and hold no intact one, with the
    reason. `way` is how it was looked for: index, queue, id, offset, scan or list. `left_out`: how many more messages a
    list has.
    """

    way: str
    messages: list[Found] = field(default_factory=list)
    complete: bool = True
    notes: list[str] = field(default_factory=list)
    more: bool = False
    left_out: int = 0
    queue_offset: int | None = None
    damaged_ranges: int = 0
    damaged: list[dict[str, object]] = field(default_factory=list)

    def incomplete(self, note: str) -> None:
        """Note a part that could not be looked at."""
        self.complete = False
        self.notes.append(note)
