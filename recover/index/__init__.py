"""Index files: their bytes, and the keys that they should hold."""
