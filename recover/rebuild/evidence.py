"""Units that tell what the log does not, for changes that leave damage where it is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recover.rebuild.consumequeue import Evidence
from recover.scan.log import Damage


def evidence_of(damaged: Sequence[Damage]) -> Evidence:
    """The units of the damaged ranges that stay in the log."""
    return Evidence(
        np.array([damage.start for damage in damaged], dtype=np.int64),
        np.array([damage.stop for damage in damaged], dtype=np.int64),
    )
