"""Consume queues, index and checkpoint computed from the log: as a plan, or in a folder of their own."""
