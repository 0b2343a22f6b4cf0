"""What can be shown of a store or a file: inspect and query."""
