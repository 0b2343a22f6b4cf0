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


def mqtool(*arguments: object) -> Result:
    """Run `mqtool ARGUMENTS` with captured streams."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = main([str(item) for item in arguments])
    return Result(code, stdout.getvalue(), stderr.getvalue())
