"""Refusals: the exceptions that end a command on purpose, each with its exit code."""

from __future__ import annotations

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
