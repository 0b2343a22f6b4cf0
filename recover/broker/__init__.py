"""Broker behaviour, release by release: settings, the check of a record, where recovery starts and ends."""
