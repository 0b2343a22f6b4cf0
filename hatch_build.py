"""Compiles the kernels when the package is built or installed for development (see `formats/native/build.py`)."""

from __future__ import annotations

import os
import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_NATIVE = Path("formats", "native")


class KernelsHook(BuildHookInterface[Any]):
    """Puts the library beside its sources, into the wheel, and into the wheel's tag."""

    def dependencies(self) -> list[str]:
        """What the build needs besides: a C compiler as a package, where the system has none."""
        return [] if self._build()["compiler"]() else ["ziglang==0.15.2"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library before the files are collected. Without one the tool works, and is slow."""
        build = self._build()
        try:
            build["ensure"](Path(self.root, _NATIVE))
        except build["BuildError"] as error:
            self.app.display_warning(f"kernels were not compiled, the reference code will be used: {error}")
            return
        build_data["artifacts"].append(f"/{_NATIVE / build['LIBRARY']}")
        build_data["pure_python"] = False
        # a release names the oldest platform that $CC compiled for (packaging/wheels.py); else it is this machine
        platform = os.environ.get("MQTOOL_PLATFORM") or sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"

    def _build(self) -> dict[str, Any]:
        return runpy.run_path(str(Path(self.root, _NATIVE, "build.py")))
