"""`make dist`: all files of a release, in dist/, with their checksums. `dist.py wheels` leaves out the folder.

Wheels, source archive and wheelhouses need a Python and the packages' registry; the folder needs apt of a Debian, too,
and compiles an interpreter: some minutes, once.
"""

from __future__ import annotations

import sys

from common import DIST, write_sums
from folder import archives
from wheels import PLATFORMS, wheelhouse, wheels

if __name__ == "__main__":
    made = wheels()
    if "wheels" not in sys.argv[1:]:
        made += archives(made[1])
    # lz4 has no wheels for musl: a pip there needs a compiler and the network
    made += [wheelhouse(platform, wheel) for platform, wheel in zip(PLATFORMS, made[1:], strict=False)
             if "musl" not in platform.tag]
    write_sums(made, DIST / "SHA256SUMS")
    for path in made:
        print(f"{path.stat().st_size / 1e6:8.1f} MB  {path.relative_to(DIST.parent)}")
