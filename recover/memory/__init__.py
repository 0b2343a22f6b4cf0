"""Where rows and indexes are kept during a look: memory up to a limit, unnamed scratch files beyond it."""
