"""Benchmarks: readers, class lists, splits and the data check."""
