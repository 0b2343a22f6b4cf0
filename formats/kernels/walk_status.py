"""Why a compiled walk stopped."""

from __future__ import annotations

NEED_MORE = 0
AT_BLANK = 1
DISLIKED = 2
OUTPUT_FULL = 3
NOT_RESIDENT = 4
