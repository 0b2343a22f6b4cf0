"""One report on a whole store: `report.verify` runs it."""
