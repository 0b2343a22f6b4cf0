"""Is there a JDK and a Maven to run real brokers with? `python -m tests.support.toolchain` fails if not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

JAVA_NEEDED = 17


def java_version(program: str) -> int | None:
    """Major version of a `java` or `javac` program, None if it does not run."""
    try:
        answer = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'(?:version "|javac )(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match.group(1)) if match and answer.returncode == 0 else None


def javac() -> str | None:
    """The compiler of a JDK that is new enough: JAVA_HOME's if set, else the one on the path."""
    home = os.environ.get("JAVA_HOME")
    program = os.path.join(home, "bin", "javac") if home else shutil.which("javac")
    version = java_version(program) if program else None
    return program if version is not None and version >= JAVA_NEEDED else None


def missing() -> list[str]:
    """What is lacking for the suites that start brokers, in words; empty if nothing is."""
    lacking = []
    if javac() is None:
        lacking.append(f"JDK {JAVA_NEEDED} or newer")
    if shutil.which("mvn") is None:
        lacking.append("Maven")
    return lacking


def main() -> int:
    """0 if brokers can be run here, else 1 and a line on stderr."""
    lacking = missing()
    if lacking:
        print(f"cannot run the suites with real brokers: no {' and no '.join(lacking)} found", file=sys.stderr)
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
