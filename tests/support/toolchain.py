"""`python -m tests.support.toolchain` fails, saying why, where no broker can be run."""

from __future__ import annotations

import sys

from fixtures.lab.toolchain import available


def main() -> int:
    """0 if brokers can be run here, else 1 and a line on stderr."""
    if (reason := available()) is None:
        return 0
    print(f"cannot run the suites with real brokers: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
