"""`python -m mqtool`."""

from __future__ import annotations

import sys

from mqtool.cli import main

if __name__ == "__main__":
    sys.exit(main())
