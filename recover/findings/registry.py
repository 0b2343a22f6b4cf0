"""The registry of finding codes: one module an area, one line a module."""

from __future__ import annotations

from recover.findings.code import Code
from recover.findings.derived_codes import CHECKPOINT_CODES, CONSUMEQUEUE_CODES, INDEX_CODES
from recover.findings.log_codes import COMMITLOG_CODES
from recover.findings.store_codes import CONFIG_CODES, FLEET_CODES, PARTS_CODES, PLAN_CODES, PREDICT_CODES

AREAS: tuple[tuple[Code, ...], ...] = (
    COMMITLOG_CODES,
    CONSUMEQUEUE_CODES,
    INDEX_CODES,
    CHECKPOINT_CODES,
    CONFIG_CODES,
    PARTS_CODES,
    PLAN_CODES,
    PREDICT_CODES,
    FLEET_CODES,
)

CODES: dict[str, Code] = {code.name: code for area in AREAS for code in area}
