"""The parts of a store and access to their bytes: files, sizes, what is unchanged, what is not read."""
