"""The registry of finding codes: one module an area, one line a module."""

from __future__ import annotations

from recover.codes.checkpoint import CHECKPOINT_CODES
from recover.codes.commitlog import COMMITLOG_CODES
from recover.codes.config import CONFIG_CODES
from recover.codes.consumequeue import CONSUMEQUEUE_CODES
from recover.codes.index import INDEX_CODES
from recover.codes.parts import PARTS_CODES
from recover.codes.plan import PLAN_CODES
from recover.codes.predict import PREDICT_CODES
from recover.finding_code import Code

AREAS: tuple[tuple[Code, ...], ...] = (
    COMMITLOG_CODES,
    CONSUMEQUEUE_CODES,
    INDEX_CODES,
    CHECKPOINT_CODES,
    CONFIG_CODES,
    PARTS_CODES,
    PLAN_CODES,
    PREDICT_CODES,
)

CODES: dict[str, Code] = {code.name: code for area in AREAS for code in area}
