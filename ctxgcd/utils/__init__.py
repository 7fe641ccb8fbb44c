"""Helpers: files, user tables, progress, terminals, signals and random streams."""
