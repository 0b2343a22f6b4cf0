"""`--loss-out`: the loss list with names, a line a message, for those who must send again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Struct

from mqtool.declared import option
from mqtool.output import Printer, outside_store
from mqtool.text import count
from recover.findings.refusal import UsageRefusal

if TYPE_CHECKING:
    from recover.check.survey import Survey
    from recover.export.select import Selected

_KINDS = {".ndjson": "ndjson", ".jsonl": "ndjson", ".csv": "csv"}


class LossChoice(Struct, frozen=True, kw_only=True):
    """Where the loss list goes."""

    loss_out: Annotated[Path | None, option(
        "--loss-out", "List each lost or damaged message with all that is legible of it: a new .ndjson or .csv file.",
        "Output", metavar="FILE")] = None

    def check(self, root: Path, parts: tuple[Path, ...] = ()) -> None:
        """A usage error (16) for a file that cannot be written, before anything is scanned."""
        if self.loss_out is None:
            return
        if self.loss_out.suffix not in _KINDS:
            raise UsageRefusal(f"--loss-out {self.loss_out}: the name does not say what to write",
                               "Name a file that ends in .ndjson or .csv.")
        outside_store(self.loss_out, [root], parts)

    def write(self, out: Printer, look: Survey, cut_at: int | None) -> None:
        """Write what is legible of damaged messages and, from `cut_at` on, the intact ones that a cut would drop."""
        if self.loss_out is None:
            return
        from recover.export.write import output_file, writer_for

        notes: list[str] = []
        damaged = cut = 0
        with output_file(self.loss_out, resume=False) as (stream, left):
            writer = writer_for(_KINDS[self.loss_out.suffix], stream, left)
            for item in _all(look, cut_at, notes):
                if item.message.state == "damaged":
                    damaged += 1
                else:
                    cut += 1
                writer.write(item)
            writer.close()
        out.answer(loss_list={"output": str(self.loss_out), "damaged": damaged, "cut": cut, "complete": not notes,
                              "notes": notes})
        for note in notes:
            out.say(f"not in the loss list: {note}")
        out.say(f"{count(damaged, 'damaged message')} and {count(cut, 'intact one')} that a cut would drop listed in "
                f"{self.loss_out}")


def _all(look: Survey, cut_at: int | None, notes: list[str]) -> Iterator[Selected]:
    from recover.export.damaged import damaged_messages
    from recover.export.select import Scanned, Source, Wanted, selected

    yield from damaged_messages(look)
    if cut_at is not None:
        scanned = Scanned(Source(str(look.store.root), look.store.commitlog, look.store), look.log, ())
        yield from selected(scanned, Wanted(cut_at=cut_at, include=frozenset({"system"})), notes.append)
