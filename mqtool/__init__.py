"""The command line of mqtool: shows what `recover` decides, and asks before it changes anything."""

from __future__ import annotations


def version() -> str:
    """The installed version, or `unknown` when run from a bare checkout."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("mqtool")
    except PackageNotFoundError:
        return "unknown"
