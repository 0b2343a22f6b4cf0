"""What tests ask of the system: a process of their own, a disk of some size."""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def in_a_child(work: Callable[[], object]) -> int:
    """Exit code of a forked process that does some work: 0 done, 1 an exception, -9 killed, -11 a read outside."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            faulthandler.disable()
            work()
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def reachable(root: Path) -> Path:
    """Let every user pass the folders above a store, as it is where brokers run as a user of their own."""
    for folder in root.parents:
        if folder.stat().st_mode & 0o5 != 0o5:
            folder.chmod(folder.stat().st_mode | 0o5)
    return root


@contextmanager
def small_disk(at: Path, size: str) -> Iterator[Path]:
    """A file system of that size ("64k") at a new folder; skips where we may not mount."""
    at.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(at)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("NOT RUN: mounting needs root")
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)
