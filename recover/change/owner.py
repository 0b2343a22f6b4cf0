"""As which user a store is changed.

1. Whoever is not root changes what he may: nothing here concerns him.
2. Root on a store of another user becomes that user before the first write, with all threads, and root again
   afterwards. The real user stays root, so the owner can neither trace nor signal the process. What the owner may not
   do is refused, with the command that lets him; it is never done as root.
3. A store is another user's if its root is, or a folder of one of its parts.
4. `--as-root` keeps root, and is refused where others can write in a folder above or inside the store.

This protects files of root, and of third users. It does not protect the store from its owner, who can write there.
"""

from __future__ import annotations

import os
import pwd
import shlex
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from recover.findings.code import N_, Refusal
from recover.findings.model import Phrase
from recover.store.store import JOURNAL_DIR

_FOLDERS = ("", "commitlog", "consumequeue", "consumequeue_ext", "index", "config", JOURNAL_DIR)
_NOBODY = 65534
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class Owner(Struct, frozen=True):
    """The user whose store root is about to change: ids, the groups it is in, and its name or number."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str

    def __str__(self) -> str:
        return f"{self.name} (uid {self.uid})" if self.name else f"uid {self.uid}"

    def command(self, path: Path | str, *, tree: bool = False) -> str:
        """The command with which root lets this user do what was refused."""
        return shlex.join(["chown", "-hR" if tree else "-h", f"{self.uid}:{self.gid}", str(path)])


_acting: list[Owner] = []


def acting_owner() -> Owner | None:
    """The user that this process has become to change a store, if it has."""
    return _acting[-1] if _acting else None


def owner_of(root: Path, parts: Iterable[Path | str] = ()) -> Owner | None:
    """The user that root has to become to change this store; None for root's own, or for any other user."""
    if os.geteuid() != 0:
        return None
    folders = [root / name for name in _FOLDERS] + [Path(part) for part in parts]
    for folder in folders:
        try:
            status = folder.stat()
        except OSError:
            continue
        if stat.S_ISDIR(status.st_mode) and status.st_uid:
            return _known(status)
    return None


def _known(status: os.stat_result) -> Owner:
    try:
        user = pwd.getpwuid(status.st_uid)
    except KeyError:
        # without an entry there are no groups but the store's; that of root would give more than the owner has
        gid = status.st_gid or _NOBODY
        return Owner(status.st_uid, gid, (gid,), "")
    return Owner(user.pw_uid, user.pw_gid, tuple(os.getgrouplist(user.pw_name, user.pw_gid)), user.pw_name)


@contextmanager
def acting(
    root: Path, parts: Iterable[Path | str] = (), *, as_root: bool = False, beside: Iterable[Path] = ()
) -> Iterator[Owner | None]:
    """Be the owner of a store for the length of a block, if this is root and the store is another's. `beside`: folders
    elsewhere that are written too, and do not decide whose the store is.

    `Refusal` (8) if that user cannot reach the store, or root cannot become that user; with `as_root`, if others can
    write in a folder above or inside of it.
    """
    parts = tuple(parts)
    owner, parts = owner_of(root, parts), (*parts, *beside)
    if as_root:
        refuse_open_folders(root, parts)
        owner = None
    if owner is None:
        yield None
        return
    with being(owner):
        _acting.append(owner)
        try:
            _check_reach(root, parts, owner)
            yield owner
        finally:
            _acting.pop()


@contextmanager
def being(owner: Owner | None) -> Iterator[None]:
    """Have the rights of that user in all threads, if this is root, and root's own again afterwards. `Refusal` (8) if
    root may not."""
    if owner is None or os.geteuid() != 0:
        yield
        return
    group, groups = os.getegid(), os.getgroups()
    try:
        try:
            os.setgroups(owner.groups)
            os.setegid(owner.gid)
            os.seteuid(owner.uid)
        except OSError as error:
            raise Refusal(Phrase("root may not become {owner}, the owner of this store: {error}", owner=owner,
                                 error=error.strerror),
                          Phrase("Run the command as that user: setpriv --reuid {uid} --regid {gid} --clear-groups "
                                 "{typed}", uid=owner.uid, gid=owner.gid)) from error
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)


@contextmanager
def oneself() -> Iterator[None]:
    """Be root again within `acting`, for the length of a block that changes nothing in the store: Spark's own files are
    root's."""
    owner = acting_owner()
    if owner is None:
        yield
        return
    os.seteuid(0)
    try:
        yield
    finally:
        os.seteuid(owner.uid)


def refuse_unreadable(root: Path, files: Iterable[str]) -> None:
    """`Refusal` (8) naming the first file that root has read for its plan, and the owner of the store, as whom it is
    carried out, may not read: its content must not come out in one that he may."""
    owner = acting_owner()
    for file in files if owner is not None else ():
        path = root / file
        if os.path.exists(path) and not os.access(path, os.R_OK, effective_ids=True):
            raise Refusal(Phrase("{file} was read for the plan, and {owner}, who owns the store, may not read it",
                                 file=file, owner=owner), permission_remedy(path.absolute()), file=file)


def _check_reach(root: Path, parts: tuple[Path | str, ...], owner: Owner) -> None:
    for place in (root, *map(Path, parts)):
        for folder in (*reversed(place.absolute().parents), place):
            try:
                os.stat(folder / ".")
            except PermissionError as error:
                what = N_("it") if place == root else str(place)
                raise Refusal(Phrase("{owner} owns this store and cannot reach {what}: {folder} is closed to that user",
                                     owner=owner, what=what, folder=folder),
                              Phrase("Root can show it at another place: mount --bind {folder} /mnt, then run the "
                                     "command on /mnt.", folder=shlex.quote(str(root.absolute()))),
                              file=str(folder)) from error
            except OSError:
                break
    runs = root / JOURNAL_DIR / "runs"
    for name in ("plan.json", "journal.ndjson"):
        for path in runs.glob(f"*/{name}"):
            if not os.access(path, os.R_OK, effective_ids=True):
                raise Refusal(Phrase("{file} belongs to another user than the store, and {owner} cannot read it",
                                     file=path.relative_to(root), owner=owner),
                              Phrase("{command}, then run the command again",
                                     command=owner.command(root.absolute() / JOURNAL_DIR, tree=True)),
                              file=str(path.relative_to(root)))


def refuse_open_folders(root: Path, parts: Iterable[Path | str] = ()) -> None:
    """`Refusal` (8) naming the first folder above or inside a store and its parts in which others than root can
    write."""
    for place in (root, *map(Path, parts)):
        real = place.resolve()
        for folder in reversed(real.parents):
            _refuse_open(folder, above=True)
        for name, _, _ in os.walk(real):
            _refuse_open(Path(name), above=False)


def _refuse_open(folder: Path, *, above: bool) -> None:
    status = folder.stat()
    others = status.st_mode & (_OTHERS if status.st_gid or _has_acl(folder) else stat.S_IWOTH)
    # in a sticky folder such as /tmp nobody can move what is root's
    if status.st_uid or (others and not (above and status.st_mode & stat.S_ISVTX)):
        raise Refusal(Phrase("--as-root: others than root can write in {folder}, and lead root to other files",
                             folder=folder),
                      Phrase("Leave --as-root out: the change is then made as the owner of the store. Or close it "
                             "first: chown root: {folder}; chmod go-w {folder}", folder=shlex.quote(str(folder))),
                      file=str(folder))


def _has_acl(folder: Path) -> bool:
    try:
        return "system.posix_acl_access" in os.listxattr(folder)
    except OSError:
        return False


def permission_remedy(path: Path | str) -> str:
    """What lets this user write a path: a command for root where it acts as the owner of the store."""
    if (owner := acting_owner()) is not None:
        return Phrase("{command} lets {owner}, who owns the store, do it; then run the command again",
                      command=owner.command(path), owner=owner)
    return N_("run as the broker's user or as root, or make a recovered copy with --output")
