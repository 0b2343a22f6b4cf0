"""Scratch space outside every store: an unnamed file that vanishes with the process.

The store itself is written by `recover.disk` alone; this file has no name, so nothing can
mistake it for a part of a store.
"""

from __future__ import annotations

from typing import IO


def scratch_file() -> IO[bytes]:
    """An open, empty, unnamed temporary file in the system's temporary folder (`TMPDIR`)."""
    import tempfile

    return tempfile.TemporaryFile(prefix="mqtool-")
