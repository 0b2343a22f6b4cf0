"""The Python API that docs/api.md promises: its examples run, and its names are those that can be imported. And that
these, commands, codes and keys stay what a release promised."""

from __future__ import annotations

import doctest
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from formats.record import MIN_RECORD_SIZE
from tests.support import promised
from tests.support.harm import bit
from tests.support.stores import real_store, unpacked

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "api.md"
PACKAGES = ("formats", "recover.store", "recover.log")


def test_the_examples_of_the_page_give_what_they_show() -> None:
    store = unpacked("clean-5.3.3")
    test = doctest.DocTestParser().get_doctest(PAGE.read_text(), {"STORE": store}, "api.md", str(PAGE), 0)
    assert len(test.examples) > 15
    lines: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.REPORT_ONLY_FIRST_FAILURE).run(test, out=lines.append)
    assert not result.failed, "".join(lines)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_page_names_what_can_be_imported_and_nothing_else(package: str) -> None:
    text = PAGE.read_text().split(f": `{package}`\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = {word for row in rows for word in re.findall(r"`([A-Za-z_]+)", row)}
    module = import_module(package)
    assert named == set(module.PUBLIC)
    for name in named:
        assert getattr(module, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing


def test_type_checkers_see_the_same_names(tmp_path: Path) -> None:
    lines = [f"from {package} import {name}\nreveal_type({name})\n"
             for package in PACKAGES for name in import_module(package).PUBLIC]
    (tmp_path / "user.py").write_text("".join(lines))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "--config-file", "/dev/null",
         "--follow-imports", "silent", str(tmp_path / "user.py")], capture_output=True, text=True, cwd=ROOT)
    assert not done.returncode, done.stdout
    assert 'Revealed type is "Any"' not in done.stdout
    assert done.stdout.count("Revealed type is") == len(lines)


def test_nothing_is_imported_before_it_is_used() -> None:
    script = "import sys, formats, recover.store, recover.log; print([name for name in sys.modules " \
             "if name.startswith(('numpy', 'formats.', 'recover.store.', 'recover.log.'))])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_records_behind_damage_are_read_and_the_damage_is_named(tmp_path: Path) -> None:
    from recover.log import read_records, scan_log
    from recover.store import Store

    store = real_store("clean-5.3.3", tmp_path)
    whole = list(read_records(scan_log(Store.open(store))))
    hit = whole[100]
    bit("commitlog/00000000000000000000", hit.phy_offset + MIN_RECORD_SIZE)(store)
    log = scan_log(Store.open(store), threads=2)
    assert [(one.start, one.intact_after) for one in log.damaged] == [(hit.phy_offset, len(whole) - 101)]
    assert [one.phy_offset for one in read_records(log)] == [one.phy_offset for one in whole if one != hit]


def test_nothing_that_the_release_promised_to_scripts_and_programs_is_gone() -> None:
    before, now = json.loads(promised.PLACE.read_text()), promised.promised()
    assert all(before.values())
    gone = {kind: sorted(set(lines) - set(now[kind])) for kind, lines in before.items()}
    assert gone == {kind: [] for kind in now}
