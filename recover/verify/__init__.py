"""Every part of a store against every other, never stopping at the first problem."""

from recover.verify.report import PARTS, VerifyReport, verify

__all__ = ["PARTS", "VerifyReport", "verify"]
