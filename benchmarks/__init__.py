"""Brokers' recovery and ours, timed in turn on the same stores: `python -m benchmarks`, `make bench`."""
