"""What derives from the log (queues, their ext units, index files, checkpoint): computed, compared, written."""
