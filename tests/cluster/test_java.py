"""Which Java Spark gets: the one of JAVA_HOME, the one on the path, or a refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from recover.cluster.session import find_java, java_home, release_of
from recover.findings.refusal import Refusal


def _fake(folder: Path, version: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(("version", "release"), [("17.0.15", 17), ("1.8.0_402", 8), ("21", 21), ("25.0.2", 25)])
def test_release_is_the_one_that_java_names(tmp_path: Path, version: str, release: int) -> None:
    assert release_of(_fake(tmp_path, version)) == release


def test_what_is_no_java_has_no_release(tmp_path: Path) -> None:
    assert release_of(tmp_path / "java") == 0
    assert release_of(Path("/bin/true")) == 0


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home, other = _fake(tmp_path / "home", "21.0.1"), _fake(tmp_path / "other", "17.0.1")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)}
    assert find_java(environment) == home
    environment["JAVA_HOME"] = str(tmp_path / "nowhere")
    assert find_java(environment) == other


def test_an_old_java_is_passed_over_for_one_on_the_path(tmp_path: Path) -> None:
    _fake(tmp_path / "old", "1.8.0_402")
    newer = _fake(tmp_path / "new", "17.0.15")
    assert find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(newer.parent)}) == newer


def test_no_java_at_all_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Refusal) as refused:
        find_java({"PATH": str(tmp_path)})
    assert refused.value.exit_code == 8 and "JAVA_HOME" in refused.value.remedy


def test_a_link_to_java_leads_to_its_home(tmp_path: Path) -> None:
    program = _fake(tmp_path / "jdk", "17.0.15")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(program)
    assert java_home({"PATH": str(tmp_path / "links")}) == str(tmp_path / "jdk")
