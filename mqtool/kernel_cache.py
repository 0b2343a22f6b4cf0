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
    if _writable(source) or _writable(home or _home() / ".cache"):
        return
    folder = tempfile.mkdtemp(prefix="mqtool-kernels-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ[VARIABLE] = folder


def _home() -> Path:
    """The home folder; a place where nothing can be made for a user who has none, as in a container."""
    home = os.path.expanduser("~")
    return Path(home) if os.path.isabs(home) else Path(os.devnull)


def _writable(folder: Path) -> bool:
    """Whether something can be made there, or in the nearest parent that exists."""
    # os.path, unlike Path, takes what we may not enter for something that is not there
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)
