"""CHANGELOG.md out of one file a change, as restic does it. `make changelog VERSION=1.2.0` puts a release together.

1. A change comes with a file in `changelog/unreleased/`, in the form of `changelog/TEMPLATE.md`.
2. A release moves these files to `changelog/VERSION/`, beside a `summary.md` that says what the release is about.
3. CHANGELOG.md is written anew from all of `changelog/`, the newest release first: it is never edited. Nobody had a
   version before the first one: of that, it has the summary alone, and says where its changes are.

A test compares CHANGELOG.md with what this writes, and checks the form of each file.
"""

from __future__ import annotations

import datetime
import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("Added", "Changed", "Removed", "Fixed")
_FILE = re.compile(r"(\d{4})-[a-z0-9-]+\.md")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_SUMMARY, _UNRELEASED = "summary.md", "unreleased"
_HEAD = """# Changelog

Versions are [semantic](https://semver.org/): commands, options, JSON keys, finding codes, exit codes
and the names on [the page of the Python API](docs/api.md) change incompatibly in a new major version only.
This file is put together from [changelog/](changelog) by `make changelog`.
"""


class Change(NamedTuple):
    """One change: its kind, the issue that it belongs to (0: none), and what it means for a user."""

    kind: str
    issue: int
    text: str


def read_change(path: Path) -> Change:
    """Read a file of one change. `ValueError` if it has another form than `changelog/TEMPLATE.md`."""
    named = _FILE.fullmatch(path.name)
    head, _, text = path.read_text().partition("\n\n")
    kind = head.removeprefix("Kind: ")
    if named is None or kind not in KINDS or not text.strip() or "\n\n" in text.strip():
        raise ValueError(f"{path.name}: write NNNN-words.md, a line `Kind: {' or '.join(KINDS)}`, a blank line and one "
                         "paragraph")
    return Change(kind, int(named[1]), " ".join(text.split()))


def release_text(folder: Path, *, first: bool) -> str:
    """Return the section of one release: its date and summary, then its changes by kind and issue."""
    date, _, summary = (folder / _SUMMARY).read_text().partition("\n\n")
    lines = [f"## {folder.name} - {date.removeprefix('Date: ')}", "", summary.strip(), ""]
    changes = sorted(map(read_change, (path for path in folder.iterdir() if path.name != _SUMMARY)))
    if first:
        place = f"changelog/{folder.name}"
        return "\n".join([*lines, f"How it came to be, one file a change: [{place}]({place}).", ""])
    for kind in KINDS:
        items = [change for change in changes if change.kind == kind]
        if items:
            issues = [f" (#{change.issue})" if change.issue else "" for change in items]
            lines += [f"### {kind}", "", *(f"- {c.text}{of}" for c, of in zip(items, issues, strict=True)), ""]
    return "\n".join(lines)


def changelog_text(folder: Path) -> str:
    """Return the whole of CHANGELOG.md for a folder of releases."""
    releases = [path for path in folder.iterdir() if _VERSION.fullmatch(path.name)]
    releases.sort(key=lambda path: [int(part) for part in path.name.split(".")], reverse=True)
    return "\n".join([_HEAD, *(release_text(path, first=path == releases[-1]) for path in releases)])


def release(root: Path, version: str, today: datetime.date) -> None:
    """Move what is unreleased to a release, made here unless its summary is written already; write CHANGELOG.md."""
    if not _VERSION.fullmatch(version):
        raise ValueError(f"{version!r} is no version: write 1.2.0")
    folder = root / "changelog" / version
    changes = sorted((root / "changelog" / _UNRELEASED).glob("[!.]*"))
    for path in changes:
        read_change(path)  # before anything moves
        if (folder / path.name).exists():
            raise ValueError(f"{path.name} is a change of {version} already: give it another name")
    folder.mkdir(exist_ok=True)
    if not (folder / _SUMMARY).exists():
        (folder / _SUMMARY).write_text(f"Date: {today}\n\n{len(changes)} changes.\n")
    for path in changes:
        path.rename(folder / path.name)
    (root / "CHANGELOG.md").write_text(changelog_text(root / "changelog"))


if __name__ == "__main__":
    try:
        release(ROOT, sys.argv[1] if sys.argv[1:] else "", datetime.datetime.now(datetime.UTC).date())
    except ValueError as error:
        sys.exit(str(error))
