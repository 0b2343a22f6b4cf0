"""Changes: plan, journal, steps, undo, resume, lock, and the only writer."""
