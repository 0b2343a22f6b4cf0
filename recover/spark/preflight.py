"""Before the first job on a cluster: do the executors have our code, and do they see the store?"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from recover.errors import Refusal
from recover.files.remote import url_of
from recover.spark.jobs import run_job, watch
from recover.spark.session import Session

PACKAGES = ("formats", "recover")
KINDS = (".py", ".c", ".h", ".bin")
"""What is sent: modules, and the compiled kernels with the sources that they have to be of."""
NEEDED = ("numpy", "msgspec", "pyarrow", "crc32c")
_ZIP = "mqtool-code.zip"
_EACH_CORE = 2


def check_executors(session: Session, paths: Sequence[Path]) -> None:
    """Ship our code where it lacks or differs. `Refusal` (8) when a host lacks a package or cannot see a path.

    Local executors are this machine's; there is nothing to ask.
    """
    if session.settings.is_local or not paths:
        return
    names = [url_of(path) or str(path.absolute()) for path in paths]
    probe = _probe(names)
    own = next(iter(probe(())))
    cores = watch(session, lambda: session.cores, "how many cores")
    hosts = {answer["host"]: answer for answer in run_job(
        session, probe, range(cores * _EACH_CORE), "do the executors see the store?"
    )}
    for host, answer in sorted(hosts.items()):
        if answer["lacks"]:
            raise Refusal(f"host {host} lacks Python packages: {', '.join(answer['lacks'])}",
                          "Install mqtool in the Python of the executors, which PYSPARK_PYTHON names.", host=host)
        for name, size in answer["sizes"].items():
            if size != own["sizes"][name]:
                raise invisible(host, name.partition("?")[0])
    if any(answer["code"] != own["code"] for answer in hosts.values()) and not session.shipped:
        session.context.addPyFile(str(_pack_code(session.folder / _ZIP)))
        session.shipped = True


def invisible(host: str, path: str) -> Refusal:
    """The refusal of a store that not every executor sees."""
    return Refusal(f"host {host} cannot see {path}",
                   "Mount the store at the same path on every worker (s3://: give them credentials), or run with "
                   "--engine local.", host=host)


def _probe(names: Sequence[str]) -> Callable[[Iterable[int]], Iterator[dict[str, Any]]]:
    """A function that travels whole, because a host without our code could not look it up."""
    packages, needed, kinds = PACKAGES, NEEDED, KINDS

    def probe(_tasks: Iterable[int]) -> Iterator[dict[str, Any]]:
        import hashlib
        import importlib.util
        import os
        import socket
        import time
        from pathlib import Path as Folder

        def code_of(package: str) -> str:
            spec = importlib.util.find_spec(package)
            digest = hashlib.sha256()
            for place in spec.submodule_search_locations or () if spec is not None else ():
                for path in sorted(Folder(place).rglob("*")):
                    if path.suffix in kinds:
                        # each host may have compiled its own library: what counts is that there is one
                        content = b"" if path.suffix == ".bin" else path.read_bytes()
                        digest.update(f"{path.relative_to(place)}\0".encode() + content)
            return digest.hexdigest()

        def size_of(name: str) -> int:
            try:
                if "://" in name:
                    from pyarrow.fs import FileSystem

                    files, path = FileSystem.from_uri(name)
                    return int(files.open_input_file(path).size())
                return os.stat(name).st_size
            except OSError as error:
                return -(error.errno or 1)

        time.sleep(0.05)  # long enough for every core to take one
        yield {
            "host": socket.gethostname(), "code": [code_of(package) for package in packages],
            "lacks": [name for name in needed if importlib.util.find_spec(name) is None],
            "sizes": {name: size_of(name) for name in names},
        }

    return probe


def _pack_code(target: Path) -> Path:
    """Our packages as executors import them, in a zip; the kernels are loaded out of it."""
    root = Path(__file__).resolve().parents[2]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            for path in sorted((root / package).rglob("*")):
                if path.suffix in KINDS:
                    archive.write(path, path.relative_to(root).as_posix())
    return target
