"""A place for compiled kernels where neither the installation nor the home can be written."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

VARIABLE = "NUMBA_CACHE_DIR"


def ensure(package: Path | None = None, home: Path | None = None) -> None:
    """Point numba to a private folder of this process if it could cache nowhere; it refuses to import otherwise.

    A shared folder under a known name would let others plant compiled code, so this one does not outlive us.
    """
    if VARIABLE in os.environ:
        return
    source = package or Path(__file__).resolve().parent.parent / "formats"
    if _writable(source) or _writable(home or Path.home() / ".cache"):
        return
    folder = tempfile.mkdtemp(prefix="mqtool-kernels-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ[VARIABLE] = folder


def _writable(folder: Path) -> bool:
    """Whether something can be made there, or in the nearest parent that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)
