"""Runs a command line in this process and keeps what it said."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from typing import Any

from mqtool.cli import main


@dataclass(frozen=True)
class Result:
    """Exit code and both streams of one command line."""

    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document of stdout."""
        value = json.loads(self.stdout)
        assert isinstance(value, dict)
        return value

    def found(self, code: str) -> list[dict[str, Any]]:
        """The findings of that code."""
        return [item for item in self.document["findings"] if item["code"] == code]

    @property
    def codes(self) -> set[str]:
        """The codes of all findings."""
        return {item["code"] for item in self.document["findings"]}

    @property
    def notable(self) -> set[str]:
        """The codes of those that are more than a note."""
        return {item["code"] for item in self.document["findings"] if item["severity"] != "info"}


def mqtool(*arguments: object) -> Result:
    """Run `mqtool ARGUMENTS` with captured streams."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = main([str(item) for item in arguments])
    return Result(code, stdout.getvalue(), stderr.getvalue())
