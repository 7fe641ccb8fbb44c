"""Readers: what lists and opens the images of a benchmark as they lie on disk."""
