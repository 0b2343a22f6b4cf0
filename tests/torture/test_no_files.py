"""Pipes, folders, sockets, devices and links to nothing where a file belongs: no command waits, and none breaks."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mqtool import exits
from tests.cli.runner import mqtool
from tests.support.sampling import sampled
from tests.support.stores import real_store

SECONDS = 30
QUEUE = "consumequeue/Orders/0/00000000000000000000"


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


KINDS: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo, "folder": Path.mkdir, "socket": _socket,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
}
PLACES = (
    "checkpoint", "abort", "lock", "config/topics.json", "config/topics.json.bak", "config/timercheck",
    "index/FIRST", "index/20300101000000000", QUEUE, "consumequeue/Orders/0/00000000000000006000", "commitlog/FIRST",
    "commitlog/99999999999999999999", "consumequeue_ext/Orders/0/00000000000000000000", ".mqtool",
)
COMMANDS = (
    ("verify",), ("inspect",), ("predict",), ("recover", "--yes"), ("rebuild", "--yes"), ("undo", "--yes"),
    ("resume", "--yes"), ("journal",), ("query", "--topic", "Orders", "--queue", "0", "--offset", "0"),
)


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """`TimeoutError` in whatever waits longer."""
    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def put(kind: str, path: Path) -> None:
    """Something of that kind in the place of a file."""
    if path.name == "FIRST":
        path = min(path.parent.iterdir())
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    KINDS[kind](path)


@pytest.mark.parametrize(("place", "kind"), sampled(PLACES, KINDS, quick=len(PLACES)))
def test_no_command_waits_or_breaks_where_a_file_is_none(place: str, kind: str, folder: Path) -> None:
    source = real_store("clean-plain-4.9.7", folder)
    (source / QUEUE).with_name("00000000000000000020").write_bytes(b"")  # something to change
    put(kind, source / place)
    for command, *rest in COMMANDS:
        with limited(SECONDS):
            done = mqtool(command, source, *rest)
        assert not done.code & exits.BUG, (command, done.stderr[-2000:])


@pytest.mark.parametrize("place", ["config/topics.json", "checkpoint", "commitlog/FIRST"])
def test_what_it_is_instead_is_said(place: str, folder: Path) -> None:
    store = real_store("clean-plain-4.9.7", folder)
    put("pipe", store / place)
    done = mqtool("verify", store, "--json")
    assert done.code and not done.code & exits.BUG
    if place != "commitlog/FIRST":
        assert "a pipe" in done.stdout


@pytest.mark.parametrize("kind", ["pipe", "socket", "link to a device"])
@pytest.mark.parametrize("name", ["20300101000000000", "notes"])
def test_what_is_no_file_among_index_files_is_a_warning(name: str, kind: str, folder: Path) -> None:
    store = real_store("clean-plain-4.9.7", folder)
    put(kind, store / "index" / name)
    done = mqtool("verify", store, "--json")
    (found,) = [item for item in done.document["findings"] if item["file"] == f"index/{name}"]
    assert (done.code, found["code"], found["severity"]) == (exits.DERIVED, "index-odd-name", "warning")
    assert found["remedy"].startswith(f"Move index/{name} out of the store")
    recovered = mqtool("recover", store, "--yes", "--json")
    assert (recovered.code, recovered.document["applied"]) == (exits.DERIVED, False), recovered.stderr
