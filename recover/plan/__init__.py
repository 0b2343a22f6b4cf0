"""Changes as data: steps, the content they put in place, what they were planned on, the journal of runs."""
