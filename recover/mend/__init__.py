"""What `mqtool recover` does to a damaged log, and to config files."""
