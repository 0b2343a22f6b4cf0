"""Every part of a store against every other, never stopping at the first problem; `report.verify` runs it all."""
