"""Refusals: the exceptions that end a command on purpose, each with its exit code."""

from __future__ import annotations

import errno

from recover.findings.code import INTERRUPTED, OPERATIONAL, USAGE


class Refusal(Exception):  # noqa: N818 - the house word; a refusal is not a bug
    """mqtool will not or cannot do this (exit 8): broker running, stale plan, unreadable part."""

    exit_code = OPERATIONAL

    def __init__(self, message: str, remedy: str = "", **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.facts = facts


class UsageRefusal(Refusal):
    """The request itself makes no sense for this store (exit 16)."""

    exit_code = USAGE


class NotAStore(UsageRefusal):
    """Nothing at that path looks like a store (exit 16)."""


class Interrupted(Refusal):
    """Stopped by a signal; what was begun can be resumed (exit 32)."""

    exit_code = INTERRUPTED


def unreadable(error: OSError) -> Refusal:
    """The refusal over what cannot be listed or opened."""
    return Refusal(f"cannot read {error.filename}: {error.strerror}", remedy_of(error), path=str(error.filename))


def remedy_of(error: OSError) -> str:
    """What a person does about it; empty where the error says all that is known."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Make room there, or name a place on another disk."
    if isinstance(error, PermissionError):
        return "Run as the user that the broker runs as, or as root."
    if isinstance(error, (IsADirectoryError, NotADirectoryError)):
        return "A file stands where a folder belongs, or the other way round. Move it aside and run again."
    return ""
