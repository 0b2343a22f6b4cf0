"""What to do about a store: scan, verify, predict, plan, apply. Decides and changes, never prints."""

from __future__ import annotations


def version() -> str:
    """The installed version, or `unknown` when run from a bare checkout."""
    from importlib.metadata import PackageNotFoundError, version as installed

    try:
        return installed("mqtool")
    except PackageNotFoundError:
        return "unknown"
