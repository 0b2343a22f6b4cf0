"""Where a command may write: the parts of the store as its own command line names them, and nothing else.

A store is hostile input, and so are its journal and a plan that somebody hands over: both name files, and neither may
widen what the command was given. No folder between a part and a file may be a link, or the link would widen it.
A part's own folder may be one if the command line names that part (commitlog on another disk, say).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from recover.errors import Refusal
from recover.plan.model import Plan, RetireFolder, Step

_FOLDERS = ("commitlog", "consumequeue", "consumequeue_ext", "index", "config")
_FILES = ("checkpoint", "abort")
_OPTIONS = {"commitlog": "--commitlog", "consumequeue": "--consumequeue", "index": "--index"}


class Places:
    """The folders that may be written below `root` and in the parts that are `given` (paths), looked at when asked.

    What was looked at once is not looked at again: make a new one for the next look.
    """

    def __init__(self, root: Path, given: Iterable[Path | str] = ()) -> None:
        self.root = Path(os.path.abspath(root))
        self.given = tuple(Path(os.path.abspath(part)) for part in given)
        self._bases = {self.root / name for name in _FOLDERS} | set(self.given)
        self._known: set[Path] = set()

    def check_plan(self, plan: Plan) -> None:
        """`Refusal` naming the first path of a plan that the command was not given, or that leads through a link."""
        for part in plan.parts:
            path = Path(os.path.abspath(part))
            if path not in self.given and not path.is_relative_to(self.root):
                raise _foreign(part)
        self.check(plan.steps)

    def check(self, steps: Iterable[Step]) -> None:
        """The same for some steps."""
        for step in steps:
            self.folders_of(step)

    def folders_of(self, step: Step) -> tuple[str, ...]:
        """The folders, as plans name them, in which a step may make or remove names; `Refusal` for a foreign one."""
        if step.file in _FILES:
            return (".",)
        path = Path(os.path.normpath(self.root / step.file))
        if isinstance(step, RetireFolder) and step.file in _FOLDERS:
            return (".",)
        folders = []
        for folder in path.parents:
            folders.append(folder)
            if folder in self._bases:
                break
        else:
            raise _foreign(step.file)
        for folder in folders:
            self._check_folder(folder)
        names = [str(folder) for folder in folders]
        if step.file.startswith("/"):
            return tuple(names)
        return (*(os.path.relpath(name, self.root) for name in names), ".")

    def _check_folder(self, folder: Path) -> None:
        if folder in self._known:
            return
        if folder not in self.given:
            try:
                is_link = stat.S_ISLNK(os.lstat(folder).st_mode)
            except (FileNotFoundError, NotADirectoryError):
                is_link = False
            if is_link:
                raise self._behind_link(folder)
        self._known.add(folder)

    def _behind_link(self, folder: Path) -> Refusal:
        target = os.path.realpath(folder)
        name = os.path.relpath(folder, self.root) if folder.is_relative_to(self.root) else str(folder)
        option = _OPTIONS.get(name)
        if option is not None:
            remedy = f"if that folder belongs to this store, name it: {option} {target}"
        else:
            remedy = "put the folder itself in its place (move it, or mount it there), or make a copy with --output"
        return Refusal(
            f"{name} is a link to {target}, and nothing is written behind a link of the store", remedy, file=name,
            target=target,
        )


def _foreign(path: str) -> Refusal:
    return Refusal(
        f"{path!r} is outside of the store's files as this command was given them, and nothing is written there",
        "if it belongs to the store, name its folder with --commitlog, --consumequeue or --index; if not, somebody "
        "made this up: do not use it", file=path,
    )


def check_alone(root: Path, file: str) -> None:
    """`Refusal` unless a file that is about to be written in place is a file, and has no other name."""
    try:
        status = os.lstat(root / file)
    except OSError:
        return
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        what = "a link" if stat.S_ISLNK(status.st_mode) else "known by another name, too" if stat.S_ISREG(
            status.st_mode) else "no regular file"
        raise Refusal(
            f"{file} is {what}: a change would reach outside of the store",
            "put a copy of the file in its place (cp -p --sparse=always), then run the command again", file=file,
        )
