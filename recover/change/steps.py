"""What each family of steps does: save, change, check, revert.

An in-place step keeps the old bytes and the other attributes that it changes (length, holes, mtime) in the journal. A
replaced file keeps its inode: by a second name in `retired` where the file system allows it, so that at any instant the
store has the old file or the whole new one; by a rename where it does not; by a copy from another file system. A folder
is renamed into the journal; on another file system only an empty one can be removed, and is recreated by undo.

`prepare`, `make_room`, `perform` and `revert` may be repeated after a kill, and return the paths to sync.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recover.change import disk
from recover.change.journal import Run
from recover.change.model import InPlace, RetireFolder, Step
from recover.change.preconditions import observe
from recover.findings.code import Refusal
from recover.findings.model import Phrase
from recover.store.reading import between_extents, file_crc, identity, read_chunks
from recover.store.source import open_file

LARGEST = 512
"""Most steps in a batch."""
_BYTES = 64 << 20


def batches(root: Path, steps: Sequence[Step]) -> Iterator[list[int]]:
    """Yield the numbers of the steps, in order, in batches of one family in one part of the store. A step that
    lengthens its file is alone: later steps on that file depend on it."""
    batch: list[int] = []
    size = 0
    for number, step in enumerate(steps):
        length = step.stop - step.start if isinstance(step, InPlace) else 0
        if batch and (
            len(batch) >= LARGEST or size + length > _BYTES or _part(steps[batch[-1]]) != _part(step)
            or _part(step)[1] == "" or _lengthens(root, step) or _lengthens(root, steps[batch[-1]])
        ):
            yield batch
            batch, size = [], 0
        batch.append(number)
        size += length
    if batch:
        yield batch


def _part(step: Step) -> tuple[bool, str]:
    folder, slash, _ = step.file.rpartition("/")
    if not step.file.startswith("/"):
        folder = folder.split("/")[0] if slash else ""
    return isinstance(step, InPlace), folder


def _lengthens(root: Path, step: Step) -> bool:
    path = root / step.file
    return isinstance(step, InPlace) and path.exists() and step.stop > path.stat().st_size


class Work:
    """Carries out one step of a run: here one that puts a new file in place, or removes one. Other families override
    it."""

    def __init__(self, run: Run, number: int, step: Step) -> None:
        self.run, self.number, self.step = run, number, step
        self.sealed = run.plan.preconditions[number]
        self.path, self.retired, self.preimage = run.root / step.file, run.retired(number), run.preimage(number)

    @property
    def facts(self) -> dict[str, Any]:
        """The facts recorded by `prepare`."""
        return self.run.begins[self.number]

    def prepare(self, promised: set[str]) -> tuple[dict[str, Any], list[Path]]:
        """Save what the step destroys; return the facts for the journal, and the paths to sync before they are written.

        `promised`: the folders that begun steps create; those of this step are added.
        """
        disk.unlink(self.retired)
        missing: list[str] = []
        folder = Path(self.step.file).parent
        while self.step.content is not None and not (self.run.root / str(folder)).is_dir():
            if str(folder) in promised:
                break  # its parent exists, or is promised with it
            missing.append(str(folder))
            folder = folder.parent
        promised.update(missing)
        return {"aside": self._set_aside(), "mkdirs": missing[::-1]}, [self.retired.parent]

    def _set_aside(self) -> str | None:
        if not os.path.lexists(self.path):
            return None
        try:
            disk.link(self.path, self.retired)
            return "link"
        except OSError as error:
            if error.errno == errno.EXDEV:
                disk.copy_file(self.path, self.retired)
                return "copy"
            if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                return "move"
            raise

    def make_room(self) -> list[Path]:
        """Create the folders that the step needs. They are synced before a file moves there: after a power cut the file
        must not be in a folder that does not exist."""
        folders = [self.run.root / name for name in self.facts.get("mkdirs", ())]
        for folder in folders:
            disk.mkdir(folder, os.stat(folder.parent))
        return [folder.parent for folder in folders]

    def perform(self) -> list[Path]:
        """Do the step."""
        changed, staged = [self.path.parent], self.run.staged(self.number)
        if self.facts["aside"] == "move" and not os.path.lexists(self.retired):
            disk.rename(self.path, self.retired)
            changed.append(self.retired.parent)
        if self.step.content is None:
            disk.unlink(self.path)
        elif staged.exists():
            try:
                disk.rename(staged, self.path)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                disk.copy_into_place(staged, self.path)
            changed.append(staged.parent)
        return changed

    def holds_new(self) -> bool:
        """Whether everything is as the step leaves it."""
        content = self.step.content
        if content is None:
            return not os.path.lexists(self.path)
        return os.path.lexists(self.path) and file_crc(self.path) == (content.size, content.crc32c)

    def holds_old(self) -> bool:
        """Whether everything is as before the step."""
        sealed, state = self.sealed, observe(self.run.root, self.step.file)
        if not state.exists:
            return not sealed.exists
        same = (state.size, state.mtime_ns) == (sealed.size, sealed.mtime_ns)
        return same and file_crc(self.path)[1] == sealed.crc32c

    def holds_either(self) -> bool:
        """Whether a kill half way can have left this state: the name has the old file, the new one, or neither."""
        if not os.path.lexists(self.path):
            return not self.sealed.exists or os.path.lexists(self.retired) or self.step.content is None
        return self.holds_old() or self.holds_new()

    def revert(self) -> list[Path]:
        """Revert the step: restore the old file, or remove the new one and the folders made for it."""
        changed = [self.path.parent, self.retired.parent]
        if self.facts["aside"] is None:
            if self.path.parent.is_dir():
                disk.unlink(self.path)
        elif os.path.lexists(self.retired):
            self._put_back()
        for name in reversed(self.facts["mkdirs"]):
            folder = self.run.root / name
            if folder.is_dir():
                if os.listdir(folder):
                    raise Refusal(Phrase("{name} holds files that the run did not create", name=name),
                                  "move them away, then run undo again", file=name)
                disk.rmdir(folder)
            changed.append(folder.parent)
        return changed

    def _put_back(self) -> None:
        if self.facts["aside"] == "copy":
            disk.copy_into_place(self.retired, self.path)
        elif os.path.lexists(self.path) and os.path.samestat(os.lstat(self.path), os.lstat(self.retired)):
            # the step did not get to the replacement (a rename between two names of one file would leave both)
            disk.unlink(self.retired)
        else:
            disk.rename(self.retired, self.path)

    def settle(self) -> dict[str, Any]:
        """Verify the step; return size and mtime for the journal. `OSError` if the file reads back differently."""
        known = self.run.read_back.get(self.number)  # that same file, not written since, is not read again
        if (known is None or identity(self.path) != known) and not self.holds_new():
            raise OSError(errno.EIO, "what was written reads back differently", self.step.file)
        return self.file_state()

    def settle_reverted(self) -> dict[str, Any]:
        """Verify the revert; return size and mtime for the journal."""
        if not self.holds_old():
            raise Refusal(Phrase("{file} could not be restored", file=self.step.file), file=self.step.file)
        return self.file_state()

    def file_state(self) -> dict[str, Any]:
        """Size and mtime, zeros for a missing file."""
        if not os.path.lexists(self.path):
            return {"size": 0, "mtime_ns": 0}
        status = os.lstat(self.path)
        return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}

    def is_unchanged(self, status: str, last: dict[str, Any] | None) -> bool:
        """Whether the step's file is as its status says; `last` is its last recorded state, None if a step is half
        done.

        `OSError` from reading.
        """
        if status in ("untouched", "reverted"):
            return self.holds_old()
        return self.holds_new() if status == "done" else self.holds_either()


def work_of(run: Run, number: int) -> Work:
    """Return the worker for one step."""
    step = run.plan.steps[number]
    family = _InPlace if isinstance(step, InPlace) else _Folder if isinstance(step, RetireFolder) else Work
    return family(run, number, step)


class _InPlace(Work):
    step: InPlace

    def prepare(self, promised: set[str]) -> tuple[dict[str, Any], list[Path]]:
        step, status = self.step, os.stat(self.path)
        # bytes appended by an earlier step are not saved: reverting that step removes them
        stop = min(step.stop, self.sealed.size)
        # the blocks whose allocation the step can change
        block = status.st_blksize or 4096
        low, high = step.start // block * block, -(-step.stop // block) * block
        with open_file(self.path) as reader:
            extents = [*reader.data_ranges(low, min(high, status.st_size))]
        disk.unlink(self.preimage)
        saved = disk.create_file(self.preimage, read_chunks(self.path, step.start, stop), sync=False)
        if saved != (max(0, stop - step.start), self.sealed.crc32c):
            raise Refusal(Phrase("{file} changed while its bytes were saved", file=step.file),
                          "find the other process that writes to this store")
        facts = {
            "size": status.st_size, "mtime_ns": status.st_mtime_ns, "blocks": [low, high], "extents": extents,
        }
        return facts, [self.preimage, self.preimage.parent]

    def perform(self) -> list[Path]:
        if self.step.content is None:
            disk.zero_range(self.path, self.step.start, self.step.stop)
        else:
            disk.write_range(self.path, self.step.start, self.step.content.chunks())
        return [self.path]

    def holds_new(self) -> bool:
        step = self.step
        return file_crc(self.path, step.start, step.stop) == (step.stop - step.start, step.new_crc())

    def holds_old(self) -> bool:
        return file_crc(self.path, self.sealed.start, self.sealed.stop)[1] == self.sealed.crc32c

    def holds_either(self) -> bool:
        """Whether each byte of the range is the old or the new one."""
        step, old_size = self.step, self.sealed.size
        ends = [each.stop for each in self.run.plan.steps if isinstance(each, InPlace) and each.file == step.file]
        if not old_size <= self.path.stat().st_size <= max(old_size, *ends):
            return False
        at = step.start
        with open_file(self.path) as now, open_file(self.preimage) as old:
            for new in step.new_bytes():
                # after the old end of a file that grows, old bytes are zeros, or missing
                a, b = (np.frombuffer(bytes(reader.read(place, len(new))).ljust(len(new), b"\0"), np.uint8)
                        for reader, place in ((now, at), (old, at - step.start)))
                if not ((a == b) | (a == np.frombuffer(new, np.uint8))).all():
                    return False
                at += len(new)
        return True

    def is_unchanged(self, status: str, last: dict[str, Any] | None) -> bool:
        state = observe(self.run.root, self.step.file)
        if not state.exists or (last is not None and (state.size, state.mtime_ns) != (last["size"], last["mtime_ns"])):
            return False
        return super().is_unchanged(status, last)

    def revert(self) -> list[Path]:
        """Restore bytes, length, holes, mtime; `Refusal` if the saved bytes are damaged. Owner and mode never changed,
        and a journal that names any (those of earlier releases do) has no say in them."""
        path, step, facts = self.path, self.step, self.facts
        if file_crc(self.preimage)[1] != self.sealed.crc32c:
            raise Refusal(Phrase("the saved bytes of {file} {start}..{stop} are damaged", file=step.file,
                                 start=step.start, stop=step.stop), "nothing was restored over this range",
                          file=step.file)
        if os.stat(path).st_size > facts["size"]:
            disk.truncate(path, facts["size"])
        low, high = facts["blocks"]
        extents = [(int(start), int(stop)) for start, stop in facts["extents"]]
        # a hole that reached beyond the range is restored only if nothing was written into it since
        if _reads_zero(path, low, step.start, extents) and _reads_zero(path, step.stop, high, extents):
            disk.punch_holes(path, extents, low, high)
        self._write_back(extents)
        disk.set_times(path, facts["mtime_ns"])
        return [path]

    def _write_back(self, extents: list[tuple[int, int]]) -> None:
        """Write old bytes where blocks were; if the file system does not report holes, everywhere that now differs."""
        begin, end = self.step.start, self.step.start + self.preimage.stat().st_size
        for first, last in extents:
            start, stop = max(first, begin), min(last, end)
            if start < stop:
                disk.write_range(self.path, start, read_chunks(self.preimage, start - begin, stop - begin))
        for position, last in between_extents(extents, begin, end):
            for chunk in read_chunks(self.path, position, last):
                if any(chunk):
                    disk.write_range(self.path, position, [bytes(len(chunk))])
                position += len(chunk)


def _reads_zero(path: Path, start: int, stop: int, extents: list[tuple[int, int]]) -> bool:
    holes = (hole for hole in between_extents(extents, start, stop) if hole[0] < hole[1])
    return not any(any(chunk) for first, last in holes for chunk in read_chunks(path, first, last))


class _Folder(Work):
    """Its place is in the store's own journal, wherever the undo data of the run are: a rename needs no room."""

    def __init__(self, run: Run, number: int, step: Step) -> None:
        super().__init__(run, number, step)
        self.retired = run.retired_folder(number)

    def prepare(self, promised: set[str]) -> tuple[dict[str, Any], list[Path]]:
        status = os.lstat(self.path)
        moves = status.st_dev == os.stat(self.retired.parent).st_dev
        if not moves:
            # an empty folder in the journal keeps owner, mode and attributes of the one that cannot move there
            disk.rmdir(self.retired)
            disk.mkdir(self.retired)
            disk.copy_metadata(self.path, self.retired)
        twin = [] if moves else [self.retired, self.retired.parent]
        return {"aside": "move" if moves else "remove", "mtime_ns": status.st_mtime_ns}, twin

    @property
    def _is_removed(self) -> bool:
        return bool(self.facts["aside"] == "remove")

    def perform(self) -> list[Path]:
        if self._is_removed:
            disk.rmdir(self.path)
        elif os.path.lexists(self.path):
            disk.rename(self.path, self.retired)
        return [self.path.parent, self.retired.parent]

    def holds_old(self) -> bool:
        return observe(self.run.root, self.step.file, folder=True) == self.sealed

    def holds_either(self) -> bool:
        """Whether the whole folder exists, or none of it."""
        if self.holds_new():
            return self._is_removed or os.path.lexists(self.retired)
        # a recreated folder gets its owner, mode and time last
        return (self._is_removed and not os.listdir(self.path)) or self.holds_old()

    def revert(self) -> list[Path]:
        facts = self.facts
        if self._is_removed:
            disk.mkdir(self.path, os.stat(self.path.parent))
            if self.retired.is_dir():  # earlier releases kept none
                disk.copy_metadata(self.retired, self.path)
        elif os.path.lexists(self.retired):
            disk.rename(self.retired, self.path)
        if os.lstat(self.path).st_mtime_ns != facts["mtime_ns"] and not self.path.is_symlink():
            disk.set_times(self.path, facts["mtime_ns"])
        return [self.path.parent, self.retired.parent]
