"""`make lock`: what CI (dev.lock) and the folder (local.lock) install, for all Pythons, each file by checksum."""

from __future__ import annotations

from common import ROOT, run, tools

LOCKS = {"dev.lock": ["--extra", "dev"], "local.lock": ["packaging/local.in"]}

if __name__ == "__main__":
    for name, words in LOCKS.items():
        run([tools() / "uv", "pip", "compile", "--quiet", "--universal", "--generate-hashes", "--no-annotate",
             "--python-version", "3.11", "--custom-compile-command", "make lock", "pyproject.toml", *words,
             "--output-file", f"packaging/{name}"], ROOT)
