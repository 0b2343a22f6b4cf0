"""Rehearsals: a copy of a store, damaged by a named recipe."""
