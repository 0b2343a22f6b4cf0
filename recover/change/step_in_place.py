"""How in-place steps are prepared, done, checked and taken back."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from formats.layout import Buffer
from recover.change import disk
from recover.change.journal import Run
from recover.change.model import InPlace, resolve
from recover.findings.refusal import Refusal
from recover.store.reading import READ, crc_of, data_extents, file_crc, gaps, open_file, read_chunks, zeros


def new_bytes(step: InPlace) -> Iterator[Buffer]:
    """What the range holds when the step is done."""
    return zeros(step.stop - step.start) if step.content is None else step.content.chunks()


def new_crc(step: InPlace) -> int:
    """CRC-32C of that."""
    known = step.content.crc32c if step.content is not None else None
    return crc_of(new_bytes(step))[1] if known is None else known


def prepare(run: Run, number: int, step: InPlace, promised: set[str]) -> tuple[dict[str, Any], list[Path]]:
    """Save the range and note what else the step changes: the facts for the journal, the paths to sync before it."""
    path = resolve(run.root, step.file)
    status = os.stat(path)
    sealed = run.plan.preconditions[number]
    # What a step before this one appended is not saved: taking that step back removes it.
    stop = min(step.stop, sealed.size)
    low, high = _blocks(step, status.st_blksize or 4096)
    fd = open_file(path)
    try:
        extents = data_extents(fd, low, min(high, status.st_size))
    finally:
        os.close(fd)
    preimage = run.preimage(number)
    disk.unlink(preimage)
    size, crc = disk.create_file(preimage, read_chunks(path, step.start, stop), sync=False)
    if (size, crc) != (max(0, stop - step.start), sealed.crc32c):
        raise Refusal(f"{step.file} changed while its bytes were saved", "see who else writes to this store")
    facts = {
        "size": status.st_size, "mtime_ns": status.st_mtime_ns, "mode": status.st_mode, "uid": status.st_uid,
        "gid": status.st_gid, "blocks": [low, high], "extents": extents,
    }
    return facts, [preimage, preimage.parent]


def _blocks(step: InPlace, size: int) -> tuple[int, int]:
    """The range widened to the blocks whose allocation the step can change."""
    return step.start // size * size, -(-step.stop // size) * size


def make_room(run: Run, number: int, step: InPlace) -> list[Path]:
    """Nothing: the file is there."""
    return []


def perform(run: Run, number: int, step: InPlace) -> list[Path]:
    """Change the range; may be repeated. The paths to sync afterwards."""
    path = resolve(run.root, step.file)
    if step.content is None:
        disk.zero_range(path, step.start, step.stop)
    else:
        disk.write_range(path, step.start, step.content.chunks())
    return [path]


def settle(run: Run, number: int, step: InPlace) -> dict[str, Any]:
    """Read the range back; what the file looks like now, for the journal. `OSError` if it holds other bytes."""
    path = resolve(run.root, step.file)
    if file_crc(path, step.start, step.stop) != (step.stop - step.start, new_crc(step)):
        raise OSError(errno.EIO, "what was written reads back differently", str(path))
    return look(path)


def look(path: Path) -> dict[str, Any]:
    """Size and mtime for the journal."""
    status = os.stat(path)
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}


def holds_new(run: Run, number: int, step: InPlace) -> bool:
    """Whether the range is as the step left it."""
    path = resolve(run.root, step.file)
    return file_crc(path, step.start, step.stop) == (step.stop - step.start, new_crc(step))


def holds_old(run: Run, number: int, step: InPlace) -> bool:
    """Whether the range is as it was before the step."""
    sealed = run.plan.preconditions[number]
    return file_crc(resolve(run.root, step.file), sealed.start, sealed.stop)[1] == sealed.crc32c


def holds_either(run: Run, number: int, step: InPlace) -> bool:
    """Whether each byte of the range is the old or the new one, as a kill half way through leaves it."""
    old_size = run.plan.preconditions[number].size
    ends = [each.stop for each in run.plan.steps if isinstance(each, InPlace) and each.file == step.file]
    if not old_size <= resolve(run.root, step.file).stat().st_size <= max(old_size, *ends):
        return False
    # After the old end of a file that grows, old bytes are zeros, or missing.
    now = _padded(read_chunks(resolve(run.root, step.file), step.start, step.stop), step)
    old = _padded(read_chunks(run.preimage(number)), step)
    return all(_mixed(a, b, c) for a, b, c in zip(now, old, _even(new_bytes(step)), strict=True))


def _mixed(now: bytes, old: bytes, new: bytes) -> bool:
    if now in (old, new):
        return True
    a, b, c = (np.frombuffer(piece, np.uint8) for piece in (now, old, new))
    return len(a) == len(b) == len(c) and bool(np.all((a == b) | (a == c)))


def _padded(chunks: Iterator[bytes], step: InPlace) -> Iterator[bytes]:
    def longer() -> Iterator[bytes]:
        size = 0
        for chunk in chunks:
            size += len(chunk)
            yield chunk
        yield from zeros(step.stop - step.start - size)

    return _even(longer())


def _even(chunks: Iterator[Buffer]) -> Iterator[bytes]:
    """The same bytes in pieces of one size."""
    waiting = bytearray()
    for chunk in chunks:
        waiting += chunk
        while len(waiting) >= READ:
            yield bytes(waiting[:READ])
            del waiting[:READ]
    if waiting:
        yield bytes(waiting)


def revert(run: Run, number: int, step: InPlace) -> list[Path]:
    """Put back bytes, length, holes, owner, mode, mtime; may be repeated. The paths to sync afterwards.

    `Refusal` if the saved bytes are damaged.
    """
    path, preimage, facts = resolve(run.root, step.file), run.preimage(number), run.begin_record(number)
    sealed = run.plan.preconditions[number]
    if file_crc(preimage)[1] != sealed.crc32c:
        raise Refusal(
            f"the saved bytes of {step.file} {step.start}..{step.stop} are damaged",
            "nothing was put back over this range", file=step.file,
        )
    if os.stat(path).st_size > facts["size"]:
        disk.truncate(path, facts["size"])
    low, high = facts["blocks"]
    extents = [(int(start), int(stop)) for start, stop in facts["extents"]]
    # A hole that reached beyond the range is made whole again only if nobody has put bytes into it since.
    if _reads_zero(path, low, step.start, extents) and _reads_zero(path, step.stop, high, extents):
        disk.punch_holes(path, extents, low, high)
    _write_back(path, preimage, step, extents)
    # bits that let a program run as somebody else no change takes away, so none come from a journal
    mode = facts["mode"] & 0o777 | os.stat(path).st_mode & 0o7000
    disk.set_metadata(path, facts["uid"], facts["gid"], mode, facts["mtime_ns"])
    return [path]


def settle_reverted(run: Run, number: int, step: InPlace) -> dict[str, Any]:
    """What the file looks like now, for the journal."""
    return look(resolve(run.root, step.file))


def _reads_zero(path: Path, start: int, stop: int, extents: list[tuple[int, int]]) -> bool:
    holes = (hole for hole in gaps(extents, start, stop) if hole[0] < hole[1])
    return not any(any(chunk) for first, last in holes for chunk in read_chunks(path, first, last))


def _write_back(path: Path, preimage: Path, step: InPlace, extents: list[tuple[int, int]]) -> None:
    """Old bytes where blocks were; and where the file system does not tell holes, everywhere that now differs."""
    size = preimage.stat().st_size
    for first, last in extents:
        start, stop = max(first, step.start), min(last, step.start + size)
        if start < stop:
            disk.write_range(path, start, read_chunks(preimage, start - step.start, stop - step.start))
    for first, last in gaps(extents, step.start, step.start + size):
        position = first
        for chunk in read_chunks(path, first, last):
            if any(chunk):
                disk.write_range(path, position, [bytes(len(chunk))])
            position += len(chunk)
