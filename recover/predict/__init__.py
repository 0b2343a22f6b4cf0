"""A broker's start, played: load, recovery, dispatch into queues and index, and what that costs."""
