"""The parts of a store and the way to their bytes: files, sizes, what did not change, what is not read."""
