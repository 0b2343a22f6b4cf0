"""Plans as JSON documents: a body, the CRC-32C of its canonical form, and a format version.

Small content stands in the document, larger content in files of a directory next to it, each with its size and CRC-32C.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from recover.change import disk
from recover.change.content import INLINE_LIMIT, Content, FileContent, content_from_json, inline_json, make
from recover.change.model import FileState, InPlace, Plan, Step, StoreIdentity, step_from_json
from recover.findings.refusal import Refusal
from recover.store.reading import crc32c

FORMAT = "mqtool-plan"
VERSION = 1
_LARGEST = 512 << 20


def canonical(value: object) -> bytes:
    """The one byte form of a JSON value that checksums are taken over (ASCII, sorted keys, no blanks)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def document(plan: Plan, contents: Sequence[dict[str, Any] | None], sidecar: str) -> bytes:
    """The plan file's bytes; `contents` says of each step where its content is kept."""
    steps = []
    for number, step in enumerate(plan.steps):
        value = step.json()
        if (content := contents[number]) is not None:
            value["content"] = content
        if plan.preconditions:
            value["before"] = to_builtins(plan.preconditions[number])
        steps.append(value)
    body = {
        "id": plan.id, "command": plan.command, "created_ms": plan.created_ms, "sidecar": sidecar,
        "store": to_builtins(plan.store), "parts": list(plan.parts), "loss": list(plan.loss),
        "summary": plan.summary, "steps": steps, "watched": to_builtins(plan.watched),
    }
    whole = {"format": FORMAT, "version": VERSION, "crc32c": crc32c(canonical(body)), "body": body}
    return json.dumps(whole, indent=1, sort_keys=True, allow_nan=False).encode("ascii") + b"\n"


def stands_inline(step: Step, content: Content) -> bool:
    """Whether a run keeps content in the document; whole files are always staged."""
    return content.size <= INLINE_LIMIT and isinstance(step, InPlace)


def refuse_taken(path: Path) -> None:
    """`Refusal` if something is there already where a plan file is to be."""
    if os.path.lexists(path):
        raise Refusal(f"{path} exists already", "apply that plan, or name another file")


def save_plan(plan: Plan, path: Path) -> Path | None:
    """Write a plan file and the folder of its large contents, if it has any: that folder.

    `Refusal` if the disk will not take it, or one is there already.
    """
    refuse_taken(path)
    sidecar = path.with_name(f"{path.name}.{plan.id}.content")
    contents: list[dict[str, Any] | None] = []
    large = {
        sidecar / f"{number:06d}": step.content for number, step in enumerate(plan.steps)
        if step.content is not None and step.content.size > INLINE_LIMIT
    }
    try:
        if large:
            disk.mkdir(sidecar)
        for kept in large:
            disk.unlink(kept)
        made = make(sidecar / "making", large, interrupted=lambda: False)
        disk.sync_all(made)
        for number, step in enumerate(plan.steps):
            kept, content = sidecar / f"{number:06d}", step.content
            if content is None or kept not in large:
                contents.append(inline_json(content) if content is not None else None)
                continue
            size, crc = made.get(kept) or disk.create_from_pieces(kept, content.pieces())
            contents.append({"size": size, "crc32c": crc, "file": kept.name})
        temporary = path.with_name(f".{path.name}.{plan.id}")
        disk.unlink(temporary)
        disk.create_file(temporary, [document(plan, contents, sidecar.name)], 0o644)
        disk.rename(temporary, path)
        disk.fsync_dir(path.parent)
    except OSError as error:
        raise Refusal(f"the plan cannot be saved to {path}: {error.strerror}", "choose another place") from error
    return sidecar if large else None


def load_plan(path: Path, *, sidecar: str | None = None) -> Plan:
    """Read a plan file; `Refusal` with the reason if it is none, damaged, or of another format version.

    `sidecar`: the only folder beside it that may hold content.
    """
    try:
        if path.stat().st_size > _LARGEST:
            raise Refusal(f"{path} is too large for a plan", "check the file name")
        data = path.read_bytes()
    except OSError as error:
        raise Refusal(f"the plan {path} cannot be read: {error.strerror}", "check the file name") from error
    try:
        return _parse(json.loads(data), path, sidecar)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Refusal(f"{path} is not a plan: {error}", "make the plan again") from error


def _parse(whole: dict[str, Any], path: Path, only: str | None) -> Plan:
    if whole["format"] != FORMAT:
        raise ValueError("it has another format")
    if whole["version"] != VERSION:
        raise Refusal(
            f"{path} has plan format {whole['version']}, this mqtool knows {VERSION}", "make the plan again"
        )
    body = whole["body"]
    if crc32c(canonical(body)) != whole["crc32c"]:
        raise Refusal(f"{path} was changed after it was saved: its checksum does not fit", "make the plan again")
    sidecar = str(body["sidecar"])
    if "/" in sidecar or sidecar in ("", ".", "..") or (only is not None and sidecar != only):
        raise ValueError(f"content directory {sidecar!r}")
    folder = path.with_name(sidecar)
    steps = [step_from_json(value, content_from_json(value["content"], folder) if "content" in value else None)
             for value in body["steps"]]
    missing = [step.content.path for step in steps
               if only is None and isinstance(step.content, FileContent) and not step.content.path.is_file()]
    if missing:
        raise Refusal(
            f"{missing[0]} is missing: contents of this plan are in the folder {sidecar} next to it",
            f"copy that folder along with {path.name}, or make the plan again", file=str(missing[0]),
        )
    before = [FileState(**value["before"]) for value in body["steps"] if "before" in value]
    # the id becomes part of a directory name
    if not re.fullmatch("[0-9A-Za-z]{1,32}", body["id"]):
        raise ValueError(f"plan id {body['id']!r}")
    if len(before) not in (0, len(steps)):
        raise ValueError("a step has no precondition")
    return Plan(
        command=str(body["command"]), steps=tuple(steps), loss=tuple(body["loss"]), summary=dict(body["summary"]),
        parts=tuple(map(str, body["parts"])), id=body["id"], created_ms=int(body["created_ms"]),
        store=StoreIdentity(**body["store"]) if body["store"] else None, preconditions=tuple(before),
        watched=tuple(FileState(**value) for value in body["watched"]),
    )
