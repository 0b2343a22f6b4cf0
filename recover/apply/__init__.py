"""Plans carried out, resumed and taken back, step by step."""
