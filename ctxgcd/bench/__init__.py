"""Benchmarks of the workflow's steps, each compared with a plain reference in the same run."""
