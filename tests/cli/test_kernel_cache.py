"""Kernels find a cache even where the installation and the home are read-only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mqtool import kernel_cache


@pytest.fixture
def nothing_writable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(kernel_cache.VARIABLE, raising=False)
    monkeypatch.setattr(kernel_cache, "_writable", lambda folder: False)


@pytest.mark.usefixtures("nothing_writable")
def test_a_private_folder_stands_in_for_a_read_only_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache.atexit, "register", lambda *args, **kwargs: None)
    kernel_cache.ensure()
    folder = Path(os.environ[kernel_cache.VARIABLE])
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.rmdir()


def test_nothing_changes_where_the_installation_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(kernel_cache.VARIABLE, raising=False)
    kernel_cache.ensure(package=tmp_path)
    assert kernel_cache.VARIABLE not in os.environ


@pytest.mark.usefixtures("nothing_writable")
def test_a_cache_that_the_user_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernel_cache.VARIABLE, "/chosen")
    kernel_cache.ensure()
    assert os.environ[kernel_cache.VARIABLE] == "/chosen"


@pytest.mark.parametrize("home", ["/nowhere/at/all", "/dev/null", None])
def test_a_home_that_cannot_be_entered_or_is_not_known_is_not_writable(
    home: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(kernel_cache.VARIABLE, raising=False)
    monkeypatch.setattr(kernel_cache.tempfile, "mkdtemp", lambda prefix: str(tmp_path / "private"))
    monkeypatch.setattr(kernel_cache.os.path, "expanduser", lambda path: home or "~")
    monkeypatch.setattr(kernel_cache.os, "access", lambda folder, mode: False)
    kernel_cache.ensure()
    assert os.environ.pop(kernel_cache.VARIABLE) == str(tmp_path / "private")
