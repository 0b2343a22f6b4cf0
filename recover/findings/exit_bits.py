"""The bits of the exit code. `mqtool/exits.py` has the table that people see of them."""

CLEAN = 0
CORRECTED = 1
DERIVED = 2
MESSAGES = 4
OPERATIONAL = 8
USAGE = 16
INTERRUPTED = 32
UNSUPPORTED = 64
BUG = 128

OF_SEVERITY = {"info": CLEAN, "warning": DERIVED, "error": MESSAGES}
