"""The log turned into rows, a file or split at a time, and put together: live records, damage, tail, ghosts."""
