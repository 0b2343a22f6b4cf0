"""One file a change, and a changelog that is put together from them, never edited."""

from __future__ import annotations

import datetime
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "changelog"
PROMISE = "Date: 2027-01-31\n\nWhat it promises.\n"


def _release(root: Path, version: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(root / "packaging" / "changelog.py"), version], capture_output=True,
                          text=True)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(FOLDER, tmp_path / "changelog")
    (tmp_path / "packaging").mkdir()
    shutil.copy(ROOT / "packaging" / "changelog.py", tmp_path / "packaging")
    return tmp_path


def test_the_changelog_is_what_its_files_give_and_every_unreleased_change_has_their_form(copy: Path) -> None:
    for path in (copy / "changelog" / "unreleased").iterdir():
        path.unlink()
    newest = max((path.name for path in FOLDER.iterdir() if path.name[0].isdigit()),
                 key=lambda name: [int(part) for part in name.split(".")])
    done = _release(copy, newest)
    assert not done.returncode, done.stderr
    assert (copy / "CHANGELOG.md").read_text() == (ROOT / "CHANGELOG.md").read_text()
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == newest


def test_the_first_release_is_one_screen_of_promises() -> None:
    """Nobody had the version before, whose changes would be longer than what the release is."""
    first = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[-1]
    assert first.startswith("1.0.0 - ")
    assert first.count("\n- **") >= 5
    wrapped = [row for line in first.splitlines() for row in textwrap.wrap(line, 120) or [""]]
    assert len(wrapped) <= 30


def test_a_change_never_takes_the_place_of_another_of_its_name(copy: Path) -> None:
    newest = max((path for path in (copy / "changelog").iterdir() if path.name[0].isdigit()),
                 key=lambda path: [int(part) for part in path.name.split(".")])
    old = min(newest.glob("0*.md"))
    text = old.read_text()
    (copy / "changelog" / "unreleased" / old.name).write_text("Kind: Fixed\n\nAnother thing.\n")
    done = _release(copy, newest.name)
    assert done.returncode and f"{old.name} is a change of {newest.name} already" in done.stderr
    assert old.read_text() == text


def test_a_release_takes_every_change_once_by_kind_and_issue_and_leaves_none(copy: Path) -> None:
    unreleased = copy / "changelog" / "unreleased"
    (unreleased / "0007-one.md").write_text("Kind: Fixed\n\n`verify` counts\nall of them.\n")
    (unreleased / "0000-two.md").write_text("Kind: Added\n\nA thing of no issue.\n")
    (copy / "changelog" / "99.0.0").mkdir()
    (copy / "changelog" / "99.0.0" / "summary.md").write_text(PROMISE)
    expected = len(list(unreleased.glob("[!.]*")))
    done = _release(copy, "99.0.0")
    assert not done.returncode, done.stderr
    assert not list(unreleased.glob("[!.]*"))
    text = (copy / "CHANGELOG.md").read_text()
    newest, older = text.split("\n## ")[1:3]
    assert newest.startswith("99.0.0 - 2027-01-31\n\nWhat it promises.\n")
    assert "### Fixed\n" in newest and "\n- `verify` counts all of them. (#7)\n" in newest
    assert "\n- A thing of no issue.\n" in newest.partition("### Added")[2]
    assert newest.count("\n- ") == expected
    assert older.startswith("1.")


def test_a_release_without_a_summary_has_the_date_of_its_day(copy: Path) -> None:
    assert not _release(copy, "99.1.0").returncode
    assert f"## 99.1.0 - {datetime.datetime.now(datetime.UTC).date()}" in (copy / "CHANGELOG.md").read_text()


@pytest.mark.parametrize(("name", "text"), [
    ("words.md", "Kind: Fixed\n\nText.\n"), ("0001-words.txt", "Kind: Fixed\n\nText.\n"),
    ("0001-words.md", "Kind: Mended\n\nText.\n"), ("0001-words.md", "Kind: Fixed\nText.\n"),
    ("0001-words.md", "Kind: Fixed\n\n"), ("0001-words.md", "Kind: Fixed\n\nOne.\n\nTwo.\n"),
])
def test_a_change_of_another_form_is_named_before_anything_moves(name: str, text: str, copy: Path) -> None:
    unreleased = copy / "changelog" / "unreleased"
    (unreleased / name).write_text(text)
    before = sorted(path.name for path in unreleased.iterdir())
    done = _release(copy, "99.0.0")
    assert done.returncode == 1 and done.stderr.startswith(f"{name}: ")
    assert sorted(path.name for path in unreleased.iterdir()) == before
