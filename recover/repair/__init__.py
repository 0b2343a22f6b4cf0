"""What recover, truncate and the rebuilds plan, and what each plan states beside its steps."""
