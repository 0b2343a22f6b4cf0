"""Findings, their codes, and refusals."""
