"""The files of a store: which there are, how they are read, and how they looked when they were."""
