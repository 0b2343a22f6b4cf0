"""What every plan states beside its steps: what it was made from, and what is lost."""
