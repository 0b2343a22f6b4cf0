"""Messages out of a store, in bulk: where they come from, which are wanted, how they are written."""
