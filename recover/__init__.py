"""What to do about a store: scan, verify, predict, plan, apply. Decides and changes, never prints."""
