"""`mqtool drill`: a damaged copy of a store, to rehearse on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import structs

from mqtool import exits, version
from mqtool.changing import copy_with_progress
from mqtool.next_steps import next_steps
from mqtool.options import (
    BrokerChoice,
    EngineChoice,
    PartsChoice,
    StoreChoice,
    argument,
    command,
    flag,
    log_size,
    option,
)
from mqtool.printer import Printer, Text, table, to_json
from mqtool.text import count
from mqtool.words import _
from recover.change import disk
from recover.change.copy_store import check_target, new_folder, sources_of
from recover.drill import DRILLS, rehearse
from recover.findings.code import Refusal, UsageRefusal
from recover.findings.model import Phrase

_PANEL = "What to rehearse"
_SHOWN = 20


@command(examples=[
    ("--list", "the available drills"),
    ("bit-in-body --copy-to /tmp/rehearsal /data/store", "a copy with one flipped bit in a message"),
    ("crash-bit-without-checkpoint --copy-to /tmp/rehearsal /data/store --seed 7", "damage at another place"),
])
def drill(
    out: Printer, parts: PartsChoice, broker: BrokerChoice, engine: EngineChoice,
    name: Annotated[str | None, argument("NAME", "Which drill.", DRILLS)] = None,
    store: Annotated[str | None, argument("STORE", "Store root: it is copied and not touched.")] = None,
    copy_to: Annotated[Path | None, option(
        "--copy-to", "Where the copy goes: a new or empty folder outside of the store.", _PANEL, metavar="DIR")] = None,
    seed: Annotated[int, option("--seed", "Selects the place of the damage.", _PANEL, metavar="N")] = 0,
    names: Annotated[bool, flag("--list", "List the drills.", _PANEL)] = False,
) -> int:
    """Copy a store and damage the copy, to rehearse a recovery. Only the copy is changed.

    The same drill, seed and store give the same damage. The changes are printed, and recorded beside the copy in
    DIR.drill.json, against which a rehearsal can be checked.
    """
    if names:
        out.answer(drills=[{"name": drill.name, "what": drill.summary} for drill in DRILLS.values()])
        rows = [(drill.name, _(drill.summary)) for drill in DRILLS.values()]
        out.show(table("drills", ["name", "*what it does to the copy"], rows))
        out.summary(f"{count(len(DRILLS), 'drill')}")
        return exits.CLEAN
    if name is None or store is None or copy_to is None:
        raise UsageRefusal("NAME, STORE and --copy-to DIR are needed", "`mqtool drill --list` shows the names.")
    if name not in DRILLS:
        raise UsageRefusal(Phrase("unknown drill {name}", name=name), "`mqtool drill --list` shows the names.")
    choice, target = StoreChoice(store=store, broker=broker, **structs.asdict(parts)), copy_to.absolute()
    note = target.with_name(target.name + ".drill.json")
    opened = choice.open()
    sources = sources_of(opened)
    if note.exists():
        raise Refusal(Phrase("{path} exists", path=note),
                      "It belongs to another drill: move it, or choose another DIR.")
    check_target(sources, copy_to)
    # a copy without its damage, or without the record of it, is removed again
    with new_folder(copy_to):
        copy_with_progress(out, sources, copy_to)
        scanner = engine.scanner(out, log_size(opened))
        with out.progress("scanning", log_size(opened)) as progress:
            done = rehearse(target, name, seed, scanner, progress)
        kept = {**done.json(), "store": str(choice.root.absolute()), "copy": str(target), "tool": version()}
        disk.create_file(note, [(to_json(kept) + "\n").encode()], 0o644)
    out.answer(**done.json(), copy=str(target), kept_in=str(note))
    changes = [[change.file, change.offset, change.what] for change in done.changes[:_SHOWN]]
    out.show(table("changes of the copy", ["file", ">offset", "*what"], changes))
    if len(done.changes) > _SHOWN:
        out.show(Text(_("… and {changes}: {file} lists all").format(
            changes=count(len(done.changes) - _SHOWN, "more change"), file=note)))
    given = out.given.of_copy(copy_to)
    out.summary(_("{copy} is a copy of {store} with {changes}: {what} {file} records the changes").format(
        copy=copy_to, store=store, changes=count(len(done.changes), "change"), what=_(DRILLS[name].summary), file=note),
                next_steps(out.scene("inspected", given=given)))
    return exits.CLEAN
