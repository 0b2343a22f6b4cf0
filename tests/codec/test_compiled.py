"""Kernels through our cache: all of them need nothing of numba's, and a bad cache is noticed."""

from __future__ import annotations

import importlib
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from formats.compiled import Kernel, cache, image, ready
from formats.compiled import environment as module
from formats.compiled.closure import digest
from formats.compiled.environment import environment
from formats.kernels.search import last_nonzero

ROOT = Path(__file__).parents[2]


def _kernels() -> Iterator[Kernel]:
    for path in sorted((ROOT / "formats" / "kernels").glob("[!_]*.py")):
        home = importlib.import_module(f"formats.kernels.{path.stem}")
        kernels = [it for it in vars(home).values() if isinstance(it, Kernel)]
        yield from (it for it in kernels if it.function.__module__ == home.__name__)


KERNELS = list(_kernels())
_DATA = np.frombuffer(b"\x00\x01\x02\x00\x00", dtype=np.uint8)


def _fresh() -> Kernel:
    """A kernel that nothing was found for yet."""
    known: Any = last_nonzero
    kinds = dict(zip(("data", "start", "stop"), known.kinds, strict=True))
    return Kernel(known.function, kinds, known.returns)


def _answer(ours: Kernel) -> tuple[bool, int]:
    """Whether machine code of ours ran, and what it said."""
    value = ours(_DATA, 0, 5)
    return isinstance(ours._run, partial), value


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that were compiled."""
    from formats.compiled import build

    names: list[str] = []
    made = build.object_of

    def object_of(ours: Kernel) -> bytes:
        names.append(ours.name)
        return made(ours)

    monkeypatch.setattr(build, "object_of", object_of)
    return names


def test_every_kernel_is_found() -> None:
    names = {it.name for it in KERNELS}
    assert {"walk_records", "last_nonzero", "match_records", "put_keys", "classify_units"} <= names
    assert len(names) == len(KERNELS)


@pytest.mark.parametrize("ours", KERNELS, ids=lambda it: it.name)
def test_every_kernel_runs_as_machine_code_of_its_own(ours: Kernel) -> None:
    # what numba has to run itself is right as well, and costs every start what the cache is there to save
    assert isinstance(ready.runner(ours), partial)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="linked by LLVM on other processors")
@pytest.mark.parametrize("ours", KERNELS, ids=lambda it: it.name)
def test_every_kernel_is_one_piece_that_needs_no_linker(ours: Kernel) -> None:
    ready.runner(ours)
    code = cache.read(ours.name, environment(), digest(ours))
    assert code is not None and code.startswith(b"image")


def test_an_object_file_that_is_no_single_piece_is_linked_by_llvm(
    folder: Path, builds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "image_of", lambda code, entry: None)
    assert [_answer(_fresh()) for _ in range(2)] == [(True, 2)] * 2
    assert len(builds) == 1
    (path,) = folder.iterdir()
    assert b"object  \x7fELF" in path.read_bytes()


def test_code_that_calls_outside_or_writes_its_data_is_no_single_piece() -> None:
    import llvmlite.binding as llvm

    from formats.compiled.machine import ENTRY, machine

    def made(text: str) -> bytes:
        return bytes(machine().emit_object(llvm.parse_assembly(text)))

    alone = f"define i32 @{ENTRY}(ptr %p) {{ ret i32 7 }}"
    piece = image.image_of(made(alone), ENTRY)
    assert piece is not None or platform.machine() != "x86_64"
    assert piece is None or image.put(piece)(0) == 7
    for text in (
        f"declare i32 @labs(ptr) define i32 @{ENTRY}(ptr %p) {{ %r = call i32 @labs(ptr %p) ret i32 %r }}",
        f"@n = global i32 7 define i32 @{ENTRY}(ptr %p) {{ %r = load i32, ptr @n ret i32 %r }}",
        f"@n = internal global i32 0 define i32 @{ENTRY}(ptr %p) {{ store i32 7, ptr @n ret i32 0 }}",
        "define i32 @another(ptr %p) { ret i32 7 }",
    ):
        assert image.image_of(made(text), ENTRY) is None
    assert image.image_of(b"\x7fELF\x01\x01" + bytes(100), ENTRY) is None


def test_memory_that_may_not_run_is_not_called(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(image, "put", lambda code: None)
    assert _answer(_fresh()) == (False, 2)


# --- the cache -------------------------------------------------------------------------------------------


def test_a_kernel_is_compiled_once(folder: Path, builds: list[str]) -> None:
    assert [_answer(_fresh()) for _ in range(3)] == [(True, 2)] * 3
    assert builds == ["last_nonzero"]
    assert [it.name for it in folder.iterdir()] == [cache._file_name("last_nonzero", environment())]


def _flip(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize("damage", [
    lambda content: b"", lambda content: content[:10], lambda content: content[:100], lambda content: content[:-1],
    lambda content: content + b"\x00", lambda content: _flip(content, 0), lambda content: _flip(content, 20),
    lambda content: _flip(content, 60), lambda content: _flip(content, 90), lambda content: _flip(content, -50),
    lambda content: bytes(len(content)),
])
def test_a_damaged_file_is_compiled_again(damage: Callable[[bytes], bytes], folder: Path, builds: list[str]) -> None:
    _answer(_fresh())
    (path,) = folder.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert _answer(_fresh()) == (True, 2)
    assert builds == ["last_nonzero"] * 2
    assert cache.read("last_nonzero", environment(), digest(_fresh()))
    assert _answer(_fresh()) == (True, 2)
    assert len(builds) == 2


def test_another_processor_or_version_has_a_file_of_its_own(
    folder: Path, builds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _answer(_fresh())
    (path,) = folder.iterdir()
    here = environment()
    monkeypatch.setattr(ready, "environment", lambda: here + " and AVX-1024")
    assert _answer(_fresh()) == (True, 2)
    assert len(builds) == 2
    (other,) = set(folder.iterdir()) - {path}
    monkeypatch.undo()
    # under our name it is not believed either
    other.replace(path)
    monkeypatch.setenv(cache.VARIABLE, str(folder.parent))
    assert cache.read("last_nonzero", here, digest(_fresh())) is None


def test_the_environment_names_versions_and_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import llvmlite
    import llvmlite.binding as llvm
    import numba

    for what in (sys.version, np.__version__, numba.__version__, llvmlite.__version__, module.processor()):
        assert what in environment()
    known = tmp_path / "cpuinfo"
    known.write_text("processor\t: 0\nmodel\t\t: 1\ncpu MHz\t: 2000\nflags\t\t: fpu avx2\n\nmodel\t\t: 9\n")
    monkeypatch.setattr(module, "_CPU", str(known))
    assert module.processor() == "model\t\t: 1\nflags\t\t: fpu avx2"
    monkeypatch.setattr(module, "_CPU", str(tmp_path / "nothing"))
    assert llvm.get_host_cpu_name() in module.processor()


@pytest.mark.parametrize("spoil", [
    lambda folder, path: folder.chmod(0o775), lambda folder, path: folder.chmod(0o757),
    lambda folder, path: path.chmod(0o664), lambda folder, path: path.chmod(0o646),
    lambda folder, path: (path.rename(folder.parent / "f"), path.symlink_to(folder.parent / "f")),
    lambda folder, path: (folder.rename(folder.parent / "d"), folder.symlink_to(folder.parent / "d")),
    lambda folder, path: (path.unlink(), os.mkfifo(path)), lambda folder, path: (path.unlink(), path.mkdir()),
])
def test_what_others_could_have_put_there_is_not_run(
    spoil: Callable[[Path, Path], object], folder: Path, builds: list[str]
) -> None:
    _answer(_fresh())
    (path,) = folder.iterdir()
    spoil(folder, path)
    assert cache.read("last_nonzero", environment(), digest(_fresh())) is None
    assert _answer(_fresh()) == (True, 2)
    assert builds == ["last_nonzero"] * 2


def test_the_file_of_a_stranger_is_not_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _answer(_fresh())
    key = digest(_fresh())
    assert cache.read("last_nonzero", environment(), key)
    mine = folder.stat().st_uid
    monkeypatch.setattr(cache, "_owners", lambda: frozenset({0, mine + 1}) - {mine})
    assert cache.read("last_nonzero", environment(), key) is None


@pytest.mark.parametrize("spoil", [
    lambda folder, patch: folder.chmod(0o775), lambda folder, patch: folder.chmod(0o757),
    lambda folder, patch: (folder.rename(folder.parent / "d"), folder.symlink_to(folder.parent / "d")),
    lambda folder, patch: patch.setattr(cache, "_owners", lambda: frozenset({folder.stat().st_uid + 1})),
])
def test_nothing_is_kept_where_others_could_change_it(
    spoil: Callable[[Path, pytest.MonkeyPatch], object], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(parents=True)
    spoil(folder, monkeypatch)
    assert _answer(_fresh()) == (True, 2)
    assert list(folder.iterdir()) == []


def test_folders_are_ours_alone_whatever_the_umask(folder: Path) -> None:
    before = os.umask(0)
    try:
        _answer(_fresh())
    finally:
        os.umask(before)
    (path,) = folder.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o755
    assert path.stat().st_mode & 0o777 == 0o644


def test_the_home_serves_where_the_installation_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, builds: list[str]
) -> None:
    monkeypatch.delenv(cache.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before, home = cache.folders()
    assert home == str(tmp_path / "mqtool" / "kernels")
    assert before == str(ROOT / "formats" / "__pycache__" / "kernels")
    (tmp_path / "file").touch()
    monkeypatch.setattr(cache, "folders", lambda: iter([str(tmp_path / "file" / "no folder"), home]))
    assert [_answer(_fresh()) for _ in range(2)] == [(True, 2)] * 2
    assert len(builds) == 1
    assert len(list(Path(home).iterdir())) == 1


@pytest.mark.parametrize("home", ["/dev/null", "/proc/nowhere", "relative"])
def test_a_private_folder_stands_in_where_nothing_can_be_written(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, builds: list[str]
) -> None:
    monkeypatch.setenv(cache.VARIABLE, "")  # what is set here is taken back behind the test
    monkeypatch.delenv(cache.VARIABLE)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", home)
    monkeypatch.setattr(cache, "__file__", "/proc/nowhere/formats/compiled/cache.py")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    registered: list[object] = []
    monkeypatch.setattr(cache.atexit, "register", lambda *args, **kwargs: registered.append(args))
    assert [_answer(_fresh()) for _ in range(2)] == [(True, 2)] * 2
    assert len(builds) == 1
    private = Path(os.environ[cache.VARIABLE])
    assert private.parent == tmp_path
    assert private.stat().st_mode & 0o777 == 0o700
    assert len(registered) == 1


def test_a_cache_that_the_user_chose_is_the_only_one(monkeypatch: pytest.MonkeyPatch, builds: list[str]) -> None:
    monkeypatch.setenv(cache.VARIABLE, "/proc/nowhere")
    assert list(cache.folders()) == ["/proc/nowhere/mqtool"]
    assert _answer(_fresh()) == (True, 2)
    assert os.environ[cache.VARIABLE] == "/proc/nowhere"
