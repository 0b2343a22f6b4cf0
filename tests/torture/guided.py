"""`python -m tests.torture.guided FOLDER SECONDS`: atheris drives every codec, guided by what each input reaches.

Ends with 0 and libFuzzer's figures; with another code, and the input, where a codec raises anything but `FormatError`,
takes longer than ten seconds for one input, or more memory than the cap.
"""

from __future__ import annotations

import random
import sys
from contextlib import suppress
from pathlib import Path

import atheris

ROOT = Path(__file__).parents[2]
with atheris.instrument_imports(include=["formats"]):
    from formats.basics import FormatError
    from tests.torture.hostile import BOMBS, CODECS, pieces

from tests.support.stores import unpacked  # noqa: E402

NAMES = sorted(CODECS)
STORES = ("clean-4.5.1", "killed-ext-5.5.0", "killed-v2-ipv6-5.3.3")
SEEDS_A_CODEC = 25
MAX_BYTES = 8192
SECONDS_AN_INPUT = 10
MEGABYTES = 1500


def one(data: bytes) -> None:
    """One input: its first byte chooses the codec, the rest is what the codec gets."""
    if data:
        with suppress(FormatError):
            CODECS[NAMES[data[0] % len(NAMES)]](data[1:])


def seeds(folder: Path) -> None:
    """Pieces of real files and bombs, a few for each codec: where the search starts."""
    real = [piece for store in STORES for piece in pieces(unpacked(store))]
    for number, name in enumerate(NAMES):
        chance = random.Random(name)
        for count, piece in enumerate([*chance.sample(real, SEEDS_A_CODEC), *BOMBS]):
            (folder / f"{number}-{count}").write_bytes(bytes([number]) + piece[: MAX_BYTES - 1])


def main() -> None:
    """Fill the folder with seeds, and fuzz for so many seconds."""
    folder = Path(sys.argv[1])
    seeds(folder)
    options = [
        f"-max_total_time={int(sys.argv[2])}", f"-max_len={MAX_BYTES}", f"-timeout={SECONDS_AN_INPUT}",
        f"-rss_limit_mb={MEGABYTES}", f"-artifact_prefix={folder}/", "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, str(folder)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
