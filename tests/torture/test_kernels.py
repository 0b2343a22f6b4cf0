"""Kernels on arrays that hold anything, between guard pages and under sanitizers: no read leaves them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from formats.native import build, walk
from formats.native.library import Array, Kernel, library, loaded
from formats.native.walk import QUEUE_COLUMNS
from formats.record.grammar import RANGE_COLUMNS, range_table
from formats.record.rows import RECORD
from tests.formats.test_native import KERNELS
from tests.support.counts import Count
from tests.support.kernel_inputs import INPUTS
from tests.support.stores import unpacked
from tests.support.system import in_a_child
from tests.torture.guarded import guarded_bytes

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "formats" / "native"
NAMES = sorted(KERNELS.keys() - {"walk_records", "fill_slots", "crc32", "write_lines"})
_NUMBERS = (-9, -1, 0, 1, 7, 1 << 31, 1 << 62, -(1 << 63), (1 << 63) - 1)


def _mangled(dice: random.Random, kind: Array, value: Any) -> Any:
    """The array shorter by some rows, and with some bytes overwritten; truths stay truths."""
    size = len(value)
    if size > kind.least and not dice.randrange(3):
        size = dice.randrange(kind.least, size + 1)
    kept = np.array(value[:size])
    if kind.dtype != np.bool_ and not dice.randrange(2):
        raw = kept.view(np.uint8).reshape(-1) if kept.size else kept
        for _ in range(dice.randrange(4)):
            if raw.size:
                raw[dice.randrange(raw.size)] = dice.choice((0, 1, 127, 128, 255))
    return kept


def _guarded(value: Any) -> Any:
    place = guarded_bytes(value.nbytes).view(value.dtype).reshape(value.shape)
    place[...] = value
    return place


def _hostile(dice: random.Random, kernel: Kernel, given: list[Any]) -> list[Any]:
    arguments = []
    for kind, value in zip(kernel.kinds, given, strict=True):
        if isinstance(kind, Array):
            arguments.append(_mangled(dice, kind, value))
        elif kernel.name != "bits_that_change" and not dice.randrange(8):
            arguments.append(dice.choice(_NUMBERS))
        else:
            arguments.append(int(value))
    return arguments


def _walk_inputs(dice: random.Random, logs: list[bytes]) -> list[Any]:
    data = bytearray(dice.choice(logs)[: dice.randrange(20_000)])
    for _ in range(dice.randrange(6)):
        if data:
            data[dice.randrange(len(data))] = dice.choice((0, 1, 2, 127, 128, 255))
    table = np.array([[dice.choice(_NUMBERS) for _ in range(QUEUE_COLUMNS)] for _ in range(8)], np.int64)
    slots = np.array([dice.choice((-1, -1, -1, 0, 3, 9, 1 << 30)) for _ in range(16)], np.int32)
    state = np.array([dice.choice((0, 0, 0, 1, -1, 1 << 40)) for _ in range(4)], np.int64)
    return [
        np.frombuffer(data, np.uint8), dice.choice((0, 0, 0, -1, 5, 1 << 62)),
        dice.choice((len(data), len(data) - 7, 1 << 50, -(1 << 63))), 0, dice.choice((1 << 30, 1 << 62, 0)),
        np.zeros(dice.randrange(30), RECORD), np.zeros(dice.randrange(60), np.int32),
        slots, np.zeros(dice.randrange(90), np.uint8), table, dice.choice(_NUMBERS), state,
        dice.randrange(2), 1 << 62,
        range_table() if dice.randrange(8) else np.array([[dice.choice(_NUMBERS)] * RANGE_COLUMNS] * 3, np.int64),
    ]


def run_all(library_path: str, rounds: int, guard: bool) -> None:
    """Every kernel of a library with so many hostile inputs each."""
    found = loaded(library_path, build.mark_of(FOLDER))
    stores = [unpacked(name) / "commitlog" for name in ("clean-v2-5.5.0", "killed-lmq-4.9.7")]
    logs = [min(store.iterdir()).read_bytes() for store in stores]
    for name in NAMES:
        run = KERNELS[name].native(found)
        for seed in range(rounds):
            dice = random.Random(f"{name} {seed}")
            arguments = _hostile(dice, KERNELS[name], INPUTS[name](dice))
            run(*(_guarded(it) if guard and isinstance(it, np.ndarray) else it for it in arguments))
    run, fill, write = (KERNELS[name].native(found) for name in ("walk_records", "fill_slots", "write_lines"))
    for seed in range(rounds):
        dice = random.Random(seed)
        arguments = [_guarded(it) if guard and isinstance(it, np.ndarray) else it for it in _walk_inputs(dice, logs)]
        fill(arguments[7], arguments[8], arguments[9], dice.choice((0, 2, -1)), dice.choice((3, 8, 1 << 40)),
             arguments[10])
        run(*arguments)
        starts, sizes = arguments[5]["phy_offset"], arguments[5]["size"].astype(np.int64)
        room = np.zeros(dice.choice((0, 3000, 40_000)), np.uint8)
        file = np.frombuffer(b'"/data/store/commitlog/00000000000000000000:', np.uint8)
        write(arguments[0], np.array(starts), sizes, dice.choice((0, 1, -1)), dice.randrange(2), _guarded(file),
              dice.choice(_NUMBERS), _guarded(room))
        KERNELS["crc32"].native(found)(arguments[0], dice.choice(_NUMBERS), dice.choice(_NUMBERS), 0)


def test_kernels_stay_between_guard_pages_whatever_their_arrays_hold(count: Count) -> None:
    assert library() is not None and walk.crc_name() != "zlib"
    assert in_a_child(lambda: run_all(str(FOLDER / build.LIBRARY), 40, True)) == 0
    count("inputs fuzzed, all kernels between guard pages", 40 * len(KERNELS))


@pytest.mark.slow
def test_kernels_pass_the_sanitizers_whatever_their_arrays_hold(tmp_path: Path, count: Count) -> None:
    command = build.compiler() or []
    runtime = subprocess.run([*command, "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip() \
        if command and command[0] != sys.executable else ""
    if not os.path.isabs(runtime):
        pytest.skip("the system's compiler has no sanitizers")
    checked = build.build(
        FOLDER, ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"), tmp_path / "checked.so"
    )
    script = "import sys; from tests.torture.test_kernels import run_all; run_all(sys.argv[1], int(sys.argv[2]), False)"
    done = subprocess.run(
        [sys.executable, "-c", script, str(checked), "100"], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    count("inputs fuzzed, all kernels under sanitizers", 100 * len(KERNELS))
