"""The commitlog as rows: scan, order, damage, tail, generations."""
