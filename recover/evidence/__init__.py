"""What records, units, the index and neighbours say of one another: what is lost, what is denied, what was there."""
