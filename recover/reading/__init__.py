"""What records, units, the index and neighbours prove about one another: lost, contradicted and overwritten
messages."""
